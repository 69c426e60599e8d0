package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Store is a [store.Store] in Redis or Valkey. Any number of them, in any number of
// processes, share the state of their limits when they have the same prefix. It
// is safe for concurrent use. Use [New]; the zero value is not ready.
type Store struct {
	opts  Options
	begin time.Time // carries the monotonic clock

	// For tests: now replaces the clock of the server and of this process, and hold is how many
	// milliseconds keys are kept after they could expire.
	now func() limit.Time
	// serverNow replaces the clock of the server alone.
	serverNow func() limit.Time
	hold      float64
	// server replaces the runs of the script, each of which is void after a moment of the server's clock.
	server func(ctx context.Context, batches []*batch, void []int64) []reply

	ctx    context.Context // ends when the Store closes
	cancel context.CancelFunc
	wg     sync.WaitGroup

	client       atomic.Pointer[rueidis.Client] // nil until the first contact
	tried        chan struct{}                  // closed once the first attempt to connect has ended
	lanes        []lane
	denials      denials
	bans         banIndex
	instances    atomic.Int64 // last seen at this prefix; 0 = Redis was never reached
	localCharges localCharges
	repaying     sync.Mutex
	assumed      sync.Once // the number of instances, which is logged
	presence     presence  // of the goroutine that runs maintain
	health       health
	stats        counts

	mu       sync.Mutex
	counters map[string]*Counters
	closed   bool
}

var _ store.Store = (*Store)(nil)

// Counters are the counters of one limit.
type Counters struct {
	store *Store
	id    string
	bound atomic.Pointer[bound]
	local localCounters
	bans  banTally
}

// bound is a policy in force and the prefix of its keys.
type bound struct {
	rule *rule
	head string
}

// Spec returns the identity and the policy in force.
func (c *Counters) Spec() store.Spec {
	return store.Spec{ID: c.id, Policy: c.bound.Load().rule.policy}
}

// keyGrace is how many milliseconds keys are kept after they could expire: a second, so that
// setting the server's clock back by less forgets nothing.
const keyGrace = 1000

// New returns a store that connects in the background. Requests wait for the end of the first
// attempt, within their time-out. While there is no connection, charges are decided as their
// OnFailure says, and [Store.Ready] returns the reason. The error of New says everything that is
// wrong with the options.
func New(o Options) (*Store, error) {
	return open(o, nil)
}

func open(o Options, now func() limit.Time) (*Store, error) {
	s, err := build(o, now)
	if err == nil {
		s.wg.Go(s.maintain)
	}
	return s, err
}

// build returns a store that does not connect.
func build(o Options, now func() limit.Time) (*Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	s := &Store{opts: o, begin: time.Now(), now: now, hold: keyGrace, counters: make(map[string]*Counters)}
	if now != nil {
		s.hold = float64(time.Hour / time.Millisecond)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.tried = make(chan struct{})
	s.denials.init()
	s.bans.init()
	s.lanes = make([]lane, s.laneCount())
	shared := newBreaker(s)
	for i := range s.lanes {
		s.lanes[i].store, s.lanes[i].breaker = s, shared
		if o.Topology == Cluster {
			s.lanes[i].breaker = newBreaker(s)
		}
	}
	s.health.lost(s, errConnecting)
	return s, nil
}

// clock is the time in nanoseconds by which this process measures waits.
func (s *Store) clock() int64 {
	if s.now != nil {
		return int64(s.now())
	}
	return int64(time.Since(s.begin))
}

// Bind returns the counters called spec.ID: those known, with the policy changed if it differs,
// or new ones. The state of a key that another policy wrote is converted when the key is next
// used. It returns an error for a policy that is not valid or that the script cannot count
// exactly, and for an empty ID.
func (s *Store) Bind(spec store.Spec) (store.Counters, error) {
	if spec.ID == "" {
		return nil, errors.New("redis: counters need an ID")
	}
	if err := spec.Policy.Validate(); err != nil {
		return nil, fmt.Errorf("redis: counters %q: %w", spec.ID, err)
	}
	r, err := newRule(spec.Policy)
	if err != nil {
		return nil, fmt.Errorf("redis: counters %q: %w", spec.ID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counters[spec.ID]
	if c == nil {
		c = &Counters{store: s, id: spec.ID}
		s.counters[spec.ID] = c
	}
	if b := c.bound.Load(); b == nil || b.rule.policy != spec.Policy {
		c.bound.Store(&bound{r, keyHead(s.opts.Prefix, r.kind, spec.ID)})
	}
	return c, nil
}

// Unbind forgets the counters here. Their state stays in Redis for other processes,
// until it expires.
func (s *Store) Unbind(c store.Counters) error {
	own, err := s.own(c)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counters[own.id] == own {
		delete(s.counters, own.id)
	}
	return own.local.drop(s)
}

// Close ends the connections and everything that was started. Operations under
// way fail. State stays in Redis.
func (s *Store) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	s.cancel()
	if c := s.client.Load(); c != nil {
		(*c).Close()
	}
	s.wg.Wait()
	for i := range s.lanes {
		s.lanes[i].mu.Lock()
		if w := s.lanes[i].watcher; w != nil {
			w.Stop()
		}
		s.lanes[i].mu.Unlock()
	}
	return nil
}

// start runs f in a goroutine that Close waits for; false when the store is closed.
func (s *Store) start(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.wg.Go(f)
	return true
}

func (s *Store) own(c store.Counters) (*Counters, error) {
	own, ok := c.(*Counters)
	if !ok || own == nil || own.store != s {
		return nil, fmt.Errorf("redis: counters %v were bound by another store", c)
	}
	return own, nil
}

// check returns an error for charges for which the arithmetic is not defined, before anything is
// taken.
func (s *Store) check(ctx context.Context, charges []store.Charge) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("redis: nothing taken: %w", err)
	}
	for i := range charges {
		if _, err := s.own(charges[i].Counters); err != nil {
			return err
		}
		if c := charges[i].Cost; c < 0 || c > limit.MaxCount {
			return fmt.Errorf("redis: cost %d is not within 0 and %d", c, int64(limit.MaxCount))
		}
		if q := charges[i].Quota; charges[i].HasQuota && q < 0 {
			return fmt.Errorf("redis: quota %d is negative", q)
		}

	}
	return nil
}

// Take decides all charges as one; see [store.Store]. It waits for Redis at most for
// Options.Timeout, or until ctx ends. Requests for a key that arrive while a call for it is
// under way are decided together by the next call, in their order. A refusal that only time can
// end is repeated without asking Redis again.
//
// In a Cluster, charges of several slots are taken concurrently, and given back when one
// refuses. While that takes, two exchanges and at most three times the timeout, other requests
// can be refused because of them.
func (s *Store) Take(ctx context.Context, charges []store.Charge) (bool, error) {
	return s.decide(ctx, verbTake, charges)
}

// Peek answers as Take would.
func (s *Store) Peek(ctx context.Context, charges []store.Charge) (bool, error) {
	return s.decide(ctx, verbPeek, charges)
}

// Refund gives back what each charge took.
func (s *Store) Refund(ctx context.Context, charges []store.Charge) error {
	return s.act(ctx, verbRefund, charges)
}

// Finish gives back the permits that the charges name.
func (s *Store) Finish(ctx context.Context, charges []store.Charge) error {
	return s.act(ctx, verbFinish, charges)
}

// Reset drops the state of each bucket.
func (s *Store) Reset(ctx context.Context, charges []store.Charge) error {
	return s.act(ctx, verbReset, charges)
}

func (s *Store) decide(ctx context.Context, v verb, charges []store.Charge) (bool, error) {
	if err := s.check(ctx, charges); err != nil {
		return false, err
	}
	o := newOperation(v, s.clock())
	o.fill(charges, true)
	if len(o.parts) == 0 {
		o.allowed = true
	} else if !s.denials.answer(s, o) {
		if o = s.perform(ctx, o); o == nil {
			return false, givenUp(ctx)
		}
	}
	s.stats.operations.Add(1)
	allowed, err := o.allowed, o.err
	if err == nil {
		o.answer(charges)
		if v == verbTake {
			s.bans.note(o)
		}
	}
	o.release()
	return allowed && err == nil, err
}

// act performs an operation that has no answer. An error that wraps
// store.ErrUnavailable says that some of it may not have been done.
func (s *Store) act(ctx context.Context, v verb, charges []store.Charge) error {
	if err := s.check(ctx, charges); err != nil {
		return err
	}
	local := s.actLocally(ctx, v, charges)
	o := newOperation(v, s.clock())
	for i := range charges {
		// A charge that was decided without the counters took nothing from them.
		if v != verbRefund || !charges[i].Failed {
			o.fill(charges[i:i+1], false)
			if v == verbRefund && charges[i].TakenAt > 0 && len(o.parts) > 0 {
				p := &o.parts[len(o.parts)-1]
				p.taken = s.serverTime(p.key, charges[i].TakenAt)
			}
		}
	}
	if len(o.parts) == 0 {
		o.release()
		return local
	}
	if o = s.perform(ctx, o); o == nil {
		return errors.Join(local, givenUp(ctx))
	}
	err := o.err
	o.release()
	return errors.Join(local, err)
}

// serverTime is a moment of this process's wall clock on the clock of the server that has a key, in microseconds,
// at least 1.
func (s *Store) serverTime(key string, at limit.Time) int64 {
	micros := int64(at) / 1000
	if s.now != nil {
		return max(micros, 1)
	}
	l := s.laneOf(key)
	var n uint16
	if s.opts.Topology == Cluster {
		n = slot(key)
	}
	l.mu.Lock()
	c, ok := l.clocks[n]
	l.mu.Unlock()
	if ok {
		ahead := c.server + (s.clock()-c.sent)/1000 - time.Now().UnixMicro()
		micros += ahead
	}
	return max(micros, 1)
}

func givenUp(ctx context.Context) error {
	return fmt.Errorf("redis: %w: %w", store.ErrUnavailable, context.Cause(ctx))
}

// jitter returns d, shortened by up to a half at random, so that many processes do not act at
// the same moment.
func jitter(d time.Duration) time.Duration { return d - time.Duration(rand.Int64N(int64(d)/2+1)) }
