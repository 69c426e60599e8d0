package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/stint-io/stint/server"
)

// limitName is the subscriber's one number.
const limitName = "subscriber.maxRate"

// coordinatorJob is what the coordinator is started with: one line of JSON.
type coordinatorJob struct {
	Dir  string // limits.yaml and what it remembers from one start to the next
	GRPC string // address
}

// writeLimits writes the limits file of a run.
func writeLimits(dir string, s settings) error {
	text := fmt.Sprintf("limits:\n  - {name: %s, rate: %d/s, burst: %d, sharing: leased}\n", limitName, s.Limit, s.burst())
	return os.WriteFile(filepath.Join(dir, "limits.yaml"), []byte(text), 0o600)
}

// runCoordinator is `stint serve` with a folder for its state, so that a start after kill -9
// knows which leases are out.
func runCoordinator(ctx context.Context, in io.Reader, out io.Writer) error {
	decoder := json.NewDecoder(in)
	var job coordinatorJob
	if err := decoder.Decode(&job); err != nil {
		return fmt.Errorf("delivery: job: %w", err)
	}
	ctx, stop := whileOpen(ctx, in)
	defer stop()
	const free = "127.0.0.1:0"
	s, err := server.New(server.Options{
		HTTPAddr: free, AdminAddr: free, GRPCAddr: job.GRPC, ConfigPaths: []string{filepath.Join(job.Dir, "limits.yaml")},
		StateDir: filepath.Join(job.Dir, "state"), FirstStart: true, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	select {
	case <-s.Ready():
		fmt.Fprintln(out, s.Addrs().GRPC)
	case err := <-ended:
		return err
	}
	return <-ended
}
