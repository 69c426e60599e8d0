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
	"strings"
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
	node := nodeOptions{logger: warnings()}
	flags.StringVar(&node.name, "name", "", "node: its name")
	peers := flags.String("peers", "", "node: the names of all nodes")
	routes := flags.String("routes", "", "node: NATS servers of nodes that run")
	flags.StringVar(&node.coordinator, "coordinator", "", "node: the address of the coordinator")
	flags.StringVar(&node.listen, "listen", "127.0.0.1:0", "node: the address of its API")
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
		return serve(ctx, Options{Nodes: *nodes, Limits: *limits, Logger: warnings()}, *child, in, out)
	case "coordinator":
		ctx, cancel := untilEnd(ctx, in)
		defer cancel()
		return runCoordinator(ctx, *limits, warnings(), func(address string) { fmt.Fprintln(out, address) })
	case "node":
		favourThroughput()
		ctx, cancel := untilEnd(ctx, in)
		defer cancel()
		node.nodes = strings.Split(*peers, ",")
		if *routes != "" {
			node.routes = strings.Split(*routes, ",")
		}
		return runNode(ctx, node, *limits, func(s nodeStarted) error { return json.NewEncoder(out).Encode(s) }, func() { fmt.Fprintln(out, nodeReady) })
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

func favourThroughput() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// warnings logs what operators should read.
func warnings() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// untilEnd returns a context that ends with ctx and with the input: a child ends with the process
// that started it at the latest.
func untilEnd(ctx context.Context, in io.Reader) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	return ctx, cancel
}

// serve runs the service until ctx ends, or, as a child, its input.
func serve(ctx context.Context, o Options, child bool, in io.Reader, out io.Writer) error {
	f, err := newFleet(o)
	if err != nil {
		return err
	}
	if child {
		var cancel context.CancelFunc
		ctx, cancel = untilEnd(ctx, in)
		defer cancel()
	}
	t := newTasks(ctx)
	t.start(f.run)
	select {
	case <-f.ready:
	case <-t.ctx.Done():
		return t.wait()
	}
	if child {
		err = json.NewEncoder(out).Encode(f.urls())
	} else {
		for _, n := range f.nodes {
			p, _ := n.process()
			fmt.Fprintf(out, "%s  (%s, process %d)\n", n.URL, n.name, p.Pid)
		}
	}
	if err != nil {
		t.cancel()
	}
	return errors.Join(err, t.wait())
}
