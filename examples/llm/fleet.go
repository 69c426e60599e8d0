package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// process is a program that this one has started. It is ended by kill, or by stop together with all others.
type process struct {
	cmd  *exec.Cmd
	addr string // http://host:port
	done chan struct{}
	in   io.Closer // its end ends our own programs, also when this one is killed
}

// startWithin bounds how long a program may take until it says where it listens.
const startWithin = 30 * time.Second

var listens = regexp.MustCompile(`^\s*http\s+(http://\S+)`)

// start runs a program and waits until it says its address, as "http http://host:port", and until it says ready.
func start(ctx context.Context, dir, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	dieWithParent(p.cmd)
	p.cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+dir, "STATE_DIRECTORY=")
	logs, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer logs.Close()
	p.cmd.Stderr = logs
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan string, 1)
	go func() {
		defer close(p.done)
		addr := ""
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if m := listens.FindStringSubmatch(lines.Text()); m != nil {
				addr = m[1]
			}
			if strings.HasPrefix(lines.Text(), "ready") {
				ready <- addr
			}
		}
		close(ready)
		_ = p.cmd.Wait()
	}()
	select {
	case p.addr = <-ready:
		if p.addr != "" {
			return p, nil
		}
		err = errors.New("it ended at once")
	case <-time.After(startWithin):
		err = fmt.Errorf("it is not ready after %v", startWithin)
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.kill()
	text, _ := os.ReadFile(filepath.Join(dir, "log"))
	return nil, fmt.Errorf("starting %s: %w\n%s", filepath.Base(name), err, text)
}

// kill ends the process as kill -9 does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// fleet is one way with its own stint, model and two gateways.
type fleet struct {
	way      string
	stint    *process
	model    *process
	gateways [2]*process
	all      []*process
}

// startFleet starts one. dir is a folder for what the processes keep.
func startFleet(ctx context.Context, dir, way string, s settings) (*fleet, error) {
	f := &fleet{way: way}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	limits := filepath.Join(dir, "limits.yaml")
	if err := os.WriteFile(limits, []byte(limitsFor(way, s.Scale)), 0o600); err != nil {
		return nil, err
	}
	begin := func(to **process, name string, args ...string) {
		if err != nil {
			return
		}
		if *to, err = start(ctx, dir, name, args...); err == nil {
			f.all = append(f.all, *to)
		}
	}
	begin(&f.stint, s.Stint, "serve", "--config", limits, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	begin(&f.model, self, modelArg, "-seed", strconv.FormatUint(s.Seed, 10), "-rate", fmt.Sprint(s.Rate))
	for i := range f.gateways {
		if err == nil {
			begin(&f.gateways[i], self, gatewayArg, "-way", way, "-stint", f.stint.addr, "-model", f.model.addr, "-ttl", s.TTL.String())
		}
	}
	if err != nil {
		f.stop()
		return nil, err
	}
	return f, nil
}

// stop ends all that is left.
func (f *fleet) stop() {
	for _, p := range f.all {
		p.kill()
	}
}

//go:embed limits.yaml
var limitsFile string

var counts = regexp.MustCompile(`rate: (\d+)/`)

// limitsFor is the file of limits for a way, with all counts scaled.
func limitsFor(way string, scale float64) string {
	text := counts.ReplaceAllStringFunc(limitsFile, func(m string) string {
		n, _ := strconv.ParseFloat(counts.FindStringSubmatch(m)[1], 64) // digits
		return fmt.Sprintf("rate: %.0f/", n*scale)
	})
	if way == byProbe {
		text = "defaults: {charge: after}\n" + text
	}
	return text
}

// serveUntil serves a handler, says where, and ends when in does: whoever has started it is gone.
func serveUntil(ctx context.Context, in io.Reader, out io.Writer, addr string, h http.Handler) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	var wait sync.WaitGroup
	defer wait.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wait.Go(func() {
		<-ctx.Done()
		_ = srv.Close()
	})
	go func() { // it ends with the process, which is about to
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	fmt.Fprintf(out, "http http://%s\nready\n", l.Addr())
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
