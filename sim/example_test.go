package sim_test

import (
	"context"
	"fmt"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/sim"
)

// All load is on one of four instances, and asks for twice the limit.
func Example() {
	s := sim.Scenario{
		Name: "example", Duration: 20 * time.Second, Seed: 1,
		Limit:     sim.Limit{Rate: limit.PerSecond(1000), Burst: 100},
		Instances: 4,
		Loads:     []sim.Load{{Instances: []int{0}, Demand: []sim.Step{{Rate: 2000}}}},
		Network:   sim.Network{Delay: 5 * time.Millisecond},
	}
	r, err := sim.Run(context.Background(), s, &sim.Ours{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("admitted %.2f of the limit, over it by %.0f tokens\n", float64(r.Admitted.Tokens)/20000, r.Over)
	// Output: admitted 1.00 of the limit, over it by 0 tokens
}
