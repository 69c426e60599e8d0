package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// listen starts a client that writes down what it logs, and what its hooks are called with.
func listen(t *testing.T, h *hub) (c *Client, log *bytes.Buffer, told func() []string) {
	t.Helper()
	var mu sync.Mutex
	var lines []string
	add := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, fmt.Sprintf(format, args...))
	}
	log = new(bytes.Buffer)
	c, err := New(Options{
		Transport: h, Address: "a", Instance: "i", Logger: slog.New(slog.NewTextHandler(log, nil)),
		OnFault: func(name string, err error) { add("fault %s %v", name, errors.Is(err, ErrRefused)) },
		Hooks: limit.Hooks{
			OnRefuse:    func(name string, cost int64, _ limit.Reason) { add("refuse %s %d", name, cost) },
			OnSkip:      func(name string) { add("skip %s", name) },
			OnWaitStart: func(name string, cost int64) { add("start %s %d", name, cost) },
			OnWaitEnd: func(name string, cost int64, _ time.Duration, err error) {
				add("end %s %d %v", name, cost, err)
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); done.Wait() })
	return c, log, func() []string {
		synctest.Wait() // for those that are being logged
		mu.Lock()
		defer mu.Unlock()
		out := lines
		lines = nil
		return out
	}
}

// A name that the coordinator does not know is an error of the caller, one line in the
// log and one call of the hook, however often it is asked and renewed; and again when it
// happens anew.
func TestWrongNameIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["right"] = rateOf(100, 10)
		c, log, told := listen(t, h)
		wrong := openLimit(t, c, "wrnog", LimitOptions{})
		right := openLimit(t, c, "right", LimitOptions{})
		for range 20 {
			if _, err := wrong.Take(t.Context(), limit.Request{}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "no limit of that name") {
				t.Fatalf("Take: %v", err)
			}
			if err := wrong.Wait(t.Context()); !errors.Is(err, ErrRefused) {
				t.Fatalf("Wait: %v", err)
			}
			if d, err := right.Take(t.Context(), limit.Request{}); err != nil || !d.Allowed {
				t.Fatalf("the right one: %+v, %v", d, err)
			}
			time.Sleep(time.Second)
		}
		if got := told(); !slices.Equal(got, []string{"fault wrnog true"}) {
			t.Errorf("told %q", got)
		}
		if n := strings.Count(log.String(), "wrnog"); strings.Count(log.String(), "\n") != 1 || n == 0 {
			t.Errorf("the log is\n%s", log)
		}
		// As a semaphore the right one is of the wrong kind.
		right.Close()
		time.Sleep(time.Second)
		g, err := c.Semaphore("right", LimitOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Take(t.Context(), limit.Request{}); !errors.Is(err, ErrKind) {
			t.Errorf("as a gauge: %v", err)
		}
		if got := told(); !slices.Equal(got, []string{"fault right false"}) {
			t.Errorf("told %q", got)
		}
	})
}

// Requests that lack the key's attribute are no error where others may have it; each is
// reported, and logged once. See TestWrongAttributes of server for those that
// no request can have.
func TestWrongKeyNameIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(100, 10)
		c, log, told := listen(t, h)
		k, err := c.Keyed("m", []string{"acount"}, KeyedOptions{})
		if err != nil {
			t.Fatal(err)
		}
		req := limit.Request{Attributes: []limit.Attribute{{Name: "account", Value: "secret"}}}
		for range 3 {
			if d, err := k.Take(t.Context(), req); err != nil || !d.Allowed || len(d.Results) != 0 {
				t.Fatalf("%+v, %v", d, err)
			}
		}
		if got := told(); !slices.Equal(got, []string{"skip m", "skip m", "skip m"}) {
			t.Errorf("told %q", got)
		}
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "acount") || strings.Contains(text, "secret") {
			t.Errorf("the log is\n%s", text)
		}
	})
}

// TestLowerEpochIsSaid: a coordinator of a lower epoch, whose grants count for nothing, is
// logged once, and once more when that happens again.
func TestLowerEpochIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(100, 10)
		h.start(100, 0)
		c, log, _ := listen(t, h)
		l := openLimit(t, c, "m", LimitOptions{})
		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		for round, highest := range []uint64{100, 101} {
			h.mu.Lock()
			h.old = true
			h.start(50, 0)
			h.mu.Unlock()
			time.Sleep(3 * time.Second)
			synctest.Wait()
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			if want := fmt.Sprintf("epoch=50 highest=%d", highest); len(lines) != round+1 || !strings.Contains(lines[round], want) || !strings.Contains(lines[round], "lower epoch") {
				t.Fatalf("want %d lines, the last with %q, the log is\n%s", round+1, want, log)
			}
			h.mu.Lock()
			h.old = false // it goes above the highest
			h.mu.Unlock()
			time.Sleep(10 * time.Second)
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Refusals and waits on a lease call the hooks.
func TestLeaseHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(10, 2)
		c, _, told := listen(t, h)
		l := openLimit(t, c, "m", LimitOptions{Ask: -1})
		if err := l.Wait(t.Context()); err != nil { // for the first lease
			t.Fatal(err)
		}
		for l.Allow() {
		}
		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := told(); !slices.Equal(got, []string{"start m 1", "end m 1 <nil>", "refuse m 1", "start m 1", "end m 1 <nil>"}) {
			t.Errorf("told %q", got)
		}
		if d, err := l.Take(t.Context(), limit.Request{}); err != nil || d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
		if _, err := l.Take(t.Context(), limit.Request{Peek: true}); err != nil {
			t.Fatal(err)
		}
		leave := l.WaitFunc(1, limit.Never, func(error) { t.Error("told") })
		leave()
		done := make(chan error, 1)
		l.WaitFunc(1, limit.Never, func(err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got := told(); !slices.Equal(got, []string{"refuse m 1", "start m 1", "end m 1 context canceled", "start m 1", "end m 1 <nil>"}) {
			t.Errorf("told %q", got)
		}
	})
	if len(wayOut) != 6 || lease.StatusOK != 0 {
		t.Error("a status is missing")
	}
}
