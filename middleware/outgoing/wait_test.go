package outgoing

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
)

// TestBackoffIsDrawn: full jitter from a time that doubles up to Longest; a server's time goes first,
// and a retry comes at most Base later.
func TestBackoffIsDrawn(t *testing.T) {
	g := guard(t, Policy{Retry: Retry{Base: 100 * time.Millisecond, Longest: 300 * time.Millisecond}})
	for n, most := range map[int]time.Duration{1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 3: 300 * time.Millisecond, 9: 300 * time.Millisecond} {
		var longest, shortest time.Duration = 0, time.Hour
		for range 2000 {
			d := g.backoff(n, Standing{})
			longest, shortest = max(longest, d), min(shortest, d)
		}
		if longest > most || longest < most*9/10 || shortest > most/10 {
			t.Errorf("before attempt %d: %v to %v, want 0 to %v", n+1, shortest, longest, most)
		}
	}
	for range 100 {
		if d := g.backoff(1, Standing{Wait: true, RetryAfter: time.Second}); d < time.Second || d > 1100*time.Millisecond {
			t.Errorf("%v after a Retry-After of a second", d)
		}
	}
}

// TestBudgetIsPaidBack: a retry that was not sent costs nothing.
func TestBudgetIsPaidBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := guard(t, Policy{Throttle: Throttle{Off: true}, Retry: Retry{Reserve: 1, Attempts: 2}})
		sent := 0
		try := func(int) Result {
			sent++
			return Result{Outcome: Refused, Again: true}
		}
		for range 5 { // given up in the wait for the retry
			ctx, cancel := context.WithCancel(t.Context())
			c := Call{Host: "a"}
			_, err := g.Do(ctx, c, func(n int) Result {
				time.AfterFunc(0, cancel)
				return try(n)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if sent != 5 || g.Stats().Retries != 0 {
			t.Fatalf("%d sent, %+v", sent, g.Stats())
		}
		for range 2 {
			if _, err := g.Do(t.Context(), Call{Host: "a"}, try); err != nil {
				t.Fatal(err)
			}
		}
		if s := g.Stats(); sent != 8 || s.Retries != 1 || s.Unpaid != 1 {
			t.Errorf("%d sent, %+v, want one retry, and one that the budget does not allow", sent, s)
		}
	})
}

// TestOneWaitInAll: the wait for the server and that for one's own limit are together at most MaxWait.
func TestOneWaitInAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for maxWait, want := range map[time.Duration]time.Duration{20 * time.Second: 15 * time.Second, 14 * time.Second: 0} {
			own, err := limit.NewLimiter(limit.Policy{Rate: limit.PerMinute(4), Burst: 1}) // one in 15 s
			if err != nil {
				t.Fatal(err)
			}
			g := guard(t, Policy{Limit: own, MaxWait: maxWait})
			begin := time.Now()
			a, err := g.Begin(t.Context(), Call{Host: "a"})
			if err != nil {
				t.Fatal(err)
			}
			a.End(Refused, Standing{Wait: true, RetryAfter: 8 * time.Second})
			_, err = g.Begin(t.Context(), Call{Host: "a"})
			var r *Refusal
			switch took := time.Since(begin); {
			case want > 0 && (err != nil || took != want):
				t.Errorf("MaxWait %v: %v after %v, want %v: 8s for the server and 7s for the limit", maxWait, err, took, want)
			case want == 0 && (!errors.As(err, &r) || r.Cause != Limited || took > 9*time.Second):
				t.Errorf("MaxWait %v: %v after %v, want a refusal after 8s", maxWait, err, took)
			}
		}
	})
}

// TestDelay: what a leaky bucket holds back is sent later.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := guard(t, Policy{Limit: late{}})
		begin := time.Now()
		if _, err := g.Begin(t.Context(), Call{Host: "a"}); err != nil || time.Since(begin) != time.Second {
			t.Errorf("%v after %v, want a second", err, time.Since(begin))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := g.Begin(ctx, Call{Host: "a"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the end of the context", err)
		}
	})
}

type late struct{}

func (late) Take(context.Context, limit.Request) (limit.Decision, error) {
	return limit.Decision{Allowed: true, Delay: time.Second}, nil
}

// TestCallsClass: the class of a call goes before that of its context.
func TestCallsClass(t *testing.T) {
	g := guard(t, Policy{})
	ctx := WithCriticality(t.Context(), Sheddable)
	for range 10 {
		a, err := g.Begin(ctx, Call{Host: "a", Criticality: CriticalPlus})
		if err != nil {
			t.Fatal(err)
		}
		a.End(Refused, Standing{})
	}
	// Refusals of the highest class count for all.
	a, err := g.Begin(ctx, Call{Host: "a", Criticality: Critical})
	if s := g.Stats(); err != nil || s.Probes != 1 {
		t.Errorf("%v, %+v, want a probe", err, s)
	} else {
		a.End(Dropped, Standing{})
	}
}

// TestNamesAreCut: hosts and scopes may come from strangers.
func TestNamesAreCut(t *testing.T) {
	g := guard(t, Policy{})
	long := strings.Repeat("h", 255)
	a, err := g.Begin(t.Context(), Call{Host: long + "1", Scope: long + "1"})
	if err != nil || len(a.call.Host) != 255 || len(a.call.Scope) != 255 {
		t.Errorf("%v, %d and %d bytes", err, len(a.call.Host), len(a.call.Scope))
	}
}

func TestPolicyBounds(t *testing.T) {
	for _, p := range []Policy{
		{},
		{Retry: Retry{Attempts: 10, Percent: 100, Reserve: 1000, Base: time.Hour, Longest: time.Hour}, LongestHold: 24 * time.Hour, MaxHosts: 1_000_000},
		{Retry: Retry{Attempts: 1, Base: time.Millisecond, Longest: time.Millisecond}, LongestHold: time.Second, MaxHosts: 1, Throttle: Throttle{K: 1.1}},
	} {
		if _, err := New(p); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
	for want, p := range map[string]Policy{
		"Percent is -1": {Retry: Retry{Percent: -1}}, "Percent is 101": {Retry: Retry{Percent: 101}},
		"Attempts is -1": {Retry: Retry{Attempts: -1}}, "Attempts is 11": {Retry: Retry{Attempts: 11}},
		"Base is 1µs": {Retry: Retry{Base: time.Microsecond}}, "Longest 2h": {Retry: Retry{Longest: 2 * time.Hour}},
		"LongestHold is 25h": {LongestHold: 25 * time.Hour}, "MaxHosts is 1000001": {MaxHosts: 1_000_001}, "MaxWait is -1ns": {MaxWait: -1},
		"K is 1,": {Throttle: Throttle{K: 1}},
	} {
		if _, err := New(p); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "outgoing: ") {
			t.Errorf("%+v: error %v, want %q", p, err, want)
		}
	}
}

// TestRefusalSays: the text names the server, the cause and the time.
func TestRefusalSays(t *testing.T) {
	for want, r := range map[string]*Refusal{
		`outgoing: not sent to "a": the server asked to wait ("logins"); retry after 7s`: refusal("a", Held, "logins", limit.ReasonRate, 7*time.Second),
		`outgoing: not sent to "a": the server refuses too much; retry after 500ms`:      refusal("a", Throttled, throttleName, limit.ReasonSuppressed, time.Second/2),
		`outgoing: not sent to "a\n": limit "own" refused; no wait helps`:                refusal("a\n", Limited, "own", limit.ReasonCost, limit.Never),
	} {
		if r.Error() != want || r.Temporary() != (r.RetryAfter() != limit.Never) {
			t.Errorf("%s\nwant %s", r, want)
		}
	}
	if got := fmt.Sprint(Held, Throttled, Limited); got != "held throttled limited" {
		t.Error(got)
	}
	if s := (&Refusal{Host: "a"}).Error(); s == "" {
		t.Error("the zero Refusal says nothing")
	}
}
