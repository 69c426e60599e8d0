package lending

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

func (r *served) page(query string) Page {
	r.t.Helper()
	w := httptest.NewRecorder()
	single(r.shard).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/leases"+query, nil))
	var p Page
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != http.StatusOK {
		r.t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	return p
}

// What is wrong with one demand is answered for its handle; the rest of its report, and
// the neighbour, are served.
func TestBadDemands(t *testing.T) {
	with := func(f func(d *leasepb.Demand)) *leasepb.Demand {
		d := demand(7, "shared", 1)
		f(d)
		return d
	}
	for name, c := range map[string]struct {
		d    *leasepb.Demand
		want leasepb.Status
	}{
		"unknown limit":      {demand(7, "nobody", 1), leasepb.Status_STATUS_UNKNOWN_LIMIT},
		"odd limit":          {demand(7, "\x01", 1), leasepb.Status_STATUS_UNKNOWN_LIMIT},
		"not leased":         {demand(7, "exact", 1), leasepb.Status_STATUS_NOT_LEASED},
		"value missing":      {demand(7, "per-user", 1, "u"), leasepb.Status_STATUS_BAD_KEY},
		"value too many":     {demand(7, "shared", 1, "u"), leasepb.Status_STATUS_BAD_KEY},
		"17 values":          {demand(7, "per-user", 1, make([]string, 17)...), leasepb.Status_STATUS_BAD_KEY},
		"key of 2 KiB":       {demand(7, "per-user", 1, "u", strings.Repeat("x", 2048)), leasepb.Status_STATUS_BAD_KEY},
		"NaN":                {demand(7, "shared", math.NaN()), leasepb.Status_STATUS_BAD_DEMAND},
		"infinite":           {demand(7, "shared", math.Inf(1)), leasepb.Status_STATUS_BAD_DEMAND},
		"negative":           {demand(7, "shared", -1), leasepb.Status_STATUS_BAD_DEMAND},
		"negative shortfall": {with(func(d *leasepb.Demand) { d.Shortfall = math.Inf(-1) }), leasepb.Status_STATUS_BAD_DEMAND},
		"never granted":      {with(func(d *leasepb.Demand) { d.Lease, d.Returned = 3, &leasepb.Capacity{Rate: 5e6} }), leasepb.Status_STATUS_LEASE_GONE},
		"forged token":       {with(func(d *leasepb.Demand) { d.Lease, d.Claim = 3, make([]byte, 40) }), leasepb.Status_STATUS_BAD_CLAIM},
		"token of 10 KiB":    {with(func(d *leasepb.Demand) { d.Lease, d.Claim = 3, make([]byte, 10<<10) }), leasepb.Status_STATUS_BAD_DEMAND},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, Options{})
			r.neighbour(func() {
				bad := r.open("bad", 1)
				bad.report(demand(1, "per-user", 1, "u", "v"), c.d, demand(2, "places", 0))
				got := map[uint32]leasepb.Status{}
				for len(got) < 3 {
					g, err := bad.Recv()
					if err != nil {
						t.Fatal(err)
					}
					for _, s := range g.GetShares() {
						got[s.GetHandle()] = s.GetStatus()
						// A claim that is refused leaves a demand like any other.
						if s.GetHandle() == 7 && s.GetGranted().GetRate() != 0 && c.want != leasepb.Status_STATUS_BAD_CLAIM {
							t.Errorf("it was granted %v", s.GetGranted())
						}
					}
				}
				if got[7] != c.want || got[2] != leasepb.Status_STATUS_OK {
					t.Errorf("got %v, want %v for handle 7", got, c.want)
				}
			})
		})
	}
}

// A token is for one lease of one instance and one coordinator: sent by another one,
// or a second time, it is refused.
func TestTokens(t *testing.T) {
	key := make([]byte, 32)
	first := start(t, Options{State: State{Epoch: 5, Key: key}})
	c := first.open("a", 1)
	c.report(demand(1, "shared", 50))
	lent := c.share(1)
	if len(lent.GetToken()) == 0 || lent.GetGranted().GetRate() == 0 {
		t.Fatalf("no token: %v", lent)
	}
	first.stop()

	next := start(t, Options{State: State{Epoch: 6, Key: key, Recovery: time.Hour}})
	claim := func() *leasepb.Demand {
		d := demand(1, "shared", 50)
		d.Lease, d.Claim = lent.GetLease(), lent.GetToken()
		return d
	}
	thief := next.open("b", 1)
	thief.report(claim())
	if s := thief.share(1); s.GetStatus() != leasepb.Status_STATUS_BAD_CLAIM || s.GetGranted().GetRate() != 0 {
		t.Errorf("the token of another instance: %v", s)
	}
	run := next.open("a", 2)
	run.report(claim())
	if s := run.share(1); s.GetStatus() != leasepb.Status_STATUS_BAD_CLAIM {
		t.Errorf("the token of another run: %v", s)
	}
	run.cancel()
	next.eventually("the stream has ended", func() bool {
		gone := false
		next.inLoop(t.Context(), func(limit.Time) { gone = next.loop.members.get("a").stream == nil })
		return gone
	})
	owner := next.open("a", 1)
	owner.report(claim())
	s := owner.share(1)
	if s.GetStatus() != leasepb.Status_STATUS_OK || s.GetGranted().GetRate() != lent.GetGranted().GetRate() {
		t.Fatalf("the owner claims %v and gets %v", lent, s)
	}
	thief.report(claim())
	if s := thief.share(1); s.GetStatus() == leasepb.Status_STATUS_OK && s.GetGranted().GetRate() != 0 {
		t.Errorf("the token was taken twice: %v", s)
	}
	if p := next.page(""); p.Resources[0].Lent > 100 {
		t.Errorf("%+v", p)
	}
}

// What cannot be taken at all ends its stream with a clear status, and no other.
func TestBadReports(t *testing.T) {
	many := make([]*leasepb.Demand, 10_001)
	for i := range many {
		many[i] = &leasepb.Demand{Handle: uint32(i)}
	}
	for name, c := range map[string]struct {
		send func(c *raw)
		code codes.Code
		text string
	}{
		"10 MB": {func(c *raw) {
			c.report(&leasepb.Demand{Handle: 1, Claim: make([]byte, 10<<20)})
		}, codes.ResourceExhausted, "larger than max"},
		"no instance":      {func(c *raw) { c.member.Instance = ""; c.report() }, codes.InvalidArgument, "name of the instance"},
		"long instance":    {func(c *raw) { c.member.Instance = strings.Repeat("i", 257); c.report() }, codes.InvalidArgument, "257 bytes"},
		"no session":       {func(c *raw) { c.member.Session = 0; c.report() }, codes.InvalidArgument, "session is 0"},
		"another instance": {func(c *raw) { c.report(); c.member.Instance = "other"; c.report() }, codes.InvalidArgument, "changed within a stream"},
		"another session":  {func(c *raw) { c.report(); c.member.Session++; c.report() }, codes.InvalidArgument, "changed within a stream"},
		"10,001 demands":   {func(c *raw) { c.report(many...) }, codes.InvalidArgument, "10001 demands"},
		"10,001 handles": {func(c *raw) {
			c.report(many[:6000]...)
			c.report(many[6000:]...)
		}, codes.ResourceExhausted, "more than 10000 open handles"},
		"duplicate": {func(c *raw) { c.member.Instance = "neighbour"; c.report() }, codes.AlreadyExists, "name of its own"},
		"nothing":   {func(*raw) {}, codes.DeadlineExceeded, "speaks first"},
		"goes":      {func(c *raw) { _ = c.CloseSend() }, codes.OK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, Options{}, func(s *shard) {
				if name == "nothing" {
					s.patience.firstReport = 2 * time.Second
				}
			})
			r.neighbour(func() {
				bad := r.open("bad", 1)
				c.send(bad)
				if s := bad.ends(); s.Code() != c.code || !strings.Contains(s.Message(), c.text) {
					t.Errorf("%v, want %v with %q", s, c.code, c.text)
				}
			})
		})
	}
}

// The same run of an instance on a newer stream replaces the older one, and
// keeps what it has. Another run waits until the first one has gone.
func TestStreamsOfOneInstance(t *testing.T) {
	r := start(t, Options{})
	older := r.open("a", 1)
	older.report(demand(1, "shared", 50))
	lent := older.share(1)
	newer := r.open("a", 1)
	newer.number = 10
	d := demand(1, "shared", 50)
	d.Lease = lent.GetLease()
	newer.report(d)
	if s := newer.share(1); s.GetLease() != lent.GetLease() || s.GetStatus() != leasepb.Status_STATUS_OK {
		t.Errorf("had %v, has %v", lent, s)
	}
	if s := older.ends(); s.Code() != codes.Aborted {
		t.Errorf("the older stream: %v", s)
	}
	other := r.open("a", 2)
	other.report()
	g, err := other.Recv()
	if err != nil || g.GetStatus() != leasepb.Status_STATUS_DUPLICATE_INSTANCE {
		t.Errorf("another run: %v, %v", g, err)
	}
	if s := other.ends(); s.Code() != codes.AlreadyExists {
		t.Errorf("another run: %v", s)
	}
	third := r.open("a", 3)
	third.report(demand(1, "shared", 50), demand(2, "places", 1)) // which counts for nothing
	if s := third.ends(); s.Code() != codes.AlreadyExists {
		t.Errorf("another run: %v", s)
	}
	d = demand(1, "shared", 50)
	d.Lease = lent.GetLease()
	newer.report(d)
	if s := newer.share(1); s.GetLease() != lent.GetLease() || s.GetStatus() != leasepb.Status_STATUS_OK {
		t.Errorf("had %v, has %v after another run has reported", lent, s)
	}
	if p := r.page(""); p.Instances != 1 || len(p.Resources) != 1 {
		t.Errorf("%+v", p)
	}
	newer.cancel()
	r.eventually("another run is served once the first has gone", func() bool {
		again := r.open("a", 2)
		again.report()
		g, err := again.Recv()
		return err == nil && g.GetStatus() == leasepb.Status_STATUS_OK
	})
}

func TestTooManyStreams(t *testing.T) {
	r := start(t, Options{maxStreams: 1})
	r.neighbour(func() {
		more := r.open("more", 1)
		more.report()
		if s := more.ends(); s.Code() != codes.ResourceExhausted {
			t.Errorf("%v", s)
		}
	})
	r.eventually("the place is free again", func() bool {
		next := r.open("next", 1)
		next.report()
		_, err := next.Recv()
		return err == nil
	})
}

// An instance that does not read costs one grant and its own stream.
func TestStalledReader(t *testing.T) {
	r := start(t, Options{}, func(s *shard) { s.patience.stalled = 300 * time.Millisecond })
	r.neighbour(func() {
		slow := r.open("slow", 1)
		demands := make([]*leasepb.Demand, 5000)
		for i := range demands {
			demands[i] = demand(uint32(i), "nobody", 1)
		}
		served := func() (yes bool) {
			r.inLoop(t.Context(), func(limit.Time) {
				m := r.loop.members.get("slow")
				yes = m != nil && m.stream != nil
			})
			return yes
		}
		// It asks as long as it is served, now and then: each report takes time of the processor.
		var sending sync.WaitGroup
		ended := make(chan struct{})
		sending.Go(func() {
			again := time.NewTicker(250 * time.Millisecond)
			defer again.Stop()
			for {
				slow.report(demands...)
				select {
				case <-ended:
					return
				case <-again.C:
				}
			}
		})
		r.eventually("it is served", served)
		r.eventually("its stream has ended", func() bool { return !served() })
		close(ended)
		if s := slow.ends(); s.Code() != codes.ResourceExhausted || !strings.Contains(s.Message(), "does not read") {
			t.Errorf("%v", s)
		}
		sending.Wait()
	})
}

// A panic in the coordinator is logged and counted, and costs the stream whose report
// it was.
func TestPanic(t *testing.T) {
	var poison atomic.Bool
	r := start(t, Options{}, func(s *shard) {
		whole := s.step
		s.step = func(now limit.Time, e lease.Event) []lease.Grant {
			if m, ok := e.(*lease.Report); ok && m.Instance == "bad" && poison.Load() {
				panic("poisoned")
			}
			return whole(now, e)
		}
	})
	poison.Store(true)
	r.neighbour(func() {
		bad := r.open("bad", 1)
		bad.report()
		if s := bad.ends(); s.Code() != codes.Internal || strings.Contains(s.Message(), "poison") {
			t.Errorf("%v", s)
		}
	})
	r.eventually("it is counted", func() bool { return r.figures.Load().Panics == 1 })
}
