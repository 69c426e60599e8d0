package lending

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

const config = `limits:
  - {name: shared, rate: 100/s, burst: 10, sharing: leased}
  - name: per-user
    key: [user, ip]
    rate: 10/s
    sharing: leased
    overrides:
      - {when: {user: acme}, rate: 1000/s}
  - {name: places, algorithm: concurrency, max_in_flight: 4, sharing: leased}
  - {name: exact, rate: 100/s}
`

// deadline bounds every wait of the tests; none should come near it.
const deadline = 20 * time.Second

type served struct {
	*shard
	t    *testing.T
	conn *grpc.ClientConn
	stop func() bool // ends run and returns what it returned
}

func limits(t *testing.T, src string) *rules.Set {
	t.Helper()
	set, err := rules.Parse("test", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// start serves over loopback with a coordinator that knows that nothing is lent.
func start(t *testing.T, o Options, prepare ...func(*shard)) *served {
	t.Helper()
	if o.Limits == nil {
		o.Limits = limits(t, config)
	}
	if o.State.Epoch == 0 {
		o.State = State{Epoch: 5, Key: make([]byte, 32)}
	}
	o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	s := newShard(o)
	for _, f := range prepare {
		f(s)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(leasewire.MaxMessage), grpc.WaitForHandlers(true))
	leasepb.RegisterLeasesServer(server, single(s))
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	var nothingLent bool
	ran := make(chan struct{})
	go func() { nothingLent = s.run(ctx); close(ran) }()
	r := &served{shard: s, t: t, conn: conn}
	r.stop = sync.OnceValue(func() bool {
		cancel()
		select {
		case <-ran:
		case <-time.After(deadline):
			t.Error("Run does not end")
		}
		return nothingLent
	})
	t.Cleanup(func() {
		r.stop()
		_ = conn.Close()
		server.Stop()
		running.Wait()
	})
	return r
}

// raw is a stream on which a test sends what it likes.
type raw struct {
	leasepb.Leases_HoldClient
	t      *testing.T
	number uint64
	member *leasepb.Report
	cancel context.CancelFunc
}

func (r *served) open(instance string, session uint64) *raw {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	r.t.Cleanup(cancel)
	stream, err := leasepb.NewLeasesClient(r.conn).Hold(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return &raw{stream, r.t, 0, &leasepb.Report{Instance: instance, Session: session}, cancel}
}

func (c *raw) report(demands ...*leasepb.Demand) {
	c.t.Helper()
	c.number++
	m := &leasepb.Report{
		Instance: c.member.GetInstance(), Session: c.member.GetSession(), Version: 1, Number: c.number,
		Stamp: int64(c.number) * 1e9, Demands: demands,
	}
	if err := c.Send(m); err != nil && err != io.EOF {
		c.t.Fatal(err)
	}
}

// share returns the next share for a handle.
func (c *raw) share(handle uint32) *leasepb.Share {
	c.t.Helper()
	for {
		g, err := c.Recv()
		if err != nil {
			c.t.Fatalf("%s waits for handle %d: %v", c.member.GetInstance(), handle, err)
		}
		for _, s := range g.GetShares() {
			if s.GetHandle() == handle {
				return s
			}
		}
	}
}

// ends returns the status with which the stream ends.
func (c *raw) ends() *status.Status {
	c.t.Helper()
	for {
		if _, err := c.Recv(); err == io.EOF {
			return status.New(codes.OK, "")
		} else if err != nil {
			return status.Convert(err)
		}
	}
}

func demand(handle uint32, name string, rate float64, key ...string) *leasepb.Demand {
	d := &leasepb.Demand{Handle: handle, Rate: rate, Shortfall: 1, Resource: &leasepb.Resource{Limit: name}}
	for _, v := range key {
		d.Resource.Key = append(d.Resource.Key, []byte(v))
	}
	return d
}

// neighbour holds a lease while f does what it does, and must not notice.
func (r *served) neighbour(f func()) {
	r.t.Helper()
	n := r.open("neighbour", 99)
	n.report(demand(1, "shared", 50))
	before := n.share(1)
	if before.GetStatus() != leasepb.Status_STATUS_OK || before.GetGranted().GetRate() < 50e6 {
		r.t.Fatalf("the neighbour got %v", before)
	}
	f()
	n.report(demand(1, "shared", 50))
	d := demand(1, "shared", 50)
	d.Lease = before.GetLease()
	if after := n.share(1); after.GetStatus() != leasepb.Status_STATUS_OK || after.GetLease() != before.GetLease() || after.GetGranted().GetRate() < 50e6 {
		r.t.Errorf("the neighbour had %v, and now %v", before, after)
	}
	n.cancel()
}

func (r *served) eventually(what string, holds func() bool) {
	r.t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for late := time.After(deadline); ; {
		if holds() {
			return
		}
		select {
		case <-look.C:
		case <-late:
			r.t.Fatalf("not within %v: %s", deadline, what)
		}
	}
}

// instance drives the machine of an instance over a stream, as a client does.
type instance struct {
	mu     sync.Mutex
	holder *agent.Agent
	bucket *bucket.Bucket
	handle uint32
	origin time.Time
}

func (i *instance) now() limit.Time { return limit.Time(time.Since(i.origin) + time.Second) }

// run drives the machine until the stream ends, with a Take every period.
func (r *served) run(name string, id lease.ResourceID, every time.Duration) *instance {
	r.t.Helper()
	i := &instance{origin: time.Now()}
	i.holder = agent.New(agent.Options{Member: lease.Member{Instance: name, Session: 7}})
	i.bucket = bucket.NewBucket(i.holder.Deadline())
	i.handle = i.holder.Open(i.now(), id, agent.LeaseOptions{}, i.bucket)
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := leasepb.NewLeasesClient(r.conn).Hold(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	step := func(e lease.Event) {
		i.mu.Lock()
		defer i.mu.Unlock()
		if m := i.holder.Step(i.now(), e); m != nil {
			var out leasepb.Report
			if err := leasewire.ToReport(&out, m); err != nil {
				r.t.Error(err)
			}
			_ = stream.Send(&out) // Recv tells
		}
	}
	var running sync.WaitGroup
	running.Go(func() {
		step(agent.Connected{})
		for tick := time.NewTicker(every); ctx.Err() == nil; {
			select {
			case <-ctx.Done():
			case <-tick.C:
				if allowed, _ := i.bucket.Allow(i.now(), 1); !allowed {
					step(agent.Starved{Handle: i.handle})
				}
				step(lease.Tick{})
			}
		}
	})
	running.Go(func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			g := &lease.Grant{To: lease.Member{Instance: name, Session: 7}}
			if err := leasewire.FromGrant(g, m); err != nil {
				r.t.Error(err)
				return
			}
			step(g)
		}
	})
	r.t.Cleanup(func() { cancel(); running.Wait() })
	return i
}

func (i *instance) held() lease.Capacity {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.holder.State(i.handle).Held
}

// The machines that ship, over a network: one instance gets what it wants, two share
// it, and what the coordinator counts is never above the limit.
func TestLeases(t *testing.T) {
	r := start(t, Options{})
	id := lease.ResourceID{Limit: "shared"}
	one := r.run("one", id, 5*time.Millisecond)
	r.eventually("the first has a rate", func() bool { return one.held().Rate > 50*fixed.Token })
	two := r.run("two", id, 5*time.Millisecond)
	r.eventually("the second has a rate", func() bool { return two.held().Rate > 30*fixed.Token })
	r.eventually("both fit", func() bool { return one.held().Rate+two.held().Rate <= 100*fixed.Token })
	p := r.page("?limit=shared")
	if len(p.Resources) != 1 || len(p.Resources[0].Leases) != 2 || p.Resources[0].Lent > 100 || p.Resources[0].Capacity != 100 {
		t.Fatalf("%+v", p)
	}
	if r.stop() {
		t.Error("something was lent when the coordinator went")
	}
}

func TestPermits(t *testing.T) {
	r := start(t, Options{})
	c := r.open("a", 1)
	d := demand(3, "places", 0)
	d.Shortfall = 9
	c.report(d)
	for s := c.share(3); ; s = c.share(3) {
		if g := s.GetGranted().GetBurst(); g > 4e6 || !s.GetLimit().GetSemaphore() {
			t.Fatalf("%d places of 4: %v", g, s)
		} else if g == 4e6 {
			return
		}
	}
}

// However an address is written it selects one bucket, and the override of its key
// says how large that is.
func TestKeysAreCanonical(t *testing.T) {
	r := start(t, Options{})
	a, b, c := r.open("a", 1), r.open("b", 1), r.open("c", 1)
	a.report(demand(1, "per-user", 1, "u", "192.0.2.7"))
	b.report(demand(1, "per-user", 1, "u", "::ffff:192.0.2.7"))
	c.report(demand(1, "per-user", 1, "acme", "2001:db8::5"))
	for _, x := range []*raw{a, b} {
		if s := x.share(1); s.GetLimit().GetRate() != 10e6 {
			t.Errorf("the limit is %v", s.GetLimit())
		}
	}
	if s := c.share(1); s.GetLimit().GetRate() != 1000e6 {
		t.Errorf("the limit of the override is %v", s.GetLimit())
	}
	p := r.page("")
	if len(p.Resources) != 2 {
		t.Fatalf("%d resources, want 2: %+v", len(p.Resources), p)
	}
	for _, l := range p.Resources {
		if n := map[string]int{`user="u" ip=192.0.2.7`: 2, `user="acme" ip=2001:db8::/64`: 1}[l.Key]; n != len(l.Leases) || n != l.Count {
			t.Errorf("%s has %d instances", l.Key, len(l.Leases))
		}
	}
}

func TestReload(t *testing.T) {
	r := start(t, Options{})
	c := r.open("a", 1)
	c.report(demand(1, "shared", 10), demand(2, "places", 0))
	c.share(1)
	r.reconfigure(limits(t, strings.Replace(config, "100/s, burst", "5000/s, burst", 1)))
	for s := c.share(1); s.GetLimit().GetRate() != 5000e6; {
		s = c.share(1)
	}
	r.reconfigure(limits(t, "limits: [{name: other, rate: 1/s}]"))
	for s := c.share(1); s.GetStatus() != leasepb.Status_STATUS_UNKNOWN_LIMIT; {
		s = c.share(1)
	}
}

func TestShutdown(t *testing.T) {
	r := start(t, Options{})
	c, silent := r.open("a", 1), r.open("b", 1)
	c.report(demand(1, "shared", 10))
	c.share(1)
	if r.stop() {
		t.Error("something was lent")
	}
	for _, x := range []*raw{c, silent, r.open("late", 1)} {
		if s := x.ends(); s.Code() != codes.Unavailable {
			t.Errorf("%s: %v", x.member.GetInstance(), s)
		}
	}
}

// One that leaves has nothing, and the coordinator knows.
func TestLeaving(t *testing.T) {
	r := start(t, Options{})
	c := r.open("a", 1)
	c.report(demand(1, "shared", 10))
	c.share(1)
	if err := c.Send(&leasepb.Report{Instance: "a", Session: 1, Number: 9, Leaving: true}); err != nil {
		t.Fatal(err)
	}
	if s := c.ends(); s.Code() != codes.OK {
		t.Errorf("the stream ends with %v", s)
	}
	if !r.stop() {
		t.Error("nothing is lent, but the coordinator says so")
	}
}

// single returns the service that has one shard alone.
func single(s *shard) *Service { return &Service{all: []*shard{s}} }
