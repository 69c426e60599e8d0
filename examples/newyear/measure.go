package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
)

func modeNames() []string { return slices.Sorted(maps.Keys(modes)) }

// result is what came of a run.
type result struct {
	settings
	figures
	Processed, Refused int64
	CPU                time.Duration // of all consumers, from their start to their end
	Wall               time.Duration // for which they ran
	DelayMean          time.Duration
	DelayP99           time.Duration
}

// measure runs the whole campaign once: configuration service, provider and consumers. It
// calls tick after each second that is measured.
func (s settings) measure(ctx context.Context, tick func(second int, n int64)) (result, error) {
	cfg := newConfigService(config{Total: fmt.Sprintf("%d/s", s.Limit), Instances: s.Processes})
	prov := newProvider(s.Processes)
	mux := http.NewServeMux()
	mux.Handle("/config", cfg)
	mux.Handle("/", prov)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return result{}, err
	}
	server := &http.Server{Handler: mux}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }() // ends with Close below
	defer func() {
		_ = server.Close() // whoever still watches is cut off
		<-served           // that it was closed
	}()

	clock, begin := newHostClock(), time.Now()
	fleet, err := s.start("http://" + listener.Addr().String())
	if err != nil {
		return result{}, errors.Join(err, fleet.stop())
	}
	from, err := s.conduct(ctx, clock, cfg, prov, fleet, tick)
	if stopErr := fleet.stop(); err == nil {
		err = stopErr
	}
	if err != nil {
		return result{}, err
	}
	res := result{settings: s, figures: measureSeries(prov.series(), from, time.Duration(s.Seconds)*time.Second), Wall: time.Since(begin)}
	delays := map[int64]int64{}
	for _, e := range prov.ended {
		res.Processed += e.Processed
		res.Refused += e.Refused
		res.CPU += e.CPU
		for d, n := range e.Delays {
			delays[d] += n
		}
	}
	res.DelayMean, res.DelayP99 = delaysOf(delays)
	return res, nil
}

// conduct measures from the first second of the clock that begins with all consumers at
// work, and changes what is to be changed in the middle. It returns when it began.
func (s settings) conduct(ctx context.Context, clock hostClock, cfg *configService, prov *provider, fleet *fleet, tick func(int, int64)) (from int64, err error) {
	select {
	case <-prov.ready:
	case err := <-fleet.died:
		return 0, err
	case <-time.After(2 * time.Minute):
		return 0, errors.New("the consumers did not start within two minutes")
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	const second = int64(time.Second)
	from = (clock.now()/second + 2) * second
	middle := from + int64(s.Seconds)*second/2
	if middle%second != 0 {
		middle += second / 2
	}
	sleep := func(until int64) error {
		select {
		case <-time.After(time.Duration(until - clock.now())):
			return nil
		case err := <-fleet.died:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	changed := false
	for i := range s.Seconds {
		// A change is announced half a second before it begins, or begins when it
		// is heard of.
		if announce := middle - second/2; !changed && from+int64(i+1)*second > announce {
			if err := sleep(announce); err != nil {
				return 0, err
			}
			if s.AtOnce {
				err = sleep(middle)
			}
			if err == nil {
				err = s.change(cfg, time.Unix(0, middle))
			}
			if err != nil {
				return 0, err
			}
			changed = true
		}
		// What is sent is told within half a second.
		if err := sleep(from + int64(i+1)*second + 700*int64(time.Millisecond)); err != nil {
			return 0, err
		}
		tick(i, prov.count(from+int64(i)*second, from+int64(i+1)*second))
	}
	return from, nil
}

// change does what the settings ask for in the middle.
func (s settings) change(cfg *configService, middle time.Time) error {
	if s.Step == 0 && s.NewLimit == 0 && s.NewProcesses == 0 {
		return nil
	}
	return cfg.change(func(c *config) {
		if c.Step = s.Step; s.NewLimit > 0 {
			c.Total = fmt.Sprintf("%d/s", s.NewLimit)
		}
		if s.NewProcesses > 0 {
			c.Instances = s.NewProcesses
		}
		if !s.AtOnce {
			c.From = middle
		}
	})
}

// fleet are the consumers that were started.
type fleet struct {
	members []*member
	died    chan error // one that ended before it was told to
	wg      sync.WaitGroup
}

type member struct {
	cmd   *exec.Cmd
	leash io.WriteCloser
}

// start starts the consumers: this program again, each with a pipe that ends when it is to
// end, or when this process does.
func (s settings) start(base string) (*fleet, error) {
	f := &fleet{died: make(chan error, s.Processes)}
	self, err := os.Executable()
	if err != nil {
		return f, err
	}
	grain := int64(1)
	if max(s.Limit, s.NewLimit) > 20_000 {
		grain = int64(100 * time.Microsecond)
	}
	for i := range s.Processes {
		cmd := exec.Command(self, consumeArg)
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
		cmd.Stderr = os.Stderr
		leash, err := cmd.StdinPipe()
		if err != nil {
			return f, err
		}
		if err := cmd.Start(); err != nil {
			return f, err
		}
		f.members = append(f.members, &member{cmd, leash})
		f.wg.Go(func() {
			err := cmd.Wait()
			f.died <- fmt.Errorf("consumer %d has ended: %w", i, err)
		})
		if err := json.NewEncoder(leash).Encode(job{settings: s, Index: i, Base: base, Grain: grain}); err != nil {
			return f, err
		}
	}
	return f, nil
}

// stop ends all consumers and waits for them.
func (f *fleet) stop() error {
	for _, m := range f.members {
		_ = m.leash.Close() // it may have ended
	}
	ended := make(chan struct{})
	go func() { // ends with the last process, which is killed if need be
		f.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		for _, m := range f.members {
			_ = m.cmd.Process.Kill()
		}
		<-ended
	}
	for _, m := range f.members {
		if !m.cmd.ProcessState.Success() {
			return fmt.Errorf("a consumer failed: %v", m.cmd.ProcessState)
		}
	}
	return nil
}

func delaysOf(histogram map[int64]int64) (mean, p99 time.Duration) {
	const unit = 100 * time.Microsecond
	all, sum := int64(0), int64(0)
	for d, n := range histogram {
		all += n
		sum += d * n
	}
	if all == 0 {
		return 0, 0
	}
	before := int64(0)
	for _, d := range slices.Sorted(maps.Keys(histogram)) {
		if before += histogram[d]; before*100 >= all*99 {
			p99 = time.Duration(d) * unit
			break
		}
	}
	return time.Duration(sum * int64(unit) / all), p99
}

// write says in words what came of it.
func (r result) write(out io.Writer) {
	seconds := float64(r.Seconds)
	wanted := float64(r.Limit) * seconds
	if r.NewLimit > 0 {
		wanted = (float64(r.Limit) + float64(r.NewLimit)) / 2 * seconds
	}
	fmt.Fprintf(out, "\nthe provider got %d in %d s: %.4f of the limit\n", r.Count, r.Seconds, float64(r.Count)/wanted)
	fmt.Fprintf(out, "most in any second %d (%.4f of the limit), in a second of the clock %d (%.4f)\n",
		r.WorstSliding, float64(r.WorstSliding)/float64(r.Limit), r.WorstAligned, float64(r.WorstAligned)/float64(r.Limit))
	if r.NewLimit > 0 || r.NewProcesses > 0 {
		fmt.Fprintf(out, "most in any second before the change %d, after it %d\n", r.WorstSecondOld, r.WorstSecondNew)
	}
	fmt.Fprintf(out, "tenths of a second:")
	for _, share := range r.Tenths {
		fmt.Fprintf(out, " %4.1f %%", 100*share)
	}
	fmt.Fprintf(out, "\nprocessed %d in all, turned away %d\n", r.Processed, r.Refused)
	if r.DelayP99 > 0 {
		fmt.Fprintf(out, "from acceptance to processing: mean %v, 99 of 100 within %v\n", r.DelayMean, r.DelayP99)
	}
	fmt.Fprintf(out, "processor time of the consumers %v in %v, %v for a million permits\n", r.CPU.Round(time.Millisecond),
		r.Wall.Round(time.Millisecond), time.Duration(float64(r.CPU)*1e6/float64(max(1, r.Processed))).Round(time.Millisecond))
}
