package limit_test

import (
	"archive/zip"
	"flag"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/limit"
)

var allZones = flag.Bool("all-zones", false, "test calendar windows in all time zones, not in a sample")

func calendarPolicy(count int64, period time.Duration, zone string) limit.Policy {
	return limit.Policy{
		Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: count, Period: period},
		Align: limit.AlignCalendar, Zone: zone,
	}
}

const (
	day   = 24 * time.Hour
	week  = 7 * day
	month = 30 * day
	year  = 365 * day
)

// Windows of the calendar, by hand: changes of the clock, the lengths of months, leap days, and days
// that begin late, twice or not at all.
func TestCalendarWalk(t *testing.T) {
	for _, c := range []struct {
		zone, at   string
		period     time.Duration
		start, end string
	}{
		{"", "2024-02-15T12:00:00Z", month, "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"},
		{"", "2024-02-29T23:59:59Z", day, "2024-02-29T00:00:00Z", "2024-03-01T00:00:00Z"},
		{"", "2025-06-01T00:00:00Z", year, "2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z"},
		{"", "2026-11-22T23:59:59Z", week, "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"}, // a Sunday
		{"Europe/Berlin", "2026-03-31T22:00:00Z", month, "2026-03-31T22:00:00Z", "2026-04-30T22:00:00Z"},
		{"Europe/Berlin", "2026-03-29T12:00:00Z", day, "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"}, // 23 hours
		{"Europe/Berlin", "2026-10-25T12:00:00Z", day, "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"}, // 25 hours
		{"Europe/Berlin", "2026-10-25T00:30:00Z", time.Hour, "2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z"},
		{"Europe/Berlin", "2026-10-25T01:30:00Z", time.Hour, "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"}, // 02:30 again
		{"Asia/Kolkata", "2026-01-01T12:00:00Z", time.Hour, "2026-01-01T11:30:00Z", "2026-01-01T12:30:00Z"},
		{"Australia/Lord_Howe", "2026-04-04T14:45:00Z", time.Hour, "2026-04-04T14:00:00Z", "2026-04-04T15:30:00Z"}, // half an hour again
		{"America/Sao_Paulo", "2018-11-04T12:00:00Z", day, "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},         // begins at 01:00
		{"America/St_Johns", "2010-11-07T02:45:00Z", day, "2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z"},          // 23:15 again belongs to it
		{"Pacific/Apia", "2011-12-30T12:00:00Z", day, "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},              // there is no 30th
		{"Pacific/Apia", "2011-12-30T09:00:00Z", day, "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"},
	} {
		counter := limit.NewFixedCounter(calendarPolicy(1, c.period, c.zone))
		start, end := counter.Window(moment(t, c.at))
		if start != moment(t, c.start) || end != moment(t, c.end) {
			t.Errorf("%s %s, %v: from %v to %v, want %s to %s", c.zone, c.at, c.period,
				time.Unix(0, int64(start)).UTC(), time.Unix(0, int64(end)).UTC(), c.start, c.end)
		}
	}
}

func moment(t *testing.T, text string) limit.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return limit.At(at)
}

// zones returns the IANA zones that the toolchain knows, or four of them, two among those with unusual rules.
func zones(t *testing.T) []string {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	archive, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	var names []string
	for _, f := range archive.File {
		if !strings.HasSuffix(f.Name, "/") {
			names = append(names, f.Name)
		}
	}
	if len(names) < 500 {
		t.Fatalf("%d zones only", len(names))
	}
	if *allZones {
		return names
	}
	unusual := []string{
		"Australia/Lord_Howe", "America/St_Johns", "America/Sao_Paulo", "Pacific/Apia",
		"Asia/Gaza", "Africa/Casablanca", "Antarctica/Troll", "Asia/Kathmandu", "Pacific/Chatham", "America/Caracas",
	}
	r := seeding.Rand(t)
	var drawn []string
	for range 2 {
		drawn = append(drawn, names[r.IntN(len(names))], unusual[r.IntN(len(unusual))])
	}
	return drawn
}

// The oracle goes through 30 years in steps of 15 minutes and of each second around every change of a
// zone's offset. It knows only what the clock on the wall shows: a window of dates begins when a later
// one than ever is shown, one of an hour when a whole hour is. At every step the window is the same as
// the oracle's, so that each moment is in exactly one, and what is counted by windows is what a count by
// the oracle says.
func TestCalendarOfAllZones(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	from, to := time.Date(2000, 1, 3, 0, 0, 0, 0, time.UTC), time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, name := range zones(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			zone, err := limit.LoadZone(name)
			if err != nil {
				t.Fatal(err)
			}
			o := newOracle(name)
			steps := 0
			for at := from; at.Before(to); {
				_, until := at.In(zone).ZoneBounds()
				if until.IsZero() || until.After(to) {
					until = to
				}
				for ; at.Before(until.Add(-2 * time.Second)); at = at.Add(15 * time.Minute) {
					o.step(t, at.In(zone))
					steps++
				}
				for at = until.Add(-2 * time.Second); !at.After(until.Add(2 * time.Second)); at = at.Add(time.Second) {
					o.step(t, at.In(zone))
				}
				at = until.Add(2 * time.Second).Truncate(15 * time.Minute).Add(15 * time.Minute)
			}
			if steps < 900_000 {
				t.Fatal("only ", steps)
			}
		})
	}
}

type oracle struct {
	latest time.Time             // the latest date shown, as a midnight of UTC
	names  map[time.Duration]int // of the windows that latest is in, by their periods
	spans  []*spanOracle
}

type spanOracle struct {
	period     time.Duration
	counter    limit.FixedCounter
	state      limit.FixedState
	name       int // of the window in which the clock is
	start, end limit.Time
	count      int64
	known      bool
}

func newOracle(zone string) *oracle {
	o := &oracle{}
	for _, period := range []time.Duration{time.Hour, day, week, month, year} {
		o.spans = append(o.spans, &spanOracle{period: period, counter: limit.NewFixedCounter(calendarPolicy(limit.MaxCount, period, zone))})
	}
	return o
}

func (o *oracle) step(t *testing.T, at time.Time) {
	y, m, d := at.Date()
	if shown := time.Date(y, m, d, 0, 0, 0, 0, time.UTC); shown.After(o.latest) {
		o.latest = shown
		iso, number := shown.ISOWeek()
		o.names = map[time.Duration]int{day: y*10000 + int(m)*100 + d, week: iso*100 + number, month: y*100 + int(m), year: y}
	}
	now := limit.At(at)
	for _, s := range o.spans {
		name := o.names[s.period]
		start, end := s.counter.Window(now)
		if now < start || now >= end {
			t.Fatalf("%v is not in its window of %v", at, s.period)
		}
		begun := start != s.start
		if begun && s.known && start != s.end {
			t.Fatalf("%v: a window of %v begins at %v, the one before ended at %v", at, s.period, start, s.end)
		}
		if s.period == time.Hour {
			// Its first moment is the last at which the clock showed a whole hour.
			first := time.Unix(0, int64(start)).In(at.Location())
			if first.Minute() != 0 || first.Second() != 0 || begun && end-start > limit.Time(time.Hour) && at.Sub(first) > 2*time.Hour {
				t.Fatalf("%v: an hour begins at %v", at, first)
			}
		} else if begun != (name != s.name) {
			t.Fatalf("%v: %v window %d, before %d, begun %v", at, s.period, name, s.name, begun)
		}
		if begun {
			s.count = 0
		}
		s.start, s.end, s.name, s.known = start, end, name, true
		s.count++
		if v := s.counter.Take(&s.state, now, 1); !v.Allowed || s.state.Count != s.count {
			t.Fatalf("%v: counted %d in a window of %v, want %d", at, s.state.Count, s.period, s.count)
		}
	}
}

// A change between windows of the calendar, of another zone or of one length never makes room: what was
// used stays used until its own window has ended, and no longer than the quota says.
func TestCalendarConvert(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	rnd := seeding.Rand(t)
	names := zones(t)
	draw := func() limit.Policy {
		p := calendarPolicy(1+rnd.Int64N(20), []time.Duration{time.Hour, day, week, month, year}[rnd.IntN(5)], names[rnd.IntN(len(names))])
		switch rnd.IntN(4) {
		case 0:
			p.Align, p.Zone = limit.AlignEpoch, ""
		case 1:
			p.Align, p.Zone = limit.AlignFirstHit, ""
		}
		return p
	}
	for range 5000 {
		a, b := draw(), draw()
		from, to := limit.NewFixedCounter(a), limit.NewFixedCounter(b)
		now := limit.At(time.Date(2000+rnd.IntN(30), 1, 1, 0, 0, rnd.IntN(365*86400), 0, time.UTC))
		var s limit.FixedState
		cost := 1 + rnd.Int64N(a.Rate.Count)
		from.Take(&s, now, cost)
		later := now + limit.Time(rnd.Int64N(int64(a.Rate.Period)))
		_, ends := from.Window(now)
		got := to.Convert(s, &from, later)
		v := to.Peek(got, later, 0)
		switch {
		case later >= ends && got.Count != 0:
			t.Fatalf("%+v to %+v: %d of an ended window stayed", a, b, got.Count)
		case later < ends && v.Remaining != max(0, b.Rate.Count-cost):
			t.Fatalf("%+v to %+v: %d remain after %d were used", a, b, v.Remaining, cost)
		}
		if back := from.Convert(got, &to, later); later < ends && from.Peek(back, later, 0).Remaining > a.Rate.Count-cost {
			t.Fatalf("%+v to %+v and back: room was made", a, b)
		}
	}
}

func TestCalendarValidate(t *testing.T) {
	good := calendarPolicy(1, month, "Europe/Berlin")
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*limit.Policy){
		"unknown time zone":             func(p *limit.Policy) { p.Zone = "Europe/Atlantis" },
		"differs between machines":      func(p *limit.Policy) { p.Zone = "Local" },
		"no windows of the calendar":    func(p *limit.Policy) { p.Rate.Period = 3 * day },
		"no meaning with token_bucket":  func(p *limit.Policy) { p.Algorithm = limit.TokenBucket },
		"without windows of the calend": func(p *limit.Policy) { p.Align = limit.AlignEpoch },
		"a ban wants":                   func(p *limit.Policy) { p.Ban = time.Hour },
		"name one of the IANA database": func(p *limit.Policy) { p.Zone = "../../etc/passwd" },
	} {
		p := good
		change(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if names := limit.AlgorithmNames(); !slices.Contains(names, "fixed_window") {
		t.Fatal(names)
	}
}

// The first and the last moments that a Time holds are in windows.
func TestCalendarEnds(t *testing.T) {
	for _, zone := range []string{"", "Pacific/Kiritimati", "Pacific/Pago_Pago"} {
		for _, period := range []time.Duration{time.Hour, day, week, month, year} {
			c := limit.NewFixedCounter(calendarPolicy(1, period, zone))
			for _, now := range []limit.Time{-1, 0, 1, math.MaxInt64 - 1, math.MaxInt64 - limit.Time(2*year)} {
				start, end := c.Window(now)
				if now = max(now, 0); start > now || end < now || start < 0 || end <= start {
					t.Errorf("%v: %d is not in %d to %d", period, now, start, end)
				}
				var s limit.FixedState
				if !c.Take(&s, now, 1).Allowed || c.Take(&s, now, 1).Allowed {
					t.Error("not one at ", now)
				}
			}
		}
	}
}

// Any moment that a state may have, also far beyond the years for which zones are known, is in a window that is
// found, not longer than it may be.
func TestCalendarAtAnyTime(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	rnd := seeding.Rand(t)
	names := zones(t)
	for range 20_000 {
		period := []time.Duration{time.Hour, day, week, month, year}[rnd.IntN(5)]
		name := names[rnd.IntN(len(names))]
		c := limit.NewFixedCounter(calendarPolicy(1, period, name))
		at := limit.Time(rnd.Int64())
		start, end := c.Window(at)
		if start > at || end <= at || start > 0 && end < math.MaxInt64 && time.Duration(end-start) > limit.LongestWindow(period) {
			t.Fatalf("%s %v: %v is in a window from %v to %v", name, period, time.Unix(0, int64(at)).UTC(), time.Unix(0, int64(start)).UTC(), time.Unix(0, int64(end)).UTC())
		}
	}
}

func BenchmarkCalendarTake(b *testing.B) {
	for name, p := range map[string]limit.Policy{
		"calendar": calendarPolicy(limit.MaxCount, month, "Europe/Berlin"),
		"epoch":    {Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: limit.MaxCount, Period: month}},
	} {
		b.Run(name, func(b *testing.B) {
			c := limit.NewFixedCounter(p)
			var s limit.FixedState
			now := limit.At(time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC))
			for b.Loop() {
				c.Take(&s, now, 1)
				now++
			}
		})
	}
}
