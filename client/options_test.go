package client

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
)

// press asks for one every pause until d has passed, and counts what was admitted.
func press(l *Limiter, d, pause time.Duration) (admitted int) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(pause) {
		if l.Allow() {
			admitted++
		}
	}
	return admitted
}

// TestSilent: an instance that does not report has an equal part, whatever it uses, and
// nobody waits for answers that would change nothing.
func TestSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(100, 20)
		quiet := openLimit(t, h.run(t, "quiet"), "m", LimitOptions{Silent: true})
		other := openLimit(t, h.run(t, "other"), "m", LimitOptions{})
		if err := quiet.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		press(other, 3*time.Second, 2*time.Millisecond)
		if n := press(other, 4*time.Second, 2*time.Millisecond); n < 190 || n > 202 {
			t.Errorf("%d admitted in 4 s beside a silent instance, want half of 100/s", n)
		}
		if st := quiet.Lease(); st.Rate != 50 {
			t.Errorf("a silent instance of two has %v/s of 100", st.Rate)
		}
		for quiet.Allow() {
		}
		begin := time.Now()
		d, err := quiet.Take(t.Context(), limit.Request{})
		if err != nil || d.Allowed || time.Since(begin) != 0 || d.Results[0].Reason != limit.ReasonRate {
			t.Errorf("Take = %+v, %v after %v", d, err, time.Since(begin))
		}
		if n := press(quiet, 4*time.Second, 2*time.Millisecond); n < 190 || n > 202 {
			t.Errorf("%d admitted in 4 s by the silent instance, want half of 100/s", n)
		}
	})
}

// TestDeclared: the lease is what the application says that it wants, before it asks for
// anything; and asking for more takes nothing from others who want it.
func TestDeclared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"], h.terms["n"], h.terms["jobs"] = rateOf(100, 20), rateOf(100, 20), placesOf(10)
		c := h.run(t, "one")
		l := openLimit(t, c, "m", LimitOptions{Estimator: Declared})
		g, err := c.Semaphore("jobs", LimitOptions{Estimator: Declared})
		if err != nil {
			t.Fatal(err)
		}
		k, err := c.Keyed("n", []string{"account"}, KeyedOptions{LimitOptions: LimitOptions{Estimator: Declared}, MaxKeys: 1, Idle: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		acme := limit.Request{Attributes: []limit.Attribute{{Name: "account", Value: "acme"}}}
		for _, err := range []error{l.Demand(40), g.Demand(4), k.Demand(acme, 30)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Second)
		if st := l.Lease(); st.Demand != 40 || st.Rate < 40 { // and head-room
			t.Errorf("40/s declared: %+v", st)
		}
		if st := g.Lease(); st.Demand != 4 || st.Burst != 4 {
			t.Errorf("4 places declared: %+v", st)
		}
		e := k.at("\x04acme")
		if st := e.limiter.Lease(); st.Demand != 30 || st.Rate < 30 {
			t.Errorf("30/s of a key declared: %+v", st)
		}
		other := openLimit(t, h.run(t, "two"), "m", LimitOptions{})
		go press(l, 8*time.Second, 2*time.Millisecond)
		press(other, 4*time.Second, 2*time.Millisecond)
		if n := press(other, 4*time.Second, 2*time.Millisecond); n < 225 || n > 250 {
			t.Errorf("%d admitted in 4 s beside 40/s declared of 100/s", n)
		}
		other.Close()
		if err := l.Demand(0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if st := l.Lease(); st.Demand != 0 || st.Rate != 0 {
			t.Errorf("nothing declared: %+v", st)
		}
		for _, bad := range []float64{-1, math.NaN(), math.Inf(1), 1e300} {
			if l.Demand(bad) == nil || g.Demand(bad) == nil || k.Demand(acme, bad) == nil {
				t.Errorf("a demand of %v is taken", bad)
			}
		}
		zeta := limit.Request{Attributes: []limit.Attribute{{Name: "account", Value: "zeta"}}}
		if k.Demand(limit.Request{}, 1) == nil || k.Demand(acme, 2) != nil || k.Demand(zeta, 1) == nil {
			t.Error("a key without its attribute, or one too many, can be demanded")
		}
	})
}

// TestOptionsAreChecked: every wrong option is named before anything is opened.
func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]Options{
		"no address": {}, "grace": {Address: "a", Grace: -1}, "instance": {Address: "a", Instance: "\xff"},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	c, err := New(Options{Address: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]LimitOptions{
		"estimator": {Estimator: 9}, "expiry": {Expiry: 9}, "start": {Start: OptimisticStart(-1)},
		"slow rate": {Adjust: &Adjustment{SlowRate: math.NaN()}}, "part": {Adjust: &Adjustment{Convergence: 2}},
	} {
		if _, err := c.Limit("m", o); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if _, err := c.Semaphore("m", LimitOptions{Adjust: &Adjustment{}}); err == nil {
		t.Error("a gauge has no rate to adjust")
	}
	if _, err := c.Limit("", LimitOptions{}); err == nil {
		t.Error("a limit without a name")
	}
	if _, err := c.Keyed("m", nil, KeyedOptions{}); err == nil {
		t.Error("a key without attributes")
	}
	if l, err := c.Limit("m", LimitOptions{}); err != nil || l.lease.ask() != longestAsk {
		t.Errorf("nothing of it is open: %v", err)
	}
	if c.Err() != nil || c.Connected() {
		t.Errorf("nothing was tried, and yet: %v", c.Err())
	}
}
