//go:build linux

package client_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/limit"
)

// TestMetricsOfARealService: a client with the metrics of the example, against a service in a
// process of its own. A misspelt limit is an error and a metric and heals when the service is given
// the limit; a killed service shows in the connection, the expiry and the reason; what is
// admitted is what the callers were told.
func TestMetricsOfARealService(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	registry := prometheus.NewRegistry()
	c, err := client.New(withMetrics(client.Options{Address: s.address, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}, registry))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { _ = c.Run(ctx) })
	t.Cleanup(func() { cancel(); run.Wait() })
	shows := func(line string) func() bool {
		return func() bool { return slices.Contains(series(registry), line) }
	}
	good, err := c.Limit("messages", client.LimitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := c.Limit("mesages", client.LimitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the misspelt name to be an error", func() bool { return errors.Is(wrong.Err(), client.ErrRefused) })
	await(t, "the state", shows(`ratelimit_leases{limit="mesages",state="refused"} 1`))
	await(t, "the connection", shows(`ratelimit_connected 1`))
	if wrong.Allow() || !shows(`ratelimit_refused_total{limit="mesages",reason="store_failure"} 1`)() {
		t.Error("Allow of the misspelt name")
	}
	for range 7 {
		if err := good.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if !shows(`ratelimit_admitted_total{limit="messages"} 7`)() || good.Err() != nil {
		t.Errorf("7 are admitted, Err is %v", good.Err())
	}
	if err := os.WriteFile(s.config, []byte(limits+"  - {name: mesages, rate: 10/s, burst: 10, sharing: leased}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, "the limit to be learnt", func() bool { return wrong.Err() == nil && wrong.WaitMax(t.Context(), time.Second) == nil })
	s.kill()
	await(t, "the loss of the connection", shows(`ratelimit_connected 0`))
	await(t, "the expiry", shows(`ratelimit_leases{limit="messages",state="expired"} 1`))
	d, err := good.Take(t.Context(), limit.Request{})
	if r := d.Refused(); err != nil || r == nil || r.Reason != limit.ReasonStoreFailure {
		t.Errorf("after the expiry: %+v, %v", d, err)
	}
	s.start(t)
	await(t, "a lease", func() bool { return good.WaitMax(t.Context(), time.Second) == nil })
	await(t, "the connection again", shows(`ratelimit_connected 1`))
}
