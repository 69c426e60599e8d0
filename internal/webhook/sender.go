package webhook

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/due"
	"github.com/stint-io/stint/limit"
)

const (
	// MaxWaiting bounds the queue of messages. Each takes at least half a kilobyte, and a receiver may be down for hours.
	MaxWaiting = 10_000
	// MaxAge is how long a message is tried.
	MaxAge = 24 * time.Hour

	// workers bounds the concurrent requests to a receiver that answers, which may be a small server.
	workers = 8
	// firstRetry is what is waited after a failure, doubled up to lastRetry: a receiver that comes back gets what
	// waited within a minute, and one that is away is asked once a minute.
	firstRetry = time.Second
	lastRetry  = time.Minute
	// atEnd is what is left for attempts when the process ends.
	atEnd = 3 * time.Second
)

// Options are the parts of a [Sender].
type Options struct {
	// Dial nil = as package net does.
	Dial Dial
	// Logger nil = slog.Default.
	Logger *slog.Logger
}

// Sender sends messages while Run runs. It is safe for concurrent use. Make it with [New].
type Sender struct {
	log    *slog.Logger
	client *http.Client
	began  time.Time
	wake   chan struct{} // what next returned may have changed

	mu       sync.Mutex
	target   Target
	keys     map[string]*key // those with messages
	due      due.Queue[*key] // those of which none is being sent, by when one may be
	sending  int             // messages that are being sent
	failures int             // times in a row that the receiver did not answer as it should
	until    limit.Time      // nothing is sent to it before
	stats    Stats
}

// key has the messages of a key, the first one first. Its sender's lock is held for all of it.
type key struct {
	name     string
	messages []waiting
	failures int // of the first one
	place    due.Place
}

type waiting struct {
	Message
	since limit.Time
}

// Place implements [due.Value].
func (k *key) Place() *due.Place { return &k.place }

// Stats are figures of a process.
type Stats struct {
	// Waiting is how many messages wait.
	Waiting int
	// Taken counts messages that the receiver took, Refused attempts that it answered with an error, and
	// Unreached attempts that it did not answer.
	Taken, Refused, Unreached uint64
	// Full counts messages that were dropped because MaxWaiting waited, Old those that waited for MaxAge, and Left
	// those that waited when Run ended.
	Full, Old, Left uint64
	// Failing says that the latest attempt was not taken.
	Failing bool
}

// New returns a sender without a target: it sends nothing until Aim says where to.
func New(o Options) *Sender {
	return &Sender{log: cmp.Or(o.Logger, slog.Default()), client: newClient(o.Dial), began: time.Now(), wake: make(chan struct{}, 1), keys: make(map[string]*key)}
}

// now is the time since New, by the monotonic clock.
func (s *Sender) now() limit.Time { return limit.Time(time.Since(s.began)) }

// Aim says where messages go from now on. A zero Target = nowhere: those that wait go on waiting.
func (s *Sender) Aim(t Target) {
	s.mu.Lock()
	s.target = t
	s.mu.Unlock()
	s.retry()
}

// retry has all that waits sent at once.
func (s *Sender) retry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures, s.until = 0, 0
	now := s.now()
	s.expire(now)
	for _, k := range s.keys {
		if k.failures = 0; k.place.In() {
			s.due.Set(k, now)
		}
	}
	s.changed()
}

func (s *Sender) changed() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Stats returns the figures.
func (s *Sender) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Send has a message of a key sent, behind the key's others. It does not wait, and does nothing without a target.
func (s *Sender) Send(name string, m Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.target.URL == "" {
		return
	}
	if s.stats.Waiting == MaxWaiting {
		s.stats.Full++
		return
	}
	s.stats.Waiting++
	now := s.now()
	k := s.keys[name]
	if k == nil {
		k = &key{name: name}
		s.keys[name] = k
		s.due.Set(k, now)
		s.changed()
	}
	k.messages = append(k.messages, waiting{m, now})
}

// Run sends until ctx is done, and then what waits, for a moment.
func (s *Sender) Run(ctx context.Context) {
	last, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var attempts sync.WaitGroup
	for done := ctx.Done(); last.Err() == nil; {
		k, to, pause := s.next()
		if k != nil {
			attempts.Go(func() { s.attempt(last, k, to) })
			continue
		}
		if ctx.Err() != nil && s.Stats().Waiting == 0 {
			break
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-s.wake:
		case <-last.Done():
		case <-done:
			done = nil
			defer time.AfterFunc(atEnd, cancel).Stop()
			s.retry()
		}
		timer.Stop()
	}
	attempts.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stats.Left = uint64(s.stats.Waiting); s.stats.Left > 0 {
		s.log.Error("the process ends, and events were not delivered to the webhook's receiver", "events", s.stats.Left)
	}
}

// next returns a key whose first message is to be sent now, and where to. If there is none, it returns how long that
// stays so, unless wake says otherwise.
func (s *Sender) next() (k *key, to Target, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := workers
	if s.failures > 0 {
		most = 1 // which finds out whether the receiver is back
	}
	at, ok := s.due.First()
	if !ok || s.target.URL == "" || s.sending >= most {
		return nil, to, lastRetry
	}
	now := s.now()
	if at = max(at, s.until); at > now {
		return nil, to, time.Duration(at - now)
	}
	k, _ = s.due.Due(now)
	s.due.Remove(k)
	s.sending++
	return k, s.target, 0
}

// expire drops messages that are too old. The lock is held.
func (s *Sender) expire(now limit.Time) {
	for _, k := range s.keys {
		for k.place.In() && now >= k.messages[0].since.Add(MaxAge) {
			s.stats.Old++
			s.remove(k)
		}
	}
}

// remove takes the first message of a key away. The lock is held.
func (s *Sender) remove(k *key) {
	s.stats.Waiting--
	k.failures = 0
	if k.messages = slices.Delete(k.messages, 0, 1); len(k.messages) == 0 {
		delete(s.keys, k.name)
		s.due.Remove(k)
	}
}

// backoff is what is waited after so many failures: between a half and the whole of a time that doubles, so that
// processes that failed together do not try together.
func backoff(failures int) time.Duration {
	d := lastRetry
	if failures < 8 {
		d = min(firstRetry<<max(failures-1, 0), lastRetry)
	}
	return d/2 + rand.N(d/2)
}

// attempt sends the first message of a key once.
func (s *Sender) attempt(ctx context.Context, k *key, to Target) {
	s.mu.Lock()
	m := k.messages[0].Message
	s.mu.Unlock()
	attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	err := post(attempt, s.client, to, m, time.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.changed()
	s.sending--
	now := s.now()
	if err != nil {
		s.due.Set(k, now.Add(s.failed(ctx, k, err, now)))
		s.expire(now)
		return
	}
	s.stats.Taken++
	if s.stats.Failing {
		s.log.Info("the webhook's receiver takes events again", "failures", s.failures)
	}
	s.stats.Failing, s.failures, s.until = false, 0, 0
	if s.remove(k); len(k.messages) > 0 {
		s.due.Set(k, now)
	}
}

// failed counts an attempt that was not taken, and returns how long the key waits. The lock is held.
func (s *Sender) failed(ctx context.Context, k *key, err error, now limit.Time) time.Duration {
	k.failures++
	wait := backoff(k.failures)
	var r *refusal
	if errors.As(err, &r) {
		s.stats.Refused++
		wait = max(wait, r.after)
	} else {
		s.stats.Unreached++
	}
	// Of an answer that refuses one message, others may be taken: the receiver is there. Attempts that were made at
	// the same time fail once.
	if (r == nil || r.status/100 != 4 || r.status == http.StatusTooManyRequests) && now >= s.until {
		s.failures++
		s.until = now.Add(backoff(s.failures))
	}
	if !s.stats.Failing && ctx.Err() == nil {
		s.log.Error("the webhook's receiver does not take an event; it is sent again", "err", err)
	}
	s.stats.Failing = true
	return wait
}
