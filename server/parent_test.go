package server_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/server"
)

const siteLimits = `limits:
  - {name: messages, key: [account], rate: 100/s, sharing: leased}
`

// below makes a server that of a site.
func below(site string, parents ...string) func(*server.Options) {
	return func(o *server.Options) {
		o.Parent, o.FirstStart = server.Parent{Addresses: parents, Site: site}, true
	}
}

// freePort is an address on which nobody listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func rootOf(t *testing.T) *service {
	return start(t, siteLimits, func(o *server.Options) { o.StateDir, o.FirstStart = t.TempDir(), true })
}

// TestSiteLendsWhatItsParentLends: an instance of a site is lent a part of the limit of the root.
func TestSiteLendsWhatItsParentLends(t *testing.T) {
	root := rootOf(t)
	site := start(t, siteLimits, below("eu", root.Addrs().GRPC.String()))
	until(t, site.hold("one"), func(l *leasepb.Share) bool { return l.GetGranted().GetRate() >= 40e6 })
	until(t, root.hold("two"), func(l *leasepb.Share) bool { return l.GetGranted().GetRate() >= 40e6 })
	site.awaitReadiness(200, "ready")
}

// TestTwoSitesOfOneName: the second one is lent nothing and says why.
func TestTwoSitesOfOneName(t *testing.T) {
	root := rootOf(t)
	first := start(t, siteLimits, below("eu", root.Addrs().GRPC.String()))
	first.awaitReadiness(200, "ready")
	second := start(t, siteLimits, below("eu", root.Addrs().GRPC.String()))
	second.awaitReadiness(503, `not ready: site eu has no capacity of limits shared by leases: another server reports to the parent as site "eu": give each site a name of its own with --site`)
	first.awaitReadiness(200, "ready")
}

// TestCycleOfParents: two servers that are each other's parent lend nothing and say so.
func TestCycleOfParents(t *testing.T) {
	one, two := freePort(t), freePort(t)
	a := start(t, siteLimits, below("a", two), func(o *server.Options) { o.GRPCAddr = one })
	b := start(t, siteLimits, below("b", one), func(o *server.Options) { o.GRPCAddr = two })
	await(t, "a cycle to be found", func() bool {
		return strings.Contains(a.log.String()+b.log.String(), "the parents are a cycle")
	})
}

// TestWrongParents: what cannot be meant does not start.
func TestWrongParents(t *testing.T) {
	for want, p := range map[string]server.Parent{
		"mean nothing without a parent":          {Site: "eu"},
		"is not an address":                      {Addresses: []string{"root"}, Site: "eu"},
		"the name of the site is":                {Addresses: []string{"root:1"}, Site: "e u"},
		"want pessimistic, safe or optimistic":   {Addresses: []string{"root:1"}, Site: "eu", Expiry: "never"},
		"give both --parent-cert and":            {Addresses: []string{"root:1"}, Site: "eu", Cert: "a.pem"},
		"TLS to the parent: open /no/such/file:": {Addresses: []string{"root:1"}, Site: "eu", CA: "/no/such/file"},
	} {
		if _, err := server.New(server.Options{Parent: p}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", p, err, want)
		}
	}
}

// TestFirstTakeAtASite: the first request of a key is not refused because the parent has not answered yet.
func TestFirstTakeAtASite(t *testing.T) {
	root := rootOf(t)
	root.awaitReadiness(200, "ready")
	site := start(t, siteLimits, below("eu", root.Addrs().GRPC.String()))
	site.awaitReadiness(200, "ready")
	await(t, "the site to have a lease", func() bool {
		a := site.post("/v1/take", `{"attributes":{"account":"warm"}}`)
		return a.status == 200 && !strings.Contains(a.body, `"store_failed":true`)
	})
	for i := range 20 {
		if a := site.post("/v1/take", fmt.Sprintf(`{"attributes":{"account":"new-%d"}}`, i)); a.status != 200 || strings.Contains(a.body, `"store_failed":true`) {
			t.Errorf("key %d: %d %s", i, a.status, a.body)
		}
	}
}

// TestSemaphoreBelowASite: workers of two programs at two sites share the permits of the root. They use all of them,
// and never more.
func TestSemaphoreBelowASite(t *testing.T) {
	const permits, workers, turns = 3, 4, 20
	const limits = `limits:
  - {name: jobs, algorithm: concurrency, max_in_flight: 3, sharing: leased}
`
	root := start(t, limits, func(o *server.Options) { o.StateDir, o.FirstStart = t.TempDir(), true })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var inUse, most atomic.Int64
	var group sync.WaitGroup
	var once sync.Once
	full := make(chan struct{}) // all permits were in use at once
	for _, name := range []string{"eu", "us"} {
		site := start(t, limits, below(name, root.Addrs().GRPC.String()))
		jobs, err := site.instance(name+"-program").Semaphore("jobs", client.LimitOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for range workers {
			group.Go(func() {
				for range turns {
					if err := jobs.Acquire(ctx, 1); err != nil {
						t.Errorf("a worker at %s: %v", name, err)
						return
					}
					now := inUse.Add(1)
					for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
					}
					if now == permits {
						once.Do(func() { close(full) })
					}
					select { // the first ones hold theirs until all are in use
					case <-full:
					case <-ctx.Done():
					}
					inUse.Add(-1)
					jobs.Release(1)
				}
			})
		}
	}
	group.Wait()
	if got := most.Load(); got != permits {
		t.Errorf("%d permits were in use at once, want %d", got, permits)
	}
}
