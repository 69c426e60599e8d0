package fanout_test

import (
	"context"
	"fmt"
	"log"

	"github.com/stint-io/stint/fanout"
	"github.com/stint-io/stint/limit"
)

// A subscriber that may be sent two messages at once: the third is dropped for it alone, and
// it is told, so that it can read that one from history.
func ExampleStream() {
	ctx := context.Background()
	limiter, err := limit.NewLimiter(limit.Policy{Rate: limit.PerHour(1), Burst: 2})
	if err != nil {
		log.Fatal(err)
	}
	out, err := limit.All(limit.Scope{Name: "connection.out", Taker: limiter})
	if err != nil {
		log.Fatal(err)
	}
	s, err := fanout.NewStream[string](fanout.StreamOptions{Limit: out})
	if err != nil {
		log.Fatal(err)
	}
	for i, text := range []string{"one", "two", "three"} {
		if _, err := s.Offer(ctx, uint64(i+1), text, limit.Request{}); err != nil {
			log.Fatal(err)
		}
	}
	s.Close()
	for {
		e, err := s.Next(ctx)
		if err != nil {
			break
		}
		if e.Message {
			fmt.Println(e.Position, e.Value)
		}
		if g := e.Gap; g.Dropped > 0 {
			fmt.Printf("missed %d, from %d to %d: %s, %v\n", g.Dropped, g.From, g.To, g.Limit, g.Reason)
		}
	}
	// Output:
	// 1 one
	// 2 two
	// missed 1, from 3 to 3: connection.out, rate_exceeded
}
