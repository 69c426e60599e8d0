package costs

import (
	"math"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

func TestDominantShare(t *testing.T) {
	capacity := Capacity{CPU: 2000, "disk": 100, "network": 1e9}
	for _, tt := range []struct {
		name string
		u    Usage
		want time.Duration
		ok   bool
	}{
		{"nothing", nil, 0, false},
		{"cpu alone is itself", Usage{CPU: 12.5}, 12500 * time.Microsecond, true},
		{"a tenth of the disk is a tenth of both cores", Usage{CPU: 1, "disk": 10}, 200 * time.Millisecond, true},
		{"shares are not added", Usage{CPU: 200, "disk": 10, "network": 1e8}, 200 * time.Millisecond, true},
		{"without a capacity it does not count", Usage{"gpu": 1e9}, 0, false},
		{"no number does not count", Usage{CPU: math.NaN(), "disk": math.Inf(1), "network": -1}, 0, false},
		{"bounded", Usage{CPU: math.MaxFloat64}, 24 * time.Hour, true},
		{"free", Usage{CPU: 0}, 0, true},
	} {
		if got, ok := capacity.Cost(tt.u); got != tt.want || ok != tt.ok {
			t.Errorf("%s: %v %v, want %v %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
	if got, _ := Capacity(nil).Cost(Usage{CPU: 3}); got != 3*time.Millisecond {
		t.Errorf("without capacities 3 CPU-milliseconds cost %v", got)
	}
}

// TestCostsFillTheServer: whatever the capacities and the usage, as many equal requests as their
// cost admits in a second do not need more than a second of any resource, and one more of them
// would.
func TestCostsFillTheServer(t *testing.T) {
	r := seeding.Rand(t)
	for range 2000 {
		capacity, usage := Capacity{CPU: 1000 * float64(1+r.IntN(64))}, Usage{}
		for _, name := range []string{CPU, "memory", "disk", "network"} {
			if name != CPU {
				capacity[name] = math.Exp(r.Float64() * 20)
			}
			usage[name] = capacity[name] * (0.0001 + r.Float64()) / 10
		}
		cost, ok := capacity.Cost(usage)
		n := capacity[CPU] * float64(time.Millisecond) / float64(cost)
		fullest := 0.0
		for name, used := range usage {
			fullest = math.Max(fullest, n*used/capacity[name])
		}
		if !ok || math.Abs(fullest-1) > 1e-3 {
			t.Fatalf("%v of %v costs %v: %.3f of them use %.4f of the fullest resource", usage, capacity, cost, n, fullest)
		}
	}
}

func TestCapacityIsChecked(t *testing.T) {
	for _, bad := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if err := (Capacity{"disk": bad}).Validate(); err == nil {
			t.Errorf("a capacity of %v is accepted", bad)
		}
	}
	if err := (Capacity{"disk": 100}).Validate(); err != nil {
		t.Error(err)
	}
}
