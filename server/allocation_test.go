package server_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/client"
)

// fleetOf is a limit and what each of its instances wants of it, per second.
type fleetOf struct {
	rate  int64
	wants []float64
}

// TestBusyUsesAsMuchAsMaxMin has 20 random fleets of real clients spend two limits each over gRPC, one divided by
// max_min and one by busy, with the same requests at the same moments. From 10 s on busy uses at least 0.98 of what
// max_min uses.
func TestBusyUsesAsMuchAsMaxMin(t *testing.T) {
	if testing.Short() {
		t.Skip("rates in real time: nothing for the race detector")
	}
	t.Parallel()
	seed := rand.Uint64()
	t.Log("seed", seed)
	draw := rand.New(rand.NewPCG(seed, 0))
	fleets := make([]fleetOf, 20)
	yaml, most := "limits:\n", 0
	for i := range fleets {
		f := fleetOf{rate: 40 + draw.Int64N(100), wants: make([]float64, 2+draw.IntN(19))}
		sum := 0.0
		for j := range f.wants {
			if f.wants[j] = draw.Float64() * draw.Float64(); draw.IntN(4) == 0 {
				f.wants[j] *= 10
			}
			sum += f.wants[j]
		}
		all := float64(f.rate) * (0.3 + 1.7*draw.Float64())
		for j := range f.wants {
			f.wants[j] *= all / sum
		}
		fleets[i], most = f, max(most, len(f.wants))
		for _, way := range []string{"max_min", "busy"} {
			yaml += fmt.Sprintf("  - {name: %s-%d, rate: %d/s, burst: %d, sharing: leased, lease: {allocation: %s}}\n", strings.ReplaceAll(way, "_", ""), i, f.rate, f.rate, way)
		}
	}
	s := leasing(t, yaml)
	// spent is what one instance spends of both limits of a fleet.
	type spent struct {
		fleet    int
		want     float64
		limits   [2]*client.Limiter
		asked    int64
		admitted [2]int64
	}
	var all []*spent
	for j := range most {
		c := s.instance(fmt.Sprint("instance-", j))
		for i, f := range fleets {
			if j >= len(f.wants) {
				continue
			}
			x := &spent{fleet: i, want: f.wants[j]}
			for k, way := range []string{"maxmin", "busy"} {
				l, err := c.Limit(fmt.Sprintf("%s-%d", way, i), client.LimitOptions{})
				if err != nil {
					t.Fatal(err)
				}
				x.limits[k] = l
			}
			all = append(all, x)
		}
	}
	const from, to = 10 * time.Second, 20 * time.Second
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	began, counting := time.Now(), false
	for now := time.Duration(0); now < to; now = time.Since(began) {
		if now >= from && !counting {
			counting = true
			for _, x := range all {
				x.admitted = [2]int64{}
			}
		}
		for _, x := range all {
			for ; x.asked < int64(now.Seconds()*x.want); x.asked++ {
				for k, l := range x.limits {
					if l.Allow() {
						x.admitted[k]++
					}
				}
			}
		}
		<-pace.C
	}
	used := make([][2]int64, len(fleets))
	for _, x := range all {
		for k, n := range x.admitted {
			used[x.fleet][k] += n
		}
	}
	for i, u := range used {
		f := fleets[i]
		sum := 0.0
		for _, w := range f.wants {
			sum += w
		}
		t.Logf("limit %d/s, %d instances that want %.1f/s: max_min uses %d and busy %d", f.rate, len(f.wants), sum, u[0], u[1])
		if float64(u[1]) < 0.98*float64(u[0])-2 || u[0] == 0 {
			t.Errorf("limit %d/s, %d instances that want %.3v: max_min uses %d and busy %d", f.rate, len(f.wants), f.wants, u[0], u[1])
		}
	}
}
