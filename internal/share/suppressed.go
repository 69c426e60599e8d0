package share

import (
	"time"

	"github.com/stint-io/stint/limit"
)

// suppression is what a coordinator knows of a limit that is shared by suppression.
type suppression struct {
	// bucket is what one bucket of the limit would hold if all that was attempted had
	// been admitted: as long as it holds something, demand is within the limit and
	// nothing may be refused.
	bucket  pool
	over    bool // it ran dry, and demand has not come back to the limit since
	average *MovingAverage
	reject  float64

	wanted, capacity Amount // of instances that can refuse a part, and for them

	// total is what was attempted in all, and meter its rate, of all instances together:
	// what is little for each is seen in the sum.
	total Amount
	meter meter
	read  limit.Time // when the meter was read last
}

// lag is by how much more than one Report what an instance was asked may be late. The
// bucket is deeper by what may come late, and together with what is on time: so what
// the bucket does not hold was attempted above the limit, wherever and whenever it was
// reported. Not more: all that goes over before it is empty.
const lag = 20 * time.Millisecond

// setSuppress puts terms in force, for a limit that is shared by suppression or for one
// that is not any more.
func (r *resource) setSuppress(now limit.Time) {
	s := r.terms.Suppress
	if s == nil {
		r.suppressed = nil
		return
	}
	was := r.suppressed
	next := &suppression{}
	late := r.terms.Rate.scale(Amount(s.report()+lag), Amount(time.Second))
	next.bucket = pool{rate: r.terms.Rate, depth: saturate(r.terms.Burst, late), at: now}
	next.bucket.level = next.bucket.depth
	if was != nil {
		// What was attempted stays attempted.
		was.bucket.accrue(now)
		next.bucket.level = max(0, next.bucket.depth-(was.bucket.depth-was.bucket.level))
		next.over, next.reject = was.over, was.reject
		next.total, next.meter, next.read = was.total, was.meter, was.read
	}
	if s.Window > 0 {
		next.average = NewMovingAverage(s.Window, s.Intervals, now)
		if was != nil && was.average != nil && was.average.interval == next.average.interval && len(was.average.ended) == len(next.average.ended) {
			next.average = was.average
		}
	}
	r.suppressed = next
}

// attempt takes note of the totals that an instance has reported. It refuses totals
// that go back: they wrap around, as those of leases do.
//
// What is reported later than Report says, and what was under way for longer than
// usual, counts as if it had come in time: the bucket was full meanwhile and could not
// take what the limit brought.
func (a *account) attempt(now limit.Time, d *Demand) bool {
	s := a.resource.suppressed
	if s == nil {
		return true
	}
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
	s.bucket.accrue(now)
	late := span + a.session.late - a.resource.terms.Suppress.report() - lag
	excused := a.resource.terms.Rate.scale(Amount(max(late, 0)), Amount(time.Second))
	if s.bucket.level -= max(0, min(attempted, MaxAmount)-excused); s.bucket.level < 0 {
		s.bucket.level, s.over = 0, true
	}
	s.total += attempted
	if s.average != nil {
		if a.resource.terms.Suppress.Admitted {
			attempted = admitted
		}
		s.average.Add(now, attempted)
	}
	return true
}

// suppress decides what fraction is to be refused, and what each instance may use
// meanwhile: what it was asked, less the fraction.
func (r *resource) suppress(now limit.Time) {
	s, t := r.suppressed, r.terms.Suppress
	s.wanted, s.capacity = 0, r.terms.Rate
	for _, a := range r.accounts {
		if a.silent {
			// It has its part, used or not, and the others have the rest.
			s.capacity -= min(r.equalPart(), s.capacity)
		} else {
			s.wanted = saturate(s.wanted, a.want)
		}
	}
	r.wanted = saturate(s.wanted, r.terms.Rate-s.capacity)
	rate := s.rate(now, t)
	s.bucket.accrue(now)
	s.bucket.rate = s.capacity
	if rate <= s.capacity {
		s.over = false
	}
	was := s.reject
	if s.reject = 0; s.over {
		s.reject = t.Fraction(s.capacity, rate)
	}
	wasFull := r.full
	if r.scarce, r.full = false, s.reject > 0; r.full && !wasFull {
		r.fullSince = now
	}
	news := (was == 0) != (s.reject == 0) || was-s.reject > newsworthy || s.reject-was > newsworthy
	for _, a := range r.accounts {
		a.target = Holding{Rate: r.terms.Rate, Depth: r.terms.Burst}
		if a.silent {
			a.target = Holding{Rate: r.equalPart(), Depth: max(Token, r.terms.Burst/Amount(len(r.accounts))/Token*Token)}
		}
		if news && a.want > 0 {
			a.tell = true
		}
	}
}

// rate is what is attempted per second. What instances say that they are asked counts
// where it is more: they see a large change first, as each looks at its own load more often than
// it reports, and the sum of what they were asked shows a small one first.
func (s *suppression) rate(now limit.Time, t *Suppress) Amount {
	if s.average != nil {
		return s.average.Rate(now)
	}
	if !s.meter.ready || now >= s.read.Add(t.report()) {
		// Not more often: each instance has told once in that time.
		s.meter.observe(now, s.total, 1)
		s.read = now
	}
	rate := amountOf(s.meter.rate * float64(Token))
	if s.wanted > rate+rate/8 {
		return s.wanted
	}
	return rate
}

// newsworthy is by how much the fraction has to change for those to be told who have not
// reported just now. Not less: they report soon. Not more: they admit too much or too
// little until then.
const newsworthy = 1.0 / 32

// rejects is the fraction that is refused.
func (r *resource) rejects() float64 {
	if r.suppressed == nil {
		return 0
	}
	return r.suppressed.reject
}

// suppressionOf is what an account is told.
func (r *resource) suppressionOf(a *account) Suppression {
	s := r.suppressed
	if s == nil || s.reject == 0 || a.silent {
		return Suppression{}
	}
	// What it is not asked it cannot use, so what all may use is what is asked of all,
	// less the fraction: the limit.
	rate := amountOf(float64(a.want) * (1 - s.reject))
	if r.terms.Suppress.Ramp == RampExact {
		// Exactly, whatever the estimate of the sum is.
		rate = s.capacity.scale(a.want, max(s.wanted, 1))
	}
	// As deep as what comes in until the next answer, since draws make up for each other
	// within that; not deeper, as it is what may be used at once.
	depth := rate.scale(Amount(2*r.terms.Suppress.report()), Amount(time.Second))
	depth = min(r.terms.Burst, max(Token, (depth+Token-1)/Token*Token))
	return Suppression{Reject: s.reject, Rate: rate, Depth: depth}
}

// lookSuppressed is look for a limit that is shared by suppression: it reports what was
// attempted and admitted, when that has changed, and never more often than is asked.
func (l *lease) lookSuppressed(now limit.Time, r Reading, changed bool) {
	every := l.terms.Suppress.report()
	switch l.opts.Estimator {
	case Declared:
		l.want = min(r.Declared, MaxAmount)
	default:
		l.want, _ = AmountOf(l.meter.rate)
	}
	l.attempted, l.passed, l.largest = r.Attempted, r.Admitted, r.Largest
	l.lack, l.starved = 0, false
	if l.attempted != l.sentAttempted || !near(l.want, l.sentWant, 64) {
		l.ask(now, every)
	}
	// A change is seen the sooner the more often it is looked for.
	gap := max(shortestLook, every/8)
	if l.steady++; changed || l.want > 0 {
		l.steady = 0
	}
	if l.steady > 8 {
		gap = max(gap, min(every, longestLook))
	}
	l.lookAt = now.Add(gap)
}

// suppressible is a Spender that can refuse a part of what it is asked.
type suppressible interface {
	// Suppress puts s in force until the next call: see [Bucket.Suppress].
	Suppress(now limit.Time, s Suppression, independent bool)
}

// suppress puts in force what the coordinator said about what is asked.
func (l *lease) suppress(now limit.Time, s Suppression) {
	spender, ok := l.spender.(suppressible)
	if !ok || !l.suppressing && l.terms.Suppress == nil {
		return
	}
	l.suppression = s
	if l.suppressing = l.terms.Suppress != nil; !l.suppressing {
		l.suppression = Suppression{}
		spender.Suppress(now, Suppression{}, false)
		return
	}
	if s.Reject > 0 && s.Depth < l.largest {
		s.Depth = min(l.largest, l.terms.Burst) // or it would never be admitted
	}
	spender.Suppress(now, s, l.terms.Suppress.Independent)
}

// suppressAlone is what an instance does when no coordinator has answered for as long as
// a lease lasts. Suppression never was a promise that the limit holds whatever happens,
// and it must not become a refusal of everything: by default what was told last stays,
// and the instance admits the whole limit at most.
func (l *lease) suppressAlone(now limit.Time) {
	rate := l.terms.Rate
	if l.opts.Expiry == Safe {
		rate = l.safe
	}
	if l.opts.Expiry != Pessimistic {
		l.suppress(now, Suppression{})
	}
	l.fallBack(now, rate)
}
