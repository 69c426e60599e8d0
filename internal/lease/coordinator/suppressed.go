package coordinator

import (
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/demand"
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// suppression is what a coordinator knows of a limit that is shared by suppression.
type suppression struct {
	terms *lease.Suppress
	// bucket is what one bucket of the limit would hold if all that was attempted had
	// been admitted: as long as it holds something, demand is within the limit and
	// nothing may be refused.
	bucket  pool
	spilled fixed.Amount // tokens of recent refills that did not fit into the bucket
	over    bool         // it ran dry, and demand has not come back to the limit since
	average *demand.MovingAverage
	reject  float64

	attempted        fixed.Amount // per second, as reported last
	wanted, capacity fixed.Amount // of instances that can refuse a part, and for them

	// total is what was attempted in all by the rates that instances reported last, and
	// meter its rate: what is little for each is seen in the sum.
	total fixed.Amount
	added limit.Time // until when
	meter demand.Meter
	read  limit.Time   // when the meter was read last
	mixed int          // how many of the next readings may be of two loads
	rises bool         // the latest change was a rise
	heard fixed.Amount // the demand that instances had reported, at the latest reading
}

// lag is by how much more than one Report what an instance was asked may be late. The
// bucket is deeper by what may come late, and together with what is on time: so what
// the bucket does not hold was attempted above the limit, wherever and whenever it was
// reported. Not more: all that goes over before it is empty.
const lag = 20 * time.Millisecond

// newSuppression returns the divider for the terms of r. What was attempted under former terms
// stays attempted.
func newSuppression(r *resource, now limit.Time) *suppression {
	s := r.terms.Suppress
	was, _ := r.divider.(*suppression)
	next := &suppression{terms: s}
	late := r.terms.Rate.Scale(fixed.Amount(s.ReportInterval()+lag), fixed.Amount(time.Second))
	next.bucket = pool{rate: r.terms.Rate, burst: fixed.SaturatingAdd(r.terms.Burst, late), at: now}
	next.bucket.level = next.bucket.burst
	if was != nil {
		was.refill(now)
		next.bucket.level = max(0, next.bucket.burst-(was.bucket.burst-was.bucket.level))
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

// latest is for how much of what has overflowed a late report may be excused: it is how
// late one can be. Not longer: a sudden load of that many seconds of the limit would not
// be seen if it was reported late. Not shorter: connections stall for that long.
const latest = time.Second

// refill brings the bucket up to now, and keeps what overflows.
func (s *suppression) refill(now limit.Time) {
	before, dt := s.bucket.level, now-s.bucket.at
	if s.bucket.refill(now); dt <= 0 {
		return
	}
	brought := s.bucket.rate.Scale(fixed.Amount(dt), fixed.Amount(time.Second))
	s.spilled = min(fixed.SaturatingAdd(s.spilled, max(0, brought-(s.bucket.level-before))), s.bucket.rate.Scale(fixed.Amount(latest), fixed.Amount(time.Second)))
}

// takeAttempts receives the totals that an instance has reported. It refuses totals
// that go back: they wrap around, as those of leases do.
//
// What is reported later than the report interval, or was under way for longer than usual, is
// paid for by the refill that did not fit into the bucket in that time.
func (s *suppression) takeAttempts(a *account, now limit.Time, d *lease.Demand) bool {
	attempted, admitted := d.Attempted-a.attempted, d.Admitted-a.admitted
	span := time.Duration(now - a.attemptedAt)
	if !a.counted {
		// What was asked before there was an answer was not admitted either.
		attempted, admitted = 0, 0
	}
	if attempted < 0 || admitted < 0 {
		return false
	}
	a.attempted, a.admitted, a.counted, a.attemptedAt = d.Attempted, d.Admitted, true, now
	s.refill(now)
	if late := span + a.session.late - s.terms.ReportInterval() - lag; late > 0 {
		excused := min(attempted, s.spilled, s.bucket.rate.Scale(fixed.Amount(late), fixed.Amount(time.Second)))
		s.spilled -= excused
		s.bucket.level += excused
	}
	if s.bucket.level -= min(attempted, fixed.MaxAmount); s.bucket.level < 0 {
		s.bucket.level, s.over = 0, true
	}
	if counts := a.session.sent - a.attemptedSent; counts > 0 {
		// By the instance's own clock: however long the report was under way.
		if a.attemptedSent = a.session.sent; s.terms.Admitted {
			attempted = admitted
		}
		a.attemptedRate = attempted.Scale(fixed.Amount(time.Second), fixed.Amount(counts))
	}
	return true
}

func (s *suppression) demanded(a *account, d *lease.Demand, now limit.Time) (demand, shortfall fixed.Amount, ok bool) {
	if ok = s.takeAttempts(a, now, d); ok && inRange(d) {
		a.largest = d.Shortfall
	}
	return d.Rate, 0, ok // what the instance is missing, no other has
}

func (s *suppression) lend(r *resource, now limit.Time) limit.Time {
	if r.terms.Allocation == fairshare.Static {
		r.lendOwn()
	} else {
		r.raise()
		r.lendTokens(now)
	}
	return lease.Never
}

func (s *suppression) short(r *resource, of lease.Capacity) (lease.Capacity, bool) {
	of, _ = rates{}.short(r, of)
	of.Rate = r.terms.Rate // an instance that cannot refuse a fraction must not have more than its part
	if r.terms.Allocation == fairshare.Static {
		of.Rate, of.Burst = max(1, r.terms.Rate), max(1, r.terms.Burst)
	}
	return of, false
}

// targets decides what fraction is to be refused, and what each instance may use until the next
// round: what it was asked for, less the fraction.
func (s *suppression) targets(r *resource, now limit.Time) {
	t := s.terms
	s.wanted, s.capacity = 0, r.terms.Rate
	unit := fixed.Token
	s.attempted = 0
	for _, a := range r.accounts {
		if a.silent {
			// It has its part, used or not, and the others have the rest.
			s.capacity -= min(r.equalPart(), s.capacity)
			continue
		}
		s.wanted = fixed.SaturatingAdd(s.wanted, a.demand)
		if time.Duration(now-a.attemptedAt) < quietFor(t) {
			s.attempted, unit = fixed.SaturatingAdd(s.attempted, a.attemptedRate), max(unit, a.largest)
		}
	}
	if dt := now - s.added; dt > 0 {
		// As rates, since what comes at once in each report would be taken for a swing.
		more := s.attempted.Scale(fixed.Amount(min(dt, limit.Time(quietFor(t)))), fixed.Amount(time.Second))
		if s.total += more; s.average != nil {
			s.average.Spread(s.added, now, more)
		}
		s.added = now
	}
	r.totalDemand = fixed.SaturatingAdd(s.wanted, r.terms.Rate-s.capacity)
	rate := s.rate(now, t, unit)
	s.refill(now)
	s.bucket.rate = s.capacity
	if rate <= s.capacity || s.bucket.level > s.bucket.burst/2 {
		if s.over {
			// What was attempted above the limit is over too. Reports come in lumps, and
			// to begin with an empty bucket would take one for too much.
			s.bucket.level = max(s.bucket.level, s.bucket.burst-r.terms.Burst)
		}
		s.over = false
	}
	was := s.reject
	if s.reject = 0; s.over {
		s.reject = t.Fraction(s.capacity, rate)
	}
	r.setSaturated(s.reject > 0, now)
	r.contended = false
	news := (was == 0) != (s.reject == 0) || was-s.reject > newsworthy || s.reject-was > newsworthy
	for _, a := range r.accounts {
		a.target = lease.Capacity{Rate: r.terms.Rate, Burst: r.terms.Burst}
		if a.silent {
			a.target = lease.Capacity{Rate: r.equalPart(), Burst: max(fixed.Token, r.terms.Burst/fixed.Amount(len(r.accounts))/fixed.Token*fixed.Token)}
		}
		if news && a.demand > 0 {
			a.pending = true
		}
	}
}

// rate is what is attempted per second. What instances say that they are asked counts while
// it rises: they see a large rise first, as each samples its own load more often than it
// reports, and the sum of what they were asked shows a small one first, and a fall. unit
// is the cost of the largest recent request: a few expensive ones come less evenly than many.
func (s *suppression) rate(now limit.Time, t *lease.Suppress, unit fixed.Amount) fixed.Amount {
	if s.average != nil {
		return s.average.Rate(now)
	}
	if !s.meter.Ready || now >= s.read.Add(t.ReportInterval()) {
		// Not more often: each instance reports once in that time.
		s.observe(now, unit)
	}
	rate := fixed.Round(s.meter.Rate * float64(fixed.Token))
	// Both have to rise: what instances say of their own load follows a fall slowly, and
	// not at the same time.
	if rising := s.mixed > 0 && s.rises || s.wanted > s.heard+s.heard/8 && s.attempted > rate+rate/8; rising {
		return max(rate, s.wanted)
	}
	return rate
}

// observe reads the meter. What instances report as they see a new load is partly of the
// former one, and so is what those report soon after who had just reported when it came.
// Each of these readings is forgotten for the next one: else a fall would be averaged
// with what was before it for seconds, and refused for as long.
func (s *suppression) observe(now limit.Time, unit fixed.Amount) {
	was := s.meter.Rate
	n, span := (s.total - s.meter.Total).Float(), time.Duration(now-s.meter.At).Seconds()
	s.read, s.heard = now, s.wanted
	switch {
	case s.meter.Observe(now, s.total, unit.Float()):
		s.mixed, s.rises = 2, s.meter.Rate > was
	case s.mixed > 0 && s.meter.At == now && span > 0:
		s.mixed--
		s.meter.Restart(n, span)
	}
}

// newsworthy is by how much the fraction has to change to be sent to instances that have not
// just reported. Not less: they report soon. Not more: they admit too much or too
// little until then.
const newsworthy = 1.0 / 32

// quietFor is for how long what an instance reported last counts: one that is asked
// reports all the time, so one that does not is gone, or cut off.
func quietFor(t *lease.Suppress) time.Duration { return max(time.Second, 4*t.ReportInterval()) }

// suppression returns what an instance has to refuse: the fraction, and the bucket that admits the
// rest.
func (s *suppression) suppression(a *account) bucket.Suppression {
	r := a.resource
	if s.reject == 0 || a.silent {
		return bucket.Suppression{}
	}
	// What it is not asked it cannot use, so what all may use is what is asked of all,
	// less the fraction: the limit.
	rate := fixed.Round(float64(a.demand) * (1 - s.reject))
	if s.terms.Ramp == lease.RampExact {
		// Exactly, whatever the estimate of the sum is.
		rate = s.capacity.Scale(a.demand, max(s.wanted, 1))
	}
	// As deep as what comes in until the next answer, since arrivals above and below the mean balance
	// within that; not deeper, as it is what may be used at once.
	depth := rate.Scale(fixed.Amount(2*s.terms.ReportInterval()), fixed.Amount(time.Second))
	depth = min(r.terms.Burst, max(fixed.Token, (depth+fixed.Token-1)/fixed.Token*fixed.Token))
	return bucket.Suppression{Reject: s.reject, Rate: rate, Burst: depth}
}
