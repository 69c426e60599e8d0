package overload

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/traffic"
)

// SEDA's controller by the paper's rules: the 90th percentile, smoothed with 0.7, lowers the rate by
// a factor above the target, and raises it below half of it.
func TestWalkOfSEDA(t *testing.T) {
	s := sedaController{target: 0.1, timeout: int64(time.Second), rise: 2, fall: 1.2, least: 1, rate: 100}
	batch := func(seconds float64) {
		for range sedaSamples {
			s.observe(0, seconds)
		}
	}
	batch(0.01) // smoothed 0.003, error -0.97: + 0.87 x 2
	within(t, "rate", s.rate, 101.739, 101.741)
	batch(0.5) // 0.1521: above
	within(t, "rate", s.rate, 84.78, 84.79)
	batch(0.03) // 0.11547: still above
	within(t, "rate", s.rate, 70.65, 70.66)
	batch(0.03) // 0.0898: between half and all, nothing
	within(t, "rate", s.rate, 70.65, 70.66)
	s.observe(int64(2*time.Second), 10) // fewer after the time-out
	within(t, "rate", s.rate, 58.87, 58.88)
}

// DAGOR's level by the paper's algorithm: 5 % fewer than were admitted under overload, 1 % of all
// more without.
func TestWalkOfDAGOR(t *testing.T) {
	d := &dagorLevel{}
	fill := func() {
		for rank := range 100 { // ranks 0 to 99, ten calls each
			for range 10 {
				d.count(rank)
			}
		}
	}
	for i, want := range []int{5, 9, 13, 17} { // 950 calls are 95 ranks, 902.5 are 91, 864.5 are 87, 826.5 are 83
		fill()
		d.update(true, dagorRise, dagorFall)
		if d.level != want {
			t.Errorf("window %d: level %d, want %d", i, d.level, want)
		}
	}
	if d.count(16) || !d.count(17) {
		t.Error("the level is not where it is")
	}
	d.came, d.admitted, d.histogram = 0, 0, [dagorRanks]int{}
	fill()
	d.update(false, dagorRise, dagorFall) // 830 + 10
	if d.level != 16 {
		t.Errorf("level %d, want 16", d.level)
	}
	// Callers that know the level do not send what is below: one step, not all at once.
	for rank := 16; rank < 100; rank++ {
		for range 10 {
			d.count(rank)
		}
	}
	d.update(false, dagorRise, dagorFall)
	if d.level != 15 {
		t.Errorf("level %d, want 15", d.level)
	}
}

// Breakwater's pool: 0.1 % of the callers more, at least one, in a round trip below the target; 2 %
// less for each target that the delay is above it, at most half.
func TestWalkOfBreakwater(t *testing.T) {
	p := &creditPool{total: 100, least: 10}
	up := func(delay float64) int {
		p.update(delay, 80e-6, 1000, breakwaterRise, breakwaterFall)
		return p.total
	}
	for i, step := range []struct {
		delay float64
		want  int
	}{{0, 101}, {79e-6, 102}, {80e-6, 102}, {160e-6, 99}, {80e-4, 49}, {1, 24}, {1, 12}, {1, 10}} {
		if got := up(step.delay); got != step.want {
			t.Errorf("step %d: %d credits, want %d", i, got, step.want)
		}
	}
	// Credits follow demand, with one to spare, and come back when there are too many.
	p = &creditPool{total: 20, issued: 0}
	if got := p.grant(0, 0, 5, 10); got != 7 || p.issued != 7 {
		t.Errorf("%d of 20 for a demand of 5, want 5 and 20/10 to spare", got)
	}
	if got := p.grant(7, 3, 0, 10); got != 4 || p.issued != 4 {
		t.Errorf("%d, %d issued: want 3 pending and 1 to spare", got, p.issued)
	}
	p.total = 2
	if got := p.grant(4, 1, 9, 10); got != 3 || p.issued != 3 {
		t.Errorf("%d with too many issued, want one less", got)
	}
}

// Cinnamon's controller finds the part to be rejected, and the threshold rejects that part, the
// least important first.
func TestWalkOfCinnamon(t *testing.T) {
	r := &rejector{}
	random := traffic.Seeded(1, 0, 0, 0)
	for range 40 {
		passed := 0
		for range 3000 {
			if r.admit(random.IntN(768)) {
				passed++
			}
		}
		r.in, r.out = passed, min(passed, 1000)
		r.update(0, 0.5)
	}
	within(t, "ratio at three times the capacity", r.ratio, 0.62, 0.72)
	within(t, "threshold of 768 levels", float64(r.below), 460, 550)
	r.came, r.in, r.out = 1000, 0, 0
	if r.update(1000, 0.5); r.ratio > 0.3 {
		t.Errorf("with free places the ratio is %v", r.ratio)
	}
}

// squished is the chance that a hand is within the union of those of elephants, exactly: the size
// of the union is a Markov chain.
func squished(hand, queues, elephants int) float64 {
	choose := func(n, k int) float64 {
		if k < 0 || k > n {
			return 0
		}
		product := 1.0
		for i := range k {
			product *= float64(n-i) / float64(i+1)
		}
		return product
	}
	union := make([]float64, queues+1)
	union[0] = 1
	for range elephants {
		next := make([]float64, queues+1)
		for size, p := range union {
			for more := 0; more <= hand && p > 0; more++ {
				if size+more <= queues {
					next[size+more] += p * choose(queues-size, more) * choose(size, hand-more) / choose(queues, hand)
				}
			}
		}
		union = next
	}
	sum := 0.0
	for size, p := range union {
		sum += p * choose(size, hand) / choose(queues, hand)
	}
	return sum
}

// The chance that a mouse's hand is within those of elephants is that of the published table, and
// of theory: 8 of 128 queues and 1, 4 and 16 elephants.
func TestMouseSquishedAsPublished(t *testing.T) {
	for elephants, want := range map[int]float64{1: 7.0e-13, 4: 3.4e-6, 16: 0.0275} {
		within(t, "the chance in theory", squished(8, 128, elephants), want*0.98, want*1.02)
	}
	within(t, "the chance in theory", squished(6, 1024, 16), 4.4e-7, 4.6e-7)
	for _, c := range []struct{ hand, queues, elephants int }{{8, 128, 16}, {8, 64, 16}, {8, 32, 4}} {
		const trials = 40_000
		want, count, hand := squished(c.hand, c.queues, c.elephants), 0, []int(nil)
		for trial := range uint64(trials) {
			taken := make([]bool, c.queues)
			for e := range uint64(c.elephants) {
				for _, q := range dealHand(traffic.Mix(trial, e), c.queues, c.hand, hand) {
					taken[q] = true
				}
			}
			hand = dealHand(traffic.Mix(trial, 1<<32), c.queues, c.hand, hand)
			if slices.Sort(hand); len(slices.Compact(slices.Clone(hand))) != c.hand {
				t.Fatalf("a hand of %v", hand)
			}
			if !slices.ContainsFunc(hand, func(q int) bool { return !taken[q] }) {
				count++
			}
		}
		spread := 4 * math.Sqrt(want*(1-want)/trials)
		within(t, "the part of mice squished", float64(count)/trials, want-spread, want+spread)
	}
}

// APF serves the queue with the least virtual start, and charges what a call has taken.
func TestWalkOfAPF(t *testing.T) {
	f := &fairQueues{queues: make([]fairQueue, 2), seats: 1, size: 1, length: 3, guess: 0.001}
	user := func(queue int) uint64 {
		for u := uint64(0); ; u++ {
			if dealHand(traffic.Mix(u, 2), 2, 1, nil)[0] == queue {
				return u
			}
		}
	}
	var order []int
	for range 3 {
		f.push(0, &Call{Request: &Request{User: user(0)}})
	}
	f.push(0, &Call{Request: &Request{User: user(1)}})
	if f.push(0, &Call{Request: &Request{User: user(0)}}) {
		t.Error("a full queue takes a call")
	}
	now := int64(0)
	for c := f.next(now); c != nil; c = f.next(now) {
		order = append(order, c.lists)
		c.began = now
		now += 5e6
		f.done(now, c)
	}
	if order[0] == order[1] || order[2] != 0 || order[3] != 0 {
		t.Errorf("order %v", order)
	}
}

// Max-min shares of a rate, and what is left when all have what they ask for.
func TestWispShares(t *testing.T) {
	for _, c := range []struct {
		rate  float64
		asked []float64
		want  float64
	}{{100, []float64{10, 90, 80}, 45}, {100, []float64{50, 60}, 50}, {100, []float64{10, 20}, 90}, {7, nil, 7}} {
		if got := maxMin(c.rate, c.asked); got != c.want {
			t.Errorf("%v among %v: %v, want %v", c.rate, c.asked, got, c.want)
		}
	}
}

// TopFull's steps: down by the excess over the goodput, at most by half; up by what is left of the
// objective.
func TestWalkOfTopFull(t *testing.T) {
	for _, c := range []struct{ goodput, limit, latency, want float64 }{
		{900, 1000, 2, -0.1}, {990, 1000, 2, -0.05}, {0, 1000, 2, -0.5}, {1000, 1000, 0.5, 0.1}, {1000, 1000, 1, 0.01}, {0, 0, 2, 0},
	} {
		if got := topfullAction(c.goodput, c.limit, c.latency, topfullRise, topfullFall); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// Each model does what it is known for, at 1.4 times the capacity of one server: it keeps more of
// the goodput than a server without one.
func TestModelsHelp(t *testing.T) {
	s := spike(6 * time.Second)
	least := play(t, s, none{}).Goodput
	for _, system := range []System{SEDA{}, DAGOR{Tuning{Target: 5 * ms, Interval: 100 * ms}}, Breakwater{}, Wisp{}, Cinnamon{}, TopFull{}} {
		if got := play(t, s, system).Goodput; got < 3*least || got < 900 {
			t.Errorf("%s: goodput %v, without %v", system.Name(), got, least)
		}
	}
}
