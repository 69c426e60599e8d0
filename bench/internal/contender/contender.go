// Package contender holds the limiters that are compared, one file for each, and
// the floors: what no limiter that does the work can beat.
//
// A limiter without a keyed store of its own stands behind a sync.Map, as its
// users write it. No contender is told less than it needs or spared work: all
// get the same plan, the same keys in the same order, and one call per request.
package contender

import "time"

// Plan is what every key is allowed: Burst at once, then Count per Period.
// Contenders without a burst grant Burst per [Plan.Window] instead.
type Plan struct {
	Count  int64
	Period time.Duration
	Burst  int64
}

// The plans of the tables.
var (
	// AlwaysAllowed is never reached: one per nanosecond.
	AlwaysAllowed = Plan{Count: 1e9, Period: time.Second, Burst: 1e12}
	// LongLived is never reached either, and each take stays on the books for a
	// minute: no store may drop a key during a run and call it new again.
	LongLived = Plan{Count: 1, Period: time.Minute, Burst: 100_000}
	// Refused admits one and refuses the rest of the day.
	Refused = Plan{Count: 1, Period: 24 * time.Hour, Burst: 1}
)

// Window is the time in which contenders with windows grant Burst: the time in
// which an empty bucket fills, but at least an hour, so that no window ends
// during a run.
func (p Plan) Window() time.Duration {
	fill := p.Period / time.Duration(p.Count) * time.Duration(p.Burst)
	return min(max(fill, time.Hour), 24*time.Hour)
}

// Limiter is a contender under a plan. Its methods are safe for concurrent use.
//
// Hot and Spin are loops of the contender's own, so that a call costs what it
// costs a user, with no dispatch through an interface between.
type Limiter interface {
	// Allow takes one for key.
	Allow(key string) bool
	// Hot takes n times for one key and returns how many were admitted.
	Hot(key string, n int) int
	// Spin takes n times along the walk and returns how many were admitted.
	Spin(w *Walk, n int) int
}

// Close ends what the limiter runs in the background, if anything: a goroutine
// that sweeps a store would keep it in the heap of the tables that follow.
func Close(l Limiter) {
	if c, ok := l.(interface{ close() }); ok {
		c.close()
	}
}

// Contender makes limiters. The zero value is of no use.
type Contender struct {
	Name string
	New  func(Plan) (Limiter, error)

	// Floor contenders show what the work costs without a limiter around it.
	Floor bool
	// Blocks is set for contenders that wait and never refuse.
	Blocks bool
}

// Names used to compare.
const (
	StintName = "stint"
	XTimeName = "x/time/rate + sync.Map"
)

// Stint is the keyed store of this project.
func Stint() Contender { return Contender{Name: StintName, New: newStint} }

// Rivals returns the other limiters, in the order of the tables.
func Rivals() []Contender {
	return []Contender{
		{Name: XTimeName, New: newXTime},
		{Name: "uber/ratelimit + sync.Map", New: newUber, Blocks: true},
		{Name: "juju/ratelimit + sync.Map", New: newJuju},
		{Name: "sethvargo/go-limiter", New: newGoLimiter},
		{Name: "throttled/v2 (map)", New: newThrottled},
		{Name: "failsafe-go bursty + sync.Map", New: newFailsafe},
		{Name: "ulule/limiter/v3", New: newUlule},
	}
}

// OneWord is the floor for one hot key: a clock read and a compare-and-swap.
func OneWord() Contender {
	return Contender{Name: "floor: clock + compare-and-swap", New: newOneWord, Floor: true}
}

// ClockOnly is the floor for refusals: a clock read and nothing else.
func ClockOnly() Contender {
	return Contender{Name: "floor: clock read", New: newClockOnly, Floor: true}
}

// FlatTable is the floor for many keys: a table of 16-byte slots for up to a
// million keys, with the same arithmetic and clock.
func FlatTable() Contender {
	return Contender{Name: "floor: flat 16-byte table", New: newFlat, Floor: true}
}

// HashOnly is what the walk itself costs: fetch the next key and hash it.
func HashOnly() Contender {
	return Contender{Name: "walk and hash, no limiter", New: newHashOnly, Floor: true}
}
