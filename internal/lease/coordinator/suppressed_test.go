package coordinator

import (
	"fmt"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/lease/ledger"
	"github.com/stint-io/stint/internal/seeding"
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
				const lag = 20 * time.Millisecond // as the ledger allows for
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
	for seed := range seeding.Draw(t, 40) {
		terms := lease.Terms{Rate: 200 * fixed.Token, Burst: 20 * fixed.Token, Suppress: &lease.Suppress{}}
		if seed%4 == 3 {
			*terms.Suppress = lease.Suppress{Window: time.Second, Intervals: 4, Ramp: lease.Ramp(seed / 4 % 2), Independent: true}
		}
		f := newFleet(t, seed, 1+int(seed%8), terms)
		f.delay = time.Duration(f.rand.Int64N(int64(80 * time.Millisecond)))
		f.run(time.Second)
		for _, in := range f.instances {
			f.arriveOnce(in) // so that it knows the limit
		}
		f.run(time.Second)
		_, cold := f.totals()
		if seed%2 == 1 {
			f.jitter, f.loss, f.duplicate = 60*time.Millisecond, 0.05, 0.05
		}
		central := ledger.Pool{Rate: terms.Rate, Burst: terms.Burst, Level: terms.Burst, At: f.now}
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
			central.Refill(f.now)
			if central.Level < fixed.Token {
				f.run(time.Duration(float64(fixed.Token-central.Level)/float64(terms.Rate)*float64(time.Second)) + 1)
				continue
			}
			central.Level -= fixed.Token
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

// TestSuppressionWithoutCoordinator: when no coordinator answers any more, the last fraction
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
	for seed := range seeding.Draw(t, 4) {
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
// pause for good measure.
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
		in.agent = agent.New(agent.Options{Member: lease.Member{Instance: fmt.Sprint(in.index), Session: 7}, Version: 1})
		in.bucket = bucket.NewBucket(in.agent.Deadline())
		in.handle = in.agent.Open(f.now, lease.ResourceID{Limit: "l"}, agent.LeaseOptions{}, in.bucket)
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

// TestReportsHeldUpAreExcused: reports that were held up on the way and come all at once do not count
// as attempts of one moment. The limit is exceeded so little that its bucket lasts for seconds.
func TestReportsHeldUpAreExcused(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const every = lease.DefaultReport
	start := limit.Time(time.Hour)
	c := New(Options{Epoch: 1, Resolve: func(lease.ResourceID) (lease.Terms, lease.Status) {
		return lease.Terms{Rate: 1000 * fixed.Token, Burst: 200 * fixed.Token, Suppress: &lease.Suppress{}}, lease.StatusOK
	}}, start)
	attempted, number := fixed.Amount(0), uint64(0)
	next := func(sent limit.Time, rate fixed.Amount) *lease.Report {
		number++
		attempted += rate.Scale(fixed.Amount(every), fixed.Amount(time.Second))
		return &lease.Report{Member: anna, Version: lease.ProtocolVersion, Epoch: 1, Number: number, Stamp: time.Duration(sent), Demands: []lease.Demand{{
			Handle: 1, Resource: theLimit, Rate: rate, Attempted: attempted, Admitted: attempted,
		}}}
	}
	rejects := func(now limit.Time) (most float64) {
		for end := now.Add(5 * time.Millisecond); now < end; now = now.Add(time.Millisecond) {
			c.Step(now, lease.Tick{})
			c.Each(now, func(r *ResourceState) bool { most = max(most, r.Reject); return true })
		}
		return most
	}
	var heldUp []*lease.Report
	for i := range 30 {
		now := start.Add(time.Duration(i) * every)
		rate := fixed.Amount(0)
		if i >= 15 {
			rate = 1020 * fixed.Token
		}
		switch r := next(now, rate); {
		case i >= 21 && i < 25:
			heldUp = append(heldUp, r)
			continue
		default:
			for _, was := range append(heldUp, r) {
				c.Step(now, was)
			}
			heldUp = nil
		}
		if got := rejects(now); got > 0 {
			t.Fatalf("after %v %v of the requests are refused", time.Duration(now-start), got)
		}
	}
	if number != 30 || attempted < 1000*fixed.Token {
		t.Fatalf("%d reports of %v attempts", number, attempted)
	}
}
