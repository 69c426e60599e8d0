package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/limit"
)

// stand puts a Limiter without a network into a state: with so many tokens of so many at a
// rate, as the coordinator would send it.
func stand(l *leasedLimit, tokens, depth, rate int64, st agent.State) {
	l.Update(l.client.now(), fixed.Whole(rate), fixed.Whole(depth), fixed.Whole(tokens-l.spender.Remaining(l.client.now())))
	l.state.Store(&st)
}

// TestWhatARefusalSays: each way in which a lease can stand has its reason, and a time in
// which trying again makes sense.
func TestWhatARefusalSays(t *testing.T) {
	part := lease.Capacity{Rate: fixed.Whole(2), Burst: fixed.Whole(4)}
	terms := lease.Terms{Rate: fixed.Whole(10), Burst: fixed.Whole(20)}
	suppress := func(rate int64, reject float64) bucket.Suppression {
		return bucket.Suppression{Rate: fixed.Whole(rate), Reject: reject}
	}
	for name, tt := range map[string]struct {
		state   agent.State
		cost    int64
		expired bool
		reason  limit.Reason
		after   time.Duration
		failed  bool
	}{
		"more than is there":                {agent.State{Known: true, Saturated: true, Held: part, Limit: terms}, 2, false, limit.ReasonRate, 500 * time.Millisecond, false},
		"more than the lease holds":         {agent.State{Known: true, Saturated: true, Held: part, Limit: terms}, 5, false, limit.ReasonRate, longestAsk + 500*time.Millisecond, false},
		"as much as the limit":              {agent.State{Known: true, Saturated: true, Held: part, Limit: terms}, 20, false, limit.ReasonRate, longestAsk + 2*time.Second, false},
		"more than the limit":               {agent.State{Known: true, Saturated: true, Held: part, Limit: terms}, 21, false, limit.ReasonCost, limit.Never, false},
		"more than the limit, at once":      {agent.State{Known: true, Held: part, Limit: terms}, 21, false, limit.ReasonCost, limit.Never, false},
		"a limit that does not refill":      {agent.State{Known: true, Saturated: true, Held: part, Limit: lease.Terms{Burst: terms.Burst}}, 5, false, limit.ReasonRate, time.Hour, false},
		"the lease has ended":               {agent.State{Known: true, Saturated: true, Held: part, Limit: terms}, 2, true, limit.ReasonStoreFailure, lease.DefaultRefresh, true},
		"the coordinator learns":            {agent.State{Known: true, Recovering: true, Limit: terms}, 2, false, limit.ReasonRecovering, lease.DefaultRefresh, false},
		"it learns, and has lent something": {agent.State{Known: true, Saturated: true, Recovering: true, Held: part, Limit: terms}, 2, false, limit.ReasonRate, 500 * time.Millisecond, false},
		"suppressed":                        {agent.State{Known: true, Saturated: true, Held: part, Limit: terms, Suppression: suppress(1, 0.5)}, 2, false, limit.ReasonSuppressed, 2 * time.Second, false},
		"suppressed at a low rate":          {agent.State{Known: true, Saturated: true, Held: part, Limit: terms, Suppression: bucket.Suppression{Rate: fixed.Token / 100, Reject: 0.5}}, 2, false, limit.ReasonSuppressed, time.Minute, false},
		"suppressed at a high rate":         {agent.State{Known: true, Saturated: true, Held: part, Limit: terms, Suppression: suppress(1000, 0.5)}, 2, false, limit.ReasonSuppressed, 500 * time.Millisecond, false},
		"nothing was heard":                 {agent.State{}, 2, false, limit.ReasonStoreFailure, lease.DefaultRefresh, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := leased(t, fixed.Whole(1), 1)
			stand(&l.lease, 1, 4, 2, tt.state)
			l.lease.client.lanes()[0].link.Store(linkDown) // nobody is asked
			if tt.expired {
				l.lease.client.lanes()[0].agent.Deadline().Store(int64(l.lease.client.now()))
			}
			d, err := l.Take(t.Context(), limit.Request{Cost: tt.cost})
			status := 429
			if tt.reason == limit.ReasonStoreFailure {
				status = 503 // no fault of the caller's
			}
			if err != nil || d.Allowed || d.Status != status || len(d.Results) != 1 {
				t.Fatalf("%s: %+v, %v", name, d, err)
			}
			r := d.Results[0]
			if r.Reason != tt.reason || r.RetryAfter != tt.after || r.StoreFailed != tt.failed || r.Cost != tt.cost || r.Limit != "m" {
				t.Errorf("%s: %v, again after %v, failed %v; want %v, %v and %v", name, r.Reason, r.RetryAfter, r.StoreFailed, tt.reason, tt.after, tt.failed)
			}
		})
	}
}

// TestWhatAnAnswerSays: the level of a lease is shown against the whole limit, and the time in
// which that is as new: what the lease brings next, and then the limit all the rest.
func TestWhatAnAnswerSays(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		tokens, depth, rate int64 // of the lease
		limitRate, burst    int64
		peek                int64
		allowed             bool
		window, reset       time.Duration
	}{
		{4, 4, 2, 10, 20, 4, true, 2000 * ms, 500*ms + 1500*ms},
		{4, 4, 2, 10, 20, 5, false, 2000 * ms, 500*ms + 1500*ms},
		{3, 4, 2, 10, 20, 3, true, 2000 * ms, 500*ms + 1600*ms},
		{0, 4, 2, 10, 20, 1, false, 2000 * ms, 500*ms + 1900*ms},
		{20, 20, 2, 10, 20, 20, true, 2000 * ms, 0},
		{19, 20, 2, 10, 20, 20, false, 2000 * ms, 500 * ms},
		{19, 20, 2, 0, 20, 19, true, 0, 500 * ms},     // one is missing, and the lease brings it
		{18, 20, 2, 0, 20, 19, false, 0, limit.Never}, // and nobody brings the other
		{3, 20, 0, 10, 20, 1, true, 2000 * ms, limit.Never},
		{3, 3, 1, 10, 2, 3, true, 200 * ms, 0}, // the limit became smaller
	} {
		synctest.Test(t, func(t *testing.T) {
			l := leased(t, fixed.Whole(1), 1)
			stand(&l.lease, tt.tokens, tt.depth, tt.rate, agent.State{
				Known: true, Saturated: true, Held: lease.Capacity{Burst: fixed.Whole(tt.depth), Rate: fixed.Whole(tt.rate)},
				Limit: lease.Terms{Rate: fixed.Whole(tt.limitRate), Burst: fixed.Whole(tt.burst)},
			})
			d, err := l.Take(t.Context(), limit.Request{Cost: tt.peek, Peek: true})
			if err != nil {
				t.Fatal(err)
			}
			r := d.Results[0]
			if d.Allowed != tt.allowed || r.Allowed != tt.allowed || r.Remaining != tt.tokens || r.Quota != tt.burst || r.Window != tt.window || r.ResetAfter != tt.reset {
				t.Errorf("%+v: %v, %+v", tt, d.Allowed, r)
			}
		})
	}
}

// TestReserveOfWhatIsNotLent: where nothing is lent at the moment a reservation is a guess: an
// answer, and then the rate of the whole limit. Where no rate is known there is none.
func TestReserveOfWhatIsNotLent(t *testing.T) {
	terms := lease.Terms{Rate: fixed.Whole(10), Burst: fixed.Whole(20)}
	for name, tt := range map[string]struct {
		state agent.State
		n     int64
		delay time.Duration // limit.Never = not OK
		depth int64         // of a lease without a rate
	}{
		"known":              {agent.State{Known: true, Limit: terms}, 3, longestAsk + 300*time.Millisecond, 0},
		"after a trip":       {agent.State{Known: true, Limit: terms, RoundTrip: 100 * time.Millisecond}, 3, 500 * time.Millisecond, 0},
		"depth, and no rate": {agent.State{Known: true, Limit: terms}, 3, longestAsk + 300*time.Millisecond, 5},
		"a short trip":       {agent.State{Known: true, Limit: terms, RoundTrip: time.Millisecond}, 3, shortestAsk + 300*time.Millisecond, 0},
		"the whole burst":    {agent.State{Known: true, Limit: terms}, 20, longestAsk + 2*time.Second, 0},
		"above the burst":    {agent.State{Known: true, Limit: terms}, 21, limit.Never, 0},
		"unknown":            {agent.State{Limit: terms}, 3, limit.Never, 0},
		"refused":            {agent.State{Known: true, Status: lease.StatusTooMany, Limit: terms}, 3, limit.Never, 0},
		"without a rate":     {agent.State{Known: true, Limit: lease.Terms{Burst: terms.Burst}}, 3, limit.Never, 0},
		"nothing":            {agent.State{Known: true, Limit: terms}, 0, 0, 0},
		"less than that":     {agent.State{Known: true, Limit: terms}, -1, limit.Never, 0},
		"nothing, unknown":   {agent.State{}, 0, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := leased(t, 0, 0)
			stand(&l.lease, 0, tt.depth, 0, tt.state)
			r := l.ReserveN(time.Now(), tt.n)
			if r.OK() != (tt.delay < limit.Never) || r.Delay() != tt.delay {
				t.Errorf("%s: %v, in %v, want %v", name, r.OK(), r.Delay(), tt.delay)
			}
			if later := r.DelayFrom(time.Now().Add(100 * time.Millisecond)); tt.delay > 0 && tt.delay < limit.Never && later != tt.delay-100*time.Millisecond {
				t.Errorf("%s: %v from 100 ms on, want %v", name, later, tt.delay-100*time.Millisecond)
			}
			if back := r.Cancel(); back != (r.OK() && tt.n > 0) || r.Cancel() {
				t.Errorf("%s: Cancel %v", name, back)
			}
			asked := max(0, tt.n) // which is demand, unless nobody could ever admit it
			if name == "above the burst" {
				asked = 0
			}
			if got := l.bucket.Observe(l.lease.client.now()); got.Waiting != 0 || got.Admitted != 0 || got.Attempted != fixed.Whole(asked) {
				t.Errorf("%s: %+v after it was cancelled, want %d asked for", name, got, asked)
			}
		})
	}
}

// TestHowLongToAsk: the time that is left for an answer is what the option says, or twice the
// round trip within its bounds.
func TestHowLongToAsk(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, tt := range []struct{ option, trip, want time.Duration }{
		{0, 0, longestAsk},
		{0, 1, shortestAsk},
		{0, shortestAsk / 2, shortestAsk},
		{0, shortestAsk/2 + 1, shortestAsk + 2},
		{0, longestAsk/2 - 1, longestAsk - 2},
		{0, longestAsk / 2, longestAsk},
		{0, time.Hour, longestAsk},
		{time.Millisecond, time.Hour, time.Millisecond},
		{time.Hour, 1, time.Hour},
		{-1, 0, -1},
	} {
		l := leased(t, 0, 0)
		l.lease.opts.Ask = tt.option
		l.lease.state.Store(&agent.State{Known: true, RoundTrip: tt.trip})
		if got := l.lease.ask(); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

// TestPatienceOfASmallLease: a Take of more than the lease can hold waits for an answer as long as it
// may, and one that the lease decides about waits by the round trip. An option decides alone.
func TestPatienceOfASmallLease(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, tt := range []struct {
		burst, n     int64
		option, want time.Duration
	}{
		{0, 1, 0, longestAsk},
		{4, 5, 0, longestAsk},
		{4, 4, 0, shortestAsk},
		{0, 1, time.Millisecond, time.Millisecond},
		{0, 1, -1, -1},
	} {
		l := leased(t, fixed.Token, tt.burst)
		l.lease.opts.Ask = tt.option
		l.lease.state.Store(&agent.State{Known: true, RoundTrip: 1})
		if got := l.lease.patience(l.lease.client.now(), tt.n); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

// TestWhenAskingHelps: a Take waits for an answer only where one may bring what it wants.
func TestWhenAskingHelps(t *testing.T) {
	part := lease.Capacity{Rate: fixed.Whole(2), Burst: fixed.Whole(4)}
	terms := lease.Terms{Rate: fixed.Whole(10), Burst: fixed.Whole(20)}
	suppressed := terms
	suppressed.Suppress = &lease.Suppress{}
	const ask = 70 * time.Millisecond
	for name, tt := range map[string]struct {
		state agent.State
		opts  LimitOptions
		link  linkState
		cost  int64
		waits bool
	}{
		"more may come":                      {agent.State{Known: true, Held: part, Limit: terms}, LimitOptions{}, linkUp, 20, true},
		"nobody was asked yet":               {agent.State{}, LimitOptions{}, linkNew, 20, true},
		"nobody answers":                     {agent.State{Known: true, Held: part, Limit: terms}, LimitOptions{}, linkDown, 20, false},
		"it is not to ask":                   {agent.State{Known: true, Held: part, Limit: terms}, LimitOptions{Ask: -1}, linkUp, 20, false},
		"more than the limit":                {agent.State{Known: true, Held: part, Limit: terms}, LimitOptions{}, linkUp, 21, false},
		"the limit is full":                  {agent.State{Known: true, Saturated: true, Held: part, Limit: terms}, LimitOptions{}, linkUp, 20, false},
		"it does not report":                 {agent.State{Known: true, Held: part, Limit: terms}, LimitOptions{Silent: true}, linkUp, 20, false},
		"it does not report, and knows none": {agent.State{}, LimitOptions{Silent: true}, linkUp, 20, true},
		"the lease was lost":                 {agent.State{Known: true, Status: lease.StatusLeaseGone, Limit: terms}, LimitOptions{}, linkUp, 20, false},
		"it has the whole limit":             {agent.State{Known: true, Held: part, Limit: suppressed}, LimitOptions{}, linkUp, 20, false},
		"it is about to have it":             {agent.State{Known: true, Limit: suppressed}, LimitOptions{}, linkUp, 20, true},
		"the coordinator learns":             {agent.State{Known: true, Recovering: true, Limit: terms}, LimitOptions{}, linkUp, 20, false},
		"it learns, and has lent something":  {agent.State{Known: true, Recovering: true, Held: part, Limit: terms}, LimitOptions{}, linkUp, 20, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := leased(t, 0, 0)
			if l.lease.opts = tt.opts; tt.opts.Ask == 0 {
				l.lease.opts.Ask = ask
			}
			l.lease.state.Store(&tt.state)
			l.lease.client.lanes()[0].link.Store(tt.link)
			begin, want := time.Now(), time.Duration(0)
			if tt.waits {
				want = ask
			}
			d, err := l.Take(t.Context(), limit.Request{Cost: tt.cost})
			if err != nil || d.Allowed || time.Since(begin) != want {
				t.Errorf("%s: %v, %v after %v, want a refusal after %v", name, d.Allowed, err, time.Since(begin), want)
			}
		})
	}
}

// TestWhyNothingIsLent: what the coordinator says of a limit is the error of each verb that
// has one, until it says otherwise.
func TestWhyNothingIsLent(t *testing.T) {
	terms, places := rateOf(10, 20), placesOf(20)
	for name, tt := range map[string]struct {
		state agent.State
		gauge bool
		want  error
	}{
		"unknown limit":     {agent.State{Known: true, Status: lease.StatusUnknownLimit}, false, ErrRefused},
		"not leased":        {agent.State{Known: true, Status: lease.StatusNotLeased}, false, ErrRefused},
		"a bad key":         {agent.State{Known: true, Status: lease.StatusBadKey}, false, ErrRefused},
		"too many":          {agent.State{Known: true, Status: lease.StatusTooMany}, true, ErrRefused},
		"other attributes":  {agent.State{Known: true, Status: lease.StatusWrongAttributes}, false, ErrRefused},
		"a gauge as a rate": {agent.State{Known: true, Limit: places}, false, ErrKind},
		"a rate as a gauge": {agent.State{Known: true, Limit: terms}, true, ErrKind},
		"a rate":            {agent.State{Known: true, Saturated: true, Limit: terms}, false, nil},
		"a gauge":           {agent.State{Known: true, Saturated: true, Limit: places}, true, nil},
		"a lease that went": {agent.State{Known: true, Status: lease.StatusLeaseGone}, false, nil},
		"nothing heard":     {agent.State{Limit: places}, false, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := leased(t, 0, 0).lease.client
			c.lanes()[0].link.Store(linkDown)
			var taker interface {
				limit.Taker
				limit.Preparer
			}
			var l *leasedLimit
			var wait func(time.Duration) error
			if tt.gauge {
				g := openGauge(t, c, "x")
				taker, l = g, &g.lease
				wait = func(d time.Duration) error { return g.AcquireMax(t.Context(), 1, d) }
			} else {
				r := openLimit(t, c, "x", LimitOptions{})
				taker, l = r, &r.lease
				wait = func(d time.Duration) error { return r.WaitMax(t.Context(), d) }
			}
			l.state.Store(&tt.state)
			var r limit.Result
			_, take := taker.Take(t.Context(), limit.Request{})
			_, peek := taker.Take(t.Context(), limit.Request{Peek: true})
			_, hold := taker.Prepare(t.Context(), limit.Request{}, false, &r)
			_, held := taker.Prepare(t.Context(), limit.Request{}, true, &r)
			_, see := taker.Prepare(t.Context(), limit.Request{Peek: true}, false, &r)
			for verb, err := range map[string]error{"Take": take, "Peek": peek, "Hold": hold, "Hold that waits": held, "Hold that looks": see, "Lease": l.fault()} {
				if !errors.Is(err, tt.want) {
					t.Errorf("%s: %s: %v, want %v", name, verb, err, tt.want)
				}
			}
			if err := wait(time.Millisecond); tt.want != nil && !errors.Is(err, tt.want) || tt.want == nil && !errors.Is(err, limit.ErrWaitTooLong) {
				t.Errorf("%s: a wait: %v, want %v", name, err, tt.want)
			}
		})
	}
}

// TestAskingIsBounded: a lease that is found short signals it at once, and then every 5 ms at
// most; where the limit is full, every 100 ms.
func TestAskingIsBounded(t *testing.T) {
	for _, tt := range []struct {
		full bool
		gap  time.Duration
		ask  func(l *Limiter) bool
	}{
		{false, starveGap, (*Limiter).Allow},
		{true, starveGapFull, (*Limiter).Allow},
		{false, starveGap, func(l *Limiter) bool { return l.AllowN(time.Now(), 2) }},
		{true, starveGapFull, func(l *Limiter) bool { return l.ReserveN(time.Now(), 2).Delay() == 0 }},
		{true, starveGapFull, func(l *Limiter) bool { d, err := l.Take(t.Context(), limit.Request{}); return err != nil || d.Allowed }},
		{false, starveGap, func(l *Limiter) bool { return l.WaitFunc(1, 1, func(error) {}) == nil }},
		{true, starveGapFull, func(l *Limiter) bool {
			h, err := l.Prepare(t.Context(), limit.Request{}, false, new(limit.Result))
			return err != nil || h.Cost > 0
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := leased(t, 0, 0)
			l.lease.state.Store(&agent.State{Known: true, Saturated: tt.full, Limit: rateOf(10, 20)})
			signals := func() int {
				l.lease.client.lanes()[0].starving.Lock()
				defer l.lease.client.lanes()[0].starving.Unlock()
				return len(l.lease.client.lanes()[0].starving.handles)
			}
			for round := range 3 {
				if tt.ask(l) || signals() != round+1 {
					t.Errorf("full %v, round %d: %d signals", tt.full, round, signals())
				}
				time.Sleep(tt.gap - 1)
				if l.AllowN(time.Now(), 1) || signals() != round+1 {
					t.Errorf("full %v, round %d: %d signals before %v were over", tt.full, round, signals(), tt.gap)
				}
				time.Sleep(1)
			}
		})
	}
}

// TestBoundsOfNames: the longest names are taken, and one byte more is not.
func TestBoundsOfNames(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	text := func(n int) string { return fmt.Sprintf("%0*d", n, 1) }
	client := func(o Options) error {
		o.Address, o.Logger = "127.0.0.1:1", slog.New(slog.DiscardHandler)
		c, err := New(o)
		if err == nil && o.Instance != "" && c.Instance() != o.Instance {
			t.Errorf("it is called %q", c.Instance())
		}
		return err
	}
	c := leased(t, 0, 0).lease.client
	open := func(name string) error { _, err := c.Limit(name, LimitOptions{}); return err }
	keyed := func(n, most int, idle time.Duration) error {
		_, err := c.Keyed("k", make([]string, n), KeyedOptions{MaxKeys: most, Idle: idle})
		return err
	}
	for name, tt := range map[string]struct {
		good bool
		err  error
	}{
		"an instance":          {true, client(Options{Instance: text(256)})},
		"an instance too long": {false, client(Options{Instance: text(257)})},
		"no instance":          {true, client(Options{})},
		"no grace":             {true, client(Options{Grace: 0})},
		"less than that":       {false, client(Options{Grace: -1})},
		"a limit":              {true, open(text(128))},
		"a limit too long":     {false, open(text(129))},
		"a limit not of UTF-8": {false, open("a\xff")},
		"a limit twice":        {false, errors.Join(open("twice"), open("twice"))},
		"a key":                {true, keyed(16, 0, 0)},
		"a key of too many":    {false, keyed(17, 0, 0)},
		"a key of none":        {false, keyed(0, 0, 0)},
		"all keys":             {true, keyed(1, DefaultMaxKeys, time.Nanosecond)},
		"too many keys":        {false, keyed(1, DefaultMaxKeys+1, 0)},
		"fewer than none":      {false, keyed(1, -1, 0)},
		"idle for less":        {false, keyed(1, 1, -1)},
	} {
		if (tt.err == nil) != tt.good {
			t.Errorf("%s: %v", name, tt.err)
		}
	}
	one, two := newSession(), newSession()
	if one == 0 || one == two {
		t.Errorf("sessions %d and %d", one, two)
	}
}

// TestClosedTwice: to close a limit again does nothing to the one that was opened after it.
func TestClosedTwice(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	c := leased(t, 0, 0).lease.client
	first := openLimit(t, c, "x", LimitOptions{})
	first.Close()
	second := openLimit(t, c, "x", LimitOptions{})
	first.Close()
	if _, err := c.Limit("x", LimitOptions{}); !errors.Is(err, ErrOpen) || c.lanes()[0].leases[second.lease.place.Load().handle] != &second.lease || len(c.lanes()[0].leases) != 2 {
		t.Errorf("a third: %v; %d are open", err, len(c.lanes()[0].leases))
	}
	for _, l := range []*Limiter{first, second} {
		l.Close()
		if err := l.Wait(t.Context()); !errors.Is(err, ErrClosed) || l.Allow() || l.Reserve().OK() || !errors.Is(l.Lease().Err, ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	}
	openLimit(t, c, "x", LimitOptions{})
}

// TestClosedWithoutALease: what may be spent without a lease ends when the limit is closed.
func TestClosedWithoutALease(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	l := leased(t, 0, 0)
	l.lease.UpdateFallback(l.lease.client.now(), fixed.Whole(5), fixed.Whole(5))
	if !l.Allow() || l.Remaining() != 4 {
		t.Fatalf("%d remain", l.Remaining())
	}
	if l.Close(); l.Allow() || l.bucket.Observe(l.lease.client.now()).Level != 0 {
		t.Errorf("closed, and %+v", l.bucket.Observe(l.lease.client.now()))
	}
}

// TestSpan: how long tokens take is exact where that is whole nanoseconds, and never negative.
func TestSpan(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, tt := range []struct {
		n    int64
		rate fixed.Amount
		want time.Duration
	}{
		{0, fixed.Token, 0},
		{1, fixed.Token, time.Second},
		{3, 2 * fixed.Token, 1500 * time.Millisecond},
		{5, 0, 0},
		{5, -1, 0},
		{1, 1, 1e6 * time.Second},
		{math.MaxInt64, 1, limit.Never},
		{9223372036, fixed.Token, 9223372036 * time.Second},
		{9223372037, fixed.Token, limit.Never},
	} {
		if got := span(tt.n, tt.rate); got != tt.want {
			t.Errorf("%d at %v: %v, want %v", tt.n, tt.rate, got, tt.want)
		}
	}
}

// TestDuplicateWithoutALease: that another has the name ends every wait once the lease has
// run out, and not before.
func TestDuplicateWithoutALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lentAll(t, 10, 5)
		c := l.lease.client
		err := fmt.Errorf("%w: of another", ErrDuplicate)
		c.lanes()[0].cause.Store(&err)
		for l.Allow() {
		}
		end := c.now() + 1
		c.lanes()[0].agent.Deadline().Store(int64(end))
		if _, err := l.Take(t.Context(), limit.Request{}); err != nil {
			t.Errorf("while the lease runs: %v", err)
		}
		time.Sleep(1)
		if _, err := l.Take(context.Background(), limit.Request{}); !errors.Is(err, ErrDuplicate) {
			t.Errorf("when it has ended: %v", err)
		}
		other := errors.New("gone")
		c.lanes()[0].cause.Store(&other)
		if _, err := l.Take(t.Context(), limit.Request{}); err != nil {
			t.Errorf("when nobody answers: %v", err)
		}
	})
}
