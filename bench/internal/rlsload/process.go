package rlsload

import (
	"bytes"
	"context"
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

	"google.golang.org/grpc"
)

// Build compiles pkg of the module in dir into the file bin.
func Build(dir, pkg, bin string) error {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return fmt.Errorf("rlsload: %w", err)
	}
	cmd := exec.Command("go", "build", "-o", bin, pkg)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("rlsload: go build %s in %s: %w\n%s", pkg, dir, err, out)
	}
	return nil
}

// GRPCVersion returns the version of grpc-go that was built into bin.
func GRPCVersion(bin string) (string, error) {
	info, err := buildinfo.ReadFile(bin)
	if err != nil {
		return "", fmt.Errorf("rlsload: %w", err)
	}
	for _, m := range info.Deps {
		if m.Path == "google.golang.org/grpc" {
			return m.Version, nil
		}
	}
	return "", fmt.Errorf("rlsload: %s is built without grpc-go", bin)
}

// FreeAddr returns an address on the loopback that nobody listens on.
func FreeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("rlsload: %w", err)
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

// Start starts bin.
func Start(bin string, args ...string) (*Process, error) {
	p := &Process{cmd: exec.Command(bin, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("rlsload: %w", err)
	}
	go func() { // ends with the process, which Stop waits for
		defer close(p.ended)
		_ = p.cmd.Wait() // a server that was told to stop may say how it ended
	}()
	return p, nil
}

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

// Ready waits until the server answers request, at most 10 seconds.
func (p *Process) Ready(ctx context.Context, c *Client, request []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("no answer within 10 s"))
	defer cancel()
	asked := make(chan error, 1)
	go func() { // ends at the latest with ctx, which is cancelled on return
		_, _, err := c.Ask(ctx, 0, request, nil, grpc.WaitForReady(true))
		asked <- err
	}()
	select {
	case err := <-asked:
		if err != nil {
			return fmt.Errorf("rlsload: %s: %w\n%s", p.cmd.Path, err, p.out.String())
		}
		return nil
	case <-p.ended:
		cancel()
		<-asked
		return fmt.Errorf("rlsload: %s has ended:\n%s", p.cmd.Path, p.out.String())
	}
}

// tick is the unit of /proc/PID/stat: Linux tells all programs 100 Hz.
const tick = time.Second / 100

// CPU returns the processor time that the process has used, to 10 ms.
func (p *Process) CPU() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/stat")
	if err != nil {
		return 0, fmt.Errorf("rlsload: %w", err)
	}
	return readCPU(string(stat))
}

// readCPU reads utime and stime, the 14th and 15th field of a stat line. The
// second field is the program's name in brackets and may contain anything.
func readCPU(stat string) (time.Duration, error) {
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(f) < 13 {
		return 0, fmt.Errorf("rlsload: stat line %q has too few fields", stat)
	}
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, fmt.Errorf("rlsload: stat line %q: %w", stat, err)
	}
	return time.Duration(user+system) * tick, nil
}
