package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/httpthrottle"
	"github.com/stint-io/stint/throttle"
)

// state is what the server says of itself.
type state struct {
	CPU   time.Duration // of the process
	Named time.Duration // age of the first culprit when it was named; 0 = none
	Stats throttle.Stats

	// Waited is the p99 of the time in the queue of requests that are expected to take less
	// than 5 ms, since the state was asked for last.
	Waited time.Duration
}

// serve is the server. It prints its address, and ends when its standard input does.
func serve(args []string) error {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	protection := flags.String("by", "none", "none, rate, concurrency or qps")
	bound := flags.Float64("bound", 0, "CPU-seconds per second, requests that run, or requests per second")
	cancels := flags.Bool("cancel", false, "cancel culprits")
	if err := flags.Parse(args); err != nil {
		return err
	}
	perMillisecond := calibrate()
	mux := http.NewServeMux()
	for _, route := range []string{"cheap", "middle", "dear"} {
		mux.HandleFunc("GET /"+route, func(w http.ResponseWriter, r *http.Request) {
			cpu, err := time.ParseDuration(r.URL.Query().Get("cpu"))
			if err != nil || compute(r.Context(), cpu, perMillisecond) != nil {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			fmt.Fprintln(w, "done")
		})
	}
	var mu sync.Mutex
	var named time.Duration
	var waits []time.Duration
	o := throttle.Options{
		MaxWait: 2 * time.Second, MaxWaitingCost: 5 * time.Second,
		Culprits: throttle.Culprits{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))},
		Hooks: throttle.Hooks{
			OnCulprit: func(r throttle.Running) {
				mu.Lock()
				defer mu.Unlock()
				if named == 0 {
					named = r.Age
				}
			},
			OnStart: func(_ throttle.Criticality, predicted, waited time.Duration) {
				if predicted < 5*time.Millisecond {
					mu.Lock()
					defer mu.Unlock()
					waits = append(waits, waited)
				}
			},
		},
	}
	if *cancels {
		o.Culprits.Cancel = throttle.CancelAbove(25 * time.Millisecond)
	}
	handler, stats, err := protect(mux, o, *protection, *bound)
	if err != nil {
		return err
	}
	outer := http.NewServeMux()
	outer.Handle("/", handler)
	outer.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		now := state{CPU: used(syscall.RUSAGE_SELF), Named: named, Stats: stats()}
		if slices.Sort(waits); len(waits) > 0 {
			now.Waited = waits[len(waits)*99/100]
		}
		waits = nil
		_ = json.NewEncoder(w).Encode(now)
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + listener.Addr().String())
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		listener.Close()
	}()
	_ = http.Serve(listener, outer)
	return nil
}

// protect puts the chosen protection before a handler.
func protect(h http.Handler, o throttle.Options, by string, bound float64) (http.Handler, func() throttle.Stats, error) {
	none := func() throttle.Stats { return throttle.Stats{} }
	switch by {
	case "rate":
		// A burst of the dearest route, for which the bucket saves.
		o.Rate, o.Burst = bound, time.Second
	case "concurrency":
		o.Concurrency = int(bound)
	case "qps":
		l, err := limit.NewLimiter(limit.Policy{
			Algorithm: limit.TokenBucket, Rate: limit.Rate{Count: int64(bound), Period: time.Second}, Burst: int64(bound),
		})
		if err != nil {
			return nil, nil, err
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !l.Allow() {
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			h.ServeHTTP(w, r)
		}), none, nil
	default:
		return h, none, nil
	}
	t, err := throttle.New(o)
	if err != nil {
		return nil, nil, err
	}
	return httpthrottle.New(t, httpthrottle.ByRoute(), httpthrottle.WithThreadClock())(h), t.Stats, nil
}

// used is the CPU time of this process or thread.
func used(who int) time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(who, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// spin computes, n times.
func spin(n int, x uint64) uint64 {
	for range n {
		x = x*6364136223846793005 + 1442695040888963407
		x ^= x >> 29
	}
	return x
}

// calibrate returns how often spin computes in a millisecond of CPU time. It goes by the clock of
// its thread, so other work on the machine hardly changes it.
func calibrate() int {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const n = 10_000_000
	best := time.Hour
	for range 5 {
		begin := threadCPU()
		if spin(n, 1) == 0 {
			panic("spin is zero")
		}
		best = min(best, threadCPU()-begin)
	}
	return int(float64(n) * float64(time.Millisecond) / float64(best))
}

func threadCPU() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// compute computes for so much CPU time, or until ctx ends.
func compute(ctx context.Context, cpu time.Duration, perMillisecond int) error {
	x := uint64(cpu)
	for left := int(float64(perMillisecond) * cpu.Seconds() * 1000); left > 0; left -= perMillisecond {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		x = spin(min(left, perMillisecond), x)
	}
	if x == 0 {
		return fmt.Errorf("protect: %s computed nothing", strconv.Itoa(perMillisecond))
	}
	return nil
}
