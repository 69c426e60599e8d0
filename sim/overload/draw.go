package overload

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/stint-io/stint/internal/traffic"
)

// Draw returns the scenario with servers, routes and loads drawn from its seed: 5 to 12 servers in
// two to four layers behind one or two entries, 2 to 6 routes that call some of them, and loads
// that together ask the busiest server for Random.Overload times what it can do from
// Measure.Step on, and for 0.7 times before.
func Draw(s Scenario) Scenario {
	r := traffic.Seeded(s.Seed, chanceDraw, 0, 0)
	overload := s.Random.Overload
	if overload == 0 {
		overload = 1.3 + r.Float64()*2.7
	}
	s.Random = nil
	layers := drawServers(&s, r)
	for i := range 2 + r.IntN(5) {
		route := Route{Name: fmt.Sprintf("r%d", i), SLO: 100 * time.Millisecond, Timeout: 500 * time.Millisecond}
		route.Step = drawStep(r, layers, 0)
		s.Routes = append(s.Routes, route)
		s.Loads = append(s.Loads, Load{Name: route.Name, Route: i, Rate: []RateStep{{Rate: 0.2 + r.Float64()}}, Class: 2, Users: 10_000})
	}
	// What a second of the loads as drawn asks of each server, over what it can do.
	busiest := 0.0
	for i := range s.Servers {
		asked := 0.0
		for _, l := range s.Loads {
			asked += l.Rate[0].Rate * s.Routes[l.Route].Step.workAt(i).Seconds()
		}
		busiest = max(busiest, asked/float64(s.Servers[i].Cores))
	}
	for i := range s.Loads {
		rate := s.Loads[i].Rate[0].Rate / busiest
		s.Loads[i].Rate = []RateStep{{0, 0.7 * rate}, {s.Measure.Step, overload * rate}}
	}
	return s
}

// drawServers adds servers and returns them by layer, the entries first.
func drawServers(s *Scenario, r *rand.Rand) [][]int {
	var layers [][]int
	for layer := range 2 + r.IntN(3) {
		n := 2 + r.IntN(3)
		if layer == 0 {
			n = 1 + r.IntN(2)
		}
		var these []int
		for range n {
			these = append(these, len(s.Servers))
			s.Servers = append(s.Servers, Server{Name: fmt.Sprintf("s%d", len(s.Servers)), Cores: 2 + r.IntN(7)})
		}
		layers = append(layers, these)
	}
	return layers
}

// drawStep draws work at a server of a layer, and calls to the next one.
func drawStep(r *rand.Rand, layers [][]int, layer int) Step {
	source := traffic.Source{Rand: r}
	p := Step{
		Server: layers[layer][r.IntN(len(layers[layer]))],
		Work:   Work{Mean: time.Duration(source.Between(0.5, 5) * float64(time.Millisecond))},
	}
	switch r.IntN(3) {
	case 0:
		p.Work.Kind = Exponential
	case 1:
		p.Work.Kind, p.Work.Sigma = LogNormal, 1
	default:
		p.Work.Kind, p.Work.SlowPart, p.Work.SlowFactor = Bimodal, 0.1, 10
	}
	if layer+1 < len(layers) {
		p.Parallel = r.IntN(2) == 0
		for range r.IntN(4) {
			p.Calls = append(p.Calls, drawStep(r, layers, layer+1))
		}
	}
	return p
}

// workAt is the mean CPU time of a request at a server.
func (p *Step) workAt(server int) time.Duration {
	sum := time.Duration(0)
	if p.Server == server {
		sum = p.Work.Mean
	}
	for i := range p.Calls {
		sum += p.Calls[i].workAt(server)
	}
	return sum
}
