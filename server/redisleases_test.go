package server_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/server"
)

// redisLeases is a limit that services on one Redis lend.
const redisLeases = "limits:\n  - {name: shared, match: {kind: shared}, rate: 200/s, burst: 20, sharing: leased}\n"

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
	every := func(pause time.Duration, f func() bool) {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for ctx.Err() == nil {
			if f() {
				counted.Add(1)
			}
			<-tick.C
		}
	}
	running.Go(func() { every(2*time.Millisecond, l.Allow) })
	running.Go(func() {
		every(10*time.Millisecond, func() bool { return s.post("/v1/take", kind("shared")).status == 200 })
	})
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	s.t.Cleanup(stop)
	return stop
}

// TestOneLendsOnOneRedis: of three services on one Redis one lends, the others spend as instances do and send
// instances on. When it ends another lends within seconds. All together never admit more than the limit.
func TestOneLendsOnOneRedis(t *testing.T) {
	if testing.Short() {
		t.Skip("TestLeasesWithoutRedis has the same goroutines: nothing for the race detector")
	}
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
	var all []*service
	var stops []func()
	var own [3]atomic.Int64
	for i := range own {
		s := startRedis(t, r, redisLeases)
		all = append(all, s)
		stops = append(stops, s.spender(&admitted))
		one := &own[i]
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				if s.post("/v1/take", kind("shared")).status == 200 {
					admitted.Add(1)
					one.Add(1)
				}
				<-time.After(5 * time.Millisecond)
			}
		}()
		stop := stops[i]
		stops[i] = sync.OnceFunc(func() { cancel(); <-done; stop() })
		t.Cleanup(stops[i])
	}
	leader := func() int {
		led := -1
		for i, s := range all {
			if s != nil && strings.Contains(s.do("GET", s.admin+"/metrics", "").body, "stint_cluster_leads 1\n") {
				led = i
			}
		}
		return led
	}
	for left := 3; left > 1; left-- {
		await(t, "a service lends", func() bool { within("before a service lends"); return leader() >= 0 })
		for i, s := range all {
			if s != nil {
				s.awaitReadiness(200, "")
				n := own[i].Load()
				await(t, "each service admits", func() bool { within("while one lends"); return own[i].Load() > n+10 })
			}
		}
		i := leader()
		stops[i]()
		if err := all[i].stop(); err != nil {
			t.Fatal(err)
		}
		all[i] = nil
		within("after one has ended")
	}
	within("at the end")
}

// TestLeasesWithoutRedis: while Redis is away nobody lends, because nobody knows whether another service does. When
// it comes back, empty or not, one of the services lends again, and both together admit no more than the limit.
func TestLeasesWithoutRedis(t *testing.T) {
	t.Parallel() // it waits for most of its time
	r := redistest.Start(t, "--requirepass", password)
	begin := time.Now()
	var admitted atomic.Int64
	first := startRedis(t, r, redisLeases)
	first.spender(&admitted)
	await(t, "it lends", func() bool { return admitted.Load() > 100 })
	r.Kill()
	second := startRedis(t, r, redisLeases)
	second.awaitReadiness(503, "not ready: store ")
	second.spender(&admitted)
	await(t, "nobody lends without Redis", func() bool {
		return strings.Contains(first.do("GET", first.admin+"/metrics", "").body, "stint_cluster_leads 0\n")
	})
	r.Restart()
	n := admitted.Load()
	await(t, "one lends again", func() bool { return admitted.Load() > n+300 })
	n = admitted.Load()
	if most := 20 + 200*time.Since(begin).Seconds(); float64(n) > most {
		t.Errorf("%d admitted, of %.0f", n, most)
	}
}

// TestNoElectionWithoutLeases: a service whose limits are not shared by leases writes no record of an election, until
// a reload brings one that is.
func TestNoElectionWithoutLeases(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t, "--requirepass", password)
	s := startRedis(t, r, strings.Replace(redisLeases, ", sharing: leased", "", 1))
	s.awaitReadiness(200, "ready")
	if a := s.post("/v1/take", kind("shared")); a.status != 200 {
		t.Errorf("it answers %d %s", a.status, a.body)
	}
	if keys := r.Text("EVAL", "return table.concat(redis.call('KEYS', '*{cluster}*'), ' ')", "0"); keys != "" {
		t.Errorf("there are records of an election: %s", keys)
	}
	if body := s.do("GET", s.admin+"/metrics", "").body; strings.Contains(body, "stint_cluster_") {
		t.Error("its metrics show a cluster")
	}
	<-time.After(4 * time.Second) // longer than it looks for who leads
	if log := s.log.String(); strings.Contains(log, "coordinator") {
		t.Errorf("it logs of a coordinator that nobody needs: %s", log)
	}
	write(t, s.path, redisLeases)
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	await(t, "the limit is lent", func() bool { return s.post("/v1/take", kind("shared")).status == 200 })
	s.awaitReadiness(200, "")
}

// TestNoAddress: a service that cannot know where the one that lends is reached is not ready, and says what to do.
func TestNoAddress(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t, "--requirepass", password)
	open := func(o *server.Options) { o.GRPCAddr, o.Insecure = "0.0.0.0:0", true }
	first := startRedis(t, r, redisLeases, open)
	first.eventually(first.admin+"/metrics", "stint_cluster_leads 1\n")
	first.awaitReadiness(200, "")
	second := startRedis(t, r, redisLeases, open)
	second.awaitReadiness(503, "not ready: ")
	second.eventually(second.admin+"/readyz", "does not say where it is reached: start each service that shares the store with --advertise")
	stream, err := leasepb.NewLeasesClient(second.conn).Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "start it with --advertise") {
		t.Errorf("an instance is sent on with %v", err)
	}
}

// drains asks for so many tokens one by one, once it is known what is lent, and returns how many are admitted.
func (s *service) drains(n int) (admitted int) {
	s.t.Helper()
	for begun := time.Now(); n > 0; {
		a := s.post("/v1/take", kind("shared"))
		unknown := strings.Contains(a.body, `"reason":"store_failure"`) || strings.Contains(a.body, `"reason":"recovering"`)
		switch {
		case a.status == 200:
			admitted++
			n--
		case !unknown:
			s.t.Log(time.Since(begun), a.body)
			return admitted
		case time.Since(begun) > time.Minute:
			s.t.Fatalf("it answers %d %s", a.status, a.body)
		default:
			<-time.After(20 * time.Millisecond)
		}
	}
	return admitted
}

// TestBucketsOutlastRestartsOnRedis: a bucket of a service on Redis begins full, and over restarts of the service, or of
// one after another of two, it goes on with what was left, neither with more nor with less.
func TestBucketsOutlastRestartsOnRedis(t *testing.T) {
	t.Parallel() // it waits for most of its time
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	r := redistest.Start(t, "--requirepass", password)
	left := 12 + rng.IntN(60)
	config := fmt.Sprintf("limits:\n  - {name: shared, match: {kind: shared}, rate: %d/30d, burst: %d, sharing: leased, on_store_failure: reject}\n", left, left)
	folder := t.TempDir()
	begin := func(node string) *service {
		return startRedis(t, r, config, func(o *server.Options) { o.StateDir = filepath.Join(folder, node) })
	}
	node := "a"
	s := begin(node)
	history := ""
	for left > 0 {
		asks := 1 + rng.IntN(12)
		want := min(asks, left)
		got := s.drains(asks)
		if history += fmt.Sprintf(" %s %d", node, got); got != want {
			t.Fatalf("%s asks for %d of %d that are left: %d are admitted;%s", node, asks, left, got, history)
		}
		left -= got
		switch rng.IntN(3) {
		case 0: // it goes on
		case 1: // it is started again
			if err := s.stop(); err != nil {
				t.Fatal(err)
			}
			s = begin(node)
		case 2: // the other takes over
			former := s
			node = map[string]string{"a": "b", "b": "a"}[node]
			s = begin(node)
			await(t, "the other knows who lends", func() bool {
				return strings.Contains(s.do("GET", s.admin+"/v1/leases", "").body, `"member"`)
			})
			if err := former.stop(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
}
