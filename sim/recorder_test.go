package sim

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// admission is one that the recorder was told of.
type admission struct{ at, cost int64 }

// record tells a recorder of random admissions, some of them too many, and returns
// both.
func record(r *rand.Rand, s *Scenario) (*recorder, []admission) {
	rec := newRecorder(s)
	var log []admission
	for now := int64(0); ; {
		if r.IntN(3) > 0 {
			now += r.Int64N(int64(s.Duration) / 60)
		}
		if now >= int64(s.Duration) {
			return rec, log
		}
		cost := 1 + r.Int64N(5)
		rec.offer(now, 0, cost, 0)
		rec.decided(now, request{at: now}, 0, cost, true)
		log = append(log, admission{now, cost})
	}
}

// How much the fleet was over is the largest excess over all intervals, each of
// which begins and ends at an admission.
func TestOverEqualsBruteForce(t *testing.T) {
	over := 0
	for seed := range seeding.Draw(t, 400) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := &Scenario{
			Limit:     Limit{limit.Rate{Count: 1 + r.Int64N(40), Period: time.Duration(1+r.Int64N(3000)) * ms}, r.Int64N(60)},
			Instances: 1, Duration: 10 * time.Second,
		}
		rec, log := record(r, s)
		rec.over.settle()
		// In units of one token over the period, which are whole.
		worst, period := int64(0), int64(s.Limit.Rate.Period)
		for from := range log {
			sum := -s.Limit.Burst
			for _, a := range log[from:] {
				sum += a.cost
				worst = max(worst, sum*period-(a.at-log[from].at)*s.Limit.Rate.Count)
			}
		}
		want := float64(worst) / float64(period)
		if math.Abs(rec.over.overall-want) > 1e-9*want || (rec.over.overall > 0) != (want > 0) {
			t.Fatalf("seed %d: over %v, want %v", seed, rec.over.overall, want)
		}
		if want > 0 {
			over++
		}
	}
	if over < 50 || over > 390 {
		t.Errorf("%d of 400 cases were over: the test shows little", over)
	}
}

// With changes it is the debt of one bucket in rational numbers, which keeps what was
// used up to the new burst.
func TestOverWithChanges(t *testing.T) {
	for seed := range seeding.Draw(t, 300) {
		r := rand.New(rand.NewPCG(seed, 2))
		any := func() Limit {
			return Limit{limit.Rate{Count: r.Int64N(60), Period: time.Duration(1+r.Int64N(2000)) * ms}, r.Int64N(60)}
		}
		s := &Scenario{Limit: any(), Instances: 1, Duration: 10 * time.Second}
		for at := time.Duration(0); at < s.Duration; at += time.Duration(r.Int64N(int64(4 * time.Second))) {
			s.Changes = append(s.Changes, Change{at, any()})
		}
		rec, log := record(r, s)
		rec.over.settle()
		used, worst := new(big.Rat), new(big.Rat)
		last, in, changes := int64(0), s.Limit, s.Changes
		pass := func(to int64) {
			gone := new(big.Rat)
			if in.Rate.Count > 0 {
				gone.SetFrac64(to-last, int64(in.Rate.Period)).Mul(gone, big.NewRat(in.Rate.Count, 1))
			}
			if used.Sub(used, gone).Sign() < 0 {
				used.SetInt64(0)
			}
			last = to
		}
		for _, a := range log {
			for len(changes) > 0 && int64(changes[0].At) <= a.at {
				pass(int64(changes[0].At))
				in, changes = changes[0].Limit, changes[1:]
				if most := big.NewRat(in.Burst, 1); used.Cmp(most) > 0 {
					used.Set(most)
				}
			}
			pass(a.at)
			used.Add(used, big.NewRat(a.cost, 1))
			if excess := new(big.Rat).Sub(used, big.NewRat(in.Burst, 1)); excess.Cmp(worst) > 0 {
				worst.Set(excess)
			}
		}
		// Each change rounds down by less than a tick, far below a millionth.
		if want, _ := worst.Float64(); math.Abs(rec.over.overall-want) > 1e-6 {
			t.Fatalf("seed %d: over %v, want %v", seed, rec.over.overall, want)
		}
	}
}

// A system that goes through one bucket is never over, to the last tick, also where
// the limit changes.
func TestOneBucketIsNeverOver(t *testing.T) {
	for seed := range seeding.Draw(t, 200) {
		r := rand.New(rand.NewPCG(seed, 3))
		any := func() Limit {
			return Limit{limit.Rate{Count: 1 + r.Int64N(1000), Period: time.Duration(1+r.Int64N(2000)) * ms}, 1 + r.Int64N(20)}
		}
		s := &Scenario{Limit: any(), Instances: 1, Duration: 10 * time.Second}
		for range 3 {
			at := time.Duration(len(s.Changes)+1)*2*time.Second + time.Duration(r.Int64N(int64(time.Second)))
			s.Changes = append(s.Changes, Change{at, any()})
		}
		rec := newRecorder(s)
		for now := int64(0); now < int64(s.Duration); now += r.Int64N(int64(5 * ms)) {
			cost := 1 + r.Int64N(3)
			rec.offer(now, 0, cost, 0)
			rec.decided(now, request{at: now}, 0, cost, rec.idealNo != now)
		}
		rec.over.settle()
		if rec.over.overall != 0 || rec.one.worst > 1+1e-9 || rec.ten.worst > 1+1e-9 {
			t.Fatalf("seed %d: over %v, peaks %v and %v", seed, rec.over.overall, rec.one.worst, rec.ten.worst)
		}
		if rec.result.Early != (Count{}) || rec.result.Admitted.Requests == 0 {
			t.Fatalf("seed %d: early %+v, admitted %+v", seed, rec.result.Early, rec.result.Admitted)
		}
	}
}

func TestWindowsEqualBruteForce(t *testing.T) {
	for seed := range seeding.Draw(t, 100) {
		r := rand.New(rand.NewPCG(seed, 4))
		s := &Scenario{Limit: limitOf(1+r.Int64N(20), r.Int64N(30)), Instances: 1, Duration: 15 * time.Second}
		for len(s.Changes) < r.IntN(4) {
			s.Changes = append(s.Changes, Change{time.Duration(len(s.Changes)) * 3 * time.Second, limitOf(1+r.Int64N(20), r.Int64N(30))})
		}
		rec, log := record(r, s)
		for _, w := range []*window{&rec.one, &rec.ten} {
			worst, most := 0.0, int64(0)
			for to, last := range log {
				if to+1 < len(log) && log[to+1].at == last.at {
					continue
				}
				from, sum := last.at-w.span, int64(0)
				for _, a := range log[:to+1] {
					if a.at > from {
						sum += a.cost
					}
				}
				most = max(most, sum)
				worst = max(worst, float64(sum)/bruteBudget(s, from, last.at))
			}
			if w.most != most || math.Abs(w.worst-worst) > 1e-9 {
				t.Fatalf("seed %d: worst %v of %v is %v (%d), want %v (%d)", seed, time.Duration(w.span), s.Limit, w.worst, w.most, worst, most)
			}
		}
	}
}

// bruteBudget adds up the limit millisecond by millisecond; the changes of its test
// are at whole seconds, and what is left of a millisecond is at the borders.
func bruteBudget(s *Scenario, from, to int64) float64 {
	in := func(at int64) Limit {
		l := s.Limit
		for _, c := range s.Changes {
			if int64(c.At) <= max(at, 0) {
				l = c.Limit
			}
		}
		return l
	}
	burst, flow, last := in(from).Burst, 0.0, in(from).Burst
	for at := from; at < to; {
		next := min((at/int64(ms)+1)*int64(ms), to)
		if at < 0 {
			next = min(0, to)
		}
		flow += in(at).PerSecond() * seconds(next-at)
		at = next
		burst += max(in(at).Burst-last, 0)
		last = in(at).Burst
	}
	return float64(burst) + flow
}

// With grace the former limit counts for a while after a fall, and a rise at once.
func TestGrace(t *testing.T) {
	s := &Scenario{
		Limit: limitOf(100, 10), Instances: 1, Duration: 10 * time.Second,
		Changes: []Change{
			{2 * time.Second, limitOf(50, 20)}, {4 * time.Second, limitOf(200, 5)}, {4200 * ms, limitOf(10, 1)},
		},
	}
	for _, tt := range []struct {
		at    time.Duration
		rate  float64
		burst int64
	}{
		{0, 100, 10},
		{2 * time.Second, 100, 20},
		{2500*ms - 1, 100, 20},
		{2500 * ms, 50, 20},
		{4 * time.Second, 200, 20},
		{4500*ms - 1, 200, 20},
		{4500 * ms, 200, 5},
		{4700*ms - 1, 200, 5},
		{4700 * ms, 10, 1},
	} {
		line := newTimeline(s, 500*ms)
		if e := line[line.at(int64(tt.at), 0)]; e.rate != tt.rate || e.limit.Burst != tt.burst {
			t.Errorf("at %v: rate %v, burst %d, want %v and %d", tt.at, e.rate, e.limit.Burst, tt.rate, tt.burst)
		}
	}
	line := newTimeline(s, 0)
	if got, want := line.flow(int64(time.Second), int64(5*time.Second)), 100+100+40+8.0; math.Abs(got-want) > 1e-9 {
		t.Errorf("flow of 1 s to 5 s is %v, want %v", got, want)
	}
	if burst, flow := line.budget(-int64(time.Second), int64(time.Second)); burst != 10 || flow != 200 {
		t.Errorf("budget from before the run is %d and %v, want 10 and 200", burst, flow)
	}
}
