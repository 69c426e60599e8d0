package redis

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// BenchmarkTake is 64 callers on 100,000 keys, for each algorithm, and what of it
// was the server's time.
func BenchmarkTake(b *testing.B) {
	for _, a := range limit.AlgorithmNames() {
		b.Run(a, func(b *testing.B) {
			p := limit.Policy{Rate: limit.PerMinute(1000), Burst: 1000, MaxInFlight: 1000, Timeout: 1e9}
			p.Algorithm, _ = limit.ParseAlgorithm(a)
			p.CountRefused = strings.Contains(a, "window")
			server := redistest.Start(b)
			s := connected(b, Options{Addrs: []string{server.Addr()}, Timeout: patient}, nil)
			c, err := s.Bind(store.Spec{ID: "bench", Policy: p})
			if err != nil {
				b.Fatal(err)
			}
			const callers, keys = 64, 100_000
			names := make([][]byte, keys)
			for i := range names {
				names[i] = store.AppendKey(nil, fmt.Sprintf("user-%d", i))
			}
			before := cpu(server)
			var next atomic.Uint64
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for w := range callers {
				wg.Go(func() {
					one := make([]store.Charge, 1)
					for i := w; i < b.N; i += callers {
						one[0] = store.Charge{Counters: c, Key: names[next.Add(7919)%keys], Cost: 1, Permit: uint64(i)}
						if _, err := s.Take(context.Background(), one); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric((cpu(server)-before)*1e6/float64(b.N), "server-us/op")
			b.ReportMetric(float64(b.N)/float64(s.Stats().Calls), "ops/call")
		})
	}
}

// cpu is what the server has computed, in seconds.
func cpu(s *redistest.Server) float64 {
	var sum float64
	for _, f := range []string{"used_cpu_user", "used_cpu_sys"} {
		var v float64
		fmt.Sscan(s.Info(f), &v)
		sum += v
	}
	return sum
}

// BenchmarkHotKey is 256 callers on one key.
func BenchmarkHotKey(b *testing.B) {
	server := redistest.Start(b)
	s := connected(b, Options{Addrs: []string{server.Addr()}, Timeout: patient}, nil)
	c, err := s.Bind(store.Spec{ID: "bench", Policy: limit.Policy{Rate: limit.PerSecond(1 << 30), Burst: 1 << 30}})
	if err != nil {
		b.Fatal(err)
	}
	const callers = 256
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for w := range callers {
		wg.Go(func() {
			one := []store.Charge{{Counters: c, Key: []byte("hot"), Cost: 1}}
			for i := w; i < b.N; i += callers {
				if _, err := s.Take(context.Background(), one); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/float64(s.Stats().Calls), "ops/call")
}
