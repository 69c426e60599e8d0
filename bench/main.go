// Bench compares stint with other limiters and with the floors that none can
// beat, and prints the tables in Markdown, of which evidence.yaml keeps cells.
//
//	go run . [-table NAME] [-quick] [-strict]
//
// It is a module of its own, so that nobody who imports stint depends on rivals.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/stint-io/stint/bench/internal/fleet"
	"github.com/stint-io/stint/bench/internal/machine"
	"github.com/stint-io/stint/bench/internal/tables"
)

// table is one name of -table.
type table struct {
	name  string
	about string
	make  []func(tables.Config, *tables.Report) error
}

func allTables() []table {
	type steps = []func(tables.Config, *tables.Report) error
	return []table{
		{"inprocess", "one hot key allowed and refused, a million keys", steps{tables.HotAllowed, tables.HotRefused, tables.ManyKeys}},
		{"memory", "bytes per key, time of a full collection", steps{tables.Memory}},
		{"contention", "what 2,000 goroutines get out of one limit", steps{tables.Contention}},
		{"flood", "a full table never forgets a limited key", steps{tables.Flood}},
		{"match", "matching against 10 and 10,000 limits", steps{tables.Match}},
		{"rls", "the service against a server that always says OK", steps{tables.Service}},
		{"take", "POST /v1/take against a bare handler of the same JSON", steps{tables.Take}},
		{"tls", "the service by TLS against itself in plain text", steps{tables.TLS}},
		{"redis", "the Redis store against a bare script and other limiters", steps{tables.RedisKeys, tables.RedisHot}},
		{"leases", "a decision on a lease, an idle instance, a round of the coordinator", steps{tables.Leases}},
		{"fleet", "real processes that share limits by leases", steps{tables.Fleet}},
		{"steps", "real processes while demand steps above the limit", steps{tables.Steps}},
		{"follow", "real processes whose demands change at random", steps{tables.Follow}},
		{"waiters", "a hundred thousand who wait for one limit, without blocking", steps{tables.Waiters}},
		{"redis-rls", "the service with Redis against envoyproxy/ratelimit", steps{tables.RedisService}},
		{"envoy-agree", "the answers of the service against those of envoyproxy/ratelimit", steps{tables.EnvoyAgree}},
	}
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == fleet.WorkerArg {
		if err := fleet.Work(os.Args[2:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	names := []string{"all"}
	for _, t := range allTables() {
		names = append(names, t.name)
	}
	name := flags.String("table", "all", "which tables to make: "+strings.Join(names, ", "))
	quick := flags.Bool("quick", false, "measure for seconds instead of minutes: a look, not a figure to quote")
	strict := flags.Bool("strict", false, "fail when a goal is missed")
	root := flags.String("root", "..", "the repository's folder, to build the service from")
	binary := flags.String("stint", "", "measure this binary of stint's instead of building cmd/stint")
	requests := flags.Int("requests", 0, "of envoy-agree: requests of each configuration instead of 1,000")
	seed := flags.Uint64("seed", 1, "of envoy-agree: draws the requests")
	if err := flags.Parse(args); err != nil {
		return err
	}
	cfg := tables.Full(*root)
	if *quick {
		cfg = tables.Quick(*root)
	}
	cfg.Binary, cfg.AgreeSeed = *binary, *seed
	if *requests > 0 {
		cfg.Agree = *requests
	}
	rep := &tables.Report{Out: out}
	found := false
	writeMachine(out, cfg)
	for _, t := range allTables() {
		if *name != "all" && *name != t.name {
			continue
		}
		found = true
		watch := machine.Start()
		for _, step := range t.make {
			if err := step(cfg, rep); err != nil {
				watch.Stop()
				return err
			}
			// What a table has built must not be in the next one's heap.
			runtime.GC()
		}
		fmt.Fprintf(out, "\n%s: %s\n", t.name, watch.Stop())
	}
	if !found {
		return fmt.Errorf("bench: unknown table %q, want one of %s", *name, strings.Join(names, ", "))
	}
	if met := rep.Summary(); *strict && !met {
		return fmt.Errorf("bench: a goal was missed")
	}
	return nil
}

// writeMachine says where and how the figures were taken.
func writeMachine(out io.Writer, cfg tables.Config) {
	fmt.Fprintf(out, "Measured on %s, on %s, %d cores, %s, %s/%s. ", time.Now().Format(time.DateOnly), processor(), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	fmt.Fprintf(out, "Medians [lowest–highest] of %d slices of %v, all contenders in turn; ratios are medians of the ratios within each round.\n", cfg.Rounds, cfg.Slice)
}

// processor returns the processor's name where Linux tells it.
func processor() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return "an unnamed processor"
}
