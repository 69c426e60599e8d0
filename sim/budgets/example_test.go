package budgets_test

import (
	"fmt"
	"time"

	"github.com/stint-io/stint/sim/budgets"
)

// A hundred streams at a time against a budget of a million tokens: what reserving saves.
func Example() {
	s := budgets.Scenario{Budget: 1_000_000, Streams: 100, MaxTokens: 4096, Median: 400, Sigma: 1, Rate: 50}
	for _, way := range []budgets.New{budgets.Reserving(2*time.Minute, true), budgets.Probing} {
		r, err := budgets.Simulate(s, way)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("overspent %.1f %%, used %.0f %%\n", 100*r.Overspend, 100*r.Use)
	}
	// Output:
	// overspent 0.0 %, used 100 %
	// overspent 13.9 %, used 100 %
}
