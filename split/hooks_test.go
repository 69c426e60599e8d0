package split_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/split"
)

// heard records the calls of hooks.
type heard struct {
	sync.Mutex
	lines []string
}

func (h *heard) add(format string, args ...any) {
	h.Lock()
	defer h.Unlock()
	h.lines = append(h.lines, fmt.Sprintf(format, args...))
}

func (h *heard) hooks() limit.Hooks {
	return limit.Hooks{
		OnAdmit:     func(name string, cost int64) { h.add("admit %s %d", name, cost) },
		OnRefuse:    func(name string, cost int64, why limit.Reason) { h.add("refuse %s %d %v", name, cost, why) },
		OnWaitStart: func(name string, cost int64) { h.add("start %s %d", name, cost) },
		OnWaitEnd: func(name string, cost int64, waited time.Duration, err error) {
			h.add("end %s %d %v %v", name, cost, waited, err)
		},
	}
}

func (h *heard) want(t *testing.T, want ...string) {
	t.Helper()
	h.Lock()
	defer h.Unlock()
	if !slices.Equal(h.lines, want) {
		t.Errorf("told %q\nwant %q", h.lines, want)
	}
	h.lines = nil
}

// TestHooks: hooks are called once for each admission, refusal and wait, with its cost, its reason, its length
// and its end; not for a peek, and not for a wait that fails at once.
func TestHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		l := newLimiter(t, split.Terms{Total: limit.PerSecond(1), Burst: 2, Part: split.Instance(0, 1)}, split.Options{Name: "mail", Hooks: h.hooks()})
		time.Sleep(10 * time.Second)
		l.Allow()
		l.AllowN(time.Now(), 1)
		h.want(t, "admit mail 1", "admit mail 1")
		l.Allow()
		l.AllowN(time.Now(), 2)
		l.AllowN(time.Now(), 3)
		l.AllowN(time.Now(), -1)
		h.want(t, "refuse mail 1 rate_exceeded", "refuse mail 2 rate_exceeded", "refuse mail 3 cost_exceeds_limit", "refuse mail -1 cost_exceeds_limit")
		for _, req := range []limit.Request{{}, {Peek: true}, {Cost: 3}} {
			if _, err := l.Take(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		h.want(t, "refuse mail 1 rate_exceeded", "refuse mail 3 cost_exceeds_limit")

		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.want(t, "start mail 1", "end mail 1 1s <nil>", "admit mail 1")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		if err := l.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if err := l.WaitMax(t.Context(), time.Millisecond); !errors.Is(err, limit.ErrWaitTooLong) {
			t.Fatal(err)
		}
		h.want(t, "start mail 1", "end mail 1 100ms context canceled")

		leave := l.WaitFunc(1, limit.Never, func(error) { t.Error("called") })
		l.WaitFunc(1, limit.Never, func(err error) { h.add("done %v", err) })
		l.WaitFunc(3, limit.Never, func(error) { h.add("done too late") })
		if l.Allow() {
			t.Error("a waiter was overtaken")
		}
		time.Sleep(400 * time.Millisecond)
		if !leave() || leave() {
			t.Error("the place is not given up once")
		}
		time.Sleep(time.Second)
		h.want(t, "start mail 1", "start mail 1", "done too late", "refuse mail 1 rate_exceeded",
			"end mail 1 400ms context canceled", "end mail 1 900ms <nil>", "admit mail 1", "done <nil>")

		time.Sleep(time.Second)
		l.WaitFunc(1, 0, func(err error) { h.add("done %v", err) })
		time.Sleep(time.Second)
		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.want(t, "admit mail 1", "done <nil>", "admit mail 1")
	})
}

// TestHooksOfAChange: a wait that a change of the terms ends is told with that error.
func TestHooksOfAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		l := newLimiter(t, split.Terms{Total: limit.PerSecond(1), Part: split.Instance(0, 1)}, split.Options{Hooks: h.hooks()})
		time.AfterFunc(300*time.Millisecond, func() {
			if err := l.SetTotal(limit.Rate{Count: 1, Period: time.Hour}); err != nil {
				t.Error(err)
			}
		})
		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := l.WaitMax(t.Context(), 2*time.Second)
		if !errors.Is(err, limit.ErrWaitTooLong) {
			t.Fatal(err)
		}
		h.want(t, "admit split 1", "start split 1", "end split 1 300ms "+err.Error())
	})
}
