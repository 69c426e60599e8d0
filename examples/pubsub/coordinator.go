package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/stint-io/stint/server"
)

// runCoordinator serves the leases of a limits file until ctx ends. ready is called with the
// address of its gRPC port.
func runCoordinator(ctx context.Context, limits string, logger *slog.Logger, ready func(address string)) error {
	// It remembers which leases were out, so that the next start need not wait for their
	// end. This example begins anew each time, and says so.
	state, err := os.MkdirTemp("", "pubsub-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(state) }()
	const free = "127.0.0.1:0"
	s, err := server.New(server.Options{
		HTTPAddr: free, GRPCAddr: free, AdminAddr: free, ConfigPaths: []string{limits}, StateDir: state, FirstStart: true,
		Logger: logger, Grace: grace,
	})
	if err != nil {
		return err
	}
	t := newTasks(ctx)
	t.start(s.Run)
	select {
	case <-s.Ready():
		ready(s.Addrs().GRPC.String())
	case <-t.ctx.Done():
	}
	return t.wait()
}
