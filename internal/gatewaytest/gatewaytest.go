//go:build linux

// Package gatewaytest runs real gateways, with the configurations that are published in
// examples/gateways, in front of an application and beside a stint service. It is for tests.
package gatewaytest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
)

// Patience bounds every wait for something that is sure to come, on a machine
// that is busy with other things.
const Patience = 30 * time.Second

// Process is a program that runs until its test ends or until it is killed.
type Process struct {
	name string
	cmd  *exec.Cmd
	out  safeBuffer
	done chan struct{} // closed when the program has ended
}

// Start runs a program. When the test ends it is told to by the signal end;
// what it wrote is shown when the test failed.
func Start(t testing.TB, end syscall.Signal, name string, args ...string) *Process {
	t.Helper()
	p := &Process{name: name, cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	// Caddy and stint save their state below these.
	state := t.TempDir()
	p.cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+state, "XDG_DATA_HOME="+state, "XDG_STATE_HOME="+state, "STATE_DIRECTORY=")
	// Should the tests die without its cleanup, its children go as well.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: end}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v (./scripts/test installs what is missing)", name, err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(end)
		select {
		case <-p.done:
		case <-time.After(Patience):
			t.Errorf("%s did not end on %v", name, end)
			_ = p.cmd.Process.Kill()
			<-p.done
		}
		if t.Failed() {
			t.Logf("output of %s:\n%s", name, p.out.String())
		}
	})
	return p
}

func (p *Process) Signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("signal %v to %s: %v", s, p.name, err)
	}
}

// Hang stops the process where it is, as if it were stuck, and returns when every
// thread of it has stopped.
func (p *Process) Hang(t testing.TB) {
	t.Helper()
	p.Signal(t, syscall.SIGSTOP)
	Eventually(t, p.name+" to stop", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		if err != nil || len(threads) == 0 {
			t.Fatalf("no threads of %s: %v", p.name, err)
		}
		for _, name := range threads {
			// "pid (name) state ...": the name may hold anything.
			stat, err := os.ReadFile(name)
			end := bytes.LastIndex(stat, []byte(") "))
			if err != nil || end < 0 || stat[end+2] != 'T' {
				return false
			}
		}
		return true
	})
}

// Kill ends the process without a chance to clean up.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	p.Signal(t, syscall.SIGKILL)
	<-p.done
}

// Await waits until something listens on addr.
func (p *Process) Await(t testing.TB, addr string) {
	t.Helper()
	Eventually(t, p.name+" listening on "+addr, func() bool {
		select {
		case <-p.done:
			t.Fatalf("%s ended early:\n%s", p.name, p.out.String())
		default:
		}
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
}

// Eventually asks again and again until ok, and fails the test when Patience ends.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waited %v in vain for %s", Patience, what)
		}
	}
}

// FreeAddrs returns n loopback addresses that nothing listens on, and no other test.
func FreeAddrs(t testing.TB, n int) []string {
	t.Helper()
	addrs := make([]string, n)
	for i := range addrs {
		addrs[i] = fmt.Sprint("127.0.0.1:", redistest.ReservePort(t))
	}
	return addrs
}

// Service is a running stint.
type Service struct {
	*Process
	HTTP, GRPC, Admin, SPOE string // addresses
	// Timeout takes the place of the published 100ms in the configuration of gateways that ask it,
	// since a busy machine does not always answer in time.
	Timeout string
	command []string
}

// StartService starts binary with a limits file and further flags of serve, and waits until it
// listens. AwaitReady waits until it is ready.
func StartService(t testing.TB, binary, config string, flags ...string) *Service {
	t.Helper()
	a := FreeAddrs(t, 4)
	s := &Service{HTTP: a[0], GRPC: a[1], Admin: a[2], SPOE: a[3], Timeout: "100ms"}
	s.command = append([]string{
		binary, "serve",
		"--http", s.HTTP, "--grpc", s.GRPC, "--admin", s.Admin, "--spoe", s.SPOE, "--config", config,
	}, flags...)
	s.start(t)
	return s
}

func (s *Service) start(t testing.TB) {
	t.Helper()
	s.Process = Start(t, syscall.SIGKILL, s.command[0], s.command[1:]...)
	s.Await(t, s.HTTP)
	s.Await(t, s.GRPC)
	s.Await(t, s.SPOE)
}

// AwaitEnd waits until the process has ended.
func (p *Process) AwaitEnd(t testing.TB) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(Patience):
		t.Errorf("%s has not ended after %v", p.name, Patience)
	}
}

// Restart kills the service and starts it again. Without the flag --state-dir it has nothing of what it
// kept.
func (s *Service) Restart(t testing.TB) {
	t.Helper()
	if s.Running() {
		s.Kill(t)
	}
	s.start(t)
}

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// StopAndStart ends the service by SIGTERM and starts it again.
func (s *Service) StopAndStart(t testing.TB) {
	t.Helper()
	s.Signal(t, syscall.SIGTERM)
	<-s.done
	s.start(t)
}

// AwaitReady waits until /readyz at an admin address says that it is ready.
func AwaitReady(t testing.TB, admin string) {
	t.Helper()
	Eventually(t, admin+" to be ready", func() bool {
		res, err := http.Get("http://" + admin + "/readyz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// Render copies a folder of published configuration into a temporary one and
// puts the test's addresses and paths in the place of the published ones, so that
// what is tested is what is published. Each must occur.
func Render(t testing.TB, folder string, replace map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files, err := filepath.Glob(filepath.Join(folder, "[^R]*")) // all but README.md
	if err != nil || len(files) == 0 {
		t.Fatalf("no configuration in %s: %v", folder, err)
	}
	seen := map[string]bool{}
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var pairs []string
		for from, to := range replace {
			seen[from] = seen[from] || bytes.Contains(src, []byte(from))
			pairs = append(pairs, from, to)
		}
		text := strings.NewReplacer(pairs...).Replace(string(src))
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for from := range replace {
		if !seen[from] {
			t.Fatalf("%s occurs in no file of %s", from, folder)
		}
	}
	return dir
}

// Application is what the gateways protect. It counts what reaches it.
type Application struct {
	Addr string
	// OnRequest, if not nil, is called with each request before it is answered. Set it before the
	// first request.
	OnRequest func(*http.Request)

	mu   sync.Mutex
	hits map[string]int // by path
}

// StartApplication serves until the test ends.
func StartApplication(t testing.TB) *Application {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	app := &Application{Addr: l.Addr().String(), hits: map[string]int{}}
	srv := &http.Server{Handler: app, ReadHeaderTimeout: Patience}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l)
	}()
	t.Cleanup(func() {
		_ = srv.Close()
		<-done
	})
	return app
}

// ServeHTTP says in the answer what came. It copies X-RateLimit-Degraded of the request to
// X-Seen-Degraded. At /json it answers with the body that came, as JSON.
func (a *Application) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if a.OnRequest != nil {
		a.OnRequest(r)
	}
	a.mu.Lock()
	a.hits[r.URL.Path]++
	a.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	switch r.URL.Path {
	case "/forbidden":
		w.WriteHeader(http.StatusForbidden)
	case "/json":
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
		return
	case "/abort":
		panic(http.ErrAbortHandler) // closes the connection without an answer
	}
	w.Header()["X-Seen-Degraded"] = r.Header.Values("X-RateLimit-Degraded")
	fmt.Fprintf(w, "application: %s %s with %d bytes", r.Method, r.URL.RequestURI(), len(body))
}

// Count returns how many requests for path have come.
func (a *Application) Count(path string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hits[path]
}

// safeBuffer collects what a process writes.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Reload has the service load its configuration again, and waits for it.
func (s *Service) Reload(t testing.TB) {
	t.Helper()
	res, err := http.Post("http://"+s.Admin+"/admin/reload", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
		t.Fatalf("reloading: %d %s", res.StatusCode, text)
	}
}
