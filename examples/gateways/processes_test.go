//go:build linux

package gateways_test

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

// patience bounds every wait for something that is sure to come, on a machine
// that is busy with other things.
const patience = 30 * time.Second

// stintBinary and grpcurlBinary are built once, by TestMain. traefikBinary comes from a cache.
var stintBinary, grpcurlBinary, traefikBinary string

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "stint-gateways-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	stintBinary = filepath.Join(dir, "stint")
	grpcurlBinary = filepath.Join(dir, "grpcurl")
	for _, build := range []struct{ folder, output, pkg string }{
		{"../..", stintBinary, "./cmd/stint"},
		{"../../tools", grpcurlBinary, "github.com/fullstorydev/grpcurl/cmd/grpcurl"},
	} {
		cmd := exec.Command("go", "build", "-o", build.output, build.pkg)
		cmd.Dir = build.folder
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "building %s: %v\n%s", build.pkg, err, out)
			return 1
		}
	}
	traefik, err := exec.Command("../../scripts/traefik").Output()
	if err != nil {
		fmt.Fprintf(os.Stderr, "scripts/traefik: %v\n", err)
		return 1
	}
	traefikBinary = strings.TrimSpace(string(traefik))
	return m.Run()
}

// process is a program that runs until its test ends or until it is killed.
type process struct {
	name string
	cmd  *exec.Cmd
	out  safeBuffer
	done chan struct{} // closed when the program has ended
}

// start runs a program. When the test ends it is told to by the signal end;
// what it wrote is shown when the test failed.
func start(t *testing.T, end syscall.Signal, name string, args ...string) *process {
	t.Helper()
	p := &process{name: name, cmd: exec.Command(name, args...), done: make(chan struct{})}
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
		case <-time.After(patience):
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

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("signal %v to %s: %v", s, p.name, err)
	}
}

// hang stops the process where it is, as if it were stuck, and returns when every
// thread of it has stopped.
func (p *process) hang(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
	eventually(t, p.name+" to stop", func() bool {
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

// kill ends the process without a chance to clean up.
func (p *process) kill(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGKILL)
	<-p.done
}

// await waits until something listens on addr.
func (p *process) await(t *testing.T, addr string) {
	t.Helper()
	eventually(t, p.name+" listening on "+addr, func() bool {
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

// eventually asks again and again until ok, and fails the test when patience ends.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waited %v in vain for %s", patience, what)
		}
	}
}

// freeAddrs returns n loopback addresses that nothing listens on, and no other test.
func freeAddrs(t *testing.T, n int) []string {
	t.Helper()
	addrs := make([]string, n)
	for i := range addrs {
		addrs[i] = fmt.Sprint("127.0.0.1:", redistest.ReservePort(t))
	}
	return addrs
}

// service is a running stint.
type service struct {
	*process
	http, grpc, admin, spoe string
	timeout                 string // of gateways that ask it; as published unless a test sets it
}

func startStint(t *testing.T, config string) *service {
	t.Helper()
	a := freeAddrs(t, 4)
	s := &service{http: a[0], grpc: a[1], admin: a[2], spoe: a[3], timeout: "100ms"}
	s.process = start(t, syscall.SIGKILL, stintBinary, "serve",
		"--http", s.http, "--grpc", s.grpc, "--admin", s.admin, "--spoe", s.spoe, "--config", config)
	s.await(t, s.http)
	s.await(t, s.grpc)
	s.await(t, s.spoe)
	eventually(t, "stint to be ready", func() bool {
		res, err := http.Get("http://" + s.admin + "/readyz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	return s
}

// render copies a folder of published configuration into a temporary one and
// puts the test's addresses and paths in the place of the published ones, so that
// what is tested is what is published. Each must occur.
func render(t *testing.T, folder string, replace map[string]string) string {
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

// application is what the gateways protect. It counts what reaches it.
type application struct {
	addr string
	mu   sync.Mutex
	hits map[string]int // by path
}

func startApplication(t *testing.T) *application {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	app := &application{addr: l.Addr().String(), hits: map[string]int{}}
	srv := &http.Server{Handler: app, ReadHeaderTimeout: patience}
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

func (a *application) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.hits[r.URL.Path]++
	a.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	switch r.URL.Path {
	case "/forbidden":
		w.WriteHeader(http.StatusForbidden)
	case "/abort":
		panic(http.ErrAbortHandler) // closes the connection without an answer
	}
	w.Header()["X-Seen-Degraded"] = r.Header.Values("X-RateLimit-Degraded")
	fmt.Fprintf(w, "application: %s %s with %d bytes", r.Method, r.URL.RequestURI(), len(body))
}

func (a *application) count(path string) int {
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
