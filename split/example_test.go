package split_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/split"
)

// A consumer waits for a permit before each call of an API; a program that answers a user waits
// no longer than the user would.
func Example() {
	l, err := split.New(split.Terms{
		Total: limit.PerSecond(1000),
		Part:  split.Instance(0, 4), // the first of four consumers
	}, split.Options{Name: "provider"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	for range 3 {
		if err := l.Wait(ctx); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println("three calls")

	// The provider is in trouble: one call a day, which is longer than anybody waits.
	if err := l.SetTotal(limit.Rate{Count: 1, Period: 24 * time.Hour}); err != nil {
		fmt.Println(err)
	}
	for l.Allow() { // what was due before
	}
	err = l.WaitMax(ctx, 50*time.Millisecond)
	fmt.Println(errors.Is(err, limit.ErrWaitTooLong))
	// Output:
	// three calls
	// true
}

// With weights, a machine twice as large has twice as much.
func ExampleWeighted() {
	large, err := split.Weighted(0, 200, 100, 100)
	fmt.Printf("%+v %v\n", large, err)
	// Output: {First:0 Weight:2 Of:4} <nil>
}
