package redistest

import (
	"bytes"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is one run of redis-server.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// launch runs redis-server with args in dir and returns at once.
func launch(t testing.TB, dir string, log *transcript, args []string) *process {
	t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatal("redis-server is missing: apt-get install redis-server")
	}
	p := &process{cmd: exec.Command(binary, args...), done: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = diesWithParent()
	// A child that saves or replicates holds the output open for a while longer
	// than its parent lives.
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("redistest: starting %s: %v", binary, err)
	}
	go func() { // ends with the process, which stop waits for
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	return p
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// ended reports whether the process has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop ends the process, frozen or not, and waits for its end.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.done
}

// fastDir returns a folder in memory where the system has one, else in the test's
// folder. Nodes of a cluster and sentinels write what they learn to disk before
// they go on: a disk that takes a second for it looks like their death.
func fastDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "redistest-")
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
