package share

import (
	"math"
	"time"

	"github.com/stint-io/stint/limit"
)

// meter measures a rate of arrivals. It counts from the last change on, so that a
// steady rate is known the better the longer it lasts, and starts anew when what
// comes differs from what was expected by more than chance makes likely: a change is
// seen after a few arrivals, or after a few that are missing.
//
// The zero value has measured nothing.
type meter struct {
	ready bool
	total Amount     // at the last observation
	at    limit.Time // of it
	rate  float64    // tokens per second

	count, span float64 // tokens and seconds since the last change, faded

	newCount, newSpan float64 // of the observations that do not fit, or not yet
	quiet             float64 // seconds since something came
	longest           float64 // the longest such gap of late, within one load

	cluster, clusterSpan float64 // tokens and seconds since the last gap
	batch                float64 // tokens that come at once, of late, where it is several
}

const (
	// meterMemory is the longest time over which arrivals are averaged, in seconds.
	// Not shorter: near the limit an error in measured demand is capacity that
	// one has and another lacks. Not longer: slow drifts should be followed.
	meterMemory = 8.0
	// meterGrain is the shortest time in which a rate is measured, in seconds. Not
	// shorter: looks come as often as requests are refused, and of so many short times
	// some always have more arrivals than chance makes likely. Not longer: no change
	// could be seen sooner.
	meterGrain = 0.002
	// meterDoubt is how many standard deviations of a Poisson process a count may
	// be off before it is a change. At 50 looks per second 5 means one false
	// alarm in many hours, 3 would mean one in 7 seconds.
	meterDoubt = 5.0
	// meterSilence is after how many missing arrivals a rate is taken to have
	// ended: by chance a gap is that long once in 160,000. Not less: a fleet that
	// is asked 100,000 times a second would give up and get back 30 leases in
	// each, at 8. Where arrivals come more evenly than by chance, twice the longest
	// gap of late is enough, as far as gaps are seen: looks may be that far apart.
	meterSilence = 12.0
	// trainGap is the longest gap, in seconds, between two that belong together, and
	// trainSpan for how long many come that count as one.
	trainGap, trainSpan = 4.0, 0.1
)

// observe takes the running total of arrivals at now, and unit, the usual cost of
// one arrival in tokens. It reports whether the rate has changed.
func (m *meter) observe(now limit.Time, total Amount, unit float64) (changed bool) {
	if !m.ready {
		m.ready, m.total, m.at = true, total, now
		return false
	}
	dt := time.Duration(now - m.at).Seconds()
	if dt <= 0 || dt < meterGrain && m.rate > 0 {
		return false
	}
	n := (total - m.total).Float()
	m.total, m.at = total, now
	m.newCount += n
	m.newSpan += dt
	unit = max(unit, 1e-6)
	m.quiet += dt
	m.longest -= m.longest * min(dt/meterMemory, 1)
	train := 0.0
	if n > 0 {
		train = m.gap(dt, unit)
		m.cluster += n
		m.quiet = 0
	}
	unit = max(unit, m.batch)
	expected := m.rate * m.newSpan
	off := math.Abs(m.newCount - expected)
	begins := m.rate == 0 && n > 0
	ends := m.rate > 0 && (m.quiet*m.rate > meterSilence*unit && m.quiet > m.longest || m.count >= 8*unit && m.quiet*m.rate > 2*unit && m.quiet > 2*max(m.longest, shortestGap.Seconds()))
	if m.quiet >= meterMemory && m.rate*meterMemory < unit {
		ends = true // so few that each is a beginning
	}
	ends = ends && m.rate > 0
	if ends {
		m.newCount = 0
	}
	if begins || ends || off > meterDoubt*math.Sqrt(max(expected, unit)*unit) {
		m.count, m.span = m.newCount, m.newSpan
		m.newCount, m.newSpan = 0, 0
		m.rate = m.count / max(m.span, meterGrain)
		if m.batch > 0 && train > 0 {
			m.rate = train
		} else if m.count <= unit {
			// From one arrival no rate can be told: it may have come any time.
			m.rate = m.count / max(m.span, 1)
		}
		return true
	}
	// What fits is believed once it has shown that it does: some arrivals, or
	// enough time.
	if m.newCount >= 16*unit || m.newSpan >= 0.25 {
		m.count += m.newCount
		m.span += m.newSpan
		m.newCount, m.newSpan = 0, 0
		if m.span > meterMemory {
			fade := meterMemory / m.span
			m.count *= fade
			m.span *= fade
		}
		m.rate = m.count / m.span
	}
	return false
}

// begin measures anew from n tokens in span seconds on.
func (m *meter) begin(n, span float64) {
	m.count, m.span, m.newCount, m.newSpan = n, span, 0, 0
	m.rate = n / max(span, meterGrain)
}

// gap takes note that something came again after the quiet, dt after the last look.
// Many that come at once are told from a high rate by the gaps between them: they are
// then counted as one large arrival. It returns the rate since the last but one, or 0
// where what comes does not belong together.
func (m *meter) gap(dt, unit float64) (rate float64) {
	still := m.quiet - dt
	if still <= 0 {
		m.clusterSpan += dt
		return 0
	}
	if m.rate == 0 {
		m.longest = 0 // what went before was no gap in a load
	}
	excess := 0.0
	switch {
	case m.quiet < trainGap && m.clusterSpan <= trainSpan:
		span := m.clusterSpan + m.quiet
		excess, rate = m.cluster*m.quiet/span, m.cluster/span
		m.note(m.quiet)
	case m.quiet < 1:
		m.note(m.quiet)
	default:
		m.longest = 0 // the load was elsewhere meanwhile
	}
	m.batch -= m.batch / 8
	if m.batch = max(m.batch, excess); m.batch < 4*unit {
		m.batch = 0 // so many come together by chance
	}
	m.cluster, m.clusterSpan = 0, min(dt, shortestLook.Seconds())
	return rate
}

// note keeps the longest gap of the load that goes on.
func (m *meter) note(gap float64) {
	if m.rate > 0 {
		m.longest = max(m.longest, gap)
	}
}
