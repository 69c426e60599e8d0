package crossings

import (
	"context"
	"math"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

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

// Store is a store whose takes and refunds a [Watcher] sees, for the limits that [Store.Watch] names. It is safe for
// concurrent use. Make it with [Watching].
type Store struct {
	store.BanKeeper
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

var _ store.BanKeeper = (*Store)(nil)

// Watching returns st, seen by w. No limit is watched yet.
func Watching(st store.BanKeeper, w *Watcher) *Store {
	s := &Store{BanKeeper: st, watcher: w, looks: make(chan look, looks)}
	s.Watch(nil)
	return s
}

// Watch says which limits are watched from now on.
func (s *Store) Watch(limits []Limit) {
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
	s.of.Store(&of)
}

// Take implements [store.Store].
func (s *Store) Take(ctx context.Context, charges []store.Charge) (bool, error) {
	allowed, err := s.BanKeeper.Take(ctx, charges)
	if err != nil {
		return allowed, err
	}
	of := *s.of.Load()
	if len(of) == 0 {
		return allowed, nil
	}
	for i := range charges {
		if c := &charges[i]; !c.Failed {
			if w := of[c.Counters.Spec().ID]; w != nil {
				s.note(w, c, 0)
			}
		}
	}
	return allowed, nil
}

// note has the watcher see how a key stands. back is how much was given back before.
func (s *Store) note(w *watched, c *store.Charge, back int64) {
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
		st.End = s.watcher.opts.Now().Add(c.Verdict.ResetAfter)
	}
	s.watcher.Note(&st)
}

// nominalOf returns the count of which quota is so many percent, at least 100.
func nominalOf(quota int64, percent int) int64 {
	hi, lo := bits.Mul64(uint64(max(quota, 0)), 100)
	lo, carry := bits.Add64(lo, uint64(percent)-1, 0)
	if hi += carry; hi >= uint64(percent) {
		return quota
	}
	n, _ := bits.Div64(hi, lo, uint64(percent))
	return int64(min(n, math.MaxInt64))
}

// Refund implements [store.Store]. The keys are looked at afterwards.
func (s *Store) Refund(ctx context.Context, charges []store.Charge) error {
	err := s.BanKeeper.Refund(ctx, charges)
	if err == nil {
		for i := range charges {
			s.look(&charges[i], charges[i].Cost)
		}
	}
	return err
}

// Reset implements [store.Store]. The keys are looked at afterwards.
func (s *Store) Reset(ctx context.Context, charges []store.Charge) error {
	err := s.BanKeeper.Reset(ctx, charges)
	if err == nil {
		for i := range charges {
			s.look(&charges[i], math.MaxInt64)
		}
	}
	return err
}

// Granted says that a key of the counters of that ID may use n more than before.
func (s *Store) Granted(c store.Counters, key []byte, n int64) {
	s.look(&store.Charge{Counters: c, Key: key}, n)
}

func (s *Store) look(c *store.Charge, amount int64) {
	w := (*s.of.Load())[c.Counters.Spec().ID]
	if w == nil || amount <= 0 || w.Limit.Watch&(Lifted|Eased) == 0 {
		return
	}
	s.looks <- look{w, store.Charge{
		Counters: c.Counters, Key: slices.Clone(c.Key), Quota: c.Quota, HasQuota: c.HasQuota, Granted: c.Granted, OnFailure: store.FailAllow,
	}, amount}
}

// Run looks at keys of which something was given back, and notes what the watcher finds, until ctx ends; then what was
// found by then. Nothing is given back afterwards.
func (s *Store) Run(ctx context.Context) {
	noting, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	noted := make(chan struct{})
	go func() {
		defer close(noted)
		s.watcher.Run(noting)
	}()
	for done := ctx.Done(); ; {
		select {
		case l := <-s.looks:
			s.see(noting, &l)
			continue
		default:
		}
		select {
		case l := <-s.looks:
			s.see(noting, &l)
		case <-done:
			stop()
			<-noted
			return
		}
	}
}

func (s *Store) see(ctx context.Context, l *look) {
	one := [1]store.Charge{l.charge}
	// A store that does not answer says so itself; what is missed is found by the next refund, if at all.
	if _, err := s.Peek(ctx, one[:]); err == nil && !one[0].Failed {
		s.note(l.of, &one[0], l.amount)
	}
}
