//go:build linux

package clients_test

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/builttest"
)

var (
	waitFor  = flag.Duration("wait-for", 2*time.Second, "how long the processes of TestWaitIsFair wait for permits")
	waitLong = flag.Bool("wait-long", false, "ask for what a quiet machine does: 1 and 12 processes use 0.95 of the limit, and none gets less than half of its share")
)

// TestWaitIsFair: processes that wait for permits of one limit get some each, and ask little more than once for a permit. With
// -wait-long -wait-for 60s, on a quiet machine, they use the limit and get equal shares.
func TestWaitIsFair(t *testing.T) {
	stint := build(t)
	url := serve(t, stint, "--config", "limits.yaml", "--state-dir", "none")
	counts := []int{3}
	if *waitLong {
		counts = []int{1, 12}
	}
	for client, command := range map[string][]string{
		"python": {"python3", "tests/waiter.py"}, "typescript": {"node", "test/waiter.js"},
	} {
		for _, limit := range []struct {
			path        string
			rate, burst float64
		}{{"/ten", 10, 1}, {"/hundred", 100, 10}} {
			for _, processes := range counts {
				t.Run(fmt.Sprintf("%s%s/%d", client, limit.path, processes), func(t *testing.T) {
					args := append(slices.Clone(command), limit.path, t.Name(), fmt.Sprint(waitFor.Seconds()))
					got, calls := waiters(t, client, args, processes, url)
					total := 0
					for _, n := range got {
						total += n
					}
					used := float64(total) / (limit.rate*waitFor.Seconds() + limit.burst)
					t.Logf("%.3f of the limit used, each process %d to %d, %.2f calls for a permit", used, slices.Min(got), slices.Max(got), float64(calls)/float64(total))
					if slices.Min(got) == 0 {
						t.Errorf("the processes got %v", got)
					}
					if *waitLong && (used < 0.95 || slices.Min(got)*processes*2 < total) {
						t.Errorf("%.3f of the limit was used, by each process %v: want 0.95, and no process below half of its share", used, got)
					}
					if calls > total*11/10+3*processes {
						t.Errorf("%d calls for %d permits", calls, total)
					}
				})
			}
		}
	}
}

// waiters runs processes that wait, and returns how many permits each got, and their calls.
func waiters(t *testing.T, folder string, args []string, processes int, url string) (got []int, calls int) {
	t.Helper()
	type process struct {
		cmd *exec.Cmd
		in  io.Closer
		out *bufio.Reader
	}
	all := make([]process, processes)
	for i := range all {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir, cmd.Stderr = folder, os.Stderr
		cmd.Env = append(os.Environ(), "STINT_URL="+url, "PYTHONPATH=src", "PYTHONDONTWRITEBYTECODE=1")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all[i] = process{cmd, in, bufio.NewReader(out)}
	}
	for _, p := range all {
		if line, err := p.out.ReadString('\n'); err != nil || strings.TrimSpace(line) != "ready" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	for _, p := range all {
		_ = p.in.Close()
	}
	for _, p := range all {
		var n, c int
		if _, err := fmt.Fscan(p.out, &n, &c); err != nil {
			t.Fatal(err)
		}
		if err := p.cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		got, calls = append(got, n), calls+c
	}
	return got, calls
}

func build(t *testing.T) string {
	t.Helper()
	stint, err := builttest.Stint(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return stint
}
