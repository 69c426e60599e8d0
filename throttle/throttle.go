package throttle

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/admission"
	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

// ErrCancelled is the cause with which [Throttle.Cancel] ends the context of a running request.
var ErrCancelled = errors.New("throttle: the request was cancelled to protect the server")

// Request is what a Throttle has to know of a request. The zero value is valid.
type Request struct {
	// Route is the signature: requests of one are expected to cost the same. A method with the
	// pattern of a path, say, and never a path with identifiers.
	Route string

	Criticality Criticality

	// Level came with the request and overrides the level of its user, if HasLevel.
	Level    uint8
	HasLevel bool

	// User chooses the level inside the class, see LevelOf; "" = Key.
	User string

	// Key is who competes with others inside the class: each key gets the same share of what is
	// served; "" = User.
	Key string

	// Cost is the CPU time that it will take; 0 = as the Predictor says. More than an hour
	// counts as an hour.
	Cost time.Duration
}

// Throttle runs what the server can, has a bounded number of requests wait and turns the rest
// away. It has no goroutine, and one timer. It is safe for concurrent use; it must not be copied.
type Throttle struct {
	options Options
	origin  time.Time
	seed    maphash.Seed
	calls   waitline.Dispatcher // unused: all waiters block

	mu      sync.Mutex
	machine *admission.Machine
	timer   waitline.Timer[Throttle]
	running works
	lastID  uint64
	classes [CriticalPlus + 1]ClassStats
	errors  estimate
	watch   watch
	begun   func(route string) // of the Predictor; nil = it does not want to know
}

// New returns a Throttle. It needs no Close.
func New(o Options) (*Throttle, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	o.setDefaults()
	c := admission.Config{
		Rate: o.Rate, Burst: int64(o.Burst), Concurrency: o.Concurrency,
		MaxWaiting: o.MaxWaiting, MaxCost: int64(o.MaxWaitingCost), MaxWait: int64(o.MaxWait),
		NewestFirst: o.NewestFirst,
	}
	if o.Adaptive != nil {
		c.Floor = max(1, o.Adaptive.Min)
	}
	t := &Throttle{options: o, origin: time.Now(), seed: maphash.MakeSeed(), machine: admission.New(c)}
	if p, ok := o.Predict.(interface{ Started(route string) }); ok {
		t.begun = p.Started
	}
	return t, nil
}

// Start waits until r may run. The Work is nil unless d.Allowed; its Done must be called.
//
// A request that is refused or evicted, waits for MaxWait, or would not be done by the deadline
// of ctx has a Decision with the reason. err is for a ctx that ends first and for a request that
// is not valid. Each call returns exactly once, with one of the three.
func (t *Throttle) Start(ctx context.Context, r Request) (w *Work, d limit.Decision, err error) {
	if err := r.check(); err != nil {
		return nil, limit.Decision{}, err
	}
	if err := ctx.Err(); err != nil {
		return nil, limit.Decision{}, err
	}
	w = t.work(ctx, r)
	deadline, bounded := ctx.Deadline()

	t.mu.Lock()
	now := t.now()
	w.item.Deadline = waitline.Never
	if bounded {
		w.item.Deadline = max(1, int64(limit.Time(1).Add(deadline.Sub(t.origin))))
	}
	t.machine.Offer(now, &w.item)
	waits := w.item.State() == admission.Waiting
	if waits {
		w.signal = waitline.Wake()
		t.watch.contended = true
	} else {
		d = t.outcome(w, now)
	}
	t.settle(now)
	t.mu.Unlock()
	if !waits {
		return t.answer(w, d)
	}

	err = w.signal.Await(ctx, func() bool { return t.leave(w) })
	if err != nil {
		t.left(w)
		return nil, limit.Decision{}, err
	}
	return t.answer(w, w.decision)
}

// spare has the Works of refused requests, which nobody else has seen: under overload most are.
var spare = sync.Pool{New: func() any { return new(Work) }}

// work returns the Work of r, not offered yet.
func (t *Throttle) work(ctx context.Context, r Request) *Work {
	user, key := r.User, r.Key
	if user == "" {
		user = r.Key
	}
	if key == "" {
		key = r.User
	}
	level := r.Level
	if !r.HasLevel {
		level = LevelOf(user)
	}
	cost := r.Cost
	if cost == 0 {
		cost = t.options.Predict.Predict(r.Route)
	}
	w := spare.Get().(*Work)
	w.throttle, w.parent, w.request, w.predicted = t, ctx, r, max(1, min(cost, maxPredicted))
	w.request.Level, w.request.Criticality = level, r.Criticality.orDefault()
	w.item = admission.Item{
		Class: uint8(w.request.Criticality), Level: level,
		Key: t.key(key), Route: maphash.String(t.seed, r.Route),
		Cost: int64(w.predicted), Of: w,
	}
	return w
}

// key is a key as a number, by a hash whose seed nobody knows, so that nobody can choose to share
// the number of another; 0 for no key.
func (t *Throttle) key(key string) uint64 {
	if key == "" {
		return 0
	}
	return max(1, maphash.String(t.seed, key))
}

func (r *Request) check() error {
	switch {
	case r.Criticality > CriticalPlus:
		return fmt.Errorf("throttle: a request of unknown %v", r.Criticality)
	case r.HasLevel && r.Level >= Levels:
		return fmt.Errorf("throttle: a request of level %d, want 0 to %d", r.Level, Levels-1)
	case r.Cost < 0:
		return fmt.Errorf("throttle: a request that costs %v, want 0 or more", r.Cost)
	}
	return nil
}

// now is nanoseconds since a moment before New, so that 0 is no time.
func (t *Throttle) now() int64 { return 1 + int64(time.Since(t.origin)) }

// settle tells those whose wait has ended and sets the timer, under the lock.
func (t *Throttle) settle(now int64) {
	for _, it := range t.machine.Ended() {
		w := it.Of.(*Work)
		w.decision = t.outcome(w, now)
		w.signal.End(&t.calls, nil)
	}
	t.timer.Set(t, (*Throttle).fire, min(t.machine.Next(), t.nextLook(now)), now)
}

func (t *Throttle) fire() {
	t.mu.Lock()
	t.timer.Fired()
	now := t.now()
	t.machine.Step(now)
	var found report
	if t.watch.next != 0 && t.watch.next <= now {
		found = t.look(now)
	}
	t.settle(now)
	t.mu.Unlock()
	t.tell(found)
}

// outcome counts how w has ended to wait and returns its Decision, under the lock, once.
func (t *Throttle) outcome(w *Work, now int64) limit.Decision {
	c := &t.classes[w.item.Class]
	w.waited = time.Duration(now - w.item.Arrived())
	switch w.item.State() {
	case admission.Running:
		c.Admitted++
		t.lastID++
		w.id = t.lastID
		t.running.push(w)
		w.mark = t.options.Meter.Begin()
		if t.begun != nil {
			t.begun(w.request.Route)
		}
		return limit.Decision{Allowed: true}
	case admission.Evicted:
		c.Evicted++
	case admission.Expired:
		c.Expired++
	default:
		c.Refused++
	}
	return t.refusal(w.item.Reason(), now)
}

// refusal is what a client is told: the server is busy, and when what waits now will have been
// served. That is an estimate, so clients are not asked back within less than a second.
func (t *Throttle) refusal(why limit.Reason, now int64) limit.Decision {
	return t.decision(why, max(time.Second, time.Duration(t.machine.Empty(now))))
}

func (t *Throttle) decision(why limit.Reason, retry time.Duration) limit.Decision {
	return limit.Decision{
		Status: http.StatusServiceUnavailable,
		Results: []limit.Result{{
			Limit: t.options.Name, Algorithm: limit.Concurrency, Quota: math.MaxInt64, Cost: 1,
			Verdict: limit.Verdict{Reason: why, RetryAfter: retry},
		}},
	}
}

// answer calls the hooks for w, whose wait has ended, and returns what Start does.
func (t *Throttle) answer(w *Work, d limit.Decision) (*Work, limit.Decision, error) {
	h := &t.options.Hooks
	if d.Allowed {
		if h.OnStart != nil {
			t.started(w)
		}
		return w, d, nil
	}
	if h.OnRefuse != nil {
		h.OnRefuse(w.request.Criticality, d.Results[0].Reason, w.waited)
	}
	*w = Work{}
	spare.Put(w)
	return nil, d, nil
}

// started calls the hook for w. If that panics nobody gets w, so its place is given back.
func (t *Throttle) started(w *Work) {
	returned := false
	defer func() {
		if !returned {
			w.Done()
		}
	}()
	t.options.Hooks.OnStart(w.request.Criticality, w.predicted, w.waited)
	returned = true
}

// leave takes w out of the queue, if it still waits.
func (t *Throttle) leave(w *Work) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	if !t.machine.Leave(now, &w.item) {
		return false
	}
	t.classes[w.item.Class].Left++
	w.waited = time.Duration(now - w.item.Arrived())
	t.settle(now)
	return true
}

func (t *Throttle) left(w *Work) {
	if h := &t.options.Hooks; h.OnLeave != nil {
		h.OnLeave(w.request.Criticality, w.waited)
	}
}
