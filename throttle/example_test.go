package throttle_test

import (
	"context"
	"fmt"
	"time"

	"github.com/stint-io/stint/throttle"
)

func Example() {
	// Requests may take 80 % of two cores. At most 200 ms of work waits, for half a second at most.
	th, err := throttle.New(throttle.Options{
		Rate:           1.6,
		MaxWaitingCost: 200 * time.Millisecond,
		MaxWait:        500 * time.Millisecond,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	work, d, err := th.Start(context.Background(), throttle.Request{
		Route: "GET /search", Criticality: throttle.Critical, User: "anna",
	})
	switch {
	case err != nil:
		fmt.Println("the caller has gone:", err)
	case !d.Allowed:
		fmt.Println("try again in", d.RetryAfter(), "because", d.Results[0].Reason)
	default:
		defer work.Done()
		fmt.Println("serve", work.Importance())
	}
	// Output: serve critical;level=102
}

func ExampleThrottle_Start_refused() {
	th, _ := throttle.New(throttle.Options{Concurrency: 1, MaxWait: time.Millisecond})
	first, _, _ := th.Start(context.Background(), throttle.Request{})
	defer first.Done()
	_, d, err := th.Start(context.Background(), throttle.Request{})
	fmt.Println(d.Allowed, d.Status, d.Results[0].Reason, err)
	// Output: false 503 queue_timeout <nil>
}
