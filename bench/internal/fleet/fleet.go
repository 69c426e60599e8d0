// Package fleet starts many processes on this machine that share limits by leases of
// one coordinator, has them ask, and measures what they admitted.
//
// Each process is one of its own, with a client of stint's and a connection of its own,
// which leads through a proxy that delays it. They are told when to ask for what by the
// one clock of the host, and log every admission by it. Nothing leaves the loopback.
package fleet

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Options are the choices of a Fleet. All but Delay, Ask and Weights are required.
type Options struct {
	Processes int
	Target    string        // gRPC address of the coordinator
	Delay     time.Duration // one way, between each process and the coordinator
	Ask       time.Duration // how long a Take waits for an answer at most
	Limits    []string      // names, without commas
	Program   string        // that calls [Work] when [WorkerArg] is its first argument
	Weights   []uint32      // one for each process; nil = 1 for each
}

// Fleet is a number of processes that were started and must be stopped by Close. It is
// for use by one goroutine.
type Fleet struct {
	proxy     *Proxy
	processes []*member
}

// member is one process.
type member struct {
	cmd    *exec.Cmd
	orders io.WriteCloser
	send   *gob.Encoder
	heard  chan answer // closed when nothing more comes
	stderr bytes.Buffer
	ended  sync.WaitGroup
}

// Start starts the processes and returns once all are connected.
func Start(ctx context.Context, o Options) (f *Fleet, err error) {
	f = &Fleet{}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	if f.proxy, err = StartProxy(o.Target, o.Delay); err != nil {
		return f, err
	}
	for i := range o.Processes {
		weight := uint32(1)
		if o.Weights != nil {
			weight = o.Weights[i]
		}
		m, err := start(o.Program, WorkerArg, strconv.Itoa(i), f.proxy.Addr(), strings.Join(o.Limits, ","), o.Ask.String(), strconv.FormatUint(uint64(weight), 10))
		if err != nil {
			return f, fmt.Errorf("fleet: process %d: %w", i, err)
		}
		f.processes = append(f.processes, m)
	}
	for i := range f.processes {
		if _, err := f.hear(ctx, i); err != nil {
			return f, err
		}
	}
	return f, nil
}

func start(program string, args ...string) (*member, error) {
	m := &member{cmd: exec.Command(program, args...), heard: make(chan answer, 1)}
	// One of two cores each: so many processes with two threads that spin for work
	// would take the machine from each other.
	m.cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	m.cmd.Stderr = &m.stderr
	in, err := m.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	m.orders, m.send = in, gob.NewEncoder(in)
	m.ended.Go(func() {
		defer close(m.heard)
		decoder := gob.NewDecoder(out)
		for {
			var a answer
			if decoder.Decode(&a) != nil {
				break
			}
			m.heard <- a
		}
		_ = m.cmd.Wait() // why it ended is in stderr
	})
	return m, nil
}

// hear waits for the answer of a process.
func (f *Fleet) hear(ctx context.Context, i int) (answer, error) {
	m := f.processes[i]
	select {
	case a, ok := <-m.heard:
		if !ok {
			return a, fmt.Errorf("fleet: process %d has ended: %s", i, strings.TrimSpace(m.stderr.String()))
		}
		return a, nil
	case <-ctx.Done():
		return answer{}, fmt.Errorf("fleet: process %d does not answer: %w", i, ctx.Err())
	}
}

// Play gives each process the loads that are for it, and returns the logs once all
// loads have ended. A process without a load has no log.
func (f *Fleet) Play(ctx context.Context, loads func(process int) []Load) ([]*Log, error) {
	asked := make([]bool, len(f.processes))
	for i, m := range f.processes {
		l := loads(i)
		if asked[i] = len(l) > 0; !asked[i] {
			continue
		}
		if err := m.send.Encode(order{Loads: l}); err != nil {
			return nil, fmt.Errorf("fleet: process %d takes no orders: %w", i, err)
		}
	}
	var logs []*Log
	for i := range f.processes {
		if !asked[i] {
			continue
		}
		a, err := f.hear(ctx, i)
		if err != nil {
			return nil, err
		}
		if a.Log == nil {
			return nil, fmt.Errorf("fleet: process %d has no log", i)
		}
		for name, r := range a.Log.Limits {
			if r.Failed > 0 {
				return nil, fmt.Errorf("fleet: process %d: %d requests of limit %s failed, the first with: %s", i, r.Failed, name, r.Error)
			}
		}
		logs = append(logs, a.Log)
	}
	return logs, nil
}

// Bytes returns how much all processes have sent to the coordinator and got from it.
func (f *Fleet) Bytes() (up, down int64) { return f.proxy.Bytes() }

// patience is how long processes may take to give their leases back and end.
const patience = 5 * time.Second

// Close ends all processes, by force those that do not end by themselves, and returns
// what they had to say.
func (f *Fleet) Close() error {
	for _, m := range f.processes {
		_ = m.orders.Close() // it may have ended already
	}
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	all := make(chan struct{})
	go func() {
		defer close(all)
		for _, m := range f.processes {
			for range m.heard { // what nobody waits for any more
			}
			m.ended.Wait()
		}
	}()
	select {
	case <-all:
	case <-deadline.C:
		for _, m := range f.processes {
			_ = m.cmd.Process.Kill()
		}
		<-all
	}
	if f.proxy != nil {
		f.proxy.Close()
	}
	var said []error
	for i, m := range f.processes {
		if text := strings.TrimSpace(m.stderr.String()); text != "" {
			said = append(said, fmt.Errorf("fleet: process %d: %s", i, text))
		}
	}
	return errors.Join(said...)
}
