package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/sim"
)

const smallScenario = `name: small
limit: 100/s
burst: 10
instances: 3
duration: 5s
network: {delay: 10ms}
load: [{demand: 200/s, arrivals: poisson}]
systems: [stint, {name: half, allocation: equal}]
show: [use, over]
`

const busyServers = `duration: 1s
servers: {a: {cores: 1}}
routes: {get: {at: a, work: 1ms, slo: 20ms}}
load: [{route: get, demand: 3000/s, class: critical_plus}]
name: busy
systems: [stint, none]
`

func TestSimulate(t *testing.T) {
	good := file(t, "small.yaml", smallScenario)
	bad := file(t, "bad.yaml", "limit: 100\ninstances: 3\nduration: 5s\nlaod: []\n")
	servers := file(t, "servers.yaml", busyServers)
	badServers := file(t, "bad-servers.yaml", strings.Replace(busyServers, "at: a", "at: aa", 1))
	missing := filepath.Join(t.TempDir(), "none", "none.yaml")
	for _, c := range []struct {
		args []string
		env  []string
		code int
		text []string
	}{
		{[]string{good}, nil, exitOK, []string{"small: 3 instances", "seed 0", "system", "\nstint ", "\nhalf ", "use   what was admitted"}},
		{[]string{good, "--runs", "3", "--seed", "9"}, nil, exitOK, []string{"3 runs with seeds 9 to 11", "±"}},
		{[]string{good}, []string{"STINT_SEED=4"}, exitOK, []string{"seed 4"}},
		{[]string{good, "--systems", "hermes,half", "--show", "all"}, nil, exitOK, []string{"\nhermes ", "\nhalf ", "wait mean"}},
		{[]string{good, "--arrivals", "even", "--jitter", "5ms", "--loss", "0.5"}, nil, exitOK, []string{"small (even arrivals, jitter 5ms, 0.5 % of messages lost): 3 instances"}},
		{[]string{good, "--arrivals", "odd"}, nil, exitUsage, []string{`--arrivals is "odd", want even or poisson`}},
		{[]string{good, "--loss", "100"}, nil, exitUsage, []string{"--loss is 100, want from 0 to below 100 percent"}},
		{[]string{good, "--jitter", "-5ms"}, nil, exitNo, []string{"jitter"}},
		{[]string{good, "--format", "csv"}, nil, exitOK, []string{"system,use,", "\nstint,"}},
		{[]string{good, "--format", "markdown", "--show", "t95"}, nil, exitOK, []string{"| system | t95 (s) |"}},
		{[]string{bad}, nil, exitNo, []string{bad + ":1:8: want a rate", "did you mean 100/s?", bad + ":4:1", "did you mean load?", "load is missing", "stint: 3 faults"}},
		{[]string{missing}, nil, exitUsage, []string{"none.yaml"}},
		{[]string{good, "--format", "jsno"}, nil, exitUsage, []string{"--format", "did you mean json?"}},
		{[]string{good, "--systems", "hermez"}, nil, exitUsage, []string{"--systems", "did you mean hermes?"}},
		{[]string{good, "--show", "usse"}, nil, exitUsage, []string{"--show", "did you mean use?"}},
		{[]string{good, "--runs", "0"}, nil, exitUsage, []string{"--runs is 0, want from 1 to 1000"}},
		{[]string{good, "--seed", "-1"}, nil, exitUsage, []string{"--seed"}},
		{[]string{good, "--svg", filepath.Join(filepath.Dir(missing), "out.svg")}, nil, exitUsage, []string{"--svg"}},
		{nil, nil, exitUsage, []string{"accepts 1 arg"}},
		{[]string{servers}, nil, exitOK, []string{"busy: 1 servers", "\nstint ", "\nnone ", "goodput (1/s)"}},
		{[]string{servers, "--runs", "2", "--systems", "stint,wisp", "--show", "useful,good-class-3", "--format", "csv"}, nil, exitOK, []string{"system,useful,", "good class 3", "\nwisp,"}},
		{[]string{servers, "--loss", "1"}, nil, exitUsage, []string{"--loss is for fleets"}},
		{[]string{servers, "--systems", "wips"}, nil, exitUsage, []string{"did you mean wisp?"}},
		{[]string{badServers}, nil, exitNo, []string{badServers + ":3:", "did you mean a?", "stint: 1 fault"}},
	} {
		code, out, errOut := call(t, c.env, append([]string{"simulate"}, c.args...)...)
		if code != c.code {
			t.Errorf("%v: exit code %d, want %d\n%s%s", c.args, code, c.code, out, errOut)
		}
		for _, text := range c.text {
			if !strings.Contains(out+errOut, text) {
				t.Errorf("%v: no %q in\n%s%s", c.args, text, out, errOut)
			}
		}
		if code != exitOK && out != "" {
			t.Errorf("%v: a fault, and this on standard output:\n%s", c.args, out)
		}
	}
}

func TestSimulateChartAndJSON(t *testing.T) {
	svg := filepath.Join(t.TempDir(), "out.svg")
	code, out, errOut := call(t, nil, "simulate", file(t, "small.yaml", smallScenario), "--svg", svg, "--format", "json")
	if code != exitOK || errOut != "" {
		t.Fatalf("exit code %d: %s", code, errOut)
	}
	var table struct {
		Systems []struct {
			System  string
			Figures map[string]struct{ Mean *float64 }
		}
	}
	if err := json.Unmarshal([]byte(out), &table); err != nil || len(table.Systems) != 2 || len(table.Systems[0].Figures) != len(sim.Figures()) {
		t.Errorf("%v in\n%s", err, out)
	}
	text, err := os.ReadFile(svg)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(text), "<svg ") || !strings.Contains(string(text), "half: use") {
		t.Errorf("got %.300s", text)
	}
	// The same file and seed, the same to the byte.
	if _, again, _ := call(t, nil, "simulate", file(t, "small.yaml", smallScenario), "--format", "json"); again != out {
		t.Error("another run of the same seed differs")
	}
}

// Only a terminal shows how far a run is, unless it is asked for.
func TestOnTerminal(t *testing.T) {
	plain, err := os.Create(filepath.Join(t.TempDir(), "err"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	device, err := os.Open(os.DevNull) // a device of characters, as a terminal is
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	if onTerminal(&bytes.Buffer{}) || onTerminal(plain) || !onTerminal(device) {
		t.Errorf("a buffer %v, a file %v, a device %v", onTerminal(&bytes.Buffer{}), onTerminal(plain), onTerminal(device))
	}
	if code, _, errOut := call(t, nil, "simulate", "--progress", "loud", file(t, "small.yaml", smallScenario)); code != exitUsage || !strings.Contains(errOut, "auto, always, never") {
		t.Errorf("exit code %d, %s", code, errOut)
	}
}

// A long run says how far it is, and ends when it is told to.
func TestSimulateEndsEarly(t *testing.T) {
	path := file(t, "long.yaml", "limit: 1M/s\ninstances: 10\nduration: 20d\nload: {demand: 2M/s}\n")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, built.get(t), "simulate", "--progress", "always", path)
	var out bytes.Buffer
	cmd.Stdout = &out
	errOut, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(errOut)
	text, told := "", false
	for lines.Scan() {
		text += lines.Text() + "\n"
		if strings.Contains(text, "% of 1 run") && !told {
			told = true
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := lines.Err(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // the exit code is what is looked at
	if code := cmd.ProcessState.ExitCode(); code != exitNo || !told || !strings.Contains(text, "the simulation was ended before its time") || out.Len() > 0 {
		t.Errorf("exit code %d\n%s%s", code, text, out.String())
	}
}

// The flags change the arrivals and the network of what is played, not its name alone.
func TestSimulateDisturbs(t *testing.T) {
	good := file(t, "small.yaml", smallScenario)
	seen := map[string]string{}
	for _, args := range [][]string{{}, {"--arrivals", "even"}, {"--jitter", "50ms"}, {"--loss", "50"}} {
		code, out, errOut := call(t, nil, append([]string{"simulate", good, "--format", "csv"}, args...)...)
		if code != exitOK {
			t.Fatalf("%v: exit code %d: %s", args, code, errOut)
		}
		for other, table := range seen {
			if table == out {
				t.Errorf("%v gives what %s gives", args, other)
			}
		}
		seen[strings.Join(args, " ")] = out
	}
}
