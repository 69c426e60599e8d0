//go:build linux

package client_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/client"
)

// manyLimits starts instances that ask of many limits, and counts what is admitted.
func manyLimits(t *testing.T, n *nodes, limits, size int) *atomic.Int64 {
	t.Helper()
	var total atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	for i := range size {
		a := n.addresses()
		c, err := client.New(client.Options{Address: a[i%3], Others: a, Instance: fmt.Sprint("many-", i), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err != nil {
			t.Fatal(err)
		}
		var all []*client.Limiter
		for k := range limits {
			l, err := c.Limit(fmt.Sprint("l", k), client.LimitOptions{})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, l)
		}
		running.Go(func() { _ = c.Run(ctx) }) // the test ends it
		running.Go(func() {
			tick := time.NewTicker(200 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				for _, l := range all {
					if l.Allow() {
						total.Add(1)
					}
				}
				<-tick.C
			}
		})
	}
	return &total
}
