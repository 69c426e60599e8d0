package ledger

import (
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/demand"
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// suppression is the divider of a limit that is shared by suppression: each instance has a lease
// of the whole limit, and refuses a fraction of its requests while all together are asked for more.
type suppression struct {
	terms *lease.Suppress
	// bucket is what one bucket of the limit would hold if all attempts had been admitted. While
	// it has tokens, demand is within the limit and nothing is refused.
	bucket  Pool
	spilled fixed.Amount          // tokens of recent refills that did not fit into the bucket
	over    bool                  // the bucket ran dry, and demand has been above the limit since
	average *demand.MovingAverage // nil = by the meter
	reject  float64               // the fraction that is refused, 0 to 1

	attemptedRate    fixed.Amount // per second, as reported last
	demand, capacity fixed.Amount // of instances that can refuse a part, and for them

	// total is the integral of attemptedRate, and meter measures its rate. A change that is too
	// small to be seen in one instance is seen in the sum.
	total      fixed.Amount
	added      limit.Time // the time up to which total is computed
	meter      demand.Meter
	read       limit.Time   // when the meter was read last
	mixed      int          // how many of the next readings may be of two loads
	rises      bool         // the latest change was a rise
	seenDemand fixed.Amount // the demand that instances had reported, at the latest reading
}

// lag is how late a report may be without being counted as a burst. Attempts of one report
// interval and lag can arrive together with attempts that are on time, so the burst of the bucket is
// larger by what the limit refills in that time. Then a bucket that runs dry proves that more was
// attempted than the limit, however late it was reported. Not longer: all that the bucket holds passes
// above the limit before anything is refused.
const lag = 20 * time.Millisecond

// newSuppression returns the divider for the terms of r. What was attempted under former terms
// stays attempted.
func newSuppression(r *Resource, now limit.Time) *suppression {
	s := r.Terms.Suppress
	was, _ := r.divider.(*suppression)
	next := &suppression{terms: s}
	late := r.Terms.Rate.In(s.ReportInterval() + lag)
	next.bucket = Pool{Rate: r.Terms.Rate, Burst: fixed.SaturatingAdd(r.Terms.Burst, late), At: now}
	next.bucket.Level = next.bucket.Burst
	if was != nil {
		was.refill(now)
		next.bucket.Level = max(0, next.bucket.Burst-(was.bucket.Burst-was.bucket.Level))
		next.over, next.reject = was.over, was.reject
		next.spilled, next.total, next.added, next.meter, next.read, next.mixed = was.spilled, was.total, was.added, was.meter, was.read, was.mixed
	}
	if s.Window > 0 {
		next.average = demand.NewMovingAverage(s.Window, s.Intervals, now)
		if was != nil && was.average != nil && was.average.SameWindow(next.average) {
			next.average = was.average
		}
	}
	return next
}

// latest is the age up to which tokens that did not fit into the bucket can pay for a late report.
// Not longer: a sudden load of that many seconds of the limit, reported late, would not be
// seen. Not shorter: connections stall for that long.
const latest = time.Second

// refill brings the bucket up to now, and adds the tokens that do not fit to spilled.
func (s *suppression) refill(now limit.Time) {
	before, dt := s.bucket.Level, now-s.bucket.At
	if s.bucket.Refill(now); dt <= 0 {
		return
	}
	refilled := s.bucket.Rate.In(time.Duration(dt))
	s.spilled = min(fixed.SaturatingAdd(s.spilled, max(0, refilled-(s.bucket.Level-before))), s.bucket.Rate.In(latest))
}

// takeAttempts receives the totals that an instance has reported. It refuses totals that
// decrease.
//
// Attempts that are reported later than the report interval, or whose report was in transit for longer
// than usual, are paid for by the tokens that did not fit into the bucket in that time.
func (s *suppression) takeAttempts(a *Account, d *lease.Demand, at Arrival) bool {
	attempted, admitted := d.Attempted-a.Attempted, d.Admitted-a.Admitted
	span := time.Duration(at.Now - a.attemptedAt)
	if !a.counted {
		// Attempts before the first grant were not admitted.
		attempted, admitted = 0, 0
	}
	if attempted < 0 || admitted < 0 {
		return false
	}
	a.Attempted, a.Admitted, a.counted, a.attemptedAt = d.Attempted, d.Admitted, true, at.Now
	s.refill(at.Now)
	if late := span + at.Late - s.terms.ReportInterval() - lag; late > 0 {
		excused := min(attempted, s.spilled, s.bucket.Rate.In(late))
		s.spilled -= excused
		s.bucket.Level += excused
	}
	if s.bucket.Level -= min(attempted, fixed.MaxAmount); s.bucket.Level < 0 {
		s.bucket.Level, s.over = 0, true
	}
	if counts := at.Sent - a.attemptedSent; counts > 0 {
		// By the instance's own clock, so the time in transit does not count.
		if a.attemptedSent = at.Sent; s.terms.Admitted {
			attempted = admitted
		}
		a.attemptedRate = attempted.Per(time.Duration(counts))
	}
	return true
}

func (s *suppression) demanded(a *Account, d *lease.Demand, at Arrival) (demand, shortfall fixed.Amount, ok bool) {
	if ok = s.takeAttempts(a, d, at); ok && d.InRange() {
		a.largest = d.Shortfall
	}
	return d.Rate, 0, ok // no other instance has the tokens that this one is missing
}

func (s *suppression) lend(r *Resource, now limit.Time) limit.Time {
	if r.Terms.Allocation == fairshare.Static {
		r.lendOwn()
	} else {
		r.raise()
		r.lendTokens(now)
	}
	return lease.Never
}

func (s *suppression) short(r *Resource, of lease.Capacity) (lease.Capacity, bool) {
	of, _ = rates{}.short(r, of)
	of.Rate = r.Terms.Rate // an instance that cannot refuse a fraction must not have more than its part
	if r.Terms.Allocation == fairshare.Static {
		of.Rate, of.Burst = max(1, r.Terms.Rate), max(1, r.Terms.Burst)
	}
	return of, false
}

// targets decides which fraction instances refuse. The target of an instance that can refuse a
// fraction is the whole limit; a silent one has an equal part, used or not.
func (s *suppression) targets(r *Resource, now limit.Time) {
	t := s.terms
	s.demand, s.capacity = 0, r.Terms.Rate
	unit := fixed.Token
	s.attemptedRate = 0
	for _, a := range r.accounts {
		if a.Silent {
			// It has its part, used or not; the others share the rest.
			s.capacity -= min(r.equalPart(), s.capacity)
			continue
		}
		s.demand = fixed.SaturatingAdd(s.demand, a.Demand)
		if time.Duration(now-a.attemptedAt) < quietFor(t) {
			s.attemptedRate, unit = fixed.SaturatingAdd(s.attemptedRate, a.attemptedRate), max(unit, a.largest)
		}
	}
	if dt := now - s.added; dt > 0 {
		// Spread over the time since the last round: attempts that are added at once with each
		// report would be taken for a change of load.
		more := s.attemptedRate.In(min(time.Duration(dt), quietFor(t)))
		if s.total += more; s.average != nil {
			s.average.Spread(s.added, now, more)
		}
		s.added = now
	}
	r.TotalDemand = fixed.SaturatingAdd(s.demand, r.Terms.Rate-s.capacity)
	rate := s.rate(now, t, unit)
	s.refill(now)
	s.bucket.Rate = s.capacity
	if rate <= s.capacity || s.bucket.Level > s.bucket.Burst/2 {
		if s.over {
			// The excess was refused, so the bucket has tokens again. With an empty bucket the
			// next report would count as above the limit, as it brings many attempts at once.
			s.bucket.Level = max(s.bucket.Level, s.bucket.Burst-r.Terms.Burst)
		}
		s.over = false
	}
	was := s.reject
	if s.reject = 0; s.over {
		s.reject = t.Fraction(s.capacity, rate)
	}
	r.SetSaturated(s.reject > 0, now)
	r.Contended = false
	news := (was == 0) != (s.reject == 0) || was-s.reject > newsworthy || s.reject-was > newsworthy
	for _, a := range r.accounts {
		a.target = lease.Capacity{Rate: r.Terms.Rate, Burst: r.Terms.Burst}
		if a.Silent {
			a.target = lease.Capacity{Rate: r.equalPart(), Burst: max(fixed.Token, r.Terms.Burst/fixed.Amount(len(r.accounts))/fixed.Token*fixed.Token)}
		}
		if news && a.Demand > 0 {
			a.Pending = true
		}
	}
}

// rate is what is attempted per second. While demand rises, the demands that instances report count
// as well: each instance samples its load more often than it reports, so it sees a large rise first. The
// meter sees a small rise first, and a fall. unit is the cost of the largest recent request: a few
// expensive requests arrive less evenly than many cheap ones.
func (s *suppression) rate(now limit.Time, t *lease.Suppress, unit fixed.Amount) fixed.Amount {
	if s.average != nil {
		return s.average.Rate(now)
	}
	if !s.meter.Ready || now >= s.read.Add(t.ReportInterval()) {
		// Not more often: each instance reports once in that time.
		s.observe(now, unit)
	}
	rate := fixed.Round(s.meter.Rate * float64(fixed.Token))
	// Both have to rise: reported demands follow a fall slowly, and each at its own time.
	if rising := s.mixed > 0 && s.rises || s.demand > s.seenDemand+s.seenDemand/8 && s.attemptedRate > rate+rate/8; rising {
		return max(rate, s.demand)
	}
	return rate
}

// observe reads the meter. After a change of load the first two readings are partly of the former
// load, as instances report at different times. Each of them is replaced by the next one. If they were
// averaged, requests would be refused for seconds after a fall.
func (s *suppression) observe(now limit.Time, unit fixed.Amount) {
	was := s.meter.Rate
	n, span := (s.total - s.meter.Total).Float(), time.Duration(now-s.meter.At).Seconds()
	s.read, s.seenDemand = now, s.demand
	switch {
	case s.meter.Observe(now, s.total, unit.Float()):
		s.mixed, s.rises = 2, s.meter.Rate > was
	case s.mixed > 0 && s.meter.At == now && span > 0:
		s.mixed--
		s.meter.Restart(n, span)
	}
}

// newsworthy is the change of the fraction that is sent to all instances at once, and not with the
// answer to their next report. Not smaller: they report soon. Not larger: until then they admit
// too much or too little.
const newsworthy = 1.0 / 32

// quietFor is how long the last report of an instance counts. An instance with requests reports
// once in each interval, so one that does not is gone, or cut off.
func quietFor(t *lease.Suppress) time.Duration { return max(time.Second, 4*t.ReportInterval()) }

// suppression returns what an instance has to refuse: the fraction, and the bucket that admits the
// rest.
func (s *suppression) suppression(a *Account) bucket.Suppression {
	r := a.resource
	if s.reject == 0 || a.Silent {
		return bucket.Suppression{}
	}
	// The demands of all instances less the fraction sum up to the limit.
	rate := fixed.Round(float64(a.Demand) * (1 - s.reject))
	if s.terms.Ramp == lease.RampExact {
		// In proportion to demand, so that the sum is the limit whatever the estimate of it is.
		rate = s.capacity.Scale(a.Demand, max(s.demand, 1))
	}
	// The burst is the refill of two report intervals, the time until the next answer, in which arrivals
	// above and below the mean balance. Not larger: all of it may be used at once.
	burst := rate.In(2 * s.terms.ReportInterval())
	burst = min(r.Terms.Burst, max(fixed.Token, (burst+fixed.Token-1)/fixed.Token*fixed.Token))
	return bucket.Suppression{Reject: s.reject, Rate: rate, Burst: burst}
}

// Reject is the fraction of requests that is refused, if the limit is shared by suppression.
func (r *Resource) Reject() float64 {
	if s, ok := r.divider.(*suppression); ok {
		return s.reject
	}
	return 0
}
