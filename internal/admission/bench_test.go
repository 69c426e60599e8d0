package admission

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

// crowd draws requests of six classes with 128 levels, of many keys.
func crowd(n, keys int) []Item {
	r := rand.New(rand.NewPCG(1, 2))
	items := make([]Item, n)
	for i := range items {
		items[i] = Item{
			Class: uint8(r.IntN(6)), Level: uint8(r.IntN(Levels)), Key: r.Uint64N(uint64(keys)),
			Cost: 500_000 + r.Int64N(1_000_000), Deadline: waitline.Never,
		}
	}
	return items
}

// BenchmarkAdmit: a request starts at once and ends.
func BenchmarkAdmit(b *testing.B) {
	m := New(Config{Rate: 1e6, Burst: 1e9, Concurrency: 100, MaxWaiting: 1024, MaxWait: 1e9})
	items := crowd(1024, 500)
	b.ReportAllocs()
	now := int64(1)
	it := &Item{}
	for i := range b.N {
		*it = items[i%len(items)]
		now += 1000
		m.Offer(now, it)
		if it.State() != Running {
			b.Fatal("not admitted")
		}
		m.Finish(now, it, it.Cost, true)
	}
}

// full returns a Machine whose queue of n is full, and the requests that wait.
func full(b *testing.B, n int) (*Machine, []Item) {
	m := New(Config{Concurrency: 1, MaxWaiting: n, MaxWait: 1e15})
	items := crowd(n+1, n/2)
	for i := range items {
		m.Offer(1, &items[i])
	}
	if m.waiting != n {
		b.Fatalf("%d wait", m.waiting)
	}
	return m, items
}

// BenchmarkRefuse: the queue is full, and nothing lower waits.
func BenchmarkRefuse(b *testing.B) {
	m, _ := full(b, 1024)
	b.ReportAllocs()
	it := &Item{}
	for i := range b.N {
		*it = Item{Cost: 1_000_000, Deadline: waitline.Never}
		m.Offer(int64(i+2), it)
		if it.Reason() != limit.ReasonQueueFull {
			b.Fatal("not refused")
		}
	}
}

// BenchmarkQueueAndEvict: the queue is full; each request is higher than another, evicts the
// lowest and waits. ns/decision is of these alone; ns/op has also the end of its wait and the
// return of the evicted, by which the queue is as it was.
func BenchmarkQueueAndEvict(b *testing.B) {
	for _, n := range []int{128, 1024, 16384} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			m, _ := full(b, n)
			high := crowd(n/4, n/2)
			evicted := make([]*Item, 0, len(high))
			now, spent, decisions := int64(1), time.Duration(0), 0
			b.ReportAllocs()
			for decisions < b.N {
				for i := range high {
					h := &high[i]
					*h = Item{Class: 6, Level: h.Level, Key: h.Key, Cost: h.Cost, Deadline: h.Deadline}
				}
				evicted = evicted[:0]
				begin := time.Now()
				for i := range high {
					now++
					m.Offer(now, &high[i])
					evicted = append(evicted, m.Ended()...)
				}
				spent += time.Since(begin)
				if decisions += len(high); len(evicted) != len(high) {
					b.Fatalf("%d were evicted", len(evicted))
				}
				for i, e := range evicted {
					m.Leave(now, &high[i])
					*e = Item{Class: e.Class, Level: e.Level, Key: e.Key, Cost: e.Cost, Deadline: e.Deadline}
					m.Offer(now, e)
				}
			}
			b.ReportMetric(float64(spent)/float64(decisions), "ns/decision")
		})
	}
}

// BenchmarkOverload: 300 % of what the server can, six classes with 128 levels: each step is an
// arrival, and one in three starts.
func BenchmarkOverload(b *testing.B) {
	m := New(Config{Concurrency: 16, MaxWaiting: 1024, MaxWait: 1e9})
	items := crowd(1<<14, 500)
	var running []*Item
	b.ReportAllocs()
	now := int64(1)
	for i := range b.N {
		it := &items[i%len(items)]
		now += 20_000
		if it.State() == Waiting {
			m.Leave(now, it)
		}
		if it.State() == Running {
			continue
		}
		*it = Item{Class: it.Class, Level: it.Level, Key: it.Key, Cost: it.Cost, Deadline: it.Deadline}
		m.Offer(now, it)
		if it.State() == Running {
			running = append(running, it)
		}
		if i%3 == 0 && len(running) > 0 {
			m.Finish(now, running[0], running[0].Cost, true)
			running = append(running[:0], running[1:]...)
		}
		for _, e := range m.Ended() {
			if e.State() == Running {
				running = append(running, e)
			}
		}
	}
}
