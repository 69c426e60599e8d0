// Command worker is an instance that asks for messages so many times a second and prints, for each that
// it was admitted, the nanosecond before it asked and the one after it was answered. A test builds
// it with this version and with a former one. SIGTERM ends it, and gives its lease back.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stint-io/stint/client"
)

func main() {
	addresses := strings.Split(os.Args[1], ",")
	perSecond, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c, err := client.New(client.Options{Address: addresses[0], Others: addresses[1:], Instance: os.Args[2]})
	if err != nil {
		log.Fatal(err)
	}
	messages, err := c.Limit("messages", client.LimitOptions{})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for range time.Tick(time.Second / time.Duration(perSecond)) {
			if before := time.Now().UnixNano(); messages.Allow() {
				fmt.Println(before, time.Now().UnixNano())
			}
		}
	}()
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
