package coordinator

import (
	"fmt"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/limit"
)

// window is the number of times within d after from.
func window(times []limit.Time, from limit.Time, d time.Duration) (n int) {
	for _, t := range times {
		if t >= from && t < from.Add(d) {
			n++
		}
	}
	return n
}

// sliding calls f with how many times there are in each window of a second that begins at
// one of them, from a time on.
func sliding(times []limit.Time, from limit.Time, f func(at limit.Time, n int)) {
	first := 0
	for i, t := range times {
		for times[first].Add(time.Second) <= t {
			first++
		}
		if times[first] >= from {
			f(times[first], i-first+1)
		}
	}
}

// TestStepIsSuppressed: demand steps from half the limit to a multiple of it, in all
// instances at once. What passes is within a tenth of the limit after 0.3 s, and steady.
func TestStepIsSuppressed(t *testing.T) {
	const rate, n = 1000, 20
	for _, poisson := range []bool{false, true} {
		for _, k := range []float64{1.5, 3, 10, 100} {
			t.Run(fmt.Sprintf("%v times, Poisson %v", k, poisson), func(t *testing.T) {
				f := newFleet(t, 1, n, lease.Terms{Rate: rate * fixed.Token, Burst: 50 * fixed.Token, Suppress: &lease.Suppress{}})
				f.delay, f.poisson = 10*time.Millisecond, poisson
				f.run(time.Second)
				for i, in := range f.instances {
					f.load(in, rate/2.0/n)
					in.next = in.next.Add(time.Duration(i) * time.Millisecond)
				}
				f.run(time.Second)
				_, cold := f.totals() // each before its first answer
				f.run(10 * time.Second)
				if _, refused := f.totals(); refused > cold {
					t.Errorf("%d refused at half the limit", refused-cold)
				}
				step := f.now
				for i, in := range f.instances {
					f.load(in, k*rate/n)
					in.next = f.now.Add(time.Duration(float64(in.next-f.now) * float64(i+1) / n))
				}
				f.run(12 * time.Second)
				worst, most, least := 0, 0, 1<<30
				// Until the bucket of what is attempted is empty, it is reported, and
				// the answer is there.
				bucket := (50 + rate*(lease.DefaultReport+lag).Seconds()) / ((k - 1) * rate)
				d := bucket + (lease.DefaultReport + 2*f.delay + 5*time.Millisecond).Seconds()
				settled := max(300*time.Millisecond, time.Duration(d*float64(time.Second)))
				sliding(f.passed, step.Add(settled), func(_ limit.Time, n int) { worst = max(worst, n) })
				sliding(f.passed, step.Add(2*time.Second), func(_ limit.Time, n int) { most, least = max(most, n), min(least, n) })
				mean := float64(window(f.passed, step.Add(2*time.Second), 9*time.Second)) / 9 / rate
				excess := window(f.passed, step, time.Second) - rate
				t.Logf("excess %d, worst second from 0.3 s on %d, then %d to %d, mean %.3f", excess, worst, least, most, mean)
				if worst > rate+rate/10 {
					t.Errorf("%d in a second that began %v after the step or later", worst, settled)
				}
				swing := 6 // hundredths
				if poisson {
					swing = 10 // near the limit there may be too few to choose from
				}
				if most-least > rate*swing/100 || mean < 0.98 || mean > 1.01 {
					t.Errorf("%d to %d in a second, mean %.3f", least, most, mean)
				}
				// Until then each instance admits what it is asked, or what the whole
				// limit has. Then what each holds for its draws.
				bound := min(k*rate*d, n*(50+rate*d)) - rate*d + 2*lease.DefaultReport.Seconds()*rate + n
				if float64(excess) > bound {
					t.Errorf("%d above the limit in the first second, want at most %.0f", excess, bound)
				}
			})
		}
	}
}

// TestNothingWithinTheLimitIsSuppressed: whatever one bucket of the limit would admit is
// admitted, to the last token, wherever and whenever it is asked, whatever the network
// does to the reports.
func TestNothingWithinTheLimitIsSuppressed(t *testing.T) {
	for seed := range uint64(40) {
		terms := lease.Terms{Rate: 200 * fixed.Token, Burst: 20 * fixed.Token, Suppress: &lease.Suppress{}}
		if seed%4 == 3 {
			*terms.Suppress = lease.Suppress{Window: time.Second, Intervals: 4, Ramp: lease.Ramp(seed / 4 % 2), Independent: true}
		}
		f := newFleet(t, seed, 1+int(seed%8), terms)
		f.delay = time.Duration(f.rand.Int64N(int64(80 * time.Millisecond)))
		f.run(time.Second)
		for _, in := range f.instances {
			f.arriveOnce(in) // to learn of the limit
		}
		f.run(time.Second)
		_, cold := f.totals()
		if seed%2 == 1 {
			f.jitter, f.loss, f.duplicate = 60*time.Millisecond, 0.05, 0.05
		}
		central := pool{rate: terms.Rate, burst: terms.Burst, level: terms.Burst, at: f.now}
		hot := f.instances[0]
		for end := f.now.Add(30 * time.Second); f.now < end; {
			switch f.rand.IntN(60) {
			case 0:
				f.run(time.Duration(f.rand.Int64N(int64(300 * time.Millisecond)))) // a pause, and then a burst
			case 1:
				hot = f.instances[f.rand.IntN(len(f.instances))]
			case 2:
				f.run(time.Duration(f.rand.Int64N(int64(10 * time.Millisecond))))
			}
			central.refill(f.now)
			if central.level < fixed.Token {
				f.run(time.Duration(float64(fixed.Token-central.level)/float64(terms.Rate)*float64(time.Second)) + 1)
				continue
			}
			central.level -= fixed.Token
			in := hot
			if f.rand.IntN(3) == 0 {
				in = f.instances[f.rand.IntN(len(f.instances))]
			}
			f.arriveOnce(in)
		}
		if took, refused := f.totals(); refused > cold {
			t.Errorf("seed %d: %d of %d refused, which one bucket would admit", seed, refused-cold, took+refused-cold)
		}
	}
}

// suppressing is a fleet that attempts three times the limit and is suppressed.
func suppressing(t *testing.T, seed uint64, n int, o agent.LeaseOptions) *fleet {
	f := newFleet(t, seed, 0, lease.Terms{Rate: 1000 * fixed.Token, Burst: 50 * fixed.Token, Suppress: &lease.Suppress{}})
	f.delay = 10 * time.Millisecond
	for i := range n {
		in := &instance{index: i, next: lease.Never, opts: o}
		f.instances = append(f.instances, in)
		f.start(in)
		f.load(in, 3000/float64(n))
	}
	f.run(5 * time.Second)
	f.checkRate(1, 0.97, 1.03)
	return f
}

// checkRate holds what passes in the next second against a multiple of the limit.
func (f *fleet) checkRate(seconds int, least, most float64) {
	f.t.Helper()
	before, _ := f.totals()
	f.run(time.Duration(seconds) * time.Second)
	after, _ := f.totals()
	if got := float64(after-before) / f.terms.Rate.Float() / float64(seconds); got < least || got > most {
		f.t.Errorf("%.3f of the limit passed in %d s, want %v to %v", got, seconds, least, most)
	}
}

// TestSuppressionWithoutCoordinator: when nobody answers any more, what was told last
// stays in force over the end of the leases; other modes say otherwise.
func TestSuppressionWithoutCoordinator(t *testing.T) {
	for mode, want := range map[agent.ExpiryMode][2]float64{agent.Pessimistic: {0.95, 1.05}, agent.Optimistic: {2.9, 3.1}, agent.Safe: {0.95, 1.05}} {
		f := suppressing(t, 1, 4, agent.LeaseOptions{Expiry: mode})
		f.coord = nil
		f.run(7 * time.Second)
		f.checkRate(2, want[0], want[1])
		f.epoch++
		f.startCoordinator(lease.DefaultLease)
		f.run(3 * time.Second)
		f.checkRate(2, 0.97, 1.03)
	}
}

// TestSuppressionSurvivesLoss: reports and answers that are lost, doubled, late and out
// of order change nothing for long.
func TestSuppressionSurvivesLoss(t *testing.T) {
	for seed := range uint64(4) {
		for _, loss := range []float64{0, 0.05, 0.2} {
			f := suppressing(t, seed, 10, agent.LeaseOptions{})
			f.loss, f.duplicate, f.jitter = loss, loss, 50*time.Millisecond
			f.checkRate(20, 0.97, 1.03)
		}
	}
	f := suppressing(t, 2, 10, agent.LeaseOptions{})
	f.loss, f.duplicate, f.jitter = 0.2, 0.2, 50*time.Millisecond
	f.checkRate(10, 0.97, 1.03)
	for i, in := range f.instances {
		if i > 0 {
			f.load(in, 0)
		}
	}
	f.load(f.instances[0], 3000)
	f.run(2 * time.Second)
	f.checkRate(5, 0.95, 1.05)
}

// TestSuppressionEnds: once demand is back within the limit nothing is refused, without a
// sweepInterval for good measure.
func TestSuppressionEnds(t *testing.T) {
	f := suppressing(t, 3, 10, agent.LeaseOptions{})
	for _, in := range f.instances {
		f.load(in, 95)
	}
	f.run(500 * time.Millisecond)
	_, before := f.totals()
	f.run(10 * time.Second)
	if _, after := f.totals(); after > before {
		t.Errorf("%d refused at 0.95 of the limit, half a second after the breach and later", after-before)
	}
}

// TestSuppressedLimitChanges: a new limit is in force within a report and a round trip.
func TestSuppressedLimitChanges(t *testing.T) {
	f := suppressing(t, 4, 10, agent.LeaseOptions{})
	for _, rate := range []fixed.Amount{500, 2000, 1000} {
		f.terms.Rate = rate * fixed.Token
		f.coordinate(Reconfigure{})
		f.run(300 * time.Millisecond)
		f.checkRate(3, 0.97, 1.03)
	}
	f.terms.Rate, f.terms.Burst = 0, 0
	f.coordinate(Reconfigure{})
	f.run(300 * time.Millisecond)
	before, _ := f.totals()
	f.run(2 * time.Second)
	if after, _ := f.totals(); after > before {
		t.Errorf("%d passed under a limit of 0", after-before)
	}
}

// TestOldInstancesAreSharedEqually: who knows nothing of suppression has an equal part of
// the limit, and counts as using it.
func TestOldInstancesAreSharedEqually(t *testing.T) {
	f := newFleet(t, 5, 4, lease.Terms{Rate: 1000 * fixed.Token, Burst: 100 * fixed.Token, Suppress: &lease.Suppress{}})
	f.delay = 10 * time.Millisecond
	for _, in := range f.instances[:2] {
		in.holder = agent.New(agent.Options{Member: lease.Member{Instance: fmt.Sprint(in.index), Session: 7}, Version: 1})
		in.bucket = bucket.NewBucket(in.holder.Deadline())
		in.handle = in.holder.Open(f.now, lease.ResourceID{Limit: "l"}, agent.LeaseOptions{}, in.bucket)
		f.step(in, lease.Tick{})
	}
	for _, in := range f.instances {
		f.load(in, 750)
	}
	f.run(5 * time.Second)
	was := make([]int64, 4)
	for i, in := range f.instances {
		was[i] = in.took
	}
	f.checkRate(4, 0.96, 1.04)
	for i, in := range f.instances {
		if got := float64(in.took-was[i]) / 4; got < 240 || got > 260 {
			t.Errorf("instance %d was admitted %.0f/s, want 250", i, got)
		}
	}
}

// TestBadTotals: totals that go back are refused, and change nothing.
func TestBadTotals(t *testing.T) {
	f := suppressing(t, 6, 1, agent.LeaseOptions{})
	in, a := f.instances[0], f.coord.list[0].accounts[0]
	s := *f.coord.list[0].divider.(*suppression)
	r := lease.Report{Member: lease.Member{Instance: fmt.Sprint(in.index), Session: in.session}, Version: 2, Epoch: f.epoch, Number: 1 << 40, Stamp: time.Duration(f.now), Demands: []lease.Demand{{
		Handle: in.handle, Lease: a.lease, Returned: a.returned, Rate: a.demand, Attempted: a.attempted - fixed.Token, Admitted: a.admitted,
	}}}
	f.coord.Step(f.now, &r)
	if got := *f.coord.list[0].divider.(*suppression); a.status != lease.StatusBadDemand || got.bucket.level != s.bucket.level || got.total != s.total {
		t.Errorf("status %v, %+v became %+v", a.status, s, got)
	}
}
