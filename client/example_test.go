package client_test

import (
	"context"
	"fmt"
	"log"
	"os/signal"
	"syscall"
	"time"

	"github.com/stint-io/stint/client"
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
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
}
