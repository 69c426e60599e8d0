package admission

import (
	"slices"
	"testing"

	"github.com/stint-io/stint/internal/seeding"
)

// E30: 1,000 keys that send a request now and then, a fifth of the load together, and 16 keys that
// send three times what the workers can. No mouse is refused, and where times vary a mouse's p99
// latency is at most twice what it is without the elephants. Where times are constant the
// workers keep step, all are taken at once, and a mouse waits until they end: nothing interrupts
// what runs.
func TestMiceAndElephants(t *testing.T) {
	for _, c := range []struct {
		name    string
		config  Config
		service int64 // of an elephant's request, in the mean
		workers int
		varies  bool // all times vary, as an exponential distribution
		most    float64
	}{
		{"16 workers, all 1 ms; constant", Config{Concurrency: 16, MaxWaiting: 1024, MaxWait: second}, millisecond, 16, false, 2},
		{"16 workers, all 1 ms", Config{Concurrency: 16, MaxWaiting: 1024, MaxWait: second}, millisecond, 16, true, 2},
		{"16 workers, elephants 10 ms; constant", Config{Concurrency: 16, MaxWaiting: 1024, MaxWait: second}, 10 * millisecond, 16, false, 10},
		{"16 workers, elephants 10 ms", Config{Concurrency: 16, MaxWaiting: 1024, MaxWait: second}, 10 * millisecond, 16, true, 2},
		{"16 workers, bounded by cost, elephants 10 ms; constant", Config{Concurrency: 16, MaxWaiting: 8192, MaxCost: second, MaxWait: second}, 10 * millisecond, 16, false, 10},
		{"16 workers, bounded by cost, elephants 10 ms", Config{Concurrency: 16, MaxWaiting: 8192, MaxCost: second, MaxWait: second}, 10 * millisecond, 16, true, 2},
		{"2 workers, all 1 ms; constant", Config{Concurrency: 2, MaxWaiting: 1024, MaxWait: second}, millisecond, 2, false, 3},
		{"2 workers, all 1 ms", Config{Concurrency: 2, MaxWaiting: 1024, MaxWait: second}, millisecond, 2, true, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			idle, lost := mice(c.config, c.workers, 0, c.service, c.varies, true)
			loaded, squished := mice(c.config, c.workers, 16, c.service, c.varies, true)
			blind, blindLost := mice(c.config, c.workers, 16, c.service, c.varies, false)
			t.Logf("a mouse's p99: %.2f ms idle, %.2f ms with 16 elephants (%.2f x), %d squished; without keys %.2f ms, %d squished",
				float64(idle)/1e6, float64(loaded)/1e6, float64(loaded)/float64(idle), squished, float64(blind)/1e6, blindLost)
			if float64(loaded) > c.most*float64(idle) || squished+lost > 0 {
				t.Errorf("p99 is %d, %d idle; %d were squished", loaded, idle, squished)
			}
		})
	}
}

// mice returns the p99 latency of mice, and how many of them were turned away.
func mice(c Config, workers, elephants int, service int64, varies, keys bool) (p99 int64, squished int) {
	s := newServer(c, workers, 30)
	var latencies []int64
	s.ended = func(j *job) {
		switch {
		case j.Route == 1:
		case j.State() == Finished:
			latencies = append(latencies, j.done-j.Arrived())
		default:
			squished++
		}
	}
	draw := func(route, key uint64, service int64) {
		if varies {
			service = 1 + int64(s.ExpFloat64()*float64(service))
		}
		j := &job{service: service, Item: Item{Route: route, Key: key, Cost: service, Level: uint8(key % Levels)}}
		if !keys {
			j.Key, j.Level = 0, 0
		}
		s.offer(j)
	}
	s.begin(0.2*float64(workers)*1000, func() { draw(0, 1+s.Uint64N(1000), millisecond) })
	for e := range elephants {
		key := uint64(10_000 + e)
		s.begin(float64(workers)*1000/float64(elephants)*float64(3*millisecond)/float64(service), func() { draw(1, key, service) })
	}
	s.run(5 * second)
	return quantile(latencies, 0.99), squished
}

// A key that always waits is served among ever new keys that each send one request: it gets the
// share of one key among those that wait and those that were just served, or nearly.
func TestNewKeysDoNotStarveOthers(t *testing.T) {
	s := newServer(Config{Concurrency: 16, MaxWaiting: 1024, MaxWait: second}, 16, 31)
	served, all, key := 0, 0, uint64(1)
	s.ended = func(j *job) {
		if j.State() == Finished {
			all++
			if j.Key == 1 {
				served++
			}
		}
	}
	s.begin(1000, func() { s.offer(&job{service: millisecond, Item: Item{Key: 1, Cost: millisecond, Level: Levels - 1}}) })
	s.begin(32000, func() {
		key++
		s.offer(&job{service: millisecond, Item: Item{Key: key, Cost: millisecond}})
	})
	s.run(5 * second)
	t.Logf("%d of %d were of the key that always waits", served, all)
	if served < all/4096 {
		t.Errorf("%d of %d were of the key that always waits", served, all)
	}
}

// Keys that always wait get the same cost, whatever a request of theirs costs and however wrong
// its prediction is: at any time they differ by three times the dearest at most.
func TestEqualShares(t *testing.T) {
	for seed := range seeding.Draw(t, 50) {
		s := newServer(Config{Concurrency: 1, MaxWaiting: 400}, 1, seed)
		keys := 2 + s.IntN(6)
		costs, served := make([]int64, keys), make([]int64, keys)
		dearest := int64(0)
		for k := range costs {
			costs[k] = (1 + s.Int64N(20)) * millisecond / 10
			dearest = max(dearest, costs[k])
		}
		offer := func(k int) {
			predicted := costs[k] * (1 + s.Int64N(8)) / 4 // a quarter to twice of what it will be
			s.offer(&job{Item: Item{Class: 1, Key: uint64(k + 1), Cost: max(1, predicted)}, service: costs[k]})
		}
		s.ended = func(j *job) {
			if j.State() != Finished {
				t.Fatalf("seed %d: a request of %d waiting is %d", seed, s.machine.Waiting(), j.State())
			}
			served[j.Key-1] += j.service
			offer(int(j.Key - 1))
		}
		for k := range keys {
			for range 3 {
				offer(k)
			}
		}
		for range 100 {
			s.run(s.now + 5*millisecond)
			if least, most := slices.Min(served), slices.Max(served); most-least > 3*dearest {
				t.Fatalf("seed %d: costs %v, served %v", seed, costs, served)
			}
		}
	}
}
