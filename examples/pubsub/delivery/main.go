// Command delivery pushes the messages of a broker to one subscriber, at the one rate that
// the subscriber can take, from several worker processes. README.md says what it shows.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const usage = `usage: delivery [flags]   run broker, coordinator, workers and subscriber, and draw what came

  -limit 200      delivery attempts per second that the subscriber takes
  -workers 4      worker processes
  -messages 3000  messages to deliver
  -nats URL       an external NATS server with JetStream; without it one is started
  -svg FILE       where to draw the chart; empty = nowhere
  -demand lag     how a worker's demand is known: by the lag of its partitions, or attempted
                  (what is asked for), or utilisation (what is used of the lease)`

// The arguments with which this program starts itself.
const (
	workerArg      = "worker"
	coordinatorArg = "coordinator"
)

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
	if len(args) > 0 {
		switch args[0] {
		case workerArg:
			return runWorker(ctx, in)
		case coordinatorArg:
			return runCoordinator(ctx, in, out)
		}
	}
	s := usual()
	flags := flag.NewFlagSet("delivery", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.IntVar(&s.Limit, "limit", s.Limit, "")
	flags.IntVar(&s.Workers, "workers", s.Workers, "")
	flags.IntVar(&s.Messages, "messages", s.Messages, "")
	flags.StringVar(&s.NATS, "nats", "", "")
	flags.StringVar(&s.Demand, "demand", s.Demand, "")
	svg := flags.String("svg", "delivery.svg", "")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("%w\n%s", err, usage)
	}
	if err := s.validate(); err != nil || flags.NArg() > 0 {
		return errors.Join(err, errors.New(usage))
	}
	r, err := s.deliver(ctx, out)
	if err != nil {
		return err
	}
	r.print(out)
	if *svg == "" {
		return nil
	}
	if err := os.WriteFile(*svg, r.svg(), 0o600); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "chart: %s\n", *svg)
	return err
}

// settings are those of one run.
type settings struct {
	Limit    int // attempts per second
	Workers  int
	Messages int
	NATS     string // URL; "" = a broker in this process
	Demand   string // one of estimators
}

func usual() settings { return settings{Limit: 200, Workers: 4, Messages: 3000, Demand: byLag} }

// burst is a tenth of a second of the limit, so that a worker which was not scheduled for a
// moment catches up.
func (s settings) burst() int { return max(s.Limit/10, s.Workers) }

func (s settings) validate() error {
	switch {
	case s.Limit < 10 || s.Limit > 5000:
		return fmt.Errorf("delivery: -limit is %d, want 10 to 5000", s.Limit)
	case s.Workers < 2 || s.Workers > 16:
		return fmt.Errorf("delivery: -workers is %d, want 2 to 16", s.Workers)
	case s.Messages < 5*s.Limit || s.Messages > 1_000_000:
		return fmt.Errorf("delivery: -messages is %d, want %d (5 s of the limit) to 1,000,000", s.Messages, 5*s.Limit)
	}
	if _, ok := estimators[s.Demand]; !ok {
		return fmt.Errorf("delivery: -demand is %q, want lag, attempted or utilisation", s.Demand)
	}
	return nil
}

// longest bounds a run: twenty times what the limit needs, for a machine that is busy.
func (s settings) longest() time.Duration {
	return time.Minute + 20*time.Duration(s.Messages)*time.Second/time.Duration(s.Limit)
}
