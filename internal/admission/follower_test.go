package admission

import (
	"math"
	"testing"
)

// loaded runs a server under 1.5 times its load, whose limit follows it, and returns the mean
// limit and the share of the workers' time that was spent on requests, in the last part.
func loaded(c Config, workers int, draw func(s *server) (route uint64, service int64), mean float64, seconds int64) (limit, busy float64, s *server) {
	s = newServer(c, workers, 3)
	spent, samples := int64(0), 0.0
	from := seconds * second / 3
	s.ended = func(j *job) {
		if j.State() == Finished && s.now > from {
			spent += j.service
			limit += float64(s.machine.Limit())
			samples++
		}
	}
	s.begin(1.5*float64(workers)/mean*1e9, func() {
		j := &job{}
		j.Route, j.service = draw(s)
		j.Cost = j.service
		s.offer(j)
	})
	s.run(seconds * second)
	return limit / samples, float64(spent) / float64(int64(workers)*(seconds*second-from)), s
}

// The limit ends near the number of workers, and keeps them busy: for one worker and for many,
// for times that are constant, vary, or are of routes that differ a hundredfold.
func TestLimitFollowsWorkers(t *testing.T) {
	constant := func(*server) (uint64, int64) { return 0, millisecond }
	exponential := func(s *server) (uint64, int64) { return 0, 1 + int64(s.ExpFloat64()*float64(millisecond)) }
	mixed := func(s *server) (uint64, int64) {
		if s.IntN(10) == 0 {
			return 1, 100 * millisecond
		}
		return 0, millisecond
	}
	for _, c := range []struct {
		name string
		draw func(*server) (uint64, int64)
		mean float64
	}{{"constant", constant, 1e6}, {"exponential", exponential, 1e6}, {"two routes", mixed, 10.9e6}} {
		for _, workers := range []int{1, 4, 16, 64} {
			limit, busy, _ := loaded(Config{Concurrency: 1000, Floor: 1, MaxWaiting: 200, MaxWait: second}, workers, c.draw, c.mean, 9)
			n := float64(workers)
			t.Logf("%-12s %2d workers: limit %5.1f, busy %.1f %%", c.name, workers, limit, 100*busy)
			if busy < 0.95 || limit > n+4*math.Sqrt(n)+2 {
				t.Errorf("%s, %d workers: limit %v, busy %v", c.name, workers, limit, busy)
			}
		}
	}
}

// A server that becomes three times as slow with as many workers keeps its limit, one that loses
// half of its workers has half the limit, and both ways back, within a second.
func TestLimitFollowsChanges(t *testing.T) {
	slow, workers := int64(1), 16
	s := newServer(Config{Concurrency: 1000, Floor: 1, MaxWaiting: 200}, workers, 9)
	busy := int64(0)
	s.ended = func(j *job) {
		if j.State() == Finished {
			busy += j.service
		}
	}
	s.begin(1.5*16*1000, func() {
		service := slow * int64(float64(millisecond)*(0.5+s.Float64()))
		s.offer(&job{Item: Item{Cost: millisecond}, service: service})
	})
	for _, c := range []struct {
		name    string
		slow    int64
		workers int
	}{{"begins", 1, 16}, {"three times as slow", 3, 16}, {"as fast as before", 1, 16}, {"half of the workers", 1, 8}, {"all workers", 1, 16}} {
		slow, s.workers = c.slow, c.workers
		least := math.MaxInt
		for range 1000 {
			s.run(s.now + millisecond)
			if !s.machine.follower.probing {
				least = min(least, s.machine.Limit())
			}
		}
		busy = 0
		limit, n := 0.0, 20
		for range n {
			s.run(s.now + second/10)
			limit += float64(s.machine.Limit()) / float64(n)
		}
		share := float64(busy) / float64(int64(c.workers)*2*second)
		t.Logf("%-20s limit %5.1f, busy %.1f %%, at least %d in the first second", c.name, limit, 100*share, least)
		if c.name != "begins" && least < c.workers/2 {
			t.Errorf("%s: the limit fell to %d", c.name, least)
		}
		if p := float64(c.workers); share < 0.95 || limit > p+4*math.Sqrt(p) {
			t.Errorf("%s: limit %v, busy %v", c.name, limit, share)
		}
	}
}
