package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/server"
)

// result is what came of a run.
type result struct {
	settings
	Accepted, Lost, Repeated int
	InFlight                 int     // calls of consumers in flight when they were killed
	Peak                     int     // calls of all consumers in flight at a time
	Use                      float64 // of the limit, while measured
	Needed                   float64 // burst
}

func (r result) String() string {
	return fmt.Sprintf("%d consumers, %d/s, %v for a call, %v, %d killed: %.4f of the limit; all calls fit a burst of %.1f, at most %d; %d accepted, %d lost, %d repeated, %d in flight when killed, %d at most",
		r.Consumers, r.Limit, r.Latency, r.For, r.Kills, r.Use, r.Needed, r.burst(), r.Accepted, r.Lost, r.Repeated, r.InFlight, r.Peak)
}

// check returns what was promised and not kept.
func (r result) check() error {
	var errs []error
	if r.Use < 0.98 {
		errs = append(errs, fmt.Errorf("%.4f of the limit was used, want 0.98", r.Use))
	}
	return errors.Join(append(errs, r.checkCounts())...)
}

// checkCounts is check without what a busy machine changes.
func (r result) checkCounts() error {
	var errs []error
	if r.Needed > float64(r.burst()) {
		errs = append(errs, fmt.Errorf("over the limit: calls need a burst of %.1f, want %d", r.Needed, r.burst()))
	}
	if r.Lost > 0 {
		errs = append(errs, fmt.Errorf("%d messages that were accepted never came", r.Lost))
	}
	if most := r.Kills * inFlight; r.Repeated > most {
		errs = append(errs, fmt.Errorf("%d messages came again, want at most the %d in flight", r.Repeated, most))
	}
	return errors.Join(errs...)
}

// burst is that of the limit.
func (s settings) burst() int { return max(10, s.Limit/10) }

// run does all of it: broker, coordinator, provider and users are in this process, consumers are processes of their own.
func (s settings) run(ctx context.Context) (r result, err error) {
	dir, err := os.MkdirTemp("", "onedari")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	b, err := newBroker(ctx, filepath.Join(dir, "broker"))
	if err != nil {
		return r, err
	}
	defer b.close()
	lent := time.Now()
	coordinator, err := s.coordinator(ctx, dir, &wg)
	if err != nil {
		return r, err
	}
	p := newProvider(s.Latency)
	intake, err := serve(ctx, &wg, b)
	if err != nil {
		return r, err
	}
	calls, err := serve(ctx, &wg, p)
	if err != nil {
		return r, err
	}

	u := &users{url: intake}
	defer u.wait()
	backlog := max(s.Limit, 4*inLine*s.Consumers) // so that no consumer ever has nothing to do
	u.upTo(ctx, backlog)
	fleet := make([]*process, s.Consumers)
	defer func() {
		for _, c := range fleet {
			err = errors.Join(err, c.end())
		}
	}()
	for i := range fleet {
		if fleet[i], err = startConsumer(job{fmt.Sprintf("consumer-%d", i), b.server.ClientURL(), coordinator, calls}); err != nil {
			return r, err
		}
	}
	p.await(ctx.Done(), func() bool { return len(p.consumers) == s.Consumers })

	r.settings = s
	from, killed := time.Now(), 0
	for t := time.Duration(0); t < s.For && ctx.Err() == nil; t = time.Since(from) {
		u.upTo(ctx, backlog+int(t.Seconds()*s.Demand*float64(s.Limit)))
		if killed < s.Kills && t > s.For*time.Duration(killed+1)/time.Duration(s.Kills+1) {
			one := killed % s.Consumers
			open := p.inFlight(fleet[one].Name)
			if fleet[one], err = fleet[one].kill(); err != nil {
				return r, err
			}
			r.InFlight += open
			killed++
		}
		pause(ctx, 20*time.Millisecond)
	}
	to := time.Now()
	u.wait()
	rest := time.Duration(u.sent-p.count()) * time.Second / time.Duration(s.Limit)
	late, cancel := context.WithTimeout(ctx, time.Minute+2*rest)
	defer cancel()
	p.await(late.Done(), func() bool { return len(p.got) >= int(u.accepted.Load()) })

	p.mu.Lock()
	defer p.mu.Unlock()
	r.Accepted = int(u.accepted.Load())
	r.Lost, r.Peak = r.Accepted-len(p.got), p.peak
	for _, n := range p.got {
		r.Repeated += n - 1
	}
	within := 0
	for _, at := range p.admitted {
		if at >= from.UnixNano() && at < to.UnixNano() {
			within++
		}
	}
	r.Use = float64(within) / to.Sub(from).Seconds() / float64(s.Limit)
	// At first the bucket is full, and what was admitted since it was there has a bound. Then it is empty.
	r.Needed = max(neededBurst(p.admitted, from, s.Limit), float64(len(p.admitted))-p.last().Sub(lent).Seconds()*float64(s.Limit))
	return r, ctx.Err()
}

// coordinator starts the service that lends the limit, and returns the address for consumers.
func (s settings) coordinator(ctx context.Context, dir string, wg *sync.WaitGroup) (string, error) {
	limits := filepath.Join(dir, "limits.yaml")
	text := fmt.Sprintf("limits:\n  - {name: %s, rate: %d/s, burst: %d, sharing: leased}\n", topic, s.Limit, s.burst())
	if err := os.WriteFile(limits, []byte(text), 0o600); err != nil {
		return "", err
	}
	const free = "127.0.0.1:0"
	c, err := server.New(server.Options{
		HTTPAddr: free, GRPCAddr: free, AdminAddr: free, ConfigPaths: []string{limits}, StateDir: filepath.Join(dir, "state"), FirstStart: true,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	wg.Go(func() { ended <- c.Run(ctx) })
	select {
	case <-c.Ready():
		return c.Addrs().GRPC.String(), nil
	case err := <-ended:
		return "", err
	}
}

// serve serves a handler until ctx ends, and returns its URL.
func serve(ctx context.Context, wg *sync.WaitGroup, h http.Handler) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	wg.Go(func() { _ = server.Serve(l) }) // returns when it is closed
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return "http://" + l.Addr().String(), nil
}

// users send requests until each is accepted.
type users struct {
	url      string
	all      sync.WaitGroup
	sent     int
	accepted atomic.Int64
	busy     chan struct{}
}

// upTo sends requests until there are n.
func (u *users) upTo(ctx context.Context, n int) {
	if u.busy == nil {
		u.busy = make(chan struct{}, 32)
	}
	for ; u.sent < n && ctx.Err() == nil; u.sent++ {
		id := strconv.Itoa(u.sent)
		u.busy <- struct{}{}
		u.all.Go(func() {
			defer func() { <-u.busy }()
			for ctx.Err() == nil {
				if accept(ctx, u.url, id) {
					u.accepted.Add(1)
					return
				}
			}
		})
	}
}

func (u *users) wait() { u.all.Wait() }

func accept(ctx context.Context, url, id string) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(id))
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusAccepted
}

// process is a consumer that runs.
type process struct {
	job
	cmd *exec.Cmd
	in  io.Closer
}

func startConsumer(j job) (*process, error) {
	cmd := exec.Command(os.Args[0], consumeArg)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{j, cmd, in}
	if err := json.NewEncoder(in).Encode(j); err != nil {
		return p, errors.Join(err, p.end())
	}
	return p, nil
}

// kill kills a consumer as kill -9 does, and returns one that is started in its place.
func (p *process) kill() (*process, error) {
	if err := p.cmd.Process.Kill(); err != nil {
		return p, err
	}
	_ = p.cmd.Wait() // that it was killed
	return startConsumer(p.job)
}

// end ends a consumer and waits for it.
func (p *process) end() error {
	if p == nil || p.cmd.ProcessState != nil {
		return nil
	}
	_ = p.in.Close()
	return p.cmd.Wait()
}

// pause waits, and reports whether ctx has not ended before.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
