package client_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/middleware/httplimit"
)

// All processes that run this send at most what messages.maxRate allows, together.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c, err := client.New(client.Options{Address: "127.0.0.1:8081"})
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()

	messages, err := c.Limit("messages.maxRate", client.LimitOptions{Expiry: client.Safe})
	if err != nil {
		log.Fatal(err)
	}
	for messages.WaitMax(ctx, time.Second) == nil {
		fmt.Println("send one")
	}
	stop()
	if err := <-ended; err != nil { // the leases are given back
		log.Fatal(err)
	}
}

// Wait waits in line until it is served, in this process and among all others. No request
// overtakes an earlier one.
func ExampleLimiter_Wait() {
	var ctx context.Context
	var messages *client.Limiter // of Client.Limit
	var outbox chan string
	for message := range outbox {
		if err := messages.Wait(ctx); err != nil {
			log.Print(err) // ctx has ended, or nothing is lent: it says why
			return
		}
		fmt.Println("send", message)
	}
}

// A Keyed is a Taker, so the middleware works on it: one limit for each user, however many
// processes serve them, and no round trip for a decision.
func ExampleKeyed_Take() {
	c, err := client.New(client.Options{Address: "127.0.0.1:8081"})
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Print(c.Run(context.Background())) }()

	perUser, err := c.Keyed("api-per-user", []string{"header:x-user"}, client.KeyedOptions{RefuseMissing: true})
	if err != nil {
		log.Fatal(err)
	}
	api := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	http.Handle("/api/", httplimit.New(perUser)(api)) // 429 with Retry-After above the limit
}

// A Semaphore counts what is in flight: at most so many jobs at a time, in all processes.
func ExampleSemaphore() {
	var ctx context.Context
	var c *client.Client
	jobs, err := c.Semaphore("jobs.maxInFlight", client.LimitOptions{})
	if err != nil {
		log.Fatal(err)
	}
	if err := jobs.Acquire(ctx, 1); err != nil {
		log.Print(err)
		return
	}
	defer jobs.Release(1)
	fmt.Println("work")
}

// An application that knows what it will need says so, and has it before it asks for the
// first: here a batch, which wants 500 per second for as long as it runs.
func ExampleLimiter_Demand() {
	var ctx context.Context
	var c *client.Client
	messages, err := c.Limit("messages.maxRate", client.LimitOptions{Estimator: client.Declared})
	if err != nil {
		log.Fatal(err)
	}
	if err := messages.Demand(500); err != nil {
		log.Fatal(err)
	}
	for range 10_000 {
		if err := messages.Wait(ctx); err != nil {
			log.Print(err)
			return
		}
		fmt.Println("send one")
	}
	if err := messages.Demand(0); err != nil { // it leaves its part to the others
		log.Fatal(err)
	}
}
