package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// suite is the tests of a package in one binary, with all mutants that are switched.
type suite struct {
	dir    string
	binary string
	work   string
	tests  []testcase // the quickest first
	unused []string   // with the reason
}

type testcase struct {
	name   string
	took   time.Duration // unmutated
	places map[int]bool  // the mutants whose places it comes by
}

// build compiles the tests under an overlay. What is not a Go error of the mutant is one of
// ours, but both say the same: this mutant cannot be tried.
func build(dir, overlay string) (string, error) {
	binary := filepath.Join(filepath.Dir(overlay), "tests")
	cmd := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binary, ".")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build in %s: %w\n%s", dir, err, out)
	}
	return binary, nil
}

// newSuite runs each test once by itself, for its time and the places that it comes by.
// budget bounds the time of a test, and the time of all that are run for one mutant.
func newSuite(dir, work, binary string, budget time.Duration) (*suite, error) {
	s := &suite{dir: dir, binary: binary, work: work}
	out, err := s.command(context.Background(), binary, nil, "-test.list", ".").Output()
	if err != nil {
		return nil, fmt.Errorf("tests of %s: %w", dir, err)
	}
	for _, name := range strings.Fields(string(out)) {
		if strings.HasPrefix(name, "Benchmark") {
			continue
		}
		notes := filepath.Join(work, "places")
		if err := os.RemoveAll(notes); err != nil {
			return nil, err
		}
		begun := time.Now()
		result := s.run(binary, budget, []string{placesVariable + "=" + notes}, name)
		test := testcase{name: name, took: time.Since(begun), places: map[int]bool{}}
		if !result.passed {
			s.unused = append(s.unused, name+": "+result.reason())
			continue
		}
		text, err := os.ReadFile(notes)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, line := range strings.Fields(string(text)) {
			index, err := strconv.Atoi(line)
			if err != nil {
				return nil, err
			}
			test.places[index] = true
		}
		s.tests = append(s.tests, test)
	}
	slices.SortFunc(s.tests, func(a, b testcase) int { return int(a.took - b.took) })
	return s, nil
}

// verdict is what became of a mutant.
type verdict string

const (
	survived   verdict = "SURVIVED"
	uncovered  verdict = "UNCOVERED" // no test comes by its place
	killed     verdict = "killed"
	timedOut   verdict = "timed out" // counts as killed
	equivalent verdict = "equivalent"
)

// try runs the tests that come by a mutant's place, the quickest first and many in one
// process, until one fails. A mutant that has a binary of its own is tried by all tests.
func (s *suite) try(m mutant, own string, budget time.Duration) (verdict, string) {
	binary, environment := s.binary, []string{activeVariable + "=" + strconv.Itoa(m.index)}
	if own != "" {
		binary, environment = own, nil
	}
	var chosen []testcase
	var total time.Duration
	for _, test := range s.tests {
		if (own != "" || test.places[m.index]) && (total == 0 || total+test.took <= budget) {
			chosen = append(chosen, test)
			total += test.took
		}
	}
	if len(chosen) == 0 {
		return uncovered, ""
	}
	for batch := time.Second; len(chosen) > 0; batch *= 4 {
		var took time.Duration
		n := 0
		for n < len(chosen) && (n == 0 || took+chosen[n].took <= batch) {
			took += chosen[n].took
			n++
		}
		var names []string
		for _, test := range chosen[:n] {
			names = append(names, test.name)
		}
		if verdict, by := s.batch(binary, 3*took+5*time.Second, environment, names); verdict != survived {
			return verdict, by
		}
		chosen = chosen[n:]
	}
	return survived, ""
}

// batch runs some tests in one process. A test that fails once and then passes tells nothing
// about the mutant, but something about the machine: it must fail twice.
func (s *suite) batch(binary string, limit time.Duration, environment, names []string) (verdict, string) {
	for len(names) > 0 {
		result := s.run(binary, limit, environment, names...)
		switch {
		case result.passed:
			return survived, ""
		case result.timedOut:
			return timedOut, result.failed
		case result.failed == "" || !slices.Contains(names, result.failed):
			return killed, "" // it crashed
		}
		if again := s.run(binary, limit, environment, result.failed); !again.passed {
			return killed, result.failed
		}
		names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == result.failed })
	}
	return survived, ""
}

type result struct {
	passed   bool
	timedOut bool
	failed   string // the first test that failed, where that is known
	out      []byte
}

func (r result) reason() string {
	if r.timedOut {
		return "takes too long"
	}
	lines := strings.Split(strings.TrimSpace(string(r.out)), "\n")
	return "does not pass without a mutant: " + short(strings.Join(lines[:min(3, len(lines))], " "))
}

var (
	failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)
	tooLong    = regexp.MustCompile(`(?m)^panic: test timed out after`)
)

func (s *suite) run(binary string, limit time.Duration, environment []string, names ...string) result {
	// The tests end themselves first, and say which did not.
	ctx, cancel := context.WithTimeout(context.Background(), limit+10*time.Second)
	defer cancel()
	cmd := s.command(ctx, binary, environment, "-test.failfast", "-test.paniconexit0",
		"-test.timeout", limit.String(), "-test.run", "^("+strings.Join(names, "|")+")$")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	r := result{passed: err == nil, out: out.Bytes()}
	r.timedOut = ctx.Err() != nil || tooLong.Match(r.out)
	if found := failedTest.FindSubmatch(r.out); found != nil {
		r.failed = string(found[1])
	}
	return r
}

// memory bounds the address space of a test that a mutant sends astray, in KiB.
const memory = "12000000"

func (s *suite) command(ctx context.Context, binary string, environment []string, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", append([]string{"-c", `ulimit -v ` + memory + `; exec "$@"`, "tests", binary}, arguments...)...)
	cmd.Dir = s.dir
	cmd.Env = append(append(os.Environ(), "TMPDIR="+s.work), environment...)
	// A test may have started servers: they end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}
