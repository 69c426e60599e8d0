package throttle_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/throttle"
)

// answers counts how calls of Start have ended.
type answers struct {
	started, refused, evicted, timedOut, late, left, odd atomic.Int64
	running, most                                        atomic.Int64
}

func (a *answers) count(w *throttle.Work, d limit.Decision, err error) {
	switch {
	case err != nil && w == nil && !d.Allowed && len(d.Results) == 0 && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
		a.left.Add(1)
	case err == nil && d.Allowed && w != nil && len(d.Results) == 0:
		a.started.Add(1)
	case err == nil && !d.Allowed && w == nil && len(d.Results) == 1 && d.Status == 503 && d.RetryAfter() > 0:
		switch d.Results[0].Reason {
		case limit.ReasonQueueFull:
			a.refused.Add(1)
		case limit.ReasonEvicted:
			a.evicted.Add(1)
		case limit.ReasonQueueTimeout:
			a.timedOut.Add(1)
		case limit.ReasonDeadline:
			a.late.Add(1)
		default:
			a.odd.Add(1)
		}
	default:
		a.odd.Add(1)
	}
}

// storm has callers come at random, with deadlines, cancels and costs of their own, and holds t to
// it that each is answered once.
func storm(t *testing.T, o throttle.Options, seed uint64, callers int) *answers {
	t.Helper()
	th := newThrottle(t, o)
	a := &answers{}
	var all sync.WaitGroup
	root := rand.New(rand.NewPCG(seed, 48))
	for range callers {
		r := rand.New(rand.NewPCG(root.Uint64(), 1))
		all.Go(func() {
			<-time.After(time.Duration(r.IntN(200_000)) * time.Microsecond)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			switch r.IntN(4) {
			case 0:
				stop := time.AfterFunc(time.Duration(r.IntN(40_000))*time.Microsecond, cancel)
				defer stop.Stop()
			case 1:
				ctx, cancel = context.WithTimeout(ctx, time.Duration(1+r.IntN(60_000))*time.Microsecond)
				defer cancel()
			}
			w, d, err := th.Start(ctx, throttle.Request{
				Route: "r" + strconv.Itoa(r.IntN(3)), Criticality: throttle.Criticality(r.IntN(5)),
				User: "u" + strconv.Itoa(r.IntN(50)), Cost: time.Duration(r.IntN(4)) * time.Millisecond,
			})
			a.count(w, d, err)
			if w == nil {
				return
			}
			if n := a.running.Add(1); n > a.most.Load() {
				a.most.Store(n)
			}
			select {
			case <-time.After(time.Duration(r.IntN(5_000)) * time.Microsecond):
			case <-w.Context().Done():
			}
			if r.IntN(3) == 0 {
				w.SetCost(time.Duration(r.IntN(6)) * time.Millisecond)
			}
			if r.IntN(10) == 0 {
				th.Cancel(w.ID())
			}
			a.running.Add(-1)
			w.Done()
			if r.IntN(10) == 0 {
				w.Done()
			}
		})
	}
	all.Wait()
	got := a.started.Load() + a.refused.Load() + a.evicted.Load() + a.timedOut.Load() + a.late.Load() + a.left.Load()
	s := th.Stats()
	counted := uint64(0)
	for _, c := range s.Classes {
		counted += c.Admitted + c.Refused + c.Evicted + c.Expired + c.Left
		if c.Done != c.Admitted {
			t.Errorf("%d were admitted and %d done", c.Admitted, c.Done)
		}
	}
	if got != int64(callers) || a.odd.Load() > 0 || s.Waiting != 0 || s.Running != 0 || s.WaitingCost != 0 || len(th.Running(10)) != 0 {
		t.Errorf("%d of %d were answered, %d oddly; %+v", got, callers, a.odd.Load(), s)
	}
	// A context that had ended before Start was called is not counted by the Throttle.
	if lost := uint64(callers) - counted; lost > uint64(a.left.Load()) {
		t.Errorf("%d of %d are in the figures", counted, callers)
	}
	if o.Concurrency > 0 && a.most.Load() > int64(o.Concurrency) {
		t.Errorf("%d ran at once, %d may", a.most.Load(), o.Concurrency)
	}
	return a
}

var storms = []throttle.Options{
	{Concurrency: 4, MaxWaiting: 16, MaxWait: 20 * time.Millisecond},
	{Rate: 2, MaxWaiting: 64, MaxWaitingCost: 30 * time.Millisecond, MaxWait: 30 * time.Millisecond, NewestFirst: true},
	{Rate: 3, Concurrency: 20, Adaptive: &throttle.Adaptive{Min: 2}, MaxWaiting: 32},
}

// Requests that start, are refused, evicted, have waited too long, would be late, or whose callers
// leave: each is answered once, with its reason. In virtual time all of them occur.
func TestStorm(t *testing.T) {
	if testing.Short() {
		t.Skip("TestStormInRealTime has the same goroutines: nothing for the race detector")
	}
	for i, o := range storms {
		var started, refused, evicted, timedOut, late, left int64
		for seed := range seeding.Draw(t, 5) {
			synctest.Test(t, func(t *testing.T) {
				a := storm(t, o, seed, 2000)
				started, refused, evicted = started+a.started.Load(), refused+a.refused.Load(), evicted+a.evicted.Load()
				timedOut, late, left = timedOut+a.timedOut.Load(), late+a.late.Load(), left+a.left.Load()
			})
		}
		if started == 0 || refused == 0 || evicted == 0 || left == 0 || late == 0 || i < 2 && timedOut == 0 {
			t.Errorf("storm %d: started %d, refused %d, evicted %d, timed out %d, late %d, left %d", i, started, refused, evicted, timedOut, late, left)
		}
	}
}

// The same with real threads and timers, for the race detector.
func TestStormInRealTime(t *testing.T) {
	for _, o := range storms {
		storm(t, o, 1, 3000)
	}
}
