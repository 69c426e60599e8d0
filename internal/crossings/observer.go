package crossings

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/observe"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// MinWindow is how long a window is at least whose crossings are found. Not shorter: a key that is always at its limit
// has events in each window, and clocks of servers differ by a part of a second.
const MinWindow = time.Minute

// looks is how many keys may wait to be looked at because something was given back. What gives back waits when
// there are more.
const looks = 1024

// Limit is a limit whose crossings are found.
type Limit struct {
	Name string
	// Watch are the kinds that are asked for.
	Watch Kinds
	// SoftPercent of the nominal count is the soft threshold; 0 = none. HardPercent of it is the quota; 0 = 100.
	SoftPercent, HardPercent int
	Shadow                   bool
	// Show returns the attributes of a key of its counters.
	Show func(key []byte) []limit.Attribute
	// Specs are those of its counters. Those with windows shorter than [MinWindow], or without any, are left out.
	Specs []store.Spec
}

// watched is one counter of a limit.
type watched struct {
	*Limit
	id     string
	quota  int64
	window time.Duration
	fixed  bool
}

// Observer has a [Watcher] see how keys stand after what an engine takes and gives back, for the limits that
// [Observer.Watch] names. It is safe for concurrent use. Make it with [NewObserver].
type Observer struct {
	watcher *Watcher
	of      atomic.Pointer[map[string]*watched] // by the ID of the counters
	looks   chan look
}

// look is a key of which something was given back.
type look struct {
	of     *watched
	charge store.Charge
	amount int64
}

var _ observe.Observer = (*Observer)(nil)

// NewObserver returns an observer for w. No limit is watched yet.
func NewObserver(w *Watcher) *Observer {
	o := &Observer{watcher: w, looks: make(chan look, looks)}
	o.Watch(nil)
	return o
}

// Watch says which limits are watched from now on.
func (o *Observer) Watch(limits []Limit) {
	of := make(map[string]*watched)
	for i := range limits {
		l := &limits[i]
		for _, spec := range l.Specs {
			p := spec.Policy
			if w := p.Window(); w >= MinWindow && !p.Unlimited && p.Algorithm != limit.Concurrency && l.Watch != 0 {
				of[spec.ID] = &watched{l, spec.ID, p.Quota(), w, p.Algorithm == limit.FixedWindow}
			}
		}
	}
	o.of.Store(&of)
}

// Observe implements [observe.Observer]. Keys of which something was given back, and those that were granted more, are
// looked at afterwards.
func (o *Observer) Observe(e observe.Event) {
	of := *o.of.Load()
	if len(of) == 0 {
		return
	}
	for i := range e.Charges {
		c := &e.Charges[i]
		w := of[c.Counters.Spec().ID]
		switch {
		case w == nil:
		case e.Kind == observe.Reset:
			o.look(w, c, math.MaxInt64)
		case e.Kind != observe.Taken:
			o.look(w, c, c.Cost)
		case !c.Failed:
			o.note(w, c, 0)
		}
	}
}

// note has the watcher see how a key stands. back is how much was given back before.
func (o *Observer) note(w *watched, c *store.Charge, back int64) {
	quota, nominal := w.quota, w.quota
	if c.HasQuota {
		quota, nominal = c.Quota, c.Quota-c.Granted
	}
	if w.HardPercent > 0 {
		nominal = nominalOf(nominal, w.HardPercent)
	}
	used := max(quota-c.Verdict.Remaining, 0)
	refused := !c.Verdict.Allowed && c.Verdict.Reason == limit.ReasonRate &&
		!(c.CountRefused && c.Shadow && !w.Shadow) // what is charged afterwards is no request
	// Nearly all requests end here.
	if !refused && back == 0 && used < quota && (w.SoftPercent == 0 || !Above(used, nominal, w.SoftPercent)) {
		return
	}
	st := Standing{
		Counter: w.id, Name: w.Name, Key: c.Key, Show: w.Show, Watch: w.Limit.Watch, Window: w.window,
		Used: used, Quota: quota, Nominal: nominal, SoftPercent: w.SoftPercent, Refused: refused, Lowered: back, Shadow: w.Shadow,
	}
	if w.fixed && c.Verdict.ResetAfter > 0 && c.Verdict.ResetAfter != limit.Never {
		st.End = o.watcher.opts.Now().Add(c.Verdict.ResetAfter)
	}
	o.watcher.Note(&st)
}

// nominalOf returns the count of which quota is so many percent, at least 100.
func nominalOf(quota int64, percent int) int64 {
	return int64(fixed.MulDivUp(uint64(max(quota, 0)), 100, uint64(percent)))
}

func (o *Observer) look(w *watched, c *store.Charge, amount int64) {
	if amount <= 0 || w.Limit.Watch&(Lifted|Eased) == 0 {
		return
	}
	o.looks <- look{w, store.Charge{
		Counters: c.Counters, Key: slices.Clone(c.Key), Quota: c.Quota, HasQuota: c.HasQuota, Granted: c.Granted, OnFailure: store.FailAllow,
	}, amount}
}

// Peeker says how counters stand, as [store.Store] has it.
type Peeker interface {
	Peek(ctx context.Context, charges []store.Charge) (allowed bool, err error)
}

// Run asks the engine about keys of which something was given back, and notes what the watcher finds, until ctx ends; then
// what was found by then. Nothing is given back afterwards.
func (o *Observer) Run(ctx context.Context, engine Peeker) {
	noting, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	noted := make(chan struct{})
	go func() {
		defer close(noted)
		o.watcher.Run(noting)
	}()
	for done := ctx.Done(); ; {
		select {
		case l := <-o.looks:
			o.see(noting, engine, &l)
			continue
		default:
		}
		select {
		case l := <-o.looks:
			o.see(noting, engine, &l)
		case <-done:
			stop()
			<-noted
			return
		}
	}
}

func (o *Observer) see(ctx context.Context, engine Peeker, l *look) {
	one := [1]store.Charge{l.charge}
	// A store that does not answer says so itself; what is missed is found by the next refund, if at all.
	if _, err := engine.Peek(ctx, one[:]); err == nil && !one[0].Failed {
		o.note(l.of, &one[0], l.amount)
	}
}
