package tables

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/bench/internal/fleet"
	"github.com/stint-io/stint/bench/internal/process"
)

// home is where built puts it, for as long as the tests run.
var home string

// built is the stint that the tables start, built once: to link it takes four seconds.
var built = sync.OnceValues(func() (bin string, err error) {
	bin = filepath.Join(home, "stint")
	return bin, process.Build(tiny().Root, "./cmd/stint", bin)
})

// tinyWithStint is tiny with what is built already.
func tinyWithStint(t *testing.T) Config {
	t.Helper()
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	cfg := tiny()
	cfg.Binary = bin
	return cfg
}

// TestMain lets the test's own binary be a process of a fleet.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == fleet.WorkerArg {
		if err := fleet.Work(os.Args[2:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	var err error
	if home, err = os.MkdirTemp("", "stint-bench-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := os.RemoveAll(home); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// Four real processes share limits and are never over: with all load on one, and with
// limits of few tokens.
func TestFleet(t *testing.T) {
	t.Parallel()
	cfg := tinyWithStint(t)
	cfg.Fleets, cfg.FleetSteps = []int{4}, 1
	cfg.FleetEven, cfg.FleetHot = 1200*time.Millisecond, 1500*time.Millisecond
	cfg.FleetSmall, cfg.FleetSettle = 1500*time.Millisecond, 100*time.Millisecond
	var out strings.Builder
	rep := &Report{Out: &out}
	if err := Fleet(cfg, rep); err != nil {
		t.Fatal(err)
	}
	over := 0
	for _, g := range rep.Goals {
		if !strings.HasSuffix(g.What, " over") {
			continue
		}
		if over++; !g.Met {
			t.Errorf("%s: %s, want %s\n%s", g.What, g.Seen, g.Bound, &out)
		}
	}
	if over != 6 {
		t.Errorf("%d goals say that nothing is over, want 1 of the hot limit and 5 of the small ones:\n%s", over, &out)
	}
	if !strings.Contains(out.String(), "\n| 3/s | 4 | ") {
		t.Errorf("written:\n%s", &out)
	}
}

func TestReadRounds(t *testing.T) {
	rows, err := readRounds("goos: linux\nBenchmarkRound/instances=100/changed=1-2   20  64 grants/round  0.04 ms/longest  28 rounds\nPASS\n")
	if err != nil || len(rows) != 1 || rows[0].instances != "100" || rows[0].changed != "1" || rows[0].figures["ms/longest"] != 0.04 {
		t.Errorf("%+v, %v", rows, err)
	}
	for _, bad := range []string{"", "PASS", "BenchmarkRound/x-2 1 1 rounds", "BenchmarkRound/instances=1/changed=1 1 x rounds", "BenchmarkRound/instances=1/changed=1 1 1 ns/op"} {
		if _, err := readRounds(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

var quietMachine = flag.Bool("quiet-machine", false, "hold TestSteps to what suppression may admit above the limit, which depends on when the machine runs each process")

// Twenty real processes are asked for three times the limit. Leases are never over. Suppression is
// above the limit by no more than it says: package sim holds it to that in virtual time, and this
// test on a quiet machine.
func TestSteps(t *testing.T) {
	t.Parallel()
	cfg := tinyWithStint(t)
	cfg.Steps, cfg.StepOver = []float64{3}, 2500*time.Millisecond
	var out strings.Builder
	rep := &Report{Out: &out}
	if err := Steps(cfg, rep); err != nil {
		t.Fatal(err)
	}
	promises := 0
	for _, g := range rep.Goals {
		if !strings.HasSuffix(g.What, " over") && !strings.HasSuffix(g.What, " above in the first second") {
			continue
		}
		promises++
		if leased := strings.HasPrefix(g.What, "leased"); !g.Met && (leased || *quietMachine) {
			t.Errorf("%s: %s, want %s\n%s", g.What, g.Seen, g.Bound, &out)
		}
	}
	if promises != 2 {
		t.Errorf("%d goals say by how much a limit may be exceeded, want 2:\n%s", promises, &out)
	}
}
