//go:build linux

package client_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/server"
)

// The limits of the service in these tests.
const (
	perSecond, burst = 200, 40

	limits = `limits:
  - {name: messages, rate: 200/s, burst: 40, sharing: leased}
  - {name: per-account, key: [account], rate: 10/s, burst: 10, sharing: leased}
`
)

// TestMain is also the main of the processes that the tests start.
func TestMain(m *testing.M) {
	var err error
	switch os.Getenv("STINT_TEST_PROCESS") {
	case "":
		// Tests with real processes wait, and compute little: all at once, however many
		// processors there are.
		flag.Parse()
		if err = flag.Set("test.parallel", "16"); err == nil {
			os.Exit(m.Run())
		}
	case "serve":
		err = serveMain()
	case "spend":
		err = spendMain()
	default:
		err = errors.New("unknown process")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serveMain is a service. It prints the address of its gRPC listener.
func serveMain() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var parent server.Parent
	if address := os.Getenv("STINT_TEST_PARENT"); address != "" {
		parent = server.Parent{Addresses: []string{address}, Site: os.Getenv("STINT_TEST_SITE"), Expiry: os.Getenv("STINT_TEST_EXPIRY")}
	}
	shards, _ := strconv.Atoi(os.Getenv("STINT_TEST_SHARDS")) // 0 = one
	s, err := server.New(server.Options{
		Parent: parent, HTTPAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0", GRPCAddr: os.Getenv("STINT_TEST_ADDRESS"),
		ConfigPaths: []string{os.Getenv("STINT_TEST_CONFIG")}, StateDir: os.Getenv("STINT_TEST_STATE"), FirstStart: os.Getenv("STINT_TEST_LATER") == "",
		Cluster: server.Cluster{URL: os.Getenv("STINT_TEST_CLUSTER"), Node: os.Getenv("STINT_TEST_NODE"), Shards: shards},
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	select {
	case <-s.Ready():
		fmt.Println(s.Addrs().GRPC)
	case err := <-ended:
		return err
	}
	return <-ended
}

// process is one that a test has started.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	out   *bufio.Scanner
	ended chan struct{} // it has been waited for

	mu     sync.Mutex
	errOut bytes.Buffer
}

// Write takes what it writes on standard error.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.errOut.Write(b)
}

// launch starts a process, which ends with the test.
func launch(t *testing.T, env ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env...)
	return launchProgram(t, cmd)
}

// launchProgram starts any program, which ends with the test.
func launchProgram(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, ended: make(chan struct{})}
	p.cmd.Stderr = p
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.out = w, bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	go func() {
		_ = p.cmd.Wait() // it is killed
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		out.Close()
		if t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			t.Logf("standard error of a process:\n%.4000s", p.errOut.String())
		}
	})
	return p
}

// kill ends it without a word, as a machine that loses its power.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.ended
}

// pause stops it, and returns once it stands still.
func (p *process) pause() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	await(p.t, "the process to stand still", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			p.t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(rest, "T")
	})
}

func (p *process) resume() { p.signal(syscall.SIGCONT) }

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// service is a real one, in a process of its own.
type service struct {
	*process
	address string
	config  string // the file
	env     []string
}

// serve starts a service that keeps its state in dir, "" = nowhere.
func serve(t *testing.T, dir string) *service {
	t.Helper()
	config := filepath.Join(t.TempDir(), "stint.yaml")
	if err := os.WriteFile(config, []byte(limits), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &service{config: config, env: []string{"STINT_TEST_PROCESS=serve", "STINT_TEST_CONFIG=" + config, "STINT_TEST_STATE=" + dir}, address: "127.0.0.1:0"}
	s.start(t)
	return s
}

func (s *service) start(t *testing.T) {
	t.Helper()
	s.process = launch(t, append(s.env, "STINT_TEST_ADDRESS="+s.address)...)
	if !s.out.Scan() {
		t.Fatal("the service did not start")
	}
	s.address = s.out.Text()
}

// await polls until done, for as long as a slow machine may take.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(30 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited 30 s for %s", what)
		}
	}
}

// pass lets time pass where that is what processes are given, such as longer than a lease, or what is measured.
func pass(d time.Duration) { <-time.After(d) }

// join starts a client of the service, which ends with the test or by leave.
func join(t *testing.T, address, instance string) (c *client.Client, leave func()) {
	t.Helper()
	c, err := client.New(client.Options{Address: address, Instance: instance, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	leave = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(leave)
	return c, leave
}
