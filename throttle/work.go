package throttle

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/admission"
	"github.com/stint-io/stint/internal/costs"
	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

// Work is one request that runs. It is safe for concurrent use.
type Work struct {
	throttle  *Throttle
	parent    context.Context
	request   Request // its Criticality and Level are those that count
	predicted time.Duration
	id        uint64
	mark      time.Duration // of the Meter
	signal    waitline.Signal
	decision  limit.Decision // of one that waited
	waited    time.Duration
	done      atomic.Bool

	// Under the Throttle's lock:
	item       admission.Item
	ctx        context.Context // nil until somebody asks
	cancel     context.CancelCauseFunc
	cancelled  bool
	soFar      time.Duration // what SetCost said
	hasCost    bool
	culprit    bool
	left       bool       // it goes on without a place
	pin        *costs.Pin // nil = its thread is not known
	prev, next *Work      // of those that run
}

type workKey struct{}

// Context returns the context of the request: the one that Start got, from which the Work can be
// found. It ends with that one, when the Work is cancelled, and when it is done.
func (w *Work) Context() context.Context {
	t := w.throttle
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.ctx == nil {
		w.ctx, w.cancel = context.WithCancelCause(context.WithValue(w.parent, workKey{}, w))
		switch {
		case w.cancelled:
			w.cancel(ErrCancelled)
		case w.item.State() != admission.Running && !w.left:
			w.cancel(context.Canceled)
		}
	}
	return w.ctx
}

// FromContext returns the Work that a context belongs to, or nil.
func FromContext(ctx context.Context) *Work {
	w, _ := ctx.Value(workKey{}).(*Work)
	return w
}

// SetCost says what CPU time the request that ctx belongs to has taken so far. It reports
// whether there is one.
func SetCost(ctx context.Context, cpu time.Duration) bool {
	w := FromContext(ctx)
	if w == nil {
		return false
	}
	w.SetCost(cpu)
	return true
}

// ID is the number of the Work, by which [Throttle.Cancel] finds it.
func (w *Work) ID() uint64 { return w.id }

// Importance returns the class and level of the request, to be sent on with the requests that
// it makes itself.
func (w *Work) Importance() Importance {
	return Importance{Criticality: w.request.Criticality, Level: w.request.Level, HasLevel: true}
}

// SetCost says what CPU time the request has taken so far, for example from a measurement of
// its own or of a server behind. What is above the prediction is charged at once. The last
// call before Done is what it has cost; below 0 is ignored.
func (w *Work) SetCost(cpu time.Duration) {
	if cpu < 0 {
		return
	}
	t := w.throttle
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.item.State() != admission.Running {
		return
	}
	w.soFar, w.hasCost = min(cpu, maxActual), true
	t.machine.Charge(t.now(), &w.item, int64(w.soFar))
}

// HasCost says whether SetCost or SetUsage said what the request has cost.
func (w *Work) HasCost() bool {
	w.throttle.mu.Lock()
	defer w.throttle.mu.Unlock()
	return w.hasCost
}

// Done says that the request has run. Later calls do nothing.
func (w *Work) Done() { w.end(false) }

// Leave is Done for a request that goes on without a place, such as a stream whose answer has begun: its context ends with
// the one that Start got.
func (w *Work) Leave() { w.end(true) }

func (w *Work) end(goesOn bool) {
	if w.done.Swap(true) {
		return
	}
	t := w.throttle
	actual, service := t.finish(w, goesOn, t.options.Meter.End(w.mark, t.service(w)))
	t.options.Predict.Observe(w.request.Route, w.predicted, actual)
	if h := &t.options.Hooks; h.OnDone != nil {
		h.OnDone(w.request.Criticality, w.predicted, actual, service)
	}
}

// service is how long w has run.
func (t *Throttle) service(w *Work) time.Duration {
	return time.Duration(t.now() - w.item.Started())
}

// finish ends w. What was said counts before what was measured.
func (t *Throttle) finish(w *Work, goesOn bool, measured time.Duration) (actual, service time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	service = time.Duration(now - w.item.Started())
	actual = min(measured+w.pinned(), maxActual)
	if w.hasCost {
		actual = w.soFar
	}
	t.errors.observe(w.predicted, actual)
	t.classes[w.item.Class].Done++
	t.running.remove(w)
	t.machine.Finish(now, &w.item, int64(actual), !w.cancelled)
	if w.left = goesOn; w.cancel != nil && !goesOn {
		w.cancel(context.Canceled)
	}
	t.settle(now)
	return actual, service
}

// Cancel ends the context of a running request with the cause ErrCancelled. It reports whether
// there is such a request that was not cancelled before. The request keeps its place until its
// Done is called.
func (t *Throttle) Cancel(id uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for w := t.running.first; w != nil; w = w.next {
		if w.id != id {
			continue
		}
		if w.cancelled {
			return false
		}
		w.cancelled = true
		t.watch.cancelled++
		if w.cancel != nil {
			w.cancel(ErrCancelled)
		}
		return true
	}
	return false
}

// Refusal returns what the client of a request that was cancelled is told: that it was too dear.
// It is no use to try again soon, so no time is named. ok is false while it is not cancelled.
func (w *Work) Refusal() (d limit.Decision, ok bool) {
	t := w.throttle
	t.mu.Lock()
	defer t.mu.Unlock()
	if !w.cancelled {
		return limit.Decision{}, false
	}
	return t.decision(limit.ReasonCancelled, limit.Never), true
}

// works is the list of those that run, in the order in which they started.
type works struct{ first, last *Work }

func (l *works) push(w *Work) {
	w.prev = l.last
	if l.last == nil {
		l.first = w
	} else {
		l.last.next = w
	}
	l.last = w
}

func (l *works) remove(w *Work) {
	if w.prev == nil {
		l.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
}

// Running is one running request.
type Running struct {
	ID          uint64
	Route       string
	User        string
	Criticality Criticality
	Age         time.Duration // since it started
	Predicted   time.Duration
	Cost        time.Duration // so far: what SetCost said, else what the Meter measured
	Culprit     bool          // see Culprits
	Cancelled   bool
}

// describe returns what is known of w, which runs. Under the lock.
func (t *Throttle) describe(w *Work, now int64) Running {
	return Running{
		ID: w.id, Route: w.request.Route, User: w.request.User, Criticality: w.request.Criticality,
		Age: time.Duration(now - w.item.Started()), Predicted: w.predicted, Cost: t.costSoFar(w),
		Culprit: w.culprit, Cancelled: w.cancelled,
	}
}

// Running returns the n dearest running requests, the dearest first.
func (t *Throttle) Running(n int) []Running {
	if n <= 0 {
		return nil
	}
	t.mu.Lock()
	now := t.now()
	var all []Running
	for w := t.running.first; w != nil; w = w.next {
		all = append(all, t.describe(w, now))
	}
	t.mu.Unlock()
	slices.SortStableFunc(all, func(a, b Running) int { return cmp.Compare(b.Cost, a.Cost) })
	return all[:min(n, len(all))]
}
