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
	if len(args) != 4 {
		return fmt.Errorf("fleet: %d arguments, want a number, an address, limits and how long to wait for an answer: the program is started by a fleet only", len(args))
	}
	number, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	ask, err := time.ParseDuration(args[3])
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
		if w.limiters[name], err = c.Limit(name, client.LimitOptions{Ask: ask}); err != nil {
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
		for _, l := range o.Loads {
			limiter := w.limiters[l.Limit]
			if limiter == nil {
				return fmt.Errorf("fleet: process %d has no limit %q", number, l.Limit)
			}
			w.work.Go(func() { w.load(ctx, limiter, l) })
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

// load makes the requests of l.
func (w *worker) load(ctx context.Context, limiter *client.Limiter, l Load) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := 0; ; i++ {
		due := l.From + int64((float64(i)+l.Phase)*float64(time.Second)/l.PerSecond)
		if due >= l.To {
			return
		}
		t := now()
		if t < due {
			timer.Reset(time.Duration(due - t))
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
			t = now()
		}
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

// note records what became of a request that was made at asked and due at due.
func (w *worker) note(name string, due, asked int64, admitted bool, err error) {
	answered := now()
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.records[name]
	if r == nil {
		r = &Record{Refused: map[int64]int64{}}
		w.records[name] = r
	}
	r.Late = max(r.Late, time.Duration(asked-due))
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
