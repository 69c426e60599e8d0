package fleet

import (
	"context"
	"encoding/gob"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/limit"
)

// WorkerArg, as the first argument, makes a program one process of a fleet: it should
// call [Work] and do nothing else.
const WorkerArg = "fleet-worker"

// lifetime bounds a process whose parent has gone without closing its input.
const lifetime = 10 * time.Minute

// worker is one process of a fleet.
type worker struct {
	limiters map[string]*client.Limiter
	work     sync.WaitGroup

	mu      sync.Mutex
	records map[string]*Record
}

// Work is what a process of a fleet does, from the arguments after [WorkerArg] and the
// orders that come in, until these end.
func Work(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 5 {
		return fmt.Errorf("fleet: %d arguments, want a number, an address, limits, how long to wait for an answer and a weight: the program is started by a fleet only", len(args))
	}
	number, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	ask, err := time.ParseDuration(args[3])
	if err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	weight, err := strconv.ParseUint(args[4], 10, 32)
	if err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), lifetime)
	defer cancel()
	c, err := client.New(client.Options{
		Address: "passthrough:///" + args[1], Instance: fmt.Sprintf("process-%d-%d", number, os.Getpid()),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	w := &worker{limiters: map[string]*client.Limiter{}}
	w.forget()
	for name := range strings.SplitSeq(args[2], ",") {
		if w.limiters[name], err = c.Limit(name, client.LimitOptions{Ask: ask, Weight: uint32(weight)}); err != nil {
			return err
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	err = w.obey(ctx, number, c, gob.NewDecoder(in), gob.NewEncoder(out))
	cancel()
	w.work.Wait()
	if failed := <-ended; err == nil {
		err = failed
	}
	return err
}

// obey does as ordered until the orders end.
func (w *worker) obey(ctx context.Context, number int, c *client.Client, in *gob.Decoder, out *gob.Encoder) error {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !c.Connected() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("fleet: process %d was never connected: %w", number, ctx.Err())
		case <-look.C:
		}
	}
	if err := out.Encode(answer{Connected: true}); err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	for {
		var o order
		if err := in.Decode(&o); err != nil || len(o.Loads) == 0 {
			return nil // the end of the orders
		}
		loops := map[string][]Load{}
		for _, l := range o.Loads {
			limiter := w.limiters[l.Limit]
			if limiter == nil {
				return fmt.Errorf("fleet: process %d has no limit %q", number, l.Limit)
			}
			if l.Watch > 0 {
				w.work.Go(func() { w.watch(ctx, limiter, l) })
			}
			if l.Loop {
				loops[l.Limit] = append(loops[l.Limit], l)
				continue
			}
			w.work.Go(func() { w.load(ctx, limiter, l) })
		}
		for name, loads := range loops {
			w.work.Go(func() { w.loop(ctx, w.limiters[name], loads) })
		}
		w.work.Wait()
		log := &Log{Instance: number, Limits: w.forget()}
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			return fmt.Errorf("fleet: processor time of process %d: %w", number, err)
		}
		log.CPU = time.Duration(u.Utime.Nano() + u.Stime.Nano())
		if err := out.Encode(answer{Log: log}); err != nil {
			return fmt.Errorf("fleet: %w", err)
		}
	}
}

// forget begins new records and returns the former.
func (w *worker) forget() map[string]*Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.records
	w.records = map[string]*Record{}
	return was
}

// sleep waits until t, and reports false when ctx ended first.
func sleep(ctx context.Context, timer *time.Timer, t int64) bool {
	d := Until(t)
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer.Reset(d)
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// load makes the requests of l.
func (w *worker) load(ctx context.Context, limiter *client.Limiter, l Load) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := 0; ; i++ {
		due := l.From + int64((float64(i)+l.Phase)*float64(time.Second)/l.PerSecond)
		if due >= l.To || !sleep(ctx, timer, due) {
			return
		}
		t := now()
		if l.Take {
			w.work.Go(func() {
				d, err := limiter.Take(ctx, limit.Request{Cost: 1})
				w.note(l.Limit, due, t, d.Allowed, err)
			})
			continue
		}
		w.note(l.Limit, due, t, limiter.Allow(), nil)
	}
}

// loop makes the requests of loads, one at a time. What it waits for a permit moves all
// later requests; what the machine is late by does not, up to the pause between two, so
// that a loop that never waits asks as often as it is told to, and never twice at once.
func (w *worker) loop(ctx context.Context, limiter *client.Limiter, loads []Load) {
	// Not by a deadline: a Wait that knows of one gives up before it.
	wait, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	defer time.AfterFunc(Until(loads[len(loads)-1].To), cancel).Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	left, at := loads[0].Phase, loads[0].From // parts of a request until the next, from a time on
	for i := 0; i < len(loads); {
		l := loads[i]
		at = max(at, l.From)
		due := at + int64(left*float64(time.Second)/l.PerSecond)
		if due >= l.To {
			left = max(0, left-max(0, l.PerSecond*time.Duration(l.To-at).Seconds()))
			at = max(at, l.To)
			i++
			continue
		}
		if !sleep(ctx, timer, due) {
			return
		}
		t := now()
		err := limiter.Wait(wait)
		if wait.Err() != nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.record(l.Limit).Waiting = t
			return
		}
		w.note(l.Limit, due, t, err == nil, err)
		answered := now()
		left, at = 1, max(due+answered-t, answered-int64(float64(time.Second)/l.PerSecond))
	}
}

// watch records the lease while l lasts.
func (w *worker) watch(ctx context.Context, limiter *client.Limiter, l Load) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for at := l.From; at < l.To && sleep(ctx, timer, at); at += int64(l.Watch) {
		lease := limiter.Lease()
		if lease.Expired {
			lease.Rate = 0
		}
		w.mu.Lock()
		r := w.record(l.Limit)
		r.Held = append(r.Held, Held{now(), lease.Rate})
		w.mu.Unlock()
	}
}

// record returns that of a limit. The caller holds mu.
func (w *worker) record(name string) *Record {
	r := w.records[name]
	if r == nil {
		r = &Record{Refused: map[int64]int64{}}
		w.records[name] = r
	}
	return r
}

// note records what became of a request that was made at asked and due at due.
func (w *worker) note(name string, due, asked int64, admitted bool, err error) {
	answered := now()
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.record(name)
	r.Late = max(r.Late, time.Duration(asked-due))
	if asked-due > int64(Patience) {
		r.Stalls = append(r.Stalls, Stall{due, asked})
	}
	switch {
	case err != nil:
		if r.Failed++; r.Error == "" {
			r.Error = err.Error()
		}
	case admitted:
		r.Admitted = append(r.Admitted, Admission{asked, answered})
	default:
		r.Refused[answered/int64(Bin)]++
	}
}
