package overload_test

import (
	"context"
	"fmt"
	"time"

	"github.com/stint-io/stint/sim/overload"
)

// A server with two cores is asked for three times what it can do; answers are good within 50 ms.
func Example() {
	s := overload.Scenario{
		Name: "example", Duration: 10 * time.Second,
		Servers: []overload.Server{{Name: "api", Cores: 2}},
		Routes:  []overload.Route{{Name: "get", SLO: 50 * time.Millisecond, Step: overload.Step{Work: overload.Work{Mean: 5 * time.Millisecond}}}},
		Loads:   []overload.Load{{Route: 0, Rate: []overload.RateStep{{Rate: 1200}}}},
	}
	r, err := overload.Run(context.Background(), s, &overload.Ours{MaxQueue: 20 * time.Millisecond, MaxWait: 40 * time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.0f %% of the server's time was of use, p99 %.0f ms\n", 100*r.Useful, 1e3*r.All.Latency.Quantile(0.99))
	// Output: 100 % of the server's time was of use, p99 33 ms
}
