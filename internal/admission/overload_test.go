package admission

import (
	"testing"
)

// E28: Poisson arrivals of three times what 16 workers can, in equal parts of six (or four)
// classes with 128 levels, service times that vary as an exponential distribution, ten virtual
// seconds. All of the highest class is served, the workers are busy, and nobody is refused or
// evicted while a lower one waits.
func TestOverload(t *testing.T) {
	byConcurrency := Config{Concurrency: 16, MaxWaiting: 1024, MaxWait: 100 * millisecond}
	byRate := Config{Rate: 15.6, Burst: 156 * millisecond, MaxWaiting: 4096, MaxCost: 800 * millisecond, MaxWait: 100 * millisecond}
	for _, c := range []struct {
		name    string
		classes int
		config  Config
	}{
		{"6 classes, 16 may run", 6, byConcurrency},
		{"6 classes, 97.5 % of CPU", 6, byRate},
		{"4 classes, 16 may run", 4, byConcurrency},
		{"4 classes, 97.5 % of CPU", 4, byRate},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := overload{server: newServer(c.config, 16, 1)}
			o.run3x(c.classes, 10)
			top := &o.classes[c.classes-1]
			share := 1 - float64(top.refused+top.evicted+top.expired)/float64(top.offered)
			goodput := float64(o.spent) / float64(16*10*second)
			t.Logf("top class served %.3f %%, latency p99 %.2f ms; goodput %.1f %% of capacity; %d inversions",
				100*share, float64(quantile(top.latencies, 0.99))/1e6, 100*goodput, o.inversions)
			for i := c.classes - 1; i >= 0; i-- {
				k := &o.classes[i]
				t.Logf("class %d: %6d offered, %6d served, %6d refused, %6d evicted, %6d expired", i, k.offered, len(k.latencies), k.refused, k.evicted, k.expired)
			}
			if o.inversions > 0 || share < 0.999 || goodput < 0.95 {
				t.Errorf("top class served %v, goodput %v, %d inversions", share, goodput, o.inversions)
			}
		})
	}
}

// overload counts what becomes of requests, and keeps its own account of who waits.
type overload struct {
	*server
	waiting    [Classes * Levels]int
	inversions int
	spent      int64
	classes    [Classes]struct {
		offered, refused, evicted, expired int
		latencies                          []int64
	}
}

// run3x offers three times what the workers can.
func (o *overload) run3x(classes int, seconds int64) {
	o.waits = func(j *job, n int) { o.waiting[j.rank()] += n }
	o.ended = o.count
	o.begin(3*float64(o.workers)*1000, func() {
		j := &job{service: int64(o.ExpFloat64() * float64(millisecond))}
		j.Class, j.Level, j.Cost = uint8(o.IntN(classes)), uint8(o.IntN(Levels)), millisecond
		o.classes[j.Class].offered++
		o.offer(j)
	})
	o.run(seconds * second)
}

func (o *overload) count(j *job) {
	c := &o.classes[j.Class]
	switch j.State() {
	case Refused:
		c.refused++
	case Evicted:
		c.evicted++
	case Expired:
		c.expired++
	default:
		c.latencies = append(c.latencies, j.done-j.Arrived())
		o.spent += j.service
	}
	if j.State() != Refused && j.State() != Evicted {
		return
	}
	for rank := range j.rank() {
		if o.waiting[rank] > 0 {
			o.inversions++
			return
		}
	}
}
