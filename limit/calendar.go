package limit

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// spans are the periods that have windows of a calendar, by [AlignCalendar].
var spans = [...]time.Duration{
	spanHour: time.Hour, spanDay: 24 * time.Hour, spanWeek: 7 * 24 * time.Hour,
	spanMonth: 30 * 24 * time.Hour, spanYear: 365 * 24 * time.Hour,
}

// longest is the length of the longest window of each span: a repeated half hour, a clock that goes back
// by two hours at most, and the 31 days of a month and the 366 of a year.
var longest = [...]time.Duration{
	spanHour: 90 * time.Minute, spanDay: 26 * time.Hour, spanWeek: 7*24*time.Hour + 2*time.Hour,
	spanMonth: 31*24*time.Hour + 2*time.Hour, spanYear: 366*24*time.Hour + 2*time.Hour,
}

type span uint8

const (
	spanHour span = iota
	spanDay
	spanWeek
	spanMonth
	spanYear
)

func spanOf(period time.Duration) (span, bool) {
	for s, d := range spans {
		if d == period {
			return span(s), true
		}
	}
	return 0, false
}

// LongestWindow returns the length of the longest window of the calendar whose period is called by this
// length, such as 31 days and two hours by 30 days; a period that has none is returned as it is.
func LongestWindow(period time.Duration) time.Duration {
	if s, ok := spanOf(period); ok {
		return longest[s]
	}
	return period
}

// LoadZone returns the time zone of that IANA name, such as Europe/Berlin; "" is UTC. It returns an
// error for names that the system and this program do not know, and for Local, which is another zone
// on another machine.
func LoadZone(name string) (*time.Location, error) {
	if name == "" {
		return time.UTC, nil
	}
	if name == "Local" {
		return nil, fmt.Errorf("limit: time zone %q differs between machines, name one such as Europe/Berlin", name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("limit: unknown time zone %q, name one of the IANA database such as Europe/Berlin or America/New_York", name)
	}
	return zone, nil
}

// calendar finds the windows of one span in one zone. All limits with the same windows share one, so
// that it remembers the window that is open. It is safe for concurrent use.
type calendar struct {
	zone  *time.Location
	span  span
	known atomic.Pointer[calendarWindow]
}

type calendarWindow struct{ start, end Time }

type calendarName struct {
	zone string
	span span
}

var calendars struct {
	sync.Mutex
	byName map[calendarName]*calendar
}

// calendarOf returns the calendar of a valid policy.
func calendarOf(p Policy) *calendar {
	s, ok := spanOf(p.Rate.Period)
	zone, err := LoadZone(p.Zone)
	if !ok || err != nil {
		// Not valid, as a state of a former policy may be.
		return &calendar{zone: time.UTC, span: s}
	}
	name := calendarName{p.Zone, s}
	calendars.Lock()
	defer calendars.Unlock()
	c := calendars.byName[name]
	if c == nil {
		if calendars.byName == nil {
			calendars.byName = make(map[calendarName]*calendar)
		}
		c = &calendar{zone: zone, span: s}
		calendars.byName[name] = c
	}
	return c
}

// window returns the window that t is in, from start up to and without end. Every moment is in
// exactly one. Most are in the one that was asked for last.
func (c *calendar) window(t Time) (start, end Time) {
	if w := c.known.Load(); w != nil && w.start <= t && t < w.end {
		return w.start, w.end
	}
	w := c.find(t)
	c.known.Store(&w)
	return w.start, w.end
}

func (c *calendar) find(t Time) calendarWindow {
	at := time.Unix(0, int64(t)).In(c.zone)
	var from, to time.Time
	if c.span == spanHour {
		from, to = hourOf(at)
	} else {
		first, next := c.dates(latestDate(at))
		from, to = firstMoment(first, c.zone), firstMoment(next, c.zone)
	}
	// The windows of the year 2262 end beyond what a Time holds.
	if to.Year() >= 2262 {
		return calendarWindow{max(0, At(from)), math.MaxInt64}
	}
	return calendarWindow{max(0, At(from)), At(to)}
}

// hourOf returns the moments between which the clock shows no whole hour. Most zones change their
// offset by whole hours: their hours are of 60 minutes also then, and the repeated one is one of its
// own. In the others an hour with a change of half an hour is one of 90 minutes.
func hourOf(at time.Time) (from, to time.Time) {
	from = wholeHour(at)
	// From the middle of the next hour at the latest, the clock has shown it.
	for to = from.Add(time.Hour); ; to = to.Add(15 * time.Minute) {
		if h := wholeHour(to); h.After(from) {
			return from, h
		}
	}
}

// wholeHour returns the last moment up to at at which the clock showed a whole hour.
func wholeHour(at time.Time) time.Time {
	for {
		_, offset := at.Zone()
		since := at.Unix() + int64(offset)
		since -= floorDiv(since, 3600) * 3600
		hour := at.Add(-time.Duration(since)*time.Second - time.Duration(at.Nanosecond()))
		changed, _ := at.ZoneBounds()
		if changed.IsZero() || changed.After(at) || !hour.Before(changed) {
			return hour
		}
		at = changed.Add(-1)
	}
}

func floorDiv(a, b int64) int64 {
	if q := a / b; a%b >= 0 {
		return q
	}
	return a/b - 1
}

// date is a day of the calendar, as the midnight of UTC with which it begins there.
type date time.Time

func dateOf(t time.Time) date {
	y, m, d := t.Date()
	return date(time.Date(y, m, d, 0, 0, 0, 0, time.UTC))
}

// latestDate returns the latest date that the clock has shown up to at. Where a clock goes back across
// midnight, the evening that is repeated belongs to the day that has begun: a window begins once.
func latestDate(at time.Time) date {
	latest := dateOf(at)
	// Offsets are of less than a day, so only changes of the last two days matter.
	for back := at; ; {
		changed, _ := back.ZoneBounds()
		if changed.IsZero() || changed.After(back) || at.Sub(changed) > 48*time.Hour {
			return latest
		}
		back = changed.Add(-1)
		if d := dateOf(back); time.Time(d).After(time.Time(latest)) {
			latest = d
		}
	}
}

// dates returns the first date of the window that d is in, and that of the next window.
func (c *calendar) dates(d date) (first, next date) {
	t := time.Time(d)
	y, m, _ := t.Date()
	switch c.span {
	case spanDay:
		return d, date(t.AddDate(0, 0, 1))
	case spanWeek:
		t = t.AddDate(0, 0, -(int(t.Weekday())+6)%7) // from Monday, as in ISO 8601
		return date(t), date(t.AddDate(0, 0, 7))
	case spanMonth:
		t = time.Date(y, m, 1, 0, 0, 0, 0, time.UTC)
		return date(t), date(t.AddDate(0, 1, 0))
	default:
		t = time.Date(y, 1, 1, 0, 0, 0, 0, time.UTC)
		return date(t), date(t.AddDate(1, 0, 0))
	}
}

// firstMoment returns the first moment at which the clock of a zone shows d or a later date. That is
// midnight, or where there is none the end of the gap. A date that a zone has skipped begins when the
// next one does.
func firstMoment(d date, zone *time.Location) time.Time {
	midnight := time.Time(d)
	before := math.MinInt
	for at := midnight.Add(-48 * time.Hour).In(zone); ; {
		changed, until := at.ZoneBounds()
		_, offset := at.Zone()
		first := midnight.Add(-time.Duration(offset) * time.Second)
		if first.Before(changed) && offset != before {
			first = changed
		}
		if until.IsZero() || first.Before(until) {
			return first
		}
		if !until.After(at) {
			// Beyond the database's table time.ZoneBounds gives years 365 days, and zones an end in them at
			// which nothing changes.
			until = at.Add(time.Hour)
		}
		before, at = offset, until
	}
}
