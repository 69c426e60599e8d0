// Package process builds the programs that are compared, starts them, and reads
// the processor time they use. It stops what it started.
package process

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Build compiles pkg of the module in dir into the file bin.
func Build(dir, pkg, bin string) error {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return fmt.Errorf("process: %w", err)
	}
	cmd := exec.Command("go", "build", "-o", bin, pkg)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("process: go build %s in %s: %w\n%s", pkg, dir, err, out)
	}
	return nil
}

// GRPCVersion returns the version of grpc-go that was built into bin.
func GRPCVersion(bin string) (string, error) { return Version(bin, "google.golang.org/grpc") }

// Version returns the version of a module that bin was built from or with.
func Version(bin, module string) (string, error) {
	info, err := buildinfo.ReadFile(bin)
	if err != nil {
		return "", fmt.Errorf("process: %w", err)
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module {
			return m.Version, nil
		}
	}
	return "", fmt.Errorf("process: %s is built without %s", bin, module)
}

// FreeAddr returns an address on the loopback that nobody listens on.
func FreeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("process: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// Process is a server that was started and must be stopped.
type Process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed once the process has ended
	out   output
}

// output keeps what a process prints.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// Start starts bin with args, in this process's environment and env, which are
// NAME=value.
func Start(env []string, bin string, args ...string) (*Process, error) {
	p := &Process{cmd: exec.Command(bin, args...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("process: %w", err)
	}
	go func() { // ends with the process, which Stop waits for
		defer close(p.ended)
		_ = p.cmd.Wait() // a server that was told to stop may say how it ended
	}()
	return p, nil
}

// Ended is closed once the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// String is the program's path and what it has printed so far.
func (p *Process) String() string { return p.cmd.Path + ":\n" + p.out.String() }

// Stop asks the process to end and kills it when it has not after 5 seconds.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-p.ended:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// tick is the unit of /proc/PID/stat: Linux tells all programs 100 Hz.
const tick = time.Second / 100

// CPU returns the processor time that the process has used, to 10 ms.
func (p *Process) CPU() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/stat")
	if err != nil {
		return 0, fmt.Errorf("process: %w", err)
	}
	return readCPU(string(stat))
}

// readCPU reads utime and stime, the 14th and 15th field of a stat line. The
// second field is the program's name in brackets and may contain anything.
func readCPU(stat string) (time.Duration, error) {
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(f) < 13 {
		return 0, fmt.Errorf("process: stat line %q has too few fields", stat)
	}
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, fmt.Errorf("process: stat line %q: %w", stat, err)
	}
	return time.Duration(user+system) * tick, nil
}
