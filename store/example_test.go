package store_test

import (
	"context"
	"fmt"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// A request that meets two limits is charged for both or for none.
func Example() {
	var st store.Store = memory.New(memory.Options{})
	defer st.Close()

	user, err := st.Bind(store.Spec{ID: "user", Policy: limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.PerHour(10)}})
	if err != nil {
		fmt.Println(err)
		return
	}
	team, err := st.Bind(store.Spec{ID: "team", Policy: limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.PerHour(12)}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, name := range []string{"ada", "bob"} {
		charges := []store.Charge{
			{Counters: user, Key: []byte(name), Cost: 8},
			{Counters: team, Key: []byte("red"), Cost: 8},
		}
		allowed, err := st.Take(context.Background(), charges)
		fmt.Println(name, allowed, err, "left:", charges[0].Verdict.Remaining, charges[1].Verdict.Remaining)
	}
	// Output:
	// ada true <nil> left: 2 4
	// bob false <nil> left: 10 4
}
