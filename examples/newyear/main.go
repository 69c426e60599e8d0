// Newyear is the load test of a New Year's campaign on one machine: many consumer
// processes share the limit of one provider, by package split. Each accepts requests,
// queues them, acknowledges at once and processes them later, as fast as its part of the
// limit lets it. A configuration service tells them the total and their number, and may
// change both while they run. The provider counts.
//
//	go run ./examples/newyear -limit 9600 -processes 96
//
// README.md has more to try.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"
)

func main() {
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == consumeArg:
		err = consume(os.Stdin)
	case len(os.Args) > 1 && os.Args[1] == intakeArg:
		err = runIntake(os.Stdin, os.Stdout)
	default:
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		err = run(ctx, os.Args[1:], os.Stdout)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "newyear:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	s := usual()
	flags := flag.NewFlagSet("newyear", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Int64Var(&s.Limit, "limit", s.Limit, "the provider's limit, per second")
	flags.IntVar(&s.Processes, "processes", s.Processes, "consumer processes")
	flags.Float64Var(&s.Demand, "demand", s.Demand, "requests that come, as a multiple of the limit")
	flags.IntVar(&s.Seconds, "seconds", s.Seconds, "how long to measure")
	flags.StringVar(&s.Mode, "mode", s.Mode, "how permits are spread: "+strings.Join(modeNames(), ", "))
	flags.Int64Var(&s.Burst, "burst", 0, "tokens of the whole limit that may come at once; 0 = the library's choice")
	flags.DurationVar(&s.Offset, "offset", 0, "clocks of the processes are off by up to this, either way")
	flags.DurationVar(&s.Step, "step", 0, "step the processes' wall clocks by this in the middle, such as -10s")
	flags.BoolVar(&s.Bursts, "bursts", false, "requests come in the 600 ms around every other beginning of a second, and do not wait")
	flags.Int64Var(&s.NewLimit, "new-limit", 0, "change the limit to this in the middle")
	flags.IntVar(&s.NewProcesses, "new-processes", 0, "share among only so many in the middle")
	flags.BoolVar(&s.AtOnce, "at-once", false, "changes begin when each process hears of them, not at an agreed time")
	table := flags.String("table", "", "run all settings of a table instead and print it: "+strings.Join(tableNames(), ", "))
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *table != "" {
		return printTable(ctx, out, *table, s)
	}
	if err := s.validate(); err != nil {
		return err
	}
	fmt.Fprintf(out, "starting %d consumers of a provider that takes %d per second ...\n", s.Processes, s.Limit)
	res, err := s.measure(ctx, func(second int, n int64) {
		fmt.Fprintf(out, "  second %2d: the provider got %d\n", second+1, n)
	})
	if err != nil {
		return err
	}
	res.write(out)
	return nil
}

// settings are those of one run.
type settings struct {
	Limit     int64
	Processes int
	Demand    float64
	Seconds   int
	Mode      string
	Burst     int64
	Offset    time.Duration
	Step      time.Duration
	Bursts    bool

	NewLimit     int64
	NewProcesses int
	AtOnce       bool
}

func usual() settings {
	return settings{Limit: 9600, Processes: 96, Demand: 3, Seconds: 10, Mode: "even"}
}

func (s settings) validate() error {
	switch {
	case s.Limit < 1 || s.Limit > 1e9 || s.NewLimit < 0 || s.NewLimit > 1e9:
		return fmt.Errorf("-limit is %d, want 1 to 1,000,000,000", s.Limit)
	case s.Processes < 1 || s.Processes > 1000 || s.NewProcesses < 0 || s.NewProcesses > s.Processes:
		return fmt.Errorf("-processes is %d and -new-processes %d, want 1 to 1000 and no more", s.Processes, s.NewProcesses)
	case !(s.Demand > 0 && s.Demand <= 1000):
		return fmt.Errorf("-demand is %v, want above 0 and at most 1000", s.Demand)
	case s.Seconds < 1 || s.Seconds > 3600:
		return fmt.Errorf("-seconds is %d, want 1 to 3600", s.Seconds)
	case s.Offset < 0 || s.Offset > time.Hour:
		return fmt.Errorf("-offset is %v, want 0 to 1h", s.Offset)
	}
	if _, ok := modes[s.Mode]; !ok {
		return fmt.Errorf("-mode is %q, want one of %s", s.Mode, strings.Join(modeNames(), ", "))
	}
	return nil
}
