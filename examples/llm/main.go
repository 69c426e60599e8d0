// Llm is a gateway in front of language models: tenants have budgets of tokens and of money, by the minute and by the
// month, and what a request costs is known at its end. One command starts a model, stint and two gateways as processes,
// sends the load of three tenants, kills a gateway in the middle, and draws what was spent against the budgets, beside
// a gateway that asks first and charges at the end.
//
//	go run ./examples/llm
//
// README.md says what it shows. It counts no tokens by itself: the model says how many there were.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

// The arguments by which this program is one of the servers.
const (
	modelArg   = "model"
	gatewayArg = "gateway"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "llm:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	if len(args) > 0 {
		switch args[0] {
		case modelArg:
			return runModel(ctx, args[1:], in, out)
		case gatewayArg:
			return runGateway(ctx, args[1:], in, out)
		}
	}
	return runBoth(ctx, args, out)
}

func runModel(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet(modelArg, flag.ContinueOnError)
	addr := flags.String("listen", "127.0.0.1:0", "where to listen")
	seed := flags.Uint64("seed", 1, "what answers are drawn by")
	rate := flags.Float64("rate", 100, "tokens a second of one answer")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if !(*rate >= 1 && *rate <= 100_000) {
		return fmt.Errorf("-rate is %v, want 1 to 100000", *rate)
	}
	return serveUntil(ctx, in, out, *addr, newModel(*seed, *rate).handler())
}

func runGateway(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet(gatewayArg, flag.ContinueOnError)
	addr := flags.String("listen", "127.0.0.1:0", "where to listen")
	stint := flags.String("stint", "http://127.0.0.1:8080", "the HTTP address of stint serve")
	upstream := flags.String("model", "http://127.0.0.1:8000", "the server that streams")
	way := flags.String("way", byReserve, "how budgets are held: reserve, or probe (ask with a cost of 0, charge at the end)")
	ttl := flags.Duration("ttl", time.Minute, "after how long what a dead gateway has reserved comes back")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *ttl < time.Second || *ttl > time.Hour {
		return fmt.Errorf("-ttl is %v, want 1s to 1h", *ttl)
	}
	s := &service{*stint, &http.Client{Timeout: settleWithin, Transport: &http.Transport{MaxIdleConnsPerHost: 100}}}
	w, err := newWay(*way, s, *ttl)
	if err != nil {
		return err
	}
	g := &gateway{
		way: w, stint: s, upstream: *upstream, keep: *ttl / 3, log: slog.Default(),
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}},
	}
	return serveUntil(ctx, in, out, *addr, g.handler())
}

// settings are those of a run.
type settings struct {
	For     time.Duration // requests are sent
	KillAt  time.Duration
	TTL     time.Duration // of reservations
	Streams int           // of a tenant at a time
	Rate    float64       // tokens a second of one stream
	Scale   float64       // of all budgets
	Seed    uint64
	Stint   string // the binary
}

func usual() settings {
	return settings{For: 60 * time.Second, KillAt: 5 * time.Second, TTL: 3 * time.Second, Streams: 8, Rate: 100, Scale: 1, Seed: 1}
}

func (s settings) validate() error {
	switch {
	case s.For < time.Second || s.For > time.Hour:
		return fmt.Errorf("-for is %v, want 1s to 1h", s.For)
	case s.TTL < time.Second || s.TTL > time.Hour:
		return fmt.Errorf("-ttl is %v, want 1s to 1h", s.TTL)
	case s.KillAt <= 0 || s.KillAt+s.TTL+2*time.Second > s.For:
		return fmt.Errorf("-kill is %v, want more than 0, and the -ttl and 2s less than -for", s.KillAt)
	case s.Streams < 1 || s.Streams > 1000:
		return fmt.Errorf("-streams is %d, want 1 to 1000", s.Streams)
	case !(s.Rate >= 1 && s.Rate <= 100_000):
		return fmt.Errorf("-rate is %v, want 1 to 100000", s.Rate)
	case !(s.Scale >= 0.01 && s.Scale <= 1e6):
		return fmt.Errorf("-scale is %v, want 0.01 to 1000000", s.Scale)
	}
	return nil
}

func runBoth(ctx context.Context, args []string, out io.Writer) error {
	s := usual()
	flags := flag.NewFlagSet("llm", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.DurationVar(&s.For, "for", s.For, "how long requests are sent")
	flags.DurationVar(&s.KillAt, "kill", s.KillAt, "when a gateway is killed")
	flags.DurationVar(&s.TTL, "ttl", s.TTL, "of reservations")
	flags.IntVar(&s.Streams, "streams", s.Streams, "streams of a tenant at a time")
	flags.Float64Var(&s.Rate, "rate", s.Rate, "tokens a second of one stream")
	flags.Float64Var(&s.Scale, "scale", s.Scale, "of all budgets in limits.yaml")
	flags.Uint64Var(&s.Seed, "seed", s.Seed, "what requests and answers are drawn by")
	flags.StringVar(&s.Stint, "stint", "", "the stint binary; empty = it is built")
	svg := flags.String("svg", "llm.svg", "where to draw; empty = nowhere")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := s.validate(); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q, want %s, %s or flags alone", strings.Join(flags.Args(), " "), modelArg, gatewayArg)
	}
	dir, err := os.MkdirTemp("", "llm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if s.Stint == "" {
		s.Stint = filepath.Join(dir, "stint")
		fmt.Fprintln(out, "building stint ...")
		if text, err := exec.CommandContext(ctx, "go", "build", "-o", s.Stint, "github.com/stint-io/stint/cmd/stint").CombinedOutput(); err != nil {
			return fmt.Errorf("building stint: %w\n%s", err, text)
		}
	}
	r, err := s.measure(ctx, dir, out)
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
