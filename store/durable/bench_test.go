//go:build unix

package durable

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// endless is a month's window that is never full.
var endless = limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 1 << 50, Period: month}, Align: limit.AlignCalendar}

// throughput returns the Takes per second of two goroutines over n keys, for a time; and how much time of the processors
// each of them has used, with all that the store does beside them.
func throughput(t testing.TB, s store.Store, n int, lasts time.Duration) (perSecond float64, used time.Duration) {
	c, err := s.Bind(store.Spec{ID: "month", Policy: endless})
	if err != nil {
		t.Fatal(err)
	}
	before := processorTime(t)
	var all sync.WaitGroup
	counts := make([]int, 2)
	end := time.Now().Add(lasts)
	for g := range counts {
		all.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(g)))
			key := make([]byte, 0, 8)
			charges := make([]store.Charge, 1)
			for i := 0; ; i++ {
				if i%256 == 0 && time.Now().After(end) {
					counts[g] = i
					return
				}
				key = binary.LittleEndian.AppendUint64(key[:0], r.Uint64N(uint64(n)))
				charges[0] = store.Charge{Counters: c, Key: key, Cost: 1}
				if _, err := s.Take(context.Background(), charges); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	sum := counts[0] + counts[1]
	return float64(sum) / lasts.Seconds(), (processorTime(t) - before) / time.Duration(max(sum, 1))
}

// A store with a file beside one in memory alone, in turns. The machine's other work is in both, so what counts is
// the median of the ratios.
//
//	go test ./store/durable -run xxx -bench Throughput -benchtime 7x
func BenchmarkThroughput(b *testing.B) {
	for _, keys := range []int{1, 1000, 100_000} {
		b.Run(fmt.Sprint(keys, " keys"), func(b *testing.B) {
			var ratios, in, used []float64
			for b.Loop() {
				plain := memory.New(memory.Options{})
				s, err := Open(Options{Path: filepath.Join(b.TempDir(), "counts.db")})
				if err != nil {
					b.Fatal(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				ended := make(chan error, 1)
				go func() { ended <- s.Run(ctx) }()
				// What is new has to get a slot first.
				throughput(b, plain, keys, 200*time.Millisecond)
				throughput(b, s, keys, 200*time.Millisecond)
				a, usedBefore := throughput(b, plain, keys, time.Second)
				d, usedWith := throughput(b, s, keys, time.Second)
				ratios, in = append(ratios, d/a), append(in, d)
				used = append(used, float64(usedWith)/float64(usedBefore))
				cancel()
				if err := <-ended; err != nil {
					b.Fatal(err)
				}
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			}
			slices.Sort(ratios)
			slices.Sort(in)
			slices.Sort(used)
			b.ReportMetric(ratios[len(ratios)/2], "of-memory")
			b.ReportMetric(in[len(in)/2]/1e6, "M-takes/s")
			b.ReportMetric(used[len(used)/2], "of-its-processor-time")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// A million customers with a month's quota: what they take in memory, how large the file is, and how long a start
// takes.
//
//	go test ./store/durable -run xxx -bench Million -benchtime 1x
func BenchmarkMillion(b *testing.B) {
	const customers = 1_000_000
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for b.Loop() {
		path := filepath.Join(b.TempDir(), "counts.db")
		open := func() (*Store, store.Counters) {
			s, err := Open(Options{Path: path})
			if err != nil {
				b.Fatal(err)
			}
			c, err := s.Bind(store.Spec{ID: "month", Policy: endless})
			if err != nil {
				b.Fatal(err)
			}
			return s, c
		}
		s, c := open()
		for i := range customers {
			charges := []store.Charge{{Counters: c, Key: store.AppendKey(nil, fmt.Sprint("customer-", i)), Cost: int64(1 + i%1000)}}
			if ok, err := s.Take(context.Background(), charges); !ok || err != nil {
				b.Fatal(ok, err)
			}
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		before := heap()
		began := time.Now()
		s, c = open()
		started := time.Since(began)
		used := heap() - before
		for i := range 1000 {
			i *= 997
			charges := []store.Charge{{Counters: c, Key: store.AppendKey(nil, fmt.Sprint("customer-", i))}}
			if _, err := s.Peek(context.Background(), charges); err != nil || charges[0].Verdict.Remaining != endless.Rate.Count-int64(1+i%1000) {
				b.Fatal(i, charges[0].Verdict, err)
			}
		}
		b.ReportMetric(started.Seconds(), "s-start")
		b.ReportMetric(float64(used)/customers, "heap-B/customer")
		b.ReportMetric(float64(s.FileStats().Bytes)/customers, "file-B/customer")
		b.ReportMetric(0, "ns/op")
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// processorTime is what this process has used of its processors.
func processorTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// How long a Take by one of 16 goroutines waits with Sync, beside a write and an fdatasync of as many bytes as a batch
// of theirs has, on the same disk, in turns.
//
//	go test ./store/durable -run xxx -bench Sync -benchtime 5x
func BenchmarkSync(b *testing.B) {
	const connections, takes = 16, 200
	var ratios, p50, p99, one []float64
	for b.Loop() {
		dir := b.TempDir()
		s, err := Open(Options{Path: filepath.Join(dir, "counts.db"), Sync: true})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		c, err := s.Bind(store.Spec{ID: "month", Policy: endless})
		if err != nil {
			b.Fatal(err)
		}
		var all sync.WaitGroup
		took := make([][]time.Duration, connections)
		for g := range took {
			all.Go(func() {
				for range takes {
					began := time.Now()
					charges := []store.Charge{{Counters: c, Key: fmt.Append(nil, "customer-", g), Cost: 1}}
					if ok, err := s.Take(context.Background(), charges); !ok || err != nil {
						b.Error(ok, err)
						return
					}
					took[g] = append(took[g], time.Since(began))
				}
			})
		}
		all.Wait()
		st := s.FileStats()
		cancel()
		if err := <-ended; err != nil {
			b.Fatal(err)
		}
		batch := (st.Bytes - 100) / int64(st.Writes)
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		waits := slices.Sorted(slices.Values(slices.Concat(took...)))
		f, err := systemDisk{}.create(filepath.Join(dir, "plain"))
		if err != nil {
			b.Fatal(err)
		}
		plain := make([]time.Duration, takes)
		for i := range plain {
			began := time.Now()
			_, err := f.WriteAt(make([]byte, batch), int64(i)*batch)
			if err := errors.Join(err, f.Sync()); err != nil {
				b.Fatal(err)
			}
			plain[i] = time.Since(began)
		}
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
		slices.Sort(plain)
		ms := func(d time.Duration) float64 { return float64(d) / 1e6 }
		p50, p99 = append(p50, ms(waits[len(waits)/2])), append(p99, ms(waits[len(waits)*99/100]))
		one = append(one, ms(plain[takes/2]))
		ratios = append(ratios, p50[len(p50)-1]/one[len(one)-1])
	}
	for unit, list := range map[string][]float64{"of-one-sync": ratios, "p50-ms": p50, "p99-ms": p99, "sync-ms": one} {
		slices.Sort(list)
		b.ReportMetric(list[len(list)/2], unit)
	}
	b.ReportMetric(0, "ns/op")
}
