package redis

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/bits"
	"sync"
	"time"

	"github.com/stint-io/stint/limit"
)

// The kinds of arithmetic, by the numbers that the script knows them by. Counters
// of another kind have other keys: a change of algorithm starts afresh.
type kind uint8

const (
	kindBucket  kind = iota + 1 // token and leaky buckets
	kindFixed                   // fixed windows
	kindSliding                 // sliding window counters
	kindLog                     // sliding window logs
	kindPermits                 // permits in flight
)

// letter stands for the kind in a key.
func (k kind) letter() byte { return " bfslc"[k] }

// scalar kinds have a state of a few numbers, which the script answers with.
func (k kind) scalar() bool { return k <= kindSliding }

// The exact range of the script, whose numbers are doubles: whole numbers up to
// 2^53. Sums of two numbers below and products by halves of them stay within it.
const (
	// maxSpan bounds a period, a ban, a time-out and the time in which a bucket
	// fills: 2^51 microseconds, 71 years.
	maxSpan = 1 << 51
	// maxCount bounds the count of a window.
	maxCount = 1 << 50
	// maxNumerator bounds the rate of a bucket in lowest terms per nanosecond,
	// so that a thousand of them still fit.
	maxNumerator = 1 << 42
	// beyond is above every number that it is compared with.
	beyond = 1 << 53
	// latest bounds the time at which a bucket is full, which only a debt carried over from
	// another rate brings beyond the exact range. (What is refused and counted brings it
	// to the end of that range at most: OWED in lua/load.lua, the year 2255.)
	latest = 1 << 116
)

// rule is a policy as the script needs it, and package limit's arithmetic for reading the
// answer. It is immutable.
type rule struct {
	policy  limit.Policy
	kind    kind
	numbers [4]float64 // see lua/load.lua
	tag     string     // what must be the same for a state to be read as it is

	n, p, unit uint64 // bucket: n tokens per p nanoseconds; unit is ticks per microsecond

	bucket  limit.Bucket
	fixed   limit.FixedCounter
	sliding limit.SlidingCounter
	rising  limit.RisingCounter // if the policy is a RisingWindow, which is of the same kind
}

// state is the state of one scalar bucket.
type state struct {
	bucket  limit.BucketState
	fixed   limit.FixedState
	sliding limit.SlidingState
}

// newRule compiles a valid policy. It returns an error for one that is outside
// the exact range.
func newRule(p limit.Policy) (*rule, error) {
	r := &rule{policy: p}
	if p.Unlimited {
		// Redis is never asked; only the kind is needed, which is in the key.
		p = limit.Policy{Algorithm: p.Algorithm, Timeout: step}
	}
	if p.Rate.Period == 0 {
		// A rate of 0 needs no period, but windows have a length: the step of the
		// clock.
		p.Rate.Period = step
	}
	var err error
	switch p.Algorithm {
	case limit.FixedWindow:
		err = r.compileFixed(p)
	case limit.SlidingWindowCounter, limit.SlidingWindowLog, limit.RisingWindow:
		err = r.compileSliding(p)
	case limit.Concurrency:
		r.kind = kindPermits
		var timeout float64
		timeout, err = micros("the time-out", p.Timeout)
		r.numbers = [4]float64{timeout, float64(p.MaxInFlight)}
	default:
		err = r.compileBucket(p)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (r *rule) compileBucket(p limit.Policy) error {
	r.kind, r.bucket = kindBucket, limit.NewBucket(p)
	r.n, r.p = r.bucket.Terms()
	quota := uint64(p.Quota())
	// Without the quota: a state says what is used, which has the same meaning for every quota
	// under the same rate. (Former versions wrote the quota in place of the 0.)
	r.tag = string(words(r.n, r.p, 0))
	if r.n == 0 {
		// A bucket that never refills counts what was taken, at a fixed time.
		r.unit = 1
		if quota > maxSpan {
			return fmt.Errorf("a burst of %d without refill is above 2^51, the most that is exact in Redis", quota)
		}
		r.numbers = [4]float64{1, float64(quota), 0, 1}
		return nil
	}
	if r.n > maxNumerator {
		return fmt.Errorf("rate %v is above 2^42 per nanosecond in lowest terms, the most that is exact in Redis", p.Rate)
	}
	r.unit = 1000 * r.n
	whole, part := r.ticks(quota)
	if whole > maxSpan {
		return fmt.Errorf("a bucket of %d at %v fills in more than 71 years (2^51 microseconds), the most that is exact in Redis: lower the burst", quota, p.Rate)
	}
	r.numbers = [4]float64{float64(r.unit), float64(whole), float64(part), 0}
	return nil
}

// ticks returns what count costs in microseconds and ticks; more than beyond
// microseconds are beyond.
func (r *rule) ticks(count uint64) (whole, part uint64) {
	hi, lo := bits.Mul64(count, r.p)
	if hi >= r.unit {
		return beyond, 0
	}
	whole, part = bits.Div64(hi, lo, r.unit)
	if whole >= beyond {
		return beyond, 0
	}
	return whole, part
}

// zones has the names of the time zones of this process by their hashes, so that a state of another policy is read as
// what it was.
var zones sync.Map

func zoneOf(hash uint64) (name string, ok bool) {
	if hash == hashOf("") {
		return "", true // UTC
	}
	known, ok := zones.Load(hash)
	if ok {
		name = known.(string)
	}
	return name, ok
}

func hashOf(zone string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(zone))
	return h.Sum64()
}

func (r *rule) compileFixed(p limit.Policy) error {
	r.kind, r.fixed = kindFixed, limit.NewFixedCounter(p)
	period, err := micros("the period", p.Rate.Period)
	if err != nil {
		return err
	}
	ban, err := micros("the ban", p.Ban)
	if err != nil {
		return err
	}
	if p.Rate.Count > maxCount {
		return fmt.Errorf("a count of %d is above 2^50, the most that is exact in Redis", p.Rate.Count)
	}
	flags, count := uint64(0), uint64(0)
	if p.Align == limit.AlignFirstHit {
		flags |= 1
	}
	if p.BanFromNow {
		flags |= 2
	}
	if p.Ban > 0 {
		count = uint64(p.Rate.Count) // by which a state says that there is a ban
	}
	if p.Align == limit.AlignCalendar {
		flags = flagCalendar
		count = hashOf(p.Zone)
		zones.Store(count, p.Zone)
	}
	r.numbers = [4]float64{max(period, 1), float64(p.Rate.Count), ban, float64(flags)}
	r.tag = string(append(words(uint64(p.Rate.Period), count, uint64(p.Ban)), byte(flags)))
	return nil
}

// flagCalendar says that windows are those of the calendar, which has no other flags. Their tag has a
// hash of the zone in the place of the count.
const flagCalendar = 4

func (r *rule) ofCalendar() bool { return r.kind == kindFixed && r.policy.Align == limit.AlignCalendar }

// numbersAt returns the numbers for the script, which holds them for those of now and says so if they
// are not: windows of the calendar differ in length, and Redis knows no calendar.
func (r *rule) numbersAt(now limit.Time) [4]float64 {
	if !r.ofCalendar() {
		return r.numbers
	}
	start, end := r.fixed.Window(now)
	return [4]float64{float64((end - start) / 1000), r.numbers[1], float64(start / 1000), flagCalendar}
}

// window numbers the window that now is in.
func (r *rule) window(now limit.Time) int64 {
	if r.ofCalendar() {
		start, _ := r.fixed.Window(now)
		return int64(start)
	}
	return int64(now) / 1000 / int64(r.numbers[0])
}

func (r *rule) compileSliding(p limit.Policy) error {
	r.kind, r.sliding, r.rising = kindSliding, limit.NewSlidingCounter(p), limit.NewRisingCounter(p)
	period, err := micros("the period", p.Rate.Period)
	if err != nil {
		return err
	}
	if p.Rate.Count > maxCount {
		return fmt.Errorf("a count of %d is above 2^50, the most that is exact in Redis", p.Rate.Count)
	}
	if p.Algorithm == limit.SlidingWindowLog {
		r.kind = kindLog
	} else {
		r.tag = string(words(uint64(p.Rate.Period)))
	}
	r.numbers = [4]float64{max(period, 1), float64(p.Rate.Count), 0, float64(p.Rounding)}
	if p.Algorithm == limit.RisingWindow {
		if p.Rise > maxCount || p.Start > maxCount {
			return fmt.Errorf("a rise of %d from %d is above 2^50, the most that is exact in Redis", p.Rise, p.Start)
		}
		r.numbers[2], r.numbers[3] = float64(p.Rise), float64(min(p.Start, p.Rate.Count))
	}
	return nil
}

// micros returns d in whole microseconds, the step of Redis' clock.
func micros(what string, d time.Duration) (float64, error) {
	us := d / time.Microsecond
	switch {
	case us*time.Microsecond != d:
		return 0, fmt.Errorf("%s of %v is not a whole number of microseconds, the step of the clock of Redis", what, d)
	case us > maxSpan:
		return 0, fmt.Errorf("%s of %v is above 71 years (2^51 microseconds), the most that is exact in Redis", what, d)
	}
	return float64(us), nil
}

func words(list ...uint64) []byte {
	var b []byte
	for _, w := range list {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// cost returns a cost as two numbers for the script. With fit, a cost above the quota may be any
// number that does not fit.
func (r *rule) cost(cost int64, fit bool) (a, b float64) {
	if r.kind != kindBucket {
		return float64(min(cost, beyond)), 0
	}
	if fit && cost > r.policy.Quota() {
		return beyond * 4, 0
	}
	whole, part := r.ticks(uint64(cost))
	return float64(whole), float64(part)
}

// numbersIn reads the numbers of a state; false when they are no whole numbers within the exact
// range, which no version writes. The time at which a bucket is full may be beyond it: see
// split.
func (r *rule) numbersIn(raw string) (list [3]float64, ok bool) {
	n := 2
	if r.kind == kindSliding {
		n = 3
	}
	if len(raw) < 8*n {
		return list, false
	}
	for i := range n {
		f := math.Float64frombits(binary.LittleEndian.Uint64([]byte(raw[8*i : 8*i+8])))
		most := float64(beyond)
		if r.kind == kindBucket && i == 0 {
			most = latest
		}
		if !(f >= 0 && f < most) || math.Floor(f) != f {
			return [3]float64{}, false
		}
		list[i] = f
	}
	return list, true
}

// decode reads a state as the script wrote it. "" and states that no version writes are those of
// a new key.
func (r *rule) decode(raw string) (s state) {
	nums, ok := r.numbersIn(raw)
	if !ok {
		return s
	}
	num := func(i int) int64 { return int64(nums[i]) }
	switch r.kind {
	case kindBucket:
		s.bucket = r.join(nums[0], uint64(num(1)))
	case kindFixed:
		s.fixed = limit.FixedState{Start: limit.Time(num(0) * 1000), Count: num(1)}
	case kindSliding:
		s.sliding = limit.SlidingState{Index: num(0), Cur: num(1), Prev: num(2)}
	}
	return s
}

// join returns the state in ticks of whole microseconds and part ticks. One that does not fit
// becomes the latest time.
func (r *rule) join(whole float64, part uint64) limit.BucketState {
	shift := 0
	if whole >= beyond {
		fraction, exponent := math.Frexp(whole)
		shift = exponent - 53
		whole = math.Ldexp(fraction, 53)
	}
	hi, lo := bits.Mul64(uint64(whole), r.unit)
	if bits.Len64(hi)+shift > 63 {
		return limit.BucketState{Hi: 1 << 63}
	}
	hi, lo = hi<<shift|lo>>(64-shift), lo<<shift
	lo, carry := bits.Add64(lo, part, 0)
	return limit.BucketState{Hi: hi + carry, Lo: lo}
}

// split is the inverse of join. A debt that is paid beyond the exact range, after some two
// hundred years, is rounded up to a number that the script can hold.
func (r *rule) split(s limit.BucketState) (whole float64, part uint64) {
	high, rest := s.Hi/r.unit, s.Hi%r.unit
	low, part := bits.Div64(rest, s.Lo, r.unit)
	if high == 0 && low < beyond {
		return float64(low), part
	}
	whole = float64(high)*(1<<64) + float64(low) // to the nearest, or nearly
	for at := r.join(whole, 0); at.Hi < s.Hi || at.Hi == s.Hi && at.Lo < s.Lo; at = r.join(whole, 0) {
		whole = math.Nextafter(whole, math.Inf(1))
	}
	return min(whole, latest/2), 0
}

// outside reports whether the time at which a bucket is full is beyond the exact range. No
// request fits it, and refunds to it are lost in the rounding.
func (r *rule) outside(s *state) bool {
	if r.kind != kindBucket {
		return false
	}
	whole, _ := r.split(s.bucket)
	return whole >= beyond
}

// encode writes a state as the script does.
func (r *rule) encode(s state) string {
	num := func(list ...uint64) []byte {
		for i := range list {
			list[i] = math.Float64bits(float64(list[i]))
		}
		return words(list...)
	}
	var b []byte
	switch r.kind {
	case kindBucket:
		if s.bucket == (limit.BucketState{}) {
			return ""
		}
		whole, part := r.split(s.bucket)
		b = words(math.Float64bits(whole), math.Float64bits(float64(part)))
	case kindFixed:
		if s.fixed.Count == 0 {
			return ""
		}
		b = num(uint64(s.fixed.Start/1000), uint64(s.fixed.Count))
	case kindSliding:
		b = num(uint64(s.sliding.Index), uint64(s.sliding.Cur), uint64(s.sliding.Prev))
	}
	return string(b) + r.tag
}

// convert converts a state that another policy wrote, as package limit does when a policy
// changes. A state that cannot be read becomes that of a new key.
func (r *rule) convert(raw string, now limit.Time) string {
	old, ok := r.writer(raw)
	if !ok {
		return ""
	}
	s := old.decode(raw)
	switch r.kind {
	case kindBucket:
		s.bucket = r.bucket.Convert(s.bucket, &old.bucket, now)
	case kindFixed:
		s.fixed = r.fixed.Convert(s.fixed, &old.fixed, now)
		s.fixed.Count = min(s.fixed.Count, 2*maxCount)
	case kindSliding:
		if s.sliding = r.sliding.Convert(s.sliding, &old.sliding, now); r.policy.Algorithm == limit.RisingWindow {
			s.sliding = r.rising.Convert(old.decode(raw).sliding, &old.rising, now)
		}
		s.sliding.Cur = min(s.sliding.Cur, 2*maxCount)
	}
	return r.encode(s)
}

// writer returns the rule that wrote a state.
func (r *rule) writer(raw string) (*rule, bool) {
	p := limit.Policy{Algorithm: r.policy.Algorithm}
	from, size := 16, 24
	switch r.kind {
	case kindFixed:
		size = 25
	case kindSliding:
		from, size = 24, 8
	}
	if len(raw) != from+size {
		return nil, false
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64([]byte(raw[from+8*i : from+8*i+8])) }
	switch r.kind {
	case kindBucket:
		p.Algorithm = limit.TokenBucket
		p.Rate, p.Burst = limit.Rate{Count: int64(word(0)), Period: time.Duration(word(1))}, int64(word(2))
		if p.Burst == limit.MaxCount+1 {
			// The quota of the longest queue is one above the largest burst.
			p.Algorithm, p.Burst = limit.LeakyBucket, limit.MaxCount
		}
	case kindFixed:
		p.Rate, p.Ban = limit.Rate{Count: int64(word(1)), Period: time.Duration(word(0))}, time.Duration(word(2))
		if raw[from+24] == flagCalendar {
			p = limit.Policy{Algorithm: limit.FixedWindow, Align: limit.AlignCalendar, Rate: limit.Rate{Count: 1, Period: time.Duration(word(0))}}
			var ok bool
			if p.Zone, ok = zoneOf(word(1)); !ok {
				// The state is older than this process. As a window of the greatest length it may count for
				// longer than it should, never shorter.
				p.Align, p.Rate.Period = limit.AlignFirstHit, limit.LongestWindow(p.Rate.Period)
			}
		} else if raw[from+24]&1 != 0 {
			p.Align = limit.AlignFirstHit
		}
		p.BanFromNow = raw[from+24]&2 != 0
	case kindSliding:
		p.Rate, p.Rise = limit.Rate{Count: 1, Period: max(time.Duration(word(0)), 1)}, 1
	}
	if p.Validate() != nil {
		return nil, false
	}
	old, err := newRule(p)
	return old, err == nil
}

// wrote reports whether this rule, or one with the same tag, wrote a state.
func (r *rule) wrote(raw string) bool {
	from := 16
	if r.kind == kindSliding {
		from = 24
	}
	_, sound := r.numbersIn(raw)
	return sound && raw[from:] == r.tag
}
