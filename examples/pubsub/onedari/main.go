// Command onedari sends messages that users ask for at one limit, with a fleet of consumers: requests are accepted, kept in a
// broker (NATS JetStream) and acknowledged at once, and consumers call the provider later, with many calls in flight.
//
//	go run ./onedari -limit 1000 -latency 50ms -for 120s
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"
)

// consumeArg is the argument with which this program starts itself as a consumer.
const consumeArg = "consume"

// settings are those of a run.
type settings struct {
	Consumers int
	Limit     int           // calls per second, of all consumers
	Latency   time.Duration // of a call
	For       time.Duration // how long is measured
	Kills     int           // consumers that are killed meanwhile, and started again
	Demand    float64       // requests of users, as a multiple of the limit
}

func main() {
	var err error
	if len(os.Args) == 2 && os.Args[1] == consumeArg {
		err = consume(os.Stdin)
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		err = start(ctx, os.Args[1:], os.Stdout)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "onedari:", err)
		os.Exit(1)
	}
}

func start(ctx context.Context, args []string, out io.Writer) error {
	s := settings{Demand: 1.1}
	flags := flag.NewFlagSet("onedari", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.IntVar(&s.Consumers, "consumers", 12, "processes that call the provider")
	flags.IntVar(&s.Limit, "limit", 1000, "calls per second, of all together")
	flags.DurationVar(&s.Latency, "latency", 50*time.Millisecond, "how long the provider takes for a call")
	flags.DurationVar(&s.For, "for", 20*time.Second, "how long to measure")
	flags.IntVar(&s.Kills, "kills", 2, "consumers to kill with kill -9 and start again")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || s.Consumers < 1 || s.Limit < 1 || s.Latency < 0 || s.For < time.Second || s.Kills < 0 {
		return errors.New("want -consumers and -limit from 1, -for from 1s, no negative -latency or -kills, and no arguments")
	}
	r, err := s.run(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, r)
	return r.check()
}
