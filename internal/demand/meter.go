package demand

import (
	"math"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// Meter measures a rate of arrivals: how long as many took as came since the last change,
// or in meterMemory. It counts from an arrival to an arrival, so that even arrivals are
// known exactly from two on. A change is where the window falls into two parts whose rates
// differ by more than the unevenness that was seen makes likely; the older part is then
// forgotten. So what comes evenly is followed at once, and what comes at random or in
// batches is not taken for a change each time. A silence is an interval that is too long.
//
// The zero value has measured nothing.
type Meter struct {
	Ready  bool
	begun  bool          // by an arrival, which is not counted, since the time begins with it
	mixed  bool          // the change was within the oldest part, which is one interval
	Total  fixed.Amount  // at the last observation
	At     limit.Time    // of it
	Rate   float64       // tokens per second
	Quiet  float64       // seconds since something came
	stood  float64       // of quiet, the seconds in which nothing could come; see Standstill
	missed float64       // seconds of standstills in which what comes now may have been asked
	waited time.Duration // at the last observation; see ObserveWaiting

	// The window, the newest part first. Each part is as long as the newer one, or
	// twice as long. There is memory for as many as there were since nothing was expected: an
	// instance has as many meters as keys, and most measure one request.
	parts []span
	count int // of parts
	// uneven is the variance of counts beside that of arrivals one by one and at
	// random: near 0 for even arrivals, 10 for batches of ten.
	uneven   float64
	compared float64 // how many parts that rests on
}

// span is what came within a part of the window, and its length in seconds, from an arrival
// to an arrival. Its end is known to blur, and uneven is what arrivals were before it.
type span struct{ tokens, length, blur, uneven float64 }

const (
	// meterMemory is the longest time over which arrivals are averaged, in seconds.
	// Not shorter: near the limit an error in measured demand is capacity that
	// one instance has and another needs. Not longer: slow drifts should be followed.
	meterMemory = 8.0
	// meterGrain is the length of the newest part, in seconds. Not shorter: more parts
	// cost time and show little. Not longer: no change could be seen sooner.
	meterGrain = 0.01
	// meterParts are enough for two of each length.
	meterParts = 24
	// meterDoubt is how unlikely a difference must be to be a change: the square of how
	// many standard deviations. At 50 observations per second, each at all parts, 5 deviations
	// mean one false alarm in many hours, 3 would mean one in seconds.
	meterDoubt = 20.0
	// meterLearns is over how many parts uneven is averaged. Not fewer: random
	// arrivals would now and then be taken for even. Not more: it has to be learned.
	meterLearns = 32
	// meterEven is the least that uneven is. Not less: an even load has its hitches too.
	meterEven = 1.0 / 256
	// meterEnds is after how many times the usual interval nothing is expected any more.
	meterEnds = 2
)

// ArrivalGrain is how exactly the time of the last arrival is known. Not finer: each store
// of it takes the cache line from other threads. Not coarser: it bounds how well the rate of
// a few arrivals is known.
const ArrivalGrain = limit.Time(time.Millisecond)

// longestStandstill bounds the time in which a process that the machine did not run may not
// have seen its arrivals. Not longer: a process that is always late has to notice in the end
// that nothing comes. Not shorter: machines are that busy.
const longestStandstill = time.Second

// Observe takes the running total of arrivals at now, and unit, the usual cost of
// one arrival in tokens. It reports whether the rate has changed.
func (m *Meter) Observe(now limit.Time, total fixed.Amount, unit float64) (changed bool) {
	return m.ObserveWaiting(now, 0, total, unit, m.waited)
}

// ObserveWaiting is Observe where patient waiters sent no requests while they waited: waited is
// the total time with such a waiter. It does not count, so the rate is that of arrivals when no
// request has to wait. last is when the latest request arrived; a time before the previous
// observation means that it is not known.
func (m *Meter) ObserveWaiting(now, last limit.Time, total fixed.Amount, unit float64, waited time.Duration) (changed bool) {
	if !m.Ready {
		m.Ready, m.Total, m.At, m.waited, m.uneven, m.Quiet = true, total, now, waited, 1, 1
		return false
	}
	if time.Duration(now-m.At).Seconds() < meterShortest {
		return false
	}
	dt := max(0, time.Duration(now-m.At)-(waited-m.waited)).Seconds()
	n := (total - m.Total).Float()
	since, blur := 0.0, dt*min(1, unit/max(n, unit))
	if last > m.At && last <= now && waited == m.waited {
		since, blur = time.Duration(now-last).Seconds(), min(blur, time.Duration(ArrivalGrain).Seconds())
	}
	m.Total, m.At, m.waited = total, now, waited
	unit = max(unit, 1e-6)
	m.Quiet += dt
	was := m.Rate
	if n > 0 {
		p := span{n, m.known(n, since), blur, m.uneven}
		if !m.begun {
			// The first one begins the time.
			m.count, m.mixed = 0, false
			if n > unit {
				m.Restart(n-unit, dt*(1-unit/n))
			}
			// Those that came at once show no rate yet, but that they came after so long:
			// after a second, or first of all, as many in a second.
			m.Rate = n / min(max(m.Quiet, meterShortest), 1)
			m.begun, m.Quiet, m.stood, m.missed = true, since, min(m.stood, since), 0
			return true
		}
		m.add(p, unit)
		changed = m.forget(unit)
		m.Quiet = since
	}
	m.Rate = m.estimate(unit)
	return changed || m.Rate > 2*was || 2*m.Rate < was
}

// Standstill says that the observation at now comes late by d, as the machine did not run
// this process; requests come late then too. It may have stood still for as long before the
// observation was due, so that is no silence either. It counts for a second at most: a process
// that is always late, as it has too much to do, has to notice in the end that nothing comes.
func (m *Meter) Standstill(now limit.Time, d time.Duration) {
	stood := min(2*d, time.Duration(now-m.At))
	m.stood = min(m.stood+stood.Seconds(), longestStandstill.Seconds())
}

// known is the length of the interval in which n tokens came, the last of them since ago.
// Standstills do not count. What comes after them may have been asked for during the standstill, though: it is
// given as much of their time as makes it fit the load before, until something fits without.
func (m *Meter) known(n, since float64) float64 {
	before := max(0, m.stood-since)
	length := m.Quiet - since - before
	m.stood, m.missed = m.stood-before, m.missed+before
	if m.missed == 0 {
		return length
	}
	w, fits := m.all(), 0.0
	if w.tokens > 0 {
		fits = n * w.length / w.tokens
	}
	if fits <= length {
		m.missed = 0
		return length
	}
	given := min(fits-length, m.missed)
	m.missed -= given
	return length + given
}

// silence is for how many seconds nothing came although it could.
func (m *Meter) silence() float64 { return max(0, m.Quiet-m.stood) }

// meterShortest is the shortest time between two observations, in seconds. Not longer:
// refused requests are seen so soon.
const meterShortest = 0.002

// Restart measures anew, from n tokens in length seconds on.
func (m *Meter) Restart(n, length float64) {
	m.count = 0
	m.grow()
	m.parts[0], m.count, m.mixed = span{n, length, length, m.uneven}, 1, false
	m.Rate = n / max(length, meterGrain)
}

// all is the whole window.
func (m *Meter) all() (w span) {
	for _, p := range m.parts[:m.count] {
		w.tokens += p.tokens
		w.length += p.length
	}
	return w
}

// estimate is the rate of the window.
func (m *Meter) estimate(unit float64) float64 {
	if !m.begun {
		return 0
	}
	w, silence := m.all(), m.silence()
	length := max(w.length, meterShortest)
	usual := w.tokens / length
	// The next one is not missing before its time.
	rate := min(usual, (w.tokens+unit)/(length+silence))
	if w.tokens < unit {
		usual, rate = 0, unit/max(w.length+silence, 1) // one alone may have come any time
	}
	ended := usual > 0 && silence > meterEnds*max(unit/usual, meterGrain) && m.silent(w, unit)
	if ended || silence >= meterMemory && rate*meterMemory < unit {
		// It has ended, or they are so few that each is a beginning.
		m.begun, m.count, m.parts = false, 0, nil
		return 0
	}
	return rate
}

// silent says whether nothing came for longer than chance explains.
func (m *Meter) silent(w span, unit float64) bool {
	doubt := meterDoubt * m.uneven * unit / 2
	return unlikely(unit, m.silence(), w.tokens, w.length, doubt) > doubt
}

// Recent is the highest recent rate that random arrivals do not explain: the demand to report
// after a refusal, while no change of the rate has been found yet.
func (m *Meter) Recent(unit float64) (rate float64) {
	w := span{length: m.Quiet}
	for _, p := range m.parts[:m.count] {
		w.tokens += p.tokens
		w.length += p.length
		if w.length >= RecentSpan {
			rate = max(rate, (w.tokens-max(unit, 2*math.Sqrt(w.tokens*m.uneven*unit)))/w.length)
		}
	}
	return max(rate, m.Rate)
}

// Doubt is the relative error of the rate: one standard deviation.
func (m *Meter) Doubt(unit float64) float64 {
	n := m.all().tokens
	if n <= unit {
		return 1
	}
	return math.Sqrt(m.uneven * unit / n)
}

// RecentSpan is the shortest time over which a recent rate is measured, in seconds. Not longer:
// refused callers wait for the grant that follows. Not shorter: too few requests arrive in it.
const RecentSpan = 0.1

// add puts what came newest in the window, and merges parts that have become short
// beside the newer ones.
func (m *Meter) add(p span, unit float64) {
	if m.count > 0 && m.parts[0].length < meterGrain {
		m.parts[0].tokens += p.tokens
		m.parts[0].length += p.length
		m.parts[0].blur = p.blur
	} else {
		if m.count >= 2 {
			m.compare(m.parts[0], m.parts[1], unit)
		}
		if m.mixed && m.count > 1 {
			m.count, m.mixed = m.count-1, false
		}
		m.grow()
		copy(m.parts[1:], m.parts[:m.count])
		m.parts[0] = p
		m.count++
	}
	length := m.parts[0].length
	for i := 1; i+1 < m.count; i++ {
		// Two that together are no longer than all that is newer become one.
		if a, b := m.parts[i], m.parts[i+1]; a.length+b.length <= length || m.count == meterParts && i+2 == m.count {
			m.compare(a, b, unit)
			m.parts[i] = span{a.tokens + b.tokens, a.length + b.length, a.blur, b.uneven}
			copy(m.parts[i+1:], m.parts[i+2:m.count])
			m.count--
		}
		length += m.parts[i].length
	}
	for rest := m.all().length - m.parts[m.count-1].length; rest > meterMemory; rest -= m.parts[m.count-1].length {
		m.count--
	}
}

// grow makes room for one more part.
func (m *Meter) grow() {
	if m.count == len(m.parts) {
		m.parts = append(make([]span, 0, max(1, min(2*m.count, meterParts))), m.parts...)
		m.parts = m.parts[:cap(m.parts)]
	}
}

// compare learns from two parts that follow each other how uneven arrivals are. Of
// arrivals one by one and at random, off has a variance of length^2 / (n+1) times the
// fractions of the tokens in each; a part's end adds that of its blur.
func (m *Meter) compare(a, b span, unit float64) {
	n, length := a.tokens+b.tokens, a.length+b.length
	if a.tokens <= 0 || b.tokens <= 0 || length <= 0 {
		return
	}
	off := a.length - length*a.tokens/n
	variance := off*off - b.blur*b.blur/8
	uneven := variance * n * n * (n/unit + 1) / (a.tokens * b.tokens * length * length)
	// Parts of less than two requests of the usual cost say little: the rare large cost is
	// mostly not among them. The first one stands beside the guess that they come at random.
	weight := min(1, n/(2*unit))
	m.compared = min(m.compared+weight, meterLearns)
	m.uneven += (uneven - m.uneven) * weight / (m.compared + 1)
	m.uneven = max(m.uneven, meterEven)
}

// forget drops what is older than the likeliest change, if there was one.
func (m *Meter) forget(unit float64) (changed bool) {
	w := m.all()
	worst, at := meterDoubt*m.uneven*unit/2, 0
	newer := span{}
	for i, p := range m.parts[:max(0, m.count-1)] {
		newer.tokens += p.tokens
		newer.length += p.length
		length := newer.length
		// What the ends are not known to shows nothing.
		blur := max(m.parts[0].blur, m.parts[i+1].blur)
		if e := w.length * newer.tokens / w.tokens; length > e {
			length = max(e, length-blur)
		} else {
			length = min(e, length+blur)
		}
		if g := unlikely(newer.tokens, length, w.tokens-newer.tokens, w.length-length, worst); g > worst {
			worst, at = g, i+1
		}
	}
	if at == 0 {
		return false
	}
	m.count, m.mixed, m.uneven = at, m.parts[at-1].tokens <= unit, m.parts[at-1].uneven
	return true
}

// unlikely is the logarithm of how much likelier two counts are at a rate for each than
// at one for both: for arrivals at random, half the square of how many standard
// deviations they are apart. Where that is not above least it may be anything else that
// is not either.
func unlikely(n1, t1, n2, t2, least float64) float64 {
	rate := (n1 + n2) / (t1 + t2)
	off := n1 - rate*t1
	// By ln(x) <= x-1, which takes less time.
	if most := off * off * (1/(rate*t1) + 1/(rate*t2)); !(most > least) {
		return 0
	}
	return surprise(n1, rate*t1) + surprise(n2, rate*t2)
}

func surprise(n, expected float64) float64 {
	if n <= 0 || expected <= 0 {
		return 0
	}
	return n * math.Log(n/expected)
}
