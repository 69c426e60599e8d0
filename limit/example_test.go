package limit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
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

// One who does not block: no goroutine waits.
func ExampleLimiter_WaitFunc() {
	l, err := limit.NewLimiter(limit.Policy{Rate: limit.PerSecond(10), Burst: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	told := make(chan string, 4)
	send := func(message string) func(error) {
		return func(err error) { told <- fmt.Sprint(message, ": too long ", errors.Is(err, limit.ErrWaitTooLong)) }
	}
	l.WaitFunc(1, limit.Never, send("one"))
	l.WaitFunc(1, time.Minute, send("two"))
	l.WaitFunc(1, 0, send("three"))
	cancel := l.WaitFunc(1, limit.Never, send("four"))
	fmt.Println(cancel())
	for range 3 {
		fmt.Println(<-told)
	}
	// Output:
	// true
	// one: too long false
	// three: too long true
	// two: too long false
}

// Any Taker can be waited for: an engine's, a store's, a client's.
func ExampleQueue() {
	var taker limit.Taker
	taker, err := limit.NewLimiter(limit.Policy{Rate: limit.PerSecond(100), Burst: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	queue, err := limit.NewQueue(taker, limit.QueueOptions{Attributes: []string{"user"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer queue.Close()
	ctx, req := context.Background(), limit.Request{Attributes: []limit.Attribute{{Name: "user", Value: "u1"}}}
	d, err := queue.Wait(ctx, req) // as long as it takes
	fmt.Println(d.Allowed, err)
	d, err = queue.WaitMax(ctx, req, time.Second) // at most a second
	fmt.Println(d.Allowed, err)
	d, err = queue.Take(ctx, req) // not at all
	fmt.Println(d.Allowed, err)
	_, err = queue.WaitMax(ctx, req, time.Millisecond) // fails at once
	fmt.Println(errors.Is(err, limit.ErrWaitTooLong))
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
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

// A publish passes the limits of its connection and its account, or is charged to neither.
// It costs its account one message, and one for each subscriber at that moment.
func ExampleAll() {
	connection, err := limit.NewLimiter(limit.Policy{Rate: limit.PerSecond(50), Burst: 2})
	if err != nil {
		log.Fatal(err)
	}
	account, err := limit.NewLimiter(limit.Policy{Rate: limit.PerSecond(1000), Burst: 1500})
	if err != nil {
		log.Fatal(err)
	}
	subscribers := int64(1000)
	publish, err := limit.All(
		limit.Scope{Name: "connection.maxRate", Taker: connection},
		limit.Scope{Name: "messages.maxRate", Taker: account, Cost: func(limit.Request) (int64, error) {
			return limit.SumCosts(1, subscribers)
		}},
	)
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		d, err := publish.Take(context.Background(), limit.Request{})
		if err != nil {
			log.Fatal(err)
		}
		if d.Allowed {
			fmt.Println("published")
		} else {
			fmt.Println("refused by", d.Refused().Limit)
		}
	}
	fmt.Println("the connection still has", connection.Remaining())
	// Output:
	// published
	// refused by messages.maxRate
	// the connection still has 1
}
