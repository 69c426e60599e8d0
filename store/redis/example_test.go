package redis_test

import (
	"context"
	"fmt"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
	"github.com/stint-io/stint/store/redis"
)

// A limit that every process with this store shares. While Redis does not answer, each
// enforces its share.
func Example() {
	options, err := redis.ParseURL("redis://127.0.0.1:6379?timeout=20ms")
	if err != nil {
		fmt.Println(err)
		return
	}
	options.Local = memory.New(memory.Options{})
	counters, err := redis.New(options)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer counters.Close()

	perUser, err := counters.Bind(store.Spec{
		ID:     "api-per-user",
		Policy: limit.Policy{Rate: limit.PerSecond(100), Burst: 200},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	charges := []store.Charge{{
		Counters: perUser, Key: store.AppendKey(nil, "u1"), Cost: 1, OnFailure: store.FailLocal,
	}}
	allowed, err := counters.Take(context.Background(), charges)
	if err != nil {
		fmt.Println(err)
		return
	}
	if v := charges[0].Verdict; !allowed {
		fmt.Println("come back in", v.RetryAfter.Round(time.Millisecond))
	}
}
