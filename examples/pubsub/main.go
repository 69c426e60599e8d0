// Command pubsub is a small publish/subscribe service of several nodes whose limits are
// kept by stint, and a demonstration of it. README.md says what it shows.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"
)

const usage = `usage: pubsub serve [-nodes 2] [-limits limits.yaml]   the service
       pubsub demo  [-nodes 2] [-limits limits.yaml]   an account at 100 x its limit, live
       pubsub crowd [-nodes 2] [-limits limits.yaml]   costs of 1001 among costs of 1`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	nodes := flags.Int("nodes", 2, "how many nodes")
	limits := flags.String("limits", "limits.yaml", "the limits file")
	child := flags.Bool("child", false, "print the addresses as JSON, and end with the input")
	rounds := flags.Int("rounds", 15, "demo: how often idle, load elsewhere, and breach")
	phase := flags.Duration("phase", 2*time.Second, "demo: how long each is")
	times := flags.Float64("times", 100, "demo: the breach, in limits")
	limit := flags.Int("limit", loudLimit, "demo: messages per second of account loud")
	span := flags.Duration("for", 10*time.Second, "crowd: how long")
	flags.SetOutput(io.Discard)
	if err := flags.Parse(args[1:]); err != nil {
		return fmt.Errorf("%w\n%s", err, usage)
	}
	switch args[0] {
	case "serve":
		return serve(ctx, Options{Nodes: *nodes, Limits: *limits, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}, *child, in, out)
	case "load":
		// It stands for machines elsewhere, so it yields to the service. Where that is not
		// allowed it only yields less.
		_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, 10)
		return runLoad(ctx, in, out)
	case "bystander":
		return runBystander(ctx, in, out)
	case "demo":
		err := runDemo(ctx, demoOptions{nodes: *nodes, limits: *limits, rounds: *rounds, phase: *phase, times: *times, limit: *limit}, out)
		if err != nil {
			return err
		}
		fallthrough
	case "crowd":
		c, err := runCrowd(ctx, *nodes, *limits, *span)
		if err == nil {
			c.print(out)
		}
		return err
	default:
		return errors.New(usage)
	}
}

// gcPercent lets the heap of the service, which is small, grow to nine times what is in use
// before it is collected. Not less: at 5,000 requests a second there would be ten
// collections in each, and each is felt by whoever comes in it. Not more: it is memory.
const gcPercent = 800

// serve runs the service until ctx ends, or, as a child, its input.
func serve(ctx context.Context, o Options, child bool, in io.Reader, out io.Writer) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	s, err := NewService(o)
	if err != nil {
		return err
	}
	t := newTasks(ctx)
	t.start(s.Run)
	select {
	case <-s.Ready():
	case <-t.ctx.Done():
		return t.wait()
	}
	var urls []string
	for _, n := range s.Nodes() {
		urls = append(urls, n.URL())
	}
	if !child {
		for _, u := range urls {
			fmt.Fprintln(out, u)
		}
		return t.wait()
	}
	if err := json.NewEncoder(out).Encode(urls); err != nil {
		return err
	}
	// It ends with this process at the latest, if its input does not.
	go func() {
		_, _ = io.Copy(io.Discard, in)
		t.cancel()
	}()
	return t.wait()
}
