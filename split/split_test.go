package split_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/split"
)

func newLimiter(t testing.TB, terms split.Terms, o split.Options) *split.Limiter {
	t.Helper()
	l, err := split.New(terms, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestWalkThrough: ten per second among four, of which this is the second. The bubble's clock
// begins at a whole second.
func TestWalkThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		l := newLimiter(t, split.Terms{Total: limit.PerSecond(10), Part: split.Instance(1, 4)}, split.Options{Name: "provider"})
		if l.Allow() || l.Remaining() != 0 {
			t.Error("admitted before the first own token")
		}
		var log []string
		for range 3 {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			log = append(log, time.Since(begin).String())
		}
		// Multiples of 100 ms that are 400 ms apart.
		if got := strings.Join(log, " "); got != "300ms 700ms 1.1s" {
			t.Errorf("let go after %s", got)
		}
		if err := l.WaitMax(t.Context(), 399*time.Millisecond); !errors.Is(err, limit.ErrWaitTooLong) || !strings.Contains(err.Error(), `"provider" within 399ms`) {
			t.Errorf("WaitMax: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 399*time.Millisecond)
		defer cancel()
		if err := l.Wait(ctx); !errors.Is(err, limit.ErrWaitTooLong) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait with a deadline: %v", err)
		}
		if since := time.Since(begin); since != 1100*time.Millisecond {
			t.Errorf("they failed after %v, want at once", since)
		}
		if err := l.WaitMax(t.Context(), 400*time.Millisecond); err != nil || time.Since(begin) != 1500*time.Millisecond {
			t.Errorf("WaitMax: %v after %v", err, time.Since(begin))
		}
		d, err := l.Take(t.Context(), limit.Request{})
		if r := d.Refused(); err != nil || d.Allowed || d.Status != 429 || r == nil || r.Limit != "provider" || r.Reason != limit.ReasonRate ||
			r.RetryAfter != 400*time.Millisecond || r.Quota != 1 || r.Window != 400*time.Millisecond || r.ResetAfter != 100*time.Millisecond {
			t.Errorf("Take: %+v, %v", d, err)
		}
		time.Sleep(400 * time.Millisecond)
		if d, err := l.Take(t.Context(), limit.Request{Peek: true}); err != nil || !d.Allowed || d.Results[0].Remaining != 1 {
			t.Errorf("peek: %+v, %v", d, err)
		}
		if d, err := l.Take(t.Context(), limit.Request{}); err != nil || !d.Allowed || d.Results[0].Remaining != 0 {
			t.Errorf("Take: %+v, %v", d, err)
		}
		if d, err := l.Take(t.Context(), limit.Request{Cost: 2}); err != nil || d.Allowed || d.Results[0].Reason != limit.ReasonCost || d.RetryAfter() != limit.Never {
			t.Errorf("Take of 2: %+v, %v", d, err)
		}
		time.Sleep(600 * time.Millisecond)
		if l.Allow() {
			t.Error("a token is used 200 ms after it was due, and is good for 100")
		}
	})
}

func TestBadInput(t *testing.T) {
	good := split.Terms{Total: limit.PerSecond(10), Part: split.Instance(0, 2)}
	l := newLimiter(t, good, split.Options{})
	with := func(edit func(*split.Terms)) split.Terms {
		bad := good
		edit(&bad)
		return bad
	}
	for _, tt := range []struct {
		terms split.Terms
		want  string
	}{
		{split.Terms{Total: limit.PerSecond(1)}, "0 units"},
		{with(func(t *split.Terms) { t.Part = split.Instance(2, 2) }), "not within the 2 units"},
		{with(func(t *split.Terms) { t.Part = split.Instance(-1, 2) }), "not within"},
		{with(func(t *split.Terms) { t.Part = split.Instance(0, -3) }), "-3 units"},
		{with(func(t *split.Terms) { t.Total.Count = -1 }), "negative"},
		{with(func(t *split.Terms) { t.Total.Count = 2e9 }), "above one per nanosecond"},
		{with(func(t *split.Terms) { t.Burst = -1 }), "burst is -1"},
		{with(func(t *split.Terms) { t.From = time.Unix(1e12, 0) }), "want a time from 1970"},
		{with(func(t *split.Terms) { t.From = time.Unix(-5, 0) }), "want a time from 1970"},
	} {
		if _, err := split.New(tt.terms, split.Options{}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("New(%+v): %v, want %q", tt.terms, err, tt.want)
		}
		if err := l.Set(tt.terms); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Set(%+v): %v, want %q", tt.terms, err, tt.want)
		}
	}
	for _, err := range []error{
		l.SetInstances(0, 0), l.SetInstances(3, 3), l.SetInstances(-1, 3), l.SetInstances(0, 1<<17), l.SetTotal(limit.Rate{Count: 1}),
		l.SetWeights(0), l.SetWeights(2, 1, 1), l.SetWeights(0, 0, 0), l.SetWeights(0, -1, 2), l.SetWeights(0, 65537, 1),
		l.SetWeights(1, math.MaxInt64, math.MaxInt64-1),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "split: ") {
			t.Errorf("got %v, want an error that begins with split:", err)
		}
	}
	for _, o := range []split.Options{{Window: -1}, {Window: 5}, {Window: 25 * time.Hour}, {Pacing: split.PID}, {Pacing: 77}} {
		if _, err := split.New(good, o); err == nil {
			t.Errorf("New with %+v succeeds", o)
		}
	}
	if l.Terms() != good {
		t.Errorf("bad input has changed the terms to %+v", l.Terms())
	}
	if err := l.WaitN(t.Context(), -1); !errors.Is(err, limit.ErrNegativeCost) {
		t.Errorf("WaitN(-1): %v", err)
	}
	if err := l.WaitN(t.Context(), math.MaxInt64); !errors.Is(err, limit.ErrExceedsQuota) {
		t.Errorf("WaitN(MaxInt64): %v", err)
	}
	if _, err := l.Take(t.Context(), limit.Request{Cost: -1}); !errors.Is(err, limit.ErrNegativeCost) {
		t.Errorf("Take of -1: %v", err)
	}
	if l.AllowN(time.Now(), -1) || l.AllowN(time.Time{}, 1) || l.AllowN(time.Unix(1<<62, 0), math.MaxInt64) {
		t.Error("nonsense is admitted")
	}
}

func TestZeroValue(t *testing.T) {
	var l split.Limiter
	if l.Allow() || l.AllowN(time.Now(), 1) || l.Remaining() != 0 {
		t.Error("admits")
	}
	if err := l.WaitMax(t.Context(), time.Hour); !errors.Is(err, limit.ErrWaitTooLong) {
		t.Errorf("WaitMax: %v", err)
	}
	if err := l.SetTotal(limit.PerSecond(1)); err == nil {
		t.Error("SetTotal succeeds")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := make(chan error)
	go func() { cancelled <- l.Wait(ctx) }()
	cancel()
	if err := <-cancelled; !errors.Is(err, context.Canceled) {
		t.Errorf("Wait: %v", err)
	}
}

func TestWeighted(t *testing.T) {
	for _, tt := range []struct {
		index   int
		weights []int64
		want    split.Part
	}{
		{0, []int64{5}, split.Part{First: 0, Weight: 1, Of: 1}},
		{2, []int64{100, 200, 300}, split.Part{First: 3, Weight: 3, Of: 6}},
		{1, []int64{3, 0, 4}, split.Part{First: 3, Weight: 0, Of: 7}},
		{1, []int64{math.MaxInt64, math.MaxInt64}, split.Part{First: 1, Weight: 1, Of: 2}},
	} {
		if got, err := split.Weighted(tt.index, tt.weights...); err != nil || got != tt.want {
			t.Errorf("Weighted(%d, %v) = %+v, %v, want %+v", tt.index, tt.weights, got, err, tt.want)
		}
	}
}

// event is an admission.
type event struct {
	at    time.Duration
	index int
}

// worst returns the most events within any interval of that length, closed at its
// beginning, and the most within any second of the clock.
func worst(events []event, length time.Duration) (sliding, aligned int) {
	slices.SortFunc(events, func(a, b event) int { return int(a.at - b.at) })
	seconds := map[time.Duration]int{}
	for i, j := 0, 0; j < len(events); j++ {
		for events[j].at-events[i].at >= length {
			i++
		}
		sliding = max(sliding, j-i+1)
		second := events[j].at / time.Second
		seconds[second]++
		aligned = max(aligned, seconds[second])
	}
	return sliding, aligned
}

// drain runs n limiters with waiters for the given time, and returns what was admitted.
func drain(t *testing.T, limiters []*split.Limiter, d time.Duration) []event {
	t.Helper()
	var mu sync.Mutex
	var events []event
	var wg sync.WaitGroup
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	for i, l := range limiters {
		wg.Go(func() {
			for l.Wait(ctx) == nil {
				if at := time.Since(begin); at < d {
					mu.Lock()
					events = append(events, event{at, i})
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return events
}

// TestFleet: whatever the limit and the number of instances, all of the limit is used and
// none of it twice, in every second.
func TestFleet(t *testing.T) {
	for _, tt := range []struct{ n, count, seconds int }{{96, 10, 30}, {96, 1, 40}, {96, 95, 5}, {96, 1000, 5}, {7, 100, 5}, {1, 3, 5}} {
		t.Run(fmt.Sprintf("%d per second among %d", tt.count, tt.n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var fleet []*split.Limiter
				for i := range tt.n {
					fleet = append(fleet, newLimiter(t, split.Terms{Total: limit.PerSecond(int64(tt.count)), Part: split.Instance(i, tt.n)}, split.Options{}))
				}
				events := drain(t, fleet, time.Duration(tt.seconds)*time.Second)
				if got := len(events); got != tt.count*tt.seconds {
					t.Errorf("%d let go, want %d", got, tt.count*tt.seconds)
				}
				if sliding, aligned := worst(events, time.Second); sliding != tt.count || aligned != tt.count {
					t.Errorf("at most %d in a second and %d in one of the clock, want %d", sliding, aligned, tt.count)
				}
			})
		})
	}
}

// stepping is a wall clock that is off and can be stepped.
type stepping struct{ off time.Duration }

func (s *stepping) now() time.Time { return time.Now().Add(s.off) }

// TestClocks: instances whose wall clocks are off, and step by ten seconds or ten years
// while they run, admit in any second at most one each on top of rate and burst, and go
// on at their rate.
func TestClocks(t *testing.T) {
	const n, count = 20, 2000
	for _, step := range []time.Duration{0, 10 * time.Second, -10 * time.Second, 87600 * time.Hour, -87600 * time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var fleet []*split.Limiter
				var clocks []*stepping
				for i := range n {
					c := &stepping{off: time.Duration(i-n/2) * 25 * time.Millisecond}
					clocks = append(clocks, c)
					fleet = append(fleet, newLimiter(t, split.Terms{Total: limit.PerSecond(count), Part: split.Instance(i, n)}, split.Options{Wall: c.now}))
				}
				timer := time.AfterFunc(3500*time.Millisecond, func() {
					for _, c := range clocks[:n/2] {
						c.off += step
					}
				})
				defer timer.Stop()
				events := drain(t, fleet, 8*time.Second)
				if sliding, aligned := worst(events, time.Second); sliding > count+count/100+n || aligned > count+count/100+n {
					t.Errorf("at most %d in a second and %d in one of the clock, want %d", sliding, aligned, count+count/100+n)
				}
				if use := float64(len(events)) / (8 * count); use < 0.998 || use > 1.002 {
					t.Errorf("used %.4f of the limit", use)
				}
			})
		})
	}
}

// TestChangesReachThoseWhoWait: waiters are served by the present total, however long they wait.
func TestChangesReachThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, split.Terms{Total: limit.PerHour(1), Part: split.Instance(0, 2)}, split.Options{})
		begin := time.Now()
		results := make(chan error, 10)
		wait := func(d time.Duration) {
			go func() { results <- l.WaitMax(t.Context(), d) }()
			synctest.Wait()
		}
		wait(limit.Never)
		wait(24 * time.Hour)
		wait(30 * time.Hour)
		time.Sleep(time.Minute)
		if err := l.SetTotal(limit.PerSecond(1)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		// The first had the token of the hour, and every second one is this instance's.
		if d := time.Since(begin); d != time.Minute+2*time.Second {
			t.Errorf("let go after %v, want a minute and two seconds", d)
		}
		// Slower: the waiters that would be late now, and no others, fail at once.
		wait(10 * time.Second)
		wait(time.Hour)
		if err := l.SetTotal(limit.PerMinute(1)); err != nil {
			t.Fatal(err)
		}
		if err := <-results; !errors.Is(err, limit.ErrWaitTooLong) {
			t.Errorf("got %v, want %v", err, limit.ErrWaitTooLong)
		}
		synctest.Wait()
		if len(results) != 0 {
			t.Errorf("called %v", <-results)
		}
		if err := l.SetInstances(0, 1); err != nil {
			t.Fatal(err)
		}
		if err := <-results; err != nil {
			t.Error(err)
		}
		// No total at all: it waits for one.
		if err := l.SetTotal(limit.Rate{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		wait(limit.Never)
		if err := l.WaitMax(t.Context(), 1000*time.Hour); !errors.Is(err, limit.ErrWaitTooLong) {
			t.Errorf("got %v, want %v", err, limit.ErrWaitTooLong)
		}
		if err := l.Set(split.Terms{Total: limit.PerSecond(1), Part: split.Instance(1, 2), From: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		before := time.Now()
		if err := <-results; err != nil || time.Since(before) < time.Hour || time.Since(before) > time.Hour+2*time.Second {
			t.Errorf("%v after %v", err, time.Since(before))
		}
	})
}

// TestScheduledChange: a fleet that knows of the change before it halves its number of instances
// and doubles its total at the same time, and no second has more than the total in force.
func TestScheduledChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fleet []*split.Limiter
		begin := time.Now()
		for i := range 20 {
			l := newLimiter(t, split.Terms{Total: limit.PerSecond(100), Part: split.Instance(i, 20)}, split.Options{})
			fleet = append(fleet, l)
			next := split.Terms{Total: limit.PerSecond(200), Part: split.Instance(i, 10), From: begin.Add(3 * time.Second)}
			if i >= 10 {
				next.Part = split.Part{Of: 10}
			}
			timer := time.AfterFunc(time.Duration(i)*100*time.Millisecond, func() {
				if err := l.Set(next); err != nil {
					t.Error(err)
				}
			})
			defer timer.Stop()
		}
		events := drain(t, fleet, 6*time.Second)
		seconds := make([]int, 6)
		for _, e := range events {
			seconds[e.at/time.Second]++
			if e.at >= 3*time.Second && e.index >= 10 {
				t.Errorf("instance %d, which has no part any more, has one at %v", e.index, e.at)
			}
		}
		if want := []int{100, 100, 100, 200, 200, 200}; !slices.Equal(seconds, want) {
			t.Errorf("seconds have %v, want %v", seconds, want)
		}
	})
}

// TestWindows: LINE as it is described: all permits of a second are available at its beginning,
// and waiters are served then, in order.
func TestWindows(t *testing.T) {
	for _, tt := range []struct {
		pacing split.Pacing
		tenths []int // of the eighth second
	}{
		{split.AtOnce, []int{100, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
		{split.Even, []int{10, 10, 10, 10, 10, 10, 10, 10, 10, 10}},
		{split.PID, []int{10, 10, 10, 10, 10, 10, 10, 10, 10, 10}},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, split.Terms{Total: limit.PerSecond(100), Part: split.Instance(0, 1)}, split.Options{Window: time.Second, Pacing: tt.pacing})
			tenths := make([]int, 10)
			for _, e := range drain(t, []*split.Limiter{l}, 9*time.Second) {
				if e.at >= 8*time.Second {
					tenths[(e.at-8*time.Second)/(100*time.Millisecond)]++
				}
			}
			if !slices.Equal(tenths, tt.tenths) {
				t.Errorf("pacing %d: tenths have %v, want %v", tt.pacing, tenths, tt.tenths)
			}
		})
	}
}
