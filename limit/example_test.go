package limit_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/limit"
)

func ExampleParseRate() {
	for _, s := range []string{"100/s", "0.5/s", "1M/month", "-1/s"} {
		fmt.Println(limit.ParseRate(s))
	}
	// Output:
	// 100/s <nil>
	// 1/2s <nil>
	// 1000000/mo <nil>
	// 0/0s limit: rate "-1/s": count "-1" is negative
}

func ExampleLimiter() {
	l, err := limit.NewLimiter(limit.Policy{Rate: limit.PerMinute(5), Burst: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(l.Allow(), l.Allow(), l.Allow())
	// Output: true true false
}

func ExampleLimiter_WaitMax() {
	l, err := limit.NewLimiter(limit.Policy{Rate: limit.PerHour(1), Burst: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	fmt.Println(l.WaitMax(ctx, time.Second))
	err = l.WaitMax(ctx, time.Second) // fails at once
	fmt.Println(errors.Is(err, limit.ErrWaitTooLong))
	// Output:
	// <nil>
	// true
}

func ExampleLimiter_ReserveN() {
	l, err := limit.NewLimiter(limit.Policy{Rate: limit.PerSecond(10), Burst: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Now()
	first, second := l.ReserveN(now, 1), l.ReserveN(now, 1)
	fmt.Println(first.DelayFrom(now), second.DelayFrom(now))
	fmt.Println(second.CancelAt(now))
	third := l.ReserveN(now, 1)
	fmt.Println(third.DelayFrom(now))
	// Output:
	// 0s 100ms
	// true
	// 100ms
}

// The arithmetic by itself: the caller keeps the state and passes the time.
func ExampleSlidingLog() {
	log := limit.NewSlidingLog(limit.Policy{
		Algorithm: limit.SlidingWindowLog, Rate: limit.PerMinute(2),
	})
	var s limit.LogState
	for _, second := range []time.Duration{1, 30, 50, 61} {
		v := log.Take(&s, limit.Time(second*time.Second), 1)
		fmt.Println(v.Allowed, v.RetryAfter)
	}
	// Output:
	// true 0s
	// true 0s
	// false 11s
	// true 0s
}
