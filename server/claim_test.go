package server_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/redistest"
)

const claimConfig = "limits:\n  - {name: shared, match: {kind: shared}, rate: 200/s, burst: 20, sharing: leased}\n"

// refusedLine begins the one line of a service that is refused.
const refusedLine = "another service lends the limits that are shared by leases"

// spender asks a service for the limit all the time, as an instance with leases and over
// HTTP, and counts what it gets until its stop is called.
func (s *service) spender(counted *atomic.Int64) (stop func()) {
	s.t.Helper()
	c, err := client.New(client.Options{Address: s.Addrs().GRPC.String(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.t.Fatal(err)
	}
	l, err := c.Limit("shared", client.LimitOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = c.Run(ctx) })
	every := func(f func() bool) {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			if f() {
				counted.Add(1)
			}
			<-tick.C
		}
	}
	running.Go(func() { every(l.Allow) })
	running.Go(func() { every(func() bool { return s.post("/v1/take", kind("shared")).status == 200 }) })
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	s.t.Cleanup(stop)
	return stop
}

// TestOneCoordinatorOnOneRedis: of three services on one Redis one lends, the others say so
// in one line each and admit nothing, and when the first ends another takes over after a
// lease. All together never admit more than the limit.
func TestOneCoordinatorOnOneRedis(t *testing.T) {
	t.Parallel() // it waits for most of its time
	r := redistest.Start(t, "--requirepass", password)
	begin := time.Now()
	var admitted atomic.Int64
	within := func(when string) {
		t.Helper()
		n := admitted.Load() // before the clock is read
		if most := 20 + 200*time.Since(begin).Seconds(); float64(n) > most {
			t.Errorf("%s: %d admitted, of %.0f", when, n, most)
		}
	}
	first := startRedis(t, r, claimConfig)
	await(t, "the claim of the first", func() bool {
		return strings.Contains(r.Text("GET", "stint:1:{coordinator}"), " process ")
	})
	others := []*service{startRedis(t, r, claimConfig), startRedis(t, r, claimConfig)}
	stop := first.spender(&admitted)
	for _, s := range others {
		s.spender(&admitted)
		s.awaitReadiness(503, "not ready: process ")
	}
	first.awaitReadiness(200, "ready")
	var before int64
	await(t, "the first lends", func() bool { before = admitted.Load(); return before > 100 })
	for _, s := range others {
		if a := s.post("/v1/take", kind("shared")); a.status != 503 || !strings.Contains(a.body, `"reason":"store_failure"`) {
			t.Errorf("a service that does not lend answers %d %s", a.status, a.body)
		}
		if n := strings.Count(s.log.String(), refusedLine); n != 1 || strings.Contains(s.log.String(), "no connection to the coordinator") {
			t.Errorf("the line came %d times: %s", n, s.log)
		}
	}
	if strings.Contains(first.log.String(), refusedLine) {
		t.Errorf("the one that lends is refused: %s", first.log)
	}
	within("with the first")
	stop()
	before = admitted.Load()
	ended := time.Now()
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	within("at the end of the first")
	await(t, "another lends", func() bool { within("after the first"); return admitted.Load() > before+100 })
	if d := time.Since(ended); d < 5*time.Second {
		t.Errorf("another lends %v after the first, which is within its leases", d)
	}
	took := 0
	for _, s := range others {
		took += strings.Count(s.log.String(), "this service takes over")
	}
	if took != 1 {
		t.Errorf("%d services have taken over", took)
	}
	within("at the end")
}

// TestLeasesWithoutRedis: the service that lends goes on while Redis is away; one that never
// reached it lends nothing. When Redis comes back empty, the one that lends still does.
func TestLeasesWithoutRedis(t *testing.T) {
	t.Parallel() // it waits for most of its time
	r := redistest.Start(t, "--requirepass", password)
	first := startRedis(t, r, claimConfig)
	first.awaitReadiness(200, "ready")
	var admitted, none atomic.Int64
	first.spender(&admitted)
	await(t, "it lends", func() bool { return admitted.Load() > 100 })
	r.Kill()
	second := startRedis(t, r, claimConfig)
	second.awaitReadiness(503, "not ready: store ")
	stopSecond := second.spender(&none)
	away := time.Now()
	for time.Since(away) < 4*time.Second { // longer than a claim lasts
		n := admitted.Load()
		await(t, "it lends without Redis", func() bool { return admitted.Load() > n+20 })
	}
	if n := admittedByLease(second); n {
		t.Error("a service that never reached Redis lends")
	}
	stopSecond()
	r.Restart()
	await(t, "both have asked again", func() bool {
		return strings.Contains(first.log.String(), refusedLine) != strings.Contains(second.log.String(), refusedLine)
	})
}

// admittedByLease says whether a lease is lent by the service.
func admittedByLease(s *service) bool {
	return strings.Contains(s.do("GET", s.admin+"/v1/leases?limit=shared", "").body, `"instance"`)
}
