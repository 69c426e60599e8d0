package client

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stint-io/stint/limit"
)

// BenchmarkRefused compares a refusal on a lease with one by limit.Limiter, by one thread
// and by two at the same time, each on a processor of its own. It reports the median of
// the ratios. Pieces of a fraction of a millisecond alternate, and those in which the
// threads did not run side by side do not count, so that other work on the machine
// changes little.
func BenchmarkRefused(b *testing.B) {
	lease := leased(b, 1, 1)
	local, err := limit.NewLimiter(limit.Policy{Rate: limit.Rate{Count: 1, Period: 24 * time.Hour}, Burst: 1})
	if err != nil {
		b.Fatal(err)
	}
	if !lease.Allow() || !local.Allow() {
		b.Fatal("the first is refused")
	}
	for _, bm := range []struct {
		name    string
		threads int
	}{{"one", 1}, {"two", 2}} {
		b.Run(bm.name, func(b *testing.B) {
			var ratios, times []float64
			for b.Loop() {
				mine, other := lowerThird(b, bm.threads, lease.Allow), lowerThird(b, bm.threads, local.Allow)
				ratios, times = append(ratios, mine/other), append(times, mine)
			}
			slices.Sort(ratios)
			slices.Sort(times)
			b.ReportMetric(ratios[len(ratios)/2], "x-in-process")
			b.ReportMetric(ratios[0], "x-lowest")
			b.ReportMetric(ratios[len(ratios)-1], "x-highest")
			b.ReportMetric(times[len(times)/2], "ns/refusal")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// lowerThird is how many nanoseconds an allow takes that refuses, by many pieces: what a
// third of them is below.
func lowerThird(b *testing.B, threads int, allow func() bool) float64 {
	var all []float64
	for tries := 0; len(all) < 100; tries++ {
		if tries > 20_000 {
			b.Fatal("the threads hardly ever run side by side")
		}
		if ns, ok := sideBySide(b, threads, allow); ok {
			all = append(all, ns)
		}
	}
	slices.Sort(all)
	return all[len(all)/3]
}

// sideBySide calls allow many times on each of the threads at once. It is not ok when
// they did not run at the same time.
func sideBySide(b *testing.B, threads int, allow func() bool) (ns float64, ok bool) {
	const calls = 3000
	origin := time.Now()
	begins, ends := make([]time.Duration, threads), make([]time.Duration, threads)
	var ready atomic.Int32
	var group sync.WaitGroup
	for i := range threads {
		group.Go(func() {
			runtime.LockOSThread() // and end the thread, which is pinned, with the goroutine
			mask := [16]uint64{1 << i}
			syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask)))
			ready.Add(1)
			for int(ready.Load()) < threads {
			}
			begins[i] = time.Since(origin)
			for range calls {
				if allow() {
					b.Error("wrong answer")
				}
			}
			ends[i] = time.Since(origin)
		})
	}
	group.Wait()
	var sum time.Duration
	for i := range ends {
		sum += ends[i] - begins[i]
	}
	all := slices.Max(ends) - slices.Min(begins)
	return float64(sum) / float64(calls*threads), slices.Min(ends)-slices.Max(begins) >= all*8/10
}
