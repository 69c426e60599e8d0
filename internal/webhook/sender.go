package webhook

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Outbox is where messages wait, by key. Several processes may deliver from the same one.
type Outbox interface {
	// Waiting returns keys that have messages, in order, at most most that come behind after.
	Waiting(ctx context.Context, after string, most int) ([]Waiting, error)
	// Counted tells how many keys Waiting has in all.
	Counted(n int)
	// Claim makes this process the one that delivers the messages of a key, for at most so long from now on. false =
	// another process is. Release ends that.
	Claim(ctx context.Context, key string, long time.Duration) (bool, error)
	Release(ctx context.Context, key string) error
	// Next returns the first message of a key, false when there is none.
	Next(ctx context.Context, key string) (Message, bool, error)
	// Delivered takes a message away.
	Delivered(ctx context.Context, key, id string) error
	// Nudged is sent to when a message comes.
	Nudged() <-chan struct{}
}

// Waiting is a key with messages. Version is another one when it has got another message.
type Waiting struct{ Key, Version string }

const (
	// workers is how many keys are delivered at once to a receiver that answers. Not more: it may be a small one.
	workers = 8
	// page is how many keys are read at once.
	page = 100
	// poll is how often the outbox is looked at for what other processes put there.
	poll = time.Second
	// rest is how long a key is left alone when it has no more messages, unless it gets another: a little longer
	// than an outbox needs to be sure that there are none.
	rest = 12 * time.Second
	// storeRetry is what is waited when the store does not answer, which it says itself, or another process
	// delivers a key.
	storeRetry = 6 * time.Second
	// firstRetry is what is waited after a failure, doubled up to lastRetry: a receiver that comes back gets what
	// waited within a minute, and one that is away is asked once a minute.
	firstRetry = time.Second
	lastRetry  = time.Minute
	// claim is how long a process may be silent until another goes on: an attempt, and answers of the store.
	claim = attemptTimeout + 30*time.Second
	// atEnd is what is left for attempts when the process ends.
	atEnd = 3 * time.Second
)

// Options are the parts of a [Sender]. Outbox is needed.
type Options struct {
	Outbox Outbox
	// Client nil = one with bounds that follows no redirects.
	Client *http.Client
	// Logger nil = slog.Default.
	Logger *slog.Logger
}

// Sender delivers messages while Run runs. It is safe for concurrent use. Make it with [New].
type Sender struct {
	opts   Options
	target atomic.Pointer[Target]
	wake   chan struct{} // there is another target

	mu       sync.Mutex
	keys     map[string]*key
	failures int // attempts in a row that the receiver did not answer as it should

	taken, refused, unreached atomic.Uint64
	failing                   atomic.Bool
}

// key is what is known of a key in the outbox.
type key struct {
	version  string
	until    time.Time // nothing is tried before
	empty    bool      // unless it gets another message
	failures int
	sent     string // the ID of a message that was taken, and may be in the outbox yet
	seen     bool
}

// Stats are figures of a process.
type Stats struct {
	// Taken counts messages that the receiver took, Refused attempts that it answered with an error, and
	// Unreached attempts that it did not answer.
	Taken, Refused, Unreached uint64
	// Failing says that the latest attempt was not taken.
	Failing bool
}

// New returns a sender without a target: it sends nothing until Aim says where to.
func New(o Options) *Sender {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Client == nil {
		o.Client = newClient()
	}
	s := &Sender{opts: o, wake: make(chan struct{}, 1), keys: make(map[string]*key)}
	s.target.Store(new(Target))
	return s
}

// Aim says where messages go from now on. A zero Target = nowhere: they wait.
func (s *Sender) Aim(t Target) {
	s.target.Store(&t)
	s.mu.Lock()
	s.failures = 0
	for _, k := range s.keys {
		k.until, k.failures = time.Time{}, 0
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Aimed reports whether there is a target.
func (s *Sender) Aimed() bool { return s.target.Load().URL != "" }

// Stats returns the figures.
func (s *Sender) Stats() Stats {
	return Stats{s.taken.Load(), s.refused.Load(), s.unreached.Load(), s.failing.Load()}
}

// Run delivers until ctx ends, and then what waits, for a moment.
func (s *Sender) Run(ctx context.Context) {
	for {
		pause := poll
		if s.Aimed() {
			pause = s.pass(ctx)
		}
		nudged := s.opts.Outbox.Nudged()
		if s.away() {
			nudged = nil // the receiver is away, whatever there is for it
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-nudged:
		case <-s.wake:
		case <-ctx.Done():
			timer.Stop()
			if !s.away() && s.Aimed() {
				last, cancel := context.WithTimeout(context.WithoutCancel(ctx), atEnd)
				s.pass(last)
				cancel()
			}
			return
		}
		timer.Stop()
	}
}

// pass delivers what is due, and returns how long to wait for the next pass.
func (s *Sender) pass(ctx context.Context) time.Duration {
	all, after := 0, ""
	tried := false // the receiver is away, and was asked whether it is back
	for {
		list, err := s.opts.Outbox.Waiting(ctx, after, page)
		if err != nil {
			return storeRetry
		}
		all += len(list)
		var running sync.WaitGroup
		slots := make(chan struct{}, workers)
		for _, w := range list {
			after = w.Key
			k := s.due(w, time.Now())
			switch {
			case k == nil || tried || ctx.Err() != nil:
			case s.away():
				tried = true
				s.deliver(ctx, w.Key, k)
				tried = s.away()
			default:
				slots <- struct{}{}
				running.Go(func() {
					defer func() { <-slots }()
					s.deliver(ctx, w.Key, k)
				})
			}
		}
		running.Wait()
		tried = tried || s.away()
		if len(list) < page {
			break
		}
	}
	s.opts.Outbox.Counted(all)
	s.tidy()
	if !tried {
		return poll
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return backoff(s.failures)
}

// due returns what is known of a key, nil when nothing is to be tried now.
func (s *Sender) due(w Waiting, now time.Time) *key {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.keys[w.Key]
	if k == nil {
		k = new(key)
		s.keys[w.Key] = k
	}
	k.seen = true
	another := k.version != w.Version
	k.version = w.Version
	if now.Before(k.until) && !(k.empty && another) {
		return nil
	}
	return k
}

// tidy forgets keys that were not waiting in a whole pass.
func (s *Sender) tidy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, k := range s.keys {
		if !k.seen {
			delete(s.keys, name)
		}
		k.seen = false
	}
}

func (s *Sender) away() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failures > 0
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

// deliver sends the messages of a key until one is not taken.
func (s *Sender) deliver(ctx context.Context, name string, k *key) {
	wait := storeRetry
	for {
		claimed, err := s.opts.Outbox.Claim(ctx, name, claim)
		if err != nil || !claimed {
			s.leave(k, wait)
			return
		}
		m, ok, err := s.opts.Outbox.Next(ctx, name)
		if err != nil || !ok {
			if err == nil {
				wait = rest
			}
			break
		}
		if k.sent != m.ID {
			if err := s.attempt(ctx, k, m); err != nil {
				// Other processes wait as well: the key stays claimed.
				_, _ = s.opts.Outbox.Claim(ctx, name, s.failed(ctx, k, err))
				return
			}
		}
		if err := s.opts.Outbox.Delivered(ctx, name, m.ID); err != nil {
			break // it is not sent again: k.sent
		}
	}
	s.leave(k, wait)
	_ = s.opts.Outbox.Release(ctx, name) // it ends by itself
}

// leave leaves a key alone for so long, or until it gets another message.
func (s *Sender) leave(k *key, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k.until, k.empty = time.Now().Add(wait), true
}

// attempt sends a message once.
func (s *Sender) attempt(ctx context.Context, k *key, m Message) error {
	// What has begun goes on for a moment when the process ends, lest it be sent twice.
	attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(atEnd, cancel) })
	defer stop()
	err := post(attempt, s.opts.Client, *s.target.Load(), m, time.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.taken.Add(1)
		if s.failing.Swap(false) {
			s.opts.Logger.Info("the webhook's receiver takes events again", "failures", s.failures)
		}
		s.failures, k.failures, k.sent = 0, 0, m.ID
	}
	return err
}

// failed counts an attempt that was not taken, and returns how long the key waits.
func (s *Sender) failed(ctx context.Context, k *key, err error) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	k.failures++
	wait := backoff(k.failures)
	var r *refusal
	if errors.As(err, &r) {
		s.refused.Add(1)
		wait = max(wait, r.after)
	} else {
		s.unreached.Add(1)
	}
	// Of an answer that refuses one message, others may be taken: the receiver is there.
	if r == nil || r.status/100 != 4 || r.status == http.StatusTooManyRequests {
		s.failures++
	}
	if !s.failing.Swap(true) && ctx.Err() == nil {
		s.opts.Logger.Error("the webhook's receiver does not take an event; it is sent again", "err", err)
	}
	k.until, k.empty = time.Now().Add(wait), false
	return wait
}
