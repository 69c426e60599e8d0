package memory_test

import (
	"fmt"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store/memory"
)

// A bucket for each user, in this process.
func ExampleKeyed() {
	perUser, err := memory.NewKeyed(limit.Policy{Rate: limit.PerHour(1), Burst: 2}, memory.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(perUser.Allow("ada"), perUser.Allow("ada"), perUser.Allow("ada"))
	fmt.Println(perUser.Allow("bob"))
	// Output:
	// true true false
	// true
}
