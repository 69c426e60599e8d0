package main

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/stint-io/stint/internal/envoyfilter"
)

// TestQuotasOfTwentyEnvoys: 20 filters that behave as Envoy's, over gRPC, and this command. A load of
// twice the limit is at one of them, then at another: it uses the limit within two report intervals, and
// all together never have more than the bound. RLQS_LONG=1 waits for two report intervals, which takes
// two minutes; without, the test waits until the load is followed: an equal part for each would let an eighth through.
func TestQuotasOfTwentyEnvoys(t *testing.T) {
	t.Parallel()
	moves, settle, span, goal, patience := 1, time.Duration(0), time.Second, 0.5, 30*time.Second
	if os.Getenv("RLQS_LONG") != "" {
		moves, settle, span, goal, patience = 4, 11*time.Second, 15*time.Second, 0.97, 0
	}
	const rate, burst = 500.0, 500.0
	p := serveProcess(t, nil, "--config", file(t, "limits.yaml", "limits:\n  - {name: web, rate: 500/s, burst: 500, sharing: leased}\n"), "--state-dir", filepath.Join(t.TempDir(), "state"))
	address := regexp.MustCompile(`grpc\s+(\S+)`).FindStringSubmatch(p.greeting)
	if address == nil {
		t.Fatalf("no address in:\n%s", p.greeting)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var mu sync.Mutex
	level, at, worst := burst, time.Now(), 0.0
	admit := func() {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		level, at = min(burst, level+rate*now.Sub(at).Seconds())-1, now
		worst = max(worst, -level)
	}
	id := map[string]string{"name": "web"}
	key := envoyfilter.Key(id)
	var hot atomic.Int32
	var admitted atomic.Int64
	for i := range int32(20) {
		conn, err := grpc.NewClient(address[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		c := envoyfilter.NewClient(conn, envoyfilter.Options{Domain: "edge", NoAssignment: &typev3.RateLimitStrategy{
			Strategy: &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: typev3.RateLimitStrategy_DENY_ALL},
		}}, nil)
		running.Go(func() { c.Run(ctx) })
		running.Go(func() {
			for next := time.Now(); ctx.Err() == nil; {
				perSecond := 2.0
				if hot.Load() == i {
					perSecond = 2 * rate
				}
				next = next.Add(time.Duration(rand.ExpFloat64() / perSecond * float64(time.Second)))
				for wait := time.Until(next); wait > 0; wait = min(time.Until(next), 50*time.Millisecond) {
					<-time.After(min(wait, 50*time.Millisecond)) // the load may move meanwhile
					if perSecond < rate && hot.Load() == i {
						next = time.Now()
					}
				}
				if time.Since(next) > time.Second {
					next = time.Now() // the machine stood still
				}
				if c.Request(key, id) {
					admit()
					admitted.Add(1)
				}
			}
		})
	}
	for move := range moves {
		hot.Store(int32(7 * (move + 1) % 20))
		moved := time.Now()
		<-time.After(settle)
		for use := 0.0; use < goal; {
			before, begin := admitted.Load(), time.Now()
			<-time.After(span) // the use is measured
			use = float64(admitted.Load()-before) / time.Since(begin).Seconds() / rate
			t.Logf("move %d: from %v on, %.3f of the limit is used", move, begin.Sub(moved).Round(time.Millisecond), use)
			if use < goal && time.Since(moved) > patience {
				t.Errorf("move %d: %.3f of the limit is used", move, use)
				break
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	t.Logf("at most %.1f tokens above one bucket", worst)
	if bound := 2*burst + 5*rate; worst > bound {
		t.Errorf("%.1f tokens above one bucket, the bound is %.1f", worst, bound)
	}
}
