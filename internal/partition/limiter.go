package partition

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/stint-io/stint/limit"
)

// Limiter is one instance's part of a limit that is split beforehand. It decides alone: the sum
// stays within the limit because all instances number the tokens in the same way.
//
// The tokens have numbers 0, 1, 2, ... from the Unix epoch on, and token c is due at c/rate.
// Each number belongs to one instance, by its [Part]; of N equal instances each has every N-th.
// A limit below one token per instance and second, or one that the number of instances does not
// divide, is no special case: whole tokens go to one instance after the other. Each instance
// uses its own tokens in ascending order, each at most once.
//
// Without windows a token may be used from when it is due until Burst further tokens are due. A
// token used within [x, x+T] was due within (x - Burst/rate, x + T], so all instances together
// admit at most
//
//	rate x T + Burst, rounded up
//
// in any interval of length T, if their clocks agree. A clock error, of whatever size, only
// moves an instance's tokens as a whole: the sum is below rate x T + Burst + N.
//
// With windows a token may be used from the beginning of the window in which it is due until the
// window's end, or from a later time that the spread sets: 0 is the window's beginning,
// [SpreadWhole] the time at which the token is due, in proportion between them. Any window then
// admits at most rate x window, rounded up, and any interval as long as a window twice that.
//
// Changes of the terms divide time: what is due before the change goes by the old terms, what is
// due from then on by the new ones. Instances that change at the same time by their clocks never
// exceed the limit, not by one token: see [Limiter.Change].
//
// The methods take the present by the instance's own clock, in nanoseconds since the
// Unix epoch; negative times count as 0. Time may go back: what was used stays used. The
// zero value admits nothing. A Limiter must not be used concurrently.
type Limiter struct {
	// eras are the terms in force and those that begin later. The first has tokens left unless
	// it is the last.
	eras []era

	// The first own token that is not used, of the first era, is open from opens on and expires
	// at lapses; MaxInt64 when there is none.
	opens, lapses limit.Time

	used    limit.Time // when the latest used token was due, plus 1; 0 = none was used
	window  limit.Time
	spread  int64
	skipped uint64 // tokens that expired unused
	changes uint64 // of eras
	pace    *pace  // nil unless a controller sets the spread
}

// era is a time in which tokens are numbered in one way.
type era struct {
	*numbers
	begin     limit.Time
	next, end uint64 // ranks: the first that is not used, the first of the next era
}

const spreadBits = 16

// SpreadWhole is the spread at which a token is open when it is due.
const SpreadWhole = 1 << spreadBits

// maxEras bounds the changes ahead. Not fewer: an operator plans the changes of an evening. Not
// more: a decision near a change goes through them one by one.
const maxEras = 16

// ErrManyChanges says that too many changes of a split limit lie ahead.
var ErrManyChanges = errors.New("partition: too many changes of a split limit lie ahead")

// Pacing says when in its window a token is open.
type Pacing uint8

// The pacings of windows. Without windows every token is open when it is due.
const (
	PaceNone Pacing = iota // all at the window's beginning
	PaceEven               // when it is due
	PacePID                // between the two, by a controller: see pace
)

// Options are the settings that a [Limiter] keeps for its life.
type Options struct {
	Window time.Duration // 0 = none; else 1 ms to 24 h, aligned to the Unix epoch
	Pacing Pacing
}

// Shorter windows are below the resolution of timers; longer ones are quotas, which need a
// calendar and a store.
const minWindow, maxWindow = time.Millisecond, 24 * time.Hour

// New returns a part that is in force from the beginning of time.
func New(o Options, t Terms) (*Limiter, error) {
	switch {
	case o.Pacing > PacePID:
		return nil, fmt.Errorf("partition: there is no pacing %d", o.Pacing)
	case o.Window == 0 && o.Pacing == PacePID:
		return nil, errors.New("partition: a controller paces the permits of windows, and there are none: set a window")
	case o.Window != 0 && (o.Window < minWindow || o.Window > maxWindow):
		return nil, fmt.Errorf("partition: window is %v, want %v to %v", o.Window, minWindow, maxWindow)
	}
	s := &Limiter{window: limit.Time(o.Window)}
	switch o.Pacing {
	case PaceEven:
		s.spread = SpreadWhole
	case PacePID:
		s.pace = &pace{}
	}
	c, err := newNumbers(t, s.window)
	if err != nil {
		return nil, err
	}
	s.eras = append(s.eras, newEra(c, 0))
	s.advance()
	return s, nil
}

func newEra(c *numbers, begin limit.Time) era {
	e := era{numbers: c, begin: begin, next: c.rankFrom(begin), end: math.MaxUint64}
	if c.dry() {
		e.end = 0
	}
	return e
}

// advance finds the first unused token.
func (s *Limiter) advance() {
	for len(s.eras) > 1 && s.eras[0].next >= s.eras[0].end {
		s.drop(1)
	}
	s.opens, s.lapses = math.MaxInt64, math.MaxInt64
	if len(s.eras) == 0 || s.eras[0].next >= s.eras[0].end {
		return
	}
	e := &s.eras[0]
	due := e.dueRank(e.next)
	s.opens, s.lapses = e.open(due, s.spread), e.lapse(due)
}

func (s *Limiter) drop(k int) {
	s.eras = slices.Delete(s.eras, 0, k)
	s.changes++
	if s.pace != nil {
		s.pace.spoiled = true
	}
}

// Allow takes cost own tokens that are open at now, if there are that many, and reports whether
// there were. A cost of 0 always fits; one below 0, or above [Limiter.Quota], never.
func (s *Limiter) Allow(now limit.Time, cost int64) bool {
	now = present(now)
	if s.pace != nil {
		s.roll(now)
	}
	if cost == 1 && now < s.lapses {
		if now < s.opens {
			return false
		}
		e := &s.eras[0]
		s.use(e, e.next, 1, now)
		return true
	}
	return s.allow(now, cost)
}

func (s *Limiter) allow(now limit.Time, cost int64) bool {
	if cost <= 0 {
		return cost == 0
	}
	n := uint64(cost)
	for i := range s.eras {
		e := &s.eras[i]
		first := max(e.next, e.live(now))
		if cost > e.quota || first >= e.end || e.end-first < n {
			continue
		}
		if e.open(e.dueRank(first+n-1), s.spread) > now {
			return false
		}
		s.skipped += first - e.next
		if i > 0 {
			s.skipped += s.eras[0].end - s.eras[0].next
			s.drop(i)
			e = &s.eras[0]
		}
		s.use(e, first, n, now)
		return true
	}
	return false
}

// present is now, at least 0 and below MaxInt64, which stands for never.
func present(now limit.Time) limit.Time { return min(max(0, now), math.MaxInt64-1) }

// use takes n own tokens from the rank first on, of the first era.
func (s *Limiter) use(e *era, first, n uint64, now limit.Time) {
	e.next = first + n
	s.used = max(s.used, e.dueRank(e.next-1).Add(1))
	if s.pace != nil {
		s.pace.admit(now, s.window, int64(n))
	}
	s.advance()
}

// Earliest returns when cost own tokens can be taken behind ahead others, which are taken as
// soon as possible; now at the earliest, MaxInt64 = never.
//
// It is exact unless a cost above 1 meets the end of a window, where tokens too few for it stay
// unused. It is then a lower bound.
func (s *Limiter) Earliest(now limit.Time, ahead, cost int64) limit.Time {
	now = present(now)
	if s.pace != nil {
		s.roll(now)
	}
	if cost <= 0 {
		return now
	}
	before := uint64(max(0, ahead))
	for i := range s.eras {
		e := &s.eras[i]
		first := max(e.next, e.live(now))
		if first >= e.end {
			continue
		}
		have := e.end - first
		if cost > e.quota || have < before || have-before < uint64(cost) {
			before -= min(before, have)
			continue
		}
		rank, at := e.earliest(first+before, uint64(cost), s.spread)
		if saturatingAdd(rank, uint64(cost)) > e.end {
			before = 0
			continue
		}
		return max(now, at)
	}
	return math.MaxInt64
}

// Line is the position of the next waiter in the order of own tokens; see [Limiter.Behind]. It
// is a value; the zero value is invalid.
type Line struct {
	now              limit.Time
	era              int
	rank             uint64
	skipped, changes uint64
}

// Front returns the line's front at now.
func (s *Limiter) Front(now limit.Time) Line {
	return Line{now: present(now), skipped: s.skipped, changes: s.changes}
}

// Behind returns when a request for cost behind line can take it, MaxInt64 = never, and the line
// behind that request. It is [Limiter.Earliest] for different costs, and exact with windows too
// if it is called for all waiters in their order.
func (s *Limiter) Behind(line Line, cost int64) (limit.Time, Line) {
	for ; line.era < len(s.eras); line.era++ {
		e := &s.eras[line.era]
		first := line.rank
		if first == 0 {
			first = max(e.next, e.live(line.now))
		}
		line.rank = 0
		if cost > e.quota || first >= e.end || e.end-first < uint64(cost) {
			continue
		}
		first, at := e.earliest(first, uint64(cost), s.spread)
		if line.rank = saturatingAdd(first, uint64(cost)); line.rank <= e.end {
			return max(line.now, at), line
		}
		line.rank = 0
	}
	return math.MaxInt64, line
}

// Stands reports whether line is still valid: no tokens have expired and no terms have changed
// since its Front.
func (s *Limiter) Stands(line Line) bool {
	return line.skipped == s.skipped && line.changes == s.changes
}

// Opens returns a time before which [Limiter.Allow] refuses every positive cost.
func (s *Limiter) Opens() limit.Time {
	if s.pace == nil || s.opens == math.MaxInt64 {
		return s.opens
	}
	return s.opens - s.opens%s.window // the controller may bring it forward to there
}

// Known returns until when a result of [Limiter.Earliest] holds, if nothing is taken and the
// terms do not change: with a controller, until the end of the window.
func (s *Limiter) Known(now limit.Time) limit.Time {
	if s.pace == nil {
		return math.MaxInt64
	}
	return (now - now%s.window).Add(time.Duration(s.window))
}

// Quota returns the most that can be taken at once, under the terms in force or later ones.
func (s *Limiter) Quota() int64 {
	quota := int64(0)
	for i := range s.eras {
		quota = max(quota, s.eras[i].quota)
	}
	return quota
}

// Skipped counts the tokens that expired unused; it only grows.
func (s *Limiter) Skipped() uint64 { return s.skipped }

// Spread is how far tokens are moved from their window's beginning towards the moment
// they are due: 0 to [SpreadWhole].
func (s *Limiter) Spread() int64 { return s.spread }

// Remaining returns how much could be taken at now, in one piece or several.
func (s *Limiter) Remaining(now limit.Time) int64 {
	now = present(now)
	sum := uint64(0)
	for i := range s.eras {
		e := &s.eras[i]
		first, last := max(e.next, e.live(now)), min(e.end, e.opened(now, s.spread))
		if first < last {
			sum = saturatingAdd(sum, last-first)
		}
	}
	return int64(min(sum, math.MaxInt64))
}

// Verdict describes the limit at now: after cost was admitted, or for a request for cost behind
// waiters for ahead.
func (s *Limiter) Verdict(now limit.Time, allowed bool, ahead, cost int64) limit.Verdict {
	now = present(now)
	v := limit.Verdict{Allowed: allowed, ResetAfter: s.reset(now)}
	if ahead == 0 {
		v.Remaining = s.Remaining(now)
	}
	if allowed {
		return v
	}
	v.Reason, v.RetryAfter = limit.ReasonRate, limit.Never
	if cost > s.Quota() && cost > 0 && s.Quota() > 0 {
		v.Reason = limit.ReasonCost
		return v
	}
	if t := s.Earliest(now, ahead, cost); t != math.MaxInt64 {
		v.RetryAfter = time.Duration(t - now)
	}
	return v
}

// reset returns how long it takes until all used tokens would have expired.
func (s *Limiter) reset(now limit.Time) time.Duration {
	if s.used == 0 || len(s.eras) == 0 {
		return 0
	}
	return time.Duration(max(0, s.eras[0].lapse(s.used-1)-now))
}

// Result describes the part in force as a [limit.Result]: its algorithm, its quota, and the time
// in which the quota is refilled.
func (s *Limiter) Result() limit.Result {
	r := limit.Result{Algorithm: limit.TokenBucket}
	if s.window > 0 {
		r.Algorithm = limit.FixedWindow
	}
	if len(s.eras) == 0 {
		return r
	}
	e := &s.eras[0]
	if r.Quota = e.quota; e.dry() {
		return r
	}
	r.Window = time.Duration(e.due(gap(e.units, e.offsets, uint64(e.quota))))
	r.Window = max(r.Window, time.Duration(s.window))
	return r
}

// Terms returns the latest terms, which may not be in force yet, and when they begin.
func (s *Limiter) Terms() (Terms, limit.Time) {
	if len(s.eras) == 0 {
		return Terms{}, 0
	}
	e := &s.eras[len(s.eras)-1]
	return e.terms, e.begin
}

// Change puts t in force for all tokens due from the time from on; the old terms hold for tokens
// due before it. The zero time means now. It replaces all changes that were to begin then or
// later. What was used stays used: no token due before the latest used one is used under any
// terms. Invalid terms, and too many changes ahead, are an error and change nothing.
//
// If all instances know of the change before it begins, tokens due before it have one owner each
// and those from then on too: the fleet is within the bound of the old terms before and of the
// new ones after, and a straddling interval may have one token more than its two parts, for
// rounding. If the first instance changes at a and the last at b, tokens due within [a, b) may
// have an owner by either numbering: at most (b - a) x the lower rate, rounded up, on top.
func (s *Limiter) Change(now limit.Time, t Terms, from limit.Time) error {
	c, err := newNumbers(t, s.window)
	if err != nil {
		return err
	}
	now = present(now)
	if from <= 0 {
		from = now
	}
	from = max(from, s.used)

	kept := max(1, len(s.eras))
	for kept > 1 && s.eras[kept-1].begin >= from {
		kept--
	}
	if len(s.eras) > 0 && s.eras[kept-1].same(c) {
		s.eras = s.eras[:kept]
		last := &s.eras[kept-1]
		last.numbers, last.end = c, newEra(c, 0).end
		s.changes++
		s.advance()
		return nil
	}
	end, past := uint64(0), 0 // past counts the eras of which nothing is good any more
	for i := range s.eras[:min(kept, len(s.eras))] {
		e := &s.eras[i]
		if end = e.end; i == kept-1 {
			end = min(end, e.rankFrom(from))
		}
		if past == i && max(e.next, e.live(now)) >= end {
			past++
		}
	}
	if kept-past >= maxEras {
		if s.eras[past+1].begin > now {
			return fmt.Errorf("%w: %d", ErrManyChanges, kept-past-1)
		}
		past++ // the change is more urgent than a few tokens from before the last one
	}
	if len(s.eras) > 0 {
		s.eras = s.eras[:kept]
		s.eras[kept-1].end = end
		s.drop(past)
	}
	s.eras = append(s.eras, newEra(c, from))
	s.changes++
	s.advance()
	return nil
}
