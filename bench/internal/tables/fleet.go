package tables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/stint-io/stint/bench/internal/fleet"
	"github.com/stint-io/stint/bench/internal/process"
	"github.com/stint-io/stint/client"
)

// What the fleet's limits are.
const (
	hotRate, hotBurst = 1000, 100
	linkDelay         = 50 * time.Millisecond
	takeWaits         = 250 * time.Millisecond
	// warmUp is before anything is measured: a fleet that was just connected has
	// leased nothing.
	warmUp = 2 * time.Second
	// ahead is how long before their beginning processes know of their loads.
	ahead = 500 * time.Millisecond
)

// small is a limit of few tokens, fewer than there are processes.
type small struct {
	name, rate string
	perSecond  float64
	burst      int
}

// smallLimits are those that n processes share, and each fewer than n.
func smallLimits(n int) []small {
	limits := []small{
		{"zero", "0/s", 0, 0},
		{"half", "1/2s", 0.5, 1},
		{"one", "1/s", 1, 1},
		{"two", "2/s", 2, 2},
	}
	if n-1 > 2 {
		limits = append(limits, small{"all-but-one", fmt.Sprintf("%d/s", n-1), float64(n - 1), n - 1})
	}
	return limits
}

// wanted is how many requests per second are made of it: four times what there is,
// and at least twenty.
func (s small) wanted() float64 { return max(20, 4*s.perSecond) }

// fleetLimits is the configuration of a fleet of n.
func fleetLimits(n int) string {
	var b strings.Builder
	b.WriteString("limits:\n  - {name: probe, rate: 1000000/s, sharing: leased}\n")
	fmt.Fprintf(&b, "  - {name: hot, rate: %d/s, burst: %d, sharing: leased}\n", hotRate, hotBurst)
	for _, s := range smallLimits(n) {
		fmt.Fprintf(&b, "  - {name: %s, rate: %s, sharing: leased}\n", s.name, s.rate)
	}
	return b.String()
}

// stint returns the program to measure, built if need be, a folder to work in, and what
// removes that.
func (cfg *Config) stint() (bin, dir string, remove func() error, err error) {
	dir, err = os.MkdirTemp("", "stint-bench-")
	if err != nil {
		return "", "", nil, fmt.Errorf("bench: %w", err)
	}
	remove = func() error { return os.RemoveAll(dir) }
	if bin = cfg.Binary; bin == "" {
		bin = filepath.Join(dir, "stint")
		if err := process.Build(cfg.Root, "./cmd/stint", bin); err != nil {
			return "", "", nil, errors.Join(err, remove())
		}
	}
	return bin, dir, remove, nil
}

// coordinator is a stint serve that coordinates limits.
type coordinator struct {
	process *process.Process
	grpc    string
}

// startCoordinator starts bin with limits, and returns once it lends.
func startCoordinator(ctx context.Context, bin, dir, limits string) (c *coordinator, err error) {
	c = &coordinator{}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	var addr [3]string
	for i := range addr {
		if addr[i], err = process.FreeAddr(); err != nil {
			return c, err
		}
	}
	config := filepath.Join(dir, "limits.yaml")
	if err := os.WriteFile(config, []byte(limits), 0o600); err != nil {
		return c, fmt.Errorf("bench: %w", err)
	}
	// An empty one says that there was no coordinator before.
	state, err := os.MkdirTemp(dir, "state-")
	if err != nil {
		return c, fmt.Errorf("bench: %w", err)
	}
	if c.process, err = process.Start(nil, bin, "serve", "--config", config, "--state-dir", state,
		"--grpc", addr[0], "--http", addr[1], "--admin", addr[2]); err != nil {
		return c, err
	}
	c.grpc = addr[0]
	return c, c.ready(ctx)
}

// ready waits until the coordinator lends.
func (c *coordinator) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	probe, err := client.New(client.Options{Address: "passthrough:///" + c.grpc, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	l, err := probe.Limit("probe", client.LimitOptions{})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- probe.Run(running) }()
	// Not by Wait: one with a deadline gives up at once while nobody listens yet.
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for err == nil && !l.Allow() {
		select {
		case <-look.C:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	stop()
	if err = errors.Join(err, <-ended); err != nil {
		return fmt.Errorf("bench: the coordinator lends nothing: %w\n%s", err, c.process)
	}
	return nil
}

func (c *coordinator) close() {
	if c.process != nil {
		c.process.Stop()
	}
}

// Fleet is what real processes admit of the limits that they share: all load on one of
// them, and limits of fewer tokens than there are processes.
func Fleet(cfg Config, rep *Report) (err error) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	bin, dir, remove, err := cfg.stint()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	var hot []*hotResult
	var few []*smallResult
	for _, n := range cfg.Fleets {
		h, s, err := playFleet(ctx, cfg, bin, dir, n)
		if err != nil {
			return fmt.Errorf("bench: %d processes: %w", n, err)
		}
		hot, few = append(hot, h...), append(few, s...)
	}
	writeHot(cfg, rep, hot)
	writeSmall(cfg, rep, few)
	return nil
}

// playFleet starts a coordinator and n processes, and has these ask.
func playFleet(ctx context.Context, cfg Config, bin, dir string, n int) (hot []*hotResult, few []*smallResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	c, err := startCoordinator(ctx, bin, dir, fleetLimits(n))
	if err != nil {
		return nil, nil, err
	}
	defer c.close()
	program, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("which program to start: %w", err)
	}
	names := []string{"hot"}
	for _, s := range smallLimits(n) {
		names = append(names, s.name)
	}
	f, err := fleet.Start(ctx, fleet.Options{
		Processes: n, Target: c.grpc, Delay: linkDelay, Ask: takeWaits, Limits: names, Program: program,
	})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if n != smallOnly {
		h, err := playHot(ctx, cfg, c, f, n)
		if err != nil {
			return nil, nil, err
		}
		hot = append(hot, h)
	}
	if n != hotOnly && cfg.FleetSmall > 0 {
		if few, err = playSmall(ctx, cfg, f, n); err != nil {
			return nil, nil, err
		}
	}
	return hot, few, nil
}

// The experiment with one hot process is done with 2, 10 and 96 of them, the one with
// small limits with 3, 10 and 96.
const (
	hotOnly   = 2
	smallOnly = 3
)
