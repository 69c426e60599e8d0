package admission

import "testing"

// E29: 16 workers, service times of 1 ms, half the load, then 1.4 times the capacity at once.
// The queue delay, which is from arrival to a worker and includes the queue inside the server,
// is averaged over each millisecond of 30 runs. It is stable from the last time on at which it
// is more than a service time from where it ends.
func TestSpike(t *testing.T) {
	for _, c := range []struct {
		name        string
		config      Config
		exponential bool
	}{
		{"16 may run, 80 may wait", Config{Concurrency: 16, MaxWaiting: 80}, false},
		{"97.5 % of CPU, 5 ms of work may wait", Config{Rate: 15.6, Burst: 16 * millisecond, MaxWaiting: 4096, MaxCost: 80 * millisecond}, false},
		{"the limit follows the server, 80 may wait", Config{Concurrency: 1000, Floor: 1, MaxWaiting: 80}, false},
		{"16 may run, 80 may wait; times vary", Config{Concurrency: 16, MaxWaiting: 80}, true},
		{"97.5 % of CPU, 5 ms of work may wait; times vary", Config{Rate: 15.6, Burst: 16 * millisecond, MaxWaiting: 4096, MaxCost: 80 * millisecond}, true},
		{"the limit follows the server, 80 may wait; times vary", Config{Concurrency: 1000, Floor: 1, MaxWaiting: 80}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			const runs, warm, after = 30, 500, 500 // milliseconds
			var sums, counts [after]float64
			var limits, spent float64
			for seed := range runs {
				s := newServer(c.config, 16, uint64(seed))
				s.ended = func(j *job) {
					at := j.Arrived()/millisecond - warm
					if j.State() != Finished {
						return
					}
					if at >= 0 && at < after {
						sums[at] += float64(j.work-j.Arrived()) / 1e6
						counts[at]++
					}
					if done := j.done/millisecond - warm; done >= 0 {
						spent += float64(j.service)
					}
				}
				load := s.begin(0.5*16*1000, func() {
					j := &job{service: millisecond}
					if c.exponential {
						j.service = int64(s.ExpFloat64() * float64(millisecond))
					}
					j.Cost = millisecond
					s.offer(j)
				})
				s.run(warm * millisecond)
				load.perSecond = 1.4 * 16 * 1000
				s.again(load)
				s.run((warm + after + 50) * millisecond) // so that those that came last have ended
				if c.config.Concurrency > 0 {
					limits += float64(s.machine.Limit())
				}
			}
			end, n := 0.0, 0.0
			for i := after / 2; i < after; i++ {
				end, n = end+sums[i], n+counts[i]
			}
			end /= n
			settled := 0
			for i := range after {
				if mean := sums[i] / max(1, counts[i]); counts[i] > 0 && (mean > end+1 || mean < end-1) {
					settled = i + 1
				}
			}
			goodput := spent / float64(runs*16*(after+50)*millisecond)
			t.Logf("queue delay stable after %d ms at %.2f ms; goodput %.1f %% of capacity; limit at the end %.1f", settled, end, 100*goodput, limits/runs)
			if settled > 20 || goodput < 0.95 {
				t.Errorf("stable after %d ms, goodput %v", settled, goodput)
			}
		})
	}
}
