package retrybudget

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/seeding"
)

func budget(t *testing.T, c Config) *Budget {
	t.Helper()
	c, err := c.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return New(c)
}

func TestWalk(t *testing.T) {
	b := budget(t, Config{})
	for i := range 35 {
		if b.Request(); b.Retry() != (i%10 == 9) {
			t.Fatalf("after %d requests: retried is wrong, want one retry for each ten", i+1)
		}
	}
	b = budget(t, Config{Percent: -1, Reserve: 1})
	if b.Request(); !b.Retry() || b.Retry() {
		t.Error("without a percentage there is another retry than that of the reserve")
	}
	b.Return()
	if !b.Retry() {
		t.Error("a retry that was given back is lost")
	}
}

// TestKeepsAtMost: an hour without retries does not save up for a storm.
func TestKeepsAtMost(t *testing.T) {
	b := budget(t, Config{Most: 7})
	for range 100_000 {
		b.Request()
	}
	n := 0
	for b.Retry() {
		n++
	}
	if n != 7 {
		t.Errorf("%d retries were kept, want 7", n)
	}
}

// TestNeverOver: in random orders of requests and retries there are never more retries than the
// percentage of the requests and the reserve.
func TestNeverOver(t *testing.T) {
	for seed := range seeding.Draw(t, 200) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := Config{Percent: 100 * r.Float64(), Reserve: r.IntN(5), Most: 1 + r.IntN(200)}
		b := budget(t, c)
		requests, retries := 0, 0
		wants := r.Float64()
		for range 5000 {
			if r.Float64() < wants {
				if b.Retry() {
					retries++
					if r.IntN(10) == 0 {
						b.Return()
						retries--
					}
				}
			} else {
				b.Request()
				requests++
			}
			if bound := c.Percent/100*float64(requests) + float64(c.Reserve); float64(retries) > bound {
				t.Fatalf("seed %d: %d retries of %d requests, want at most %.2f", seed, retries, requests, bound)
			}
			if r.IntN(1000) == 0 {
				wants = r.Float64()
			}
		}
	}
}

// TestFleet: a hundred clients before a backend that refuses everything, with three attempts for
// each request, send it 3.00 times their requests without a budget, and at most 1.1 times with one.
func TestFleet(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var requests, without, with int
	for range 100 {
		b := budget(t, Config{})
		for range 1 + r.IntN(2000) {
			requests++
			without += 3
			with++
			b.Request()
			for range 2 {
				if !b.Retry() {
					break
				}
				with++
			}
		}
	}
	t.Logf("%d requests: %.4f times the load, %.2f without a budget", requests, float64(with)/float64(requests), float64(without)/float64(requests))
	if float64(with) > 1.1*float64(requests) {
		t.Errorf("%d attempts for %d requests, want at most 1.1 times as many", with, requests)
	}
}

func TestDefaults(t *testing.T) {
	for c, want := range map[Config]Config{
		{}:                                    {Percent: 10, Most: 100},
		{Percent: -3, Reserve: 1000, Most: 1}: {Reserve: 1000, Most: 1},
		{Percent: 100, Reserve: 1000, Most: 100000}: {Percent: 100, Reserve: 1000, Most: 100_000},
	} {
		if got, err := c.WithDefaults(); err != nil || got != want {
			t.Errorf("%+v: %+v, %v, want %+v", c, got, err, want)
		}
	}
}

func TestConfig(t *testing.T) {
	for want, c := range map[string]Config{
		"Percent is 101":  {Percent: 101},
		"Percent is NaN":  {Percent: math.NaN()},
		"Reserve is -1":   {Reserve: -1},
		"Reserve is 1001": {Reserve: 1001},
		"Most is -1":      {Most: -1},
		"Most is 100001":  {Most: 100_001},
	} {
		if _, err := c.WithDefaults(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", c, err, want)
		}
	}
}
