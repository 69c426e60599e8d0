package redis

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Windows of the calendar are those of package limit, months and years included, on a clock that leaps
// over changes of offset and between windows of different lengths, also behind changes of the zone.
func TestCalendar(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	server := redistest.Start(t)
	rnd := seeding.Rand(t)
	var clock atomic.Int64
	clock.Store(time.Date(2024, 1, 30, 0, 0, 0, 0, time.UTC).UnixNano())
	s := connected(t, Options{Addrs: []string{server.Addr()}, Timeout: patient}, func() limit.Time { return limit.Time(clock.Load()) })
	s.hold = 1e12
	zones := []string{"", "Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns", "America/Sao_Paulo", "Pacific/Apia"}
	periods := []time.Duration{time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, 30 * 24 * time.Hour, 365 * 24 * time.Hour}
	policy := func(n int) limit.Policy {
		return limit.Policy{
			Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 5, Period: periods[n%5]},
			Align: limit.AlignCalendar, Zone: zones[rnd.IntN(len(zones))],
		}
	}
	type one struct {
		policy   limit.Policy
		counters store.Counters
		state    limit.FixedState
	}
	limits := make([]one, 10)
	for i := range limits {
		limits[i].policy = policy(i)
	}
	admitted := 0
	for step := range 3000 {
		now := limit.Time(clock.Load())
		i := rnd.IntN(len(limits))
		l := &limits[i]
		if l.counters == nil || rnd.IntN(50) == 0 {
			from := limit.NewFixedCounter(l.policy)
			if l.counters != nil {
				l.policy = policy(i)
			}
			to := limit.NewFixedCounter(l.policy)
			l.state = to.Convert(l.state, &from, now)
			c, err := s.Bind(store.Spec{ID: fmt.Sprint("limit", i), Policy: l.policy})
			if err != nil {
				t.Fatal(err)
			}
			l.counters = c
		}
		counter := limit.NewFixedCounter(l.policy)
		cost := rnd.Int64N(4)
		want := counter.Take(&l.state, now, cost)
		roundUp(&want)
		charges := []store.Charge{{Counters: l.counters, Key: []byte("key"), Cost: cost}}
		if _, err := s.Take(t.Context(), charges); err != nil {
			t.Fatal(err)
		}
		if got := charges[0].Verdict; got != want {
			t.Fatalf("step %d: %+v at %v: %+v, want %+v", step, l.policy, time.Unix(0, int64(now)).UTC(), got, want)
		}
		if want.Allowed {
			admitted++
		}
		leap := []time.Duration{0, time.Minute, time.Hour, 24 * time.Hour, 10 * 24 * time.Hour}[rnd.IntN(5)]
		clock.Add(rnd.Int64N(int64(leap)+1) / 1000 * 1000)
	}
	if admitted < 1000 || admitted > 2900 {
		t.Error("one-sided: admitted ", admitted)
	}
}

// The windows are those of the server's clock: a process that takes it for another one, because its own
// is days off or the server's was set, sends the wrong ones once and counts in the right ones.
func TestCalendarByTheServersClock(t *testing.T) {
	server := redistest.Start(t)
	policy := limit.Policy{
		Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 3, Period: 365 * 24 * time.Hour}, Align: limit.AlignCalendar, Zone: "Asia/Kolkata",
	}
	s := connected(t, Options{Addrs: []string{server.Addr()}, Timeout: patient}, nil)
	c, err := s.Bind(store.Spec{ID: "year", Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	taken, before := 0, s.Stats().Calls
	for _, off := range []time.Duration{0, 400 * 24 * time.Hour, 800 * 24 * time.Hour, -400 * 24 * time.Hour} {
		lane := &s.lanes[0]
		lane.mu.Lock()
		if off != 0 {
			lane.clocks[0] = serverClock{time.Now().Add(off).UnixMicro(), s.clock()}
		}
		lane.mu.Unlock()
		ok, err := s.Take(t.Context(), []store.Charge{{Counters: c, Key: []byte("k"), Cost: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			taken++
		}
	}
	if taken != 3 {
		t.Errorf("%d admitted, want 3", taken)
	}
	if calls := s.Stats().Calls - before; calls < 7 {
		t.Errorf("%d calls for 4 requests: nothing was sent again", calls)
	}
}

// The script refuses windows that are not those of its clock, on either side, and charges nothing.
func TestCalendarOfAnotherTime(t *testing.T) {
	server := redistest.Start(t)
	now := limit.At(time.Date(2026, 6, 15, 0, 0, 0, 0, time.UTC))
	s := connected(t, Options{Addrs: []string{server.Addr()}, Timeout: patient}, func() limit.Time { return now })
	r, err := newRule(limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 3, Period: 30 * 24 * time.Hour}, Align: limit.AlignCalendar})
	if err != nil {
		t.Fatal(err)
	}
	start, end := r.fixed.Window(now)
	for clock, want := range map[limit.Time]outcome{start - 1: moved, start: decided, now: decided, end - 1: decided, end: moved} {
		b := new(batch)
		b.reset()
		b.accept(&operation{verb: verbTake, parts: []part{{rule: r, key: "month", cost: 1}}})
		b.arrange()
		keys, args := b.encode(now, clock, 0, keyGrace, "")
		answer := s.runs(t.Context(), []*batch{b}, [][]string{keys}, [][]string{args}, []int64{0})[0]
		if answer.err != nil {
			t.Fatal(answer.err)
		}
		if out, err := b.accepts(answer); err != nil || out != want {
			t.Errorf("%v: outcome %d, want %d, %v", time.Unix(0, int64(clock)).UTC(), out, want, err)
		}
	}
}

// A process that knows nothing of the zone by which another one has counted takes what was used for used,
// through the longest month.
func TestCalendarOfAnUnknownZone(t *testing.T) {
	server := redistest.Start(t)
	var clock atomic.Int64
	take := func(zone string) bool {
		s := connected(t, Options{Addrs: []string{server.Addr()}, Timeout: patient}, func() limit.Time { return limit.Time(clock.Load()) })
		s.hold = 1e12
		c, err := s.Bind(store.Spec{ID: "month", Policy: limit.Policy{
			Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 1, Period: 30 * 24 * time.Hour}, Align: limit.AlignCalendar, Zone: zone,
		}})
		if err != nil {
			t.Fatal(err)
		}
		ok, err := s.Take(t.Context(), []store.Charge{{Counters: c, Key: []byte("k"), Cost: 1}})
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	for _, at := range []struct {
		time string
		zone string
		want bool
	}{
		{"2025-12-31T23:00:00Z", "Europe/Berlin", true}, // the first moment of January there
		{"2026-01-31T20:00:00Z", "America/New_York", false},
		{"2026-02-01T12:00:00Z", "America/New_York", true},
	} {
		moment, err := time.Parse(time.RFC3339, at.time)
		if err != nil {
			t.Fatal(err)
		}
		clock.Store(moment.UnixNano())
		if got := take(at.zone); got != at.want {
			t.Errorf("%s in %s: admitted %v, want %v", at.time, at.zone, got, at.want)
		}
	}
}
