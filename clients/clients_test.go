//go:build linux

// Package clients_test runs the tests of the clients for other languages against the real stint serve. It has no client of its
// own: Go programs use the library, or package stintpb.
package clients_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
)

const (
	patience = time.Minute // bounds each wait, on a machine that is busy with other tests
	token    = "a-token-of-a-client-in-tests"
)

// suite is the tests of one client.
type suite struct {
	name, folder string
	passed       *regexp.Regexp
	fewest       int
	command      []string
}

var (
	ofPython = regexp.MustCompile(`Ran (\d+) tests in [^\n]*\n\nOK\n`)
	ofNode   = regexp.MustCompile(`(?:#|ℹ) pass (\d+)\n`)
)

// TestClients runs each client's own tests against two services: one with limits.yaml, and one that asks for a token.
func TestClients(t *testing.T) {
	run(t,
		suite{"python", "python", ofPython, 46, []string{"python3", "-W", "error", "-m", "unittest", "discover", "-s", "tests"}},
		suite{"typescript", "typescript", ofNode, 18, []string{"node", "--test", "test/client.test.js"}},
	)
}

// TestClientsInFrameworks has them ask from web servers and from workers of a queue.
func TestClientsInFrameworks(t *testing.T) {
	run(t,
		suite{"python", "python", ofPython, 11, []string{frameworks(t), "tests/frameworks/test_frameworks.py"}},
		suite{"typescript", "typescript", ofNode, 4, []string{"node", "--test", "test/frameworks.test.js"}},
	)
}

// run runs suites beside each other.
func run(t *testing.T, suites ...suite) {
	t.Helper()
	dir := t.TempDir()
	stint := build(t)
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file("edge.token", token+"\n")
	auth := file("auth.yaml", "identities:\n  - {name: edge, token_file: edge.token, roles: [take]}\n")
	environment := append(os.Environ(),
		"STINT_URL="+serve(t, stint, "--config", "limits.yaml", "--state-dir", filepath.Join(dir, "state")),
		"STINT_AUTH_URL="+serve(t, stint, "--auth", auth, "--state-dir", "none"),
		"STINT_UNIX="+serve(t, stint, "--config", "limits.yaml", "--state-dir", "none", "--http", "unix:"+filepath.Join(dir, "stint.sock")),
		"STINT_TOKEN="+token, "PYTHONPATH=src", "PYTHONDONTWRITEBYTECODE=1",
	)
	for _, c := range suites {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, c.command[0], c.command[1:]...)
			cmd.Dir, cmd.Env, cmd.WaitDelay = c.folder, environment, time.Second
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %v (./scripts/test installs what is missing)\n%s", c.command, err, out)
			}
			var passed int
			if m := c.passed.FindSubmatch(out); m != nil {
				_, _ = fmt.Sscan(string(m[1]), &passed)
			}
			if passed < c.fewest {
				t.Errorf("%d tests passed, want %d at least: the search is wrong\n%s", passed, c.fewest, out)
			}
		})
	}
}

// TestTypes: the clients and programs with them are clean under mypy --strict, pyright and tsc, also in what must be an error there.
func TestTypes(t *testing.T) {
	python := frameworks(t)
	for _, c := range []struct {
		folder  string
		command []string
	}{
		{"python", []string{python, "-m", "mypy", "--strict", "--cache-dir", filepath.Join(t.TempDir(), "cache"), "src/stint_client", "tests/typed.py"}},
		{"python", []string{"node", "../typescript/node_modules/pyright/index.js", "--pythonpath", python, "src", "tests/typed.py"}},
		{"typescript", []string{"node", "node_modules/typescript/bin/tsc", "-p", "."}},
	} {
		cmd := exec.Command(c.command[0], c.command[1:]...)
		cmd.Dir = c.folder
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", cmd.Args, err, out)
		}
	}
}

// frameworks returns a Python with the frameworks that the client is tested with.
func frameworks(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("../scripts/clients")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// TestReadmes: what the pages of the clients show is what the how-to guide runs.
func TestReadmes(t *testing.T) {
	guide, err := os.ReadFile("../docs/how-to/ask-from-python-or-typescript.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"python", "typescript"} {
		readme, err := os.ReadFile(filepath.Join(folder, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		blocks := regexp.MustCompile("(?s)```(?:python|js)\n(.*?)```").FindAllSubmatch(readme, -1)
		if len(blocks) == 0 {
			t.Errorf("%s/README.md shows no program", folder)
		}
		for _, b := range blocks {
			if !bytes.Contains(guide, b[1]) {
				t.Errorf("%s/README.md shows a program that the how-to guide does not run:\n%s", folder, b[1])
			}
		}
	}
}

// serve runs stint serve until the test ends, and returns the URL of its HTTP port once it is ready.
func serve(t *testing.T, stint string, args ...string) string {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	address := fmt.Sprintf("127.0.0.1:%d", redistest.ReservePort(t))
	cmd := exec.Command(stint, append([]string{"serve", "--http", address, "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	read := func() string {
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := <-ended; err != nil {
			t.Errorf("stint serve ended with %v\n%s", err, read())
		}
	})
	for deadline := time.Now().Add(patience); !strings.Contains(read(), "\nready\n"); {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("stint serve ended with %v\n%s", err, read())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("stint serve is not ready:\n%s", read())
		}
	}
	return regexp.MustCompile(`\n  http +(\S+)\n`).FindStringSubmatch(read())[1]
}
