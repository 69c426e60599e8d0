package memory_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store/memory"
)

// The floor that nothing which reads a clock and changes a word can be below.
func BenchmarkFloorClockAndSwap(b *testing.B) {
	start, word := time.Now(), new(atomic.Uint64)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			for now := uint64(time.Since(start)); ; {
				w := word.Load()
				if word.CompareAndSwap(w, max(w, now)+1) {
					break
				}
			}
		}
	})
}

func BenchmarkFloorClock(b *testing.B) {
	start := time.Now()
	b.RunParallel(func(pb *testing.PB) {
		var last time.Duration
		for pb.Next() {
			last = time.Since(start)
		}
		_ = last
	})
}

func benchmarkAllow(b *testing.B, p limit.Policy, keys int, want bool) {
	k, err := memory.NewKeyed(p, memory.Options{})
	if err != nil {
		b.Fatal(err)
	}
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprintf("user-%011d", i)
		k.Allow(names[i])
	}
	var seed atomic.Uint64
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		if keys == 1 {
			for name := names[0]; pb.Next(); {
				if k.Allow(name) != want {
					b.Errorf("Allow answered %v", !want)
					return
				}
			}
			return
		}
		x := seed.Add(0x9E3779B97F4A7C15)
		for pb.Next() {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			if k.Allow(names[x%uint64(keys)]) != want {
				b.Errorf("Allow answered %v", !want)
				return
			}
		}
	})
}

func BenchmarkAllowHotKey(b *testing.B) {
	benchmarkAllow(b, limit.Policy{Rate: limit.PerSecond(1e9), Burst: 1e9}, 1, true)
}

func BenchmarkRefuseHotKey(b *testing.B) {
	benchmarkAllow(b, limit.Policy{Rate: limit.Every(1000 * time.Hour), Burst: 1}, 1, false)
}

func BenchmarkAllowMillionKeys(b *testing.B) {
	benchmarkAllow(b, limit.Policy{Rate: limit.PerSecond(1e3), Burst: 1e9}, 1e6, true)
}

func BenchmarkAllowMillionLiveKeys(b *testing.B) {
	benchmarkAllow(b, limit.Policy{Rate: limit.PerMinute(1), Burst: 1e5}, 1e6, true)
}
