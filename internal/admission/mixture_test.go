package admission

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/seeding"
)

// mixture is traffic of some routes whose service times vary, each by a law of its own.
type mixture struct {
	name   string
	routes []func(r *rand.Rand) float64 // returns a service time in milliseconds
	mean   float64                      // of all routes, in milliseconds
}

// drawMixture draws one to four routes with constant, exponential, lognormal or two-point times from
// 5 ms to 5 s.
func drawMixture(r *rand.Rand) mixture {
	var m mixture
	var names []string
	span := func() float64 { return 5 * math.Pow(1000, r.Float64()) }
	for range 1 + r.IntN(4) {
		a, b := span(), span()
		switch r.IntN(4) {
		case 0:
			names = append(names, fmt.Sprintf("%.0f ms", a))
			m.routes = append(m.routes, func(*rand.Rand) float64 { return a })
		case 1:
			a = min(a, 1000)
			names = append(names, fmt.Sprintf("exponential %.0f ms", a))
			m.routes = append(m.routes, func(r *rand.Rand) float64 { return min(a*r.ExpFloat64(), 5000) })
		case 2:
			a, sigma := min(a, 300), 0.5+1.5*r.Float64()
			names = append(names, fmt.Sprintf("lognormal %.0f ms sigma %.1f", a, sigma))
			m.routes = append(m.routes, func(r *rand.Rand) float64 { return min(max(a*math.Exp(sigma*r.NormFloat64()), 5), 5000) })
		case 3:
			share := math.Pow(10, -2*r.Float64())
			names = append(names, fmt.Sprintf("%.0f ms and %.1f %% %.0f ms", min(a, b), 100*share, max(a, b)))
			m.routes = append(m.routes, func(r *rand.Rand) float64 {
				if r.Float64() < share {
					return max(a, b)
				}
				return min(a, b)
			})
		}
	}
	m.name = strings.Join(names, " | ")
	const draws = 200_000
	for range draws {
		_, x := m.draw(r)
		m.mean += x / draws
	}
	return m
}

func (m *mixture) draw(r *rand.Rand) (route uint64, ms float64) {
	i := r.IntN(len(m.routes))
	return uint64(i), m.routes[i](r)
}

// settled is when the limit has found its place: after a minute, or 200 mean service times.
func (m *mixture) settled() int64 { return max(60*second, int64(200*m.mean*1e6)) }

// play runs a mixture before a server with so many workers, at load times what places workers can do.
// Counts are of the minute after it has settled: the share of what comes that is not served, the mean
// share of the places that work, and the mean limit.
func (m *mixture) play(c Config, workers, places int, load float64, seed uint64, minutes int64) (lost, busy, limit float64) {
	s := newServer(c, workers, seed)
	offered, failed := 0.0, 0.0
	from := m.settled()
	s.ended = func(j *job) {
		if j.Arrived() >= from && j.State() != Finished {
			failed++
		}
	}
	s.begin(load*float64(places)/m.mean*1000, func() {
		j := &job{}
		route, ms := m.draw(s.Rand)
		j.Route, j.service, j.Cost = route, int64(ms*1e6), millisecond
		s.offer(j)
		if s.now >= from {
			offered++
			busy += float64(s.busy) / float64(places)
			limit += float64(s.machine.Limit())
		}
	})
	s.run(from + minutes*60*second)
	return failed / offered, busy / offered, limit / offered
}

// Requests whose times vary are not mistaken for load, whatever the law: where a constant limit of the
// right size refuses none, one that follows the server refuses none either, up to 0.7 of what the
// server can do, and at most one in 1,000 up to 0.9. The server has no queue, or workers that have one.
func TestMixturesAreNotLoad(t *testing.T) {
	refused, most, runs := 0, 0.0, 0
	for seed := range seeding.Draw(t, 5) {
		r := rand.New(rand.NewPCG(seed, 3))
		m := drawMixture(r)
		places := 32 + r.IntN(97)
		for _, queues := range []bool{false, true} {
			for _, load := range []float64{0.3 + 0.4*r.Float64(), 0.7 + 0.2*r.Float64()} {
				workers := math.MaxInt
				adaptive := Config{Concurrency: places, Floor: 1, MaxWaiting: 1024, MaxWait: second}
				if queues {
					workers, adaptive.Concurrency = places, 1000
				}
				draw := r.Uint64()
				lost, busy, limit := m.play(adaptive, workers, places, load, draw, 1)
				runs++
				if lost == 0 || lost <= 0.001 && load > 0.7 {
					most = max(most, lost)
					continue
				}
				constant := Config{Concurrency: places, MaxWaiting: 1024, MaxWait: second}
				if best, _, _ := m.play(constant, workers, places, load, draw, 1); best == 0 {
					most = max(most, lost)
					refused++
					t.Errorf("seed %d (%s), %d places, load %.2f, queue %v: lost %.4f; busy %.3f, limit %.1f", seed, m.name, places, load, queues, lost, busy, limit)
				}
			}
		}
	}
	t.Logf("%d of %d runs refused too much, the worst %.4f", refused, runs, most)
}

// At twice the demand the workers are busy, and few requests wait inside the server.
func TestMixturesInOverload(t *testing.T) {
	mean, runs := 0.0, 0.0
	for seed := range seeding.Draw(t, 5) {
		r := rand.New(rand.NewPCG(seed, 4))
		m := drawMixture(r)
		places := 4 << r.IntN(6)
		config := Config{Concurrency: 1000, Floor: 1, MaxWaiting: 1024, MaxWait: second}
		_, busy, limit := m.play(config, places, places, 2, r.Uint64(), 5)
		mean, runs = mean+busy, runs+1
		t.Logf("%d: %3d workers: busy %.3f, limit %.1f: %s", seed, places, busy, limit, m.name)
		if n := float64(places); busy < 0.85 || limit > 2*n+4*math.Sqrt(n)+8 {
			t.Errorf("seed %d: %d workers: busy %v, limit %v", seed, places, busy, limit)
		}
	}
	mean /= runs
	t.Logf("busy %.3f in the mean", mean)
	if runs >= 20 && mean < 0.95 { // of fewer the mean says little
		t.Errorf("the workers were busy for %v of the time", mean)
	}
}
