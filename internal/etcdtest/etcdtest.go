// Package etcdtest runs a real etcd server of one member for tests. scripts/etcd builds it from its
// module, the first time: what is missing fails the test. The server ends with its test.
package etcdtest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
)

const (
	// patience bounds every wait for something that is sure to come, on a machine that is busy
	// with other things.
	patience = 60 * time.Second

	// buildTime bounds the build of the server on such a machine.
	buildTime = 15 * time.Minute
)

// Server is one etcd. [Start] makes it. Its methods that return no error fail the test on one, and
// belong on the test's own goroutine.
type Server struct {
	t    testing.TB
	addr string
	args []string
	path string
	dir  string
	cmd  *exec.Cmd // nil = it does not run
	log  transcript
}

// Start starts an etcd without TLS or users and returns when it answers.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, path: build(t)}
	client, peer := port(t), port(t)
	s.addr = client
	s.dir = folder(t)
	s.args = []string{
		"--name", "test", "--data-dir", s.dir, "--log-level", "error",
		"--listen-client-urls", "http://" + client, "--advertise-client-urls", "http://" + client,
		"--listen-peer-urls", "http://" + peer, "--initial-advertise-peer-urls", "http://" + peer,
		"--initial-cluster", "test=http://" + peer,
		// Tests end processes, not machines.
		"--unsafe-no-fsync",
	}
	t.Cleanup(s.finish)
	s.Restart()
	return s
}

// Addr returns the server's address as 127.0.0.1:port, running or not.
func (s *Server) Addr() string { return s.addr }

// Freeze stops the server where it is (SIGSTOP), as if its host hung.
func (s *Server) Freeze() { s.signal(stop) }

// Thaw lets a frozen server go on.
func (s *Server) Thaw() { s.signal(goOn) }

// Kill ends the server at once. What it has acknowledged stays.
func (s *Server) Kill() {
	s.signal(syscall.SIGKILL)
	_ = s.cmd.Wait()
	s.cmd = nil
}

// Forget removes the data of a server that does not run.
func (s *Server) Forget() {
	s.t.Helper()
	if err := os.RemoveAll(filepath.Join(s.dir, "member")); err != nil {
		s.t.Fatal(err)
	}
}

// Restart starts a server that does not run, and returns when it answers.
func (s *Server) Restart() {
	s.t.Helper()
	s.cmd = exec.Command(s.path, s.args...)
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.cmd.SysProcAttr = diesWithParent()
	if err := s.cmd.Start(); err != nil {
		s.t.Fatalf("etcdtest: starting %s: %v", s.path, err)
	}
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.health()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("etcdtest: waited %v for etcd at %s: %v", patience, s.addr, err)
		}
	}
}

func (s *Server) health() error {
	reply, err := http.Get("http://" + s.addr + "/health")
	if err != nil {
		return err
	}
	defer func() { _ = reply.Body.Close() }()
	if reply.StatusCode != http.StatusOK {
		return fmt.Errorf("/health answers %s", reply.Status)
	}
	return nil
}

func (s *Server) signal(signal syscall.Signal) {
	s.t.Helper()
	if s.cmd == nil {
		s.t.Fatal("etcdtest: the server does not run")
	}
	if err := s.cmd.Process.Signal(signal); err != nil {
		s.t.Fatalf("etcdtest: %v: %v", signal, err)
	}
}

// finish ends the server, and shows what it logged when the test failed.
func (s *Server) finish() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
	if s.t.Failed() {
		s.t.Logf("etcd at %s logged:\n%s", s.addr, s.log.String())
	}
}

// build returns the path of the server.
func build(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), buildTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(root(t), "scripts", "etcd"))
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("etcdtest: scripts/etcd: %v\n%s", err, log.String())
	}
	return strings.TrimSpace(string(out))
}

// root returns the folder of the repository: tests run in the folder of their package.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "tools", "etcd", "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("etcdtest: no folder above has tools/etcd")
		}
	}
}

func port(t testing.TB) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(redistest.ReservePort(t)))
}

// folder is in memory where the system has one: etcd writes before it answers.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "etcdtest-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// transcript is what a server has written.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends b. It never fails.
func (w *transcript) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

// String returns all that was written.
func (w *transcript) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}
