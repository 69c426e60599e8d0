package spending

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/lending"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

var (
	bytesKeys    = flag.Int("bytes-keys", 10_000, "keys of which the memory is measured")
	bytesProfile = flag.String("bytes-profile", "", "file for a heap profile; run with -test.memprofilerate 512")
)

// TestBytesOfAKey: what a key takes that this server spends and coordinates as well, in its coordinator,
// its own instance and their tables, while it is leased and when it has been idle.
func TestBytesOfAKey(t *testing.T) {
	if testing.Short() {
		t.Skip("TestManyAtOnce has the same goroutines: nothing for the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		set, err := rules.Parse("test", []byte("limits: [{name: a, key: [k], rate: 1000/s, burst: 1000, sharing: leased}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		logger := slog.New(slog.DiscardHandler)
		service := lending.New(lending.Options{Limits: set, State: lending.State{Epoch: 1}, Logger: logger}, 1)
		s, err := New(Options{
			Store: memory.New(memory.Options{}), Limits: set, Logger: logger, MaxKeys: *bytesKeys,
			Connect: func(ctx context.Context) (Stream, error) { return service.Pipe(ctx, 0) },
		})
		if err != nil {
			t.Fatal(err)
		}
		counters, err := s.Bind(store.Spec{ID: set.Variants()[0].ID, Policy: set.Variants()[0].Policy})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		lends, stopLending := context.WithCancel(t.Context())
		var spender, lender sync.WaitGroup
		lender.Go(func() { service.Run(lends) })
		spender.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		empty := heap()
		each := func(what string, most float64) {
			t.Helper()
			n := (heap() - empty) / float64(*bytesKeys)
			if t.Logf("%s: %.0f bytes for each of %d keys", what, n, *bytesKeys); n > most {
				t.Errorf("%s: %.0f bytes for each key, want at most %.0f", what, n, most)
			}
		}
		var all sync.WaitGroup
		for w := range 100 {
			all.Go(func() {
				for i := w; i < *bytesKeys; i += 100 {
					charges := []store.Charge{{Counters: counters, Key: store.AppendKey(nil, fmt.Sprint("user-", i)), Cost: 1}}
					if ok, err := s.Take(t.Context(), charges); err != nil || !ok {
						t.Errorf("key %d: %v, %v", i, ok, err)
					}
				}
			})
		}
		all.Wait()
		each("leased", mostLeased)
		if *bytesProfile != "" {
			f, err := os.Create(*bytesProfile)
			if err != nil {
				t.Fatal(err)
			}
			if err := pprof.WriteHeapProfile(f); err != nil {
				t.Error(err)
			}
			_ = f.Close()
		}
		time.Sleep(5 * time.Second)
		each("idle", mostIdle)
		cancel()
		spender.Wait()
		stopLending()
		lender.Wait()
	})
}

// TestBytesOfAnAskedKey: what a key takes that comes once and is asked for, at the coordinator and here together.
func TestBytesOfAnAskedKey(t *testing.T) {
	if testing.Short() {
		t.Skip("TestAsksGoTogether has the same goroutines: nothing for the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		set, err := rules.Parse("test", []byte("limits: [{name: a, key: [k], rate: 10/day, burst: 10, sharing: leased}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		logger := slog.New(slog.DiscardHandler)
		service := lending.New(lending.Options{Limits: set, State: lending.State{Epoch: 1}, Logger: logger}, 1)
		s, err := New(Options{
			Store: memory.New(memory.Options{}), Limits: set, Logger: logger,
			Connect: func(ctx context.Context) (Stream, error) { return service.Pipe(ctx, 0) },
			Ask: func(ctx context.Context, _ int, asks []lease.Ask) ([]lease.Answer, error) {
				return service.Answer(ctx, 0, asks)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		counters, err := s.Bind(store.Spec{ID: set.Variants()[0].ID, Policy: set.Variants()[0].Policy})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all, running sync.WaitGroup
		running.Go(func() { service.Run(ctx) })
		running.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait() // both run
		empty := heap()
		for w := range 100 {
			all.Go(func() {
				for i := w; i < *bytesKeys; i += 100 {
					charges := []store.Charge{{Counters: counters, Key: store.AppendKey(nil, fmt.Sprint("user-", i)), Cost: 1}}
					if ok, err := s.Take(t.Context(), charges); err != nil || !ok {
						t.Errorf("key %d: %v, %v", i, ok, err)
					}
				}
			})
		}
		all.Wait()
		time.Sleep(time.Second) // beyond the timers of the questions, which are stopped and kept until then
		n := (heap() - empty) / float64(*bytesKeys)
		t.Logf("%.0f bytes for each of %d keys, of which %d have a lease", n, *bytesKeys, s.Keys())
		if n > mostAsked {
			t.Errorf("%.0f bytes for each key, want at most %d", n, mostAsked)
		}
		cancel()
		running.Wait()
	})
}

// mostAsked is the goal for a key.
const mostAsked = 200

// The bytes that were reached, and a tenth more.
const mostLeased, mostIdle = 3900, 4000

func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
