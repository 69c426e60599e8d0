package throttle

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/stint-io/stint/internal/waitline"
)

// Culprits says which running requests are named as the cause of an overload: those that have cost
// far more than was predicted, while others wait. The zero value is ready for use.
//
// A culprit is named once, by a line of the log, Hooks.OnCulprit and [Running.Culprit]. As Atropos
// (SOSP 2025) does it, Cancel may end the culprit rather than those that wait for it.
type Culprits struct {
	// Factor is how many times its prediction a culprit has cost; 0 = 5, at least 1. Not
	// smaller: one request in ten is above a p90, and routes with a tail reach some times of it.
	Factor float64

	// AtLeast is the least CPU time of a culprit; 0 = 25 ms. Not smaller: what it holds up
	// would hardly be noticed. Not larger: it is to be named within 100 ms, and has a core to
	// itself at best.
	AtLeast time.Duration

	// Cancel is asked about the dearest culprit every 20 ms, as long as others wait. If it
	// returns true the context of the request is cancelled with the cause [ErrCancelled]; nil
	// cancels none. See [CancelAbove]. A handler that does not watch its context runs on. It is
	// called by one goroutine at a time and must not wait.
	Cancel func(Running) bool

	// Log gets a line about a culprit, at most one in a second; nil = slog.Default().
	Log *slog.Logger
}

// CancelAbove is a policy for Culprits.Cancel: a culprit is cancelled when it has cost more than
// cpu.
func CancelAbove(cpu time.Duration) func(Running) bool {
	return func(r Running) bool { return r.Cost > cpu }
}

const (
	// lookEvery is the time between looks at running requests. Not longer: a culprit is to be
	// named within 100 ms, and must cost AtLeast before. Not shorter: each look takes the lock.
	lookEvery = 20 * time.Millisecond

	culpritFactor  = 5
	culpritAtLeast = 25 * time.Millisecond
	logEvery       = time.Second
	maxLogged      = 128 // bytes of a route or user in the log
)

func (c *Culprits) check() error {
	if c.Factor != 0 && !(c.Factor >= 1) || math.IsInf(c.Factor, 1) {
		return fmt.Errorf("throttle: Culprits.Factor %v is not a number from 1, such as 5", c.Factor)
	}
	if c.AtLeast < 0 || c.AtLeast > maxDuration {
		return fmt.Errorf("throttle: Culprits.AtLeast %v is not from 0 to %v", c.AtLeast, maxDuration)
	}
	return nil
}

func (c *Culprits) setDefaults() {
	if c.Factor == 0 {
		c.Factor = culpritFactor
	}
	if c.AtLeast == 0 {
		c.AtLeast = culpritAtLeast
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
}

// watch is what looks at running requests leave behind, under the lock of its Throttle.
type watch struct {
	next      int64 // when to look; 0 = nothing runs
	contended bool  // somebody waited since the last look
	named     uint64
	cancelled uint64

	logged   int64  // when a line was logged last; 0 = never
	unlogged uint64 // culprits without a line since then
}

// report is what a look found. It is worked off without the lock.
type report struct {
	named    []Running
	unlogged uint64
	log      bool
	dearest  *Running // of the culprits that are not cancelled
}

// nextLook is when running requests are looked at. The time stays while they come and go, so that
// cheap requests do not set a timer each.
func (t *Throttle) nextLook(now int64) int64 {
	if t.watch.next == 0 {
		if t.running.first == nil {
			return waitline.Never
		}
		t.watch.next = now + int64(lookEvery)
	}
	return t.watch.next
}

// look charges requests that have cost more than was predicted while they run, so that what they
// take is not all owed at their end, and finds the culprits among them. Under the lock.
func (t *Throttle) look(now int64) (r report) {
	c := &t.options.Culprits
	contended := t.watch.contended || t.machine.Waiting() > 0
	t.watch.contended, t.watch.next = false, 0
	if !contended && t.options.Rate == 0 {
		return r // nobody is held up, and there is no bucket to charge
	}
	teach, _ := t.options.Predict.(interface{ Exceeded(string, time.Duration) })
	for w := t.running.first; w != nil; w = w.next {
		if now-w.item.Started() < int64(lookEvery) {
			break // those behind it are younger
		}
		cost := t.costSoFar(w)
		if cost <= w.predicted {
			continue
		}
		t.machine.Charge(now, &w.item, int64(cost))
		if teach != nil {
			teach.Exceeded(w.request.Route, cost)
		}
		if !contended || cost < c.AtLeast || float64(cost) < c.Factor*float64(w.predicted) {
			continue
		}
		if !w.culprit {
			w.culprit = true
			t.watch.named++
			r.named = append(r.named, t.describe(w, now))
		}
		if !w.cancelled && (r.dearest == nil || cost > r.dearest.Cost) {
			dearest := t.describe(w, now)
			r.dearest = &dearest
		}
	}
	r.log, r.unlogged = t.mayLog(now, uint64(len(r.named)))
	return r
}

// mayLog says whether the first of so many culprits has a line in the log, and how many had none
// since the last line.
func (t *Throttle) mayLog(now int64, named uint64) (ok bool, unlogged uint64) {
	v := &t.watch
	switch {
	case named == 0:
		return false, 0
	case v.logged != 0 && now-v.logged < int64(logEvery):
		v.unlogged += named
		return false, 0
	}
	unlogged, v.logged, v.unlogged = v.unlogged+named-1, now, 0
	return true, unlogged
}

// tell works off what a look has found, without the lock.
func (t *Throttle) tell(r report) {
	c := &t.options.Culprits
	if r.log {
		t.logCulprit(r.named[0], r.unlogged)
	}
	if t.options.Hooks.OnCulprit != nil {
		for _, named := range r.named {
			t.options.Hooks.OnCulprit(named)
		}
	}
	if r.dearest != nil && c.Cancel != nil && c.Cancel(*r.dearest) && t.Cancel(r.dearest.ID) {
		c.Log.Warn("throttle: a running request is cancelled", attributes(t.options.Name, *r.dearest)...)
	}
}

func (t *Throttle) logCulprit(r Running, unlogged uint64) {
	all := attributes(t.options.Name, r)
	if unlogged > 0 {
		all = append(all, "others", unlogged)
	}
	t.options.Culprits.Log.Log(context.Background(), slog.LevelWarn, "throttle: a running request costs far more than predicted while others wait", all...)
}

func attributes(name string, r Running) []any {
	return []any{
		"throttle", name, "id", r.ID, "route", bounded(r.Route), "user", bounded(r.User),
		"criticality", r.Criticality.String(), "age", r.Age, "cost", r.Cost, "predicted", r.Predicted,
	}
}

// bounded is s without the control characters and the length that a client may choose.
func bounded(s string) string {
	cut := []rune(s[:min(len(s), maxLogged)])
	for i, c := range cut {
		if c < ' ' || c >= 0x7f && c < 0xa0 {
			cut[i] = '?'
		}
	}
	return string(cut)
}
