package server_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/server"
)

const leasedConfig = `limits:
  - {name: messages, key: [account], rate: 100/s, sharing: leased}
  - {name: per-ip, key: [ip], rate: 100/hour}
`

func stateIn(dir string) func(*server.Options) {
	return func(o *server.Options) { o.StateDir, o.FirstStart = dir, true }
}

// hold opens a stream of an instance that wants a part of messages.
func (s *service) hold(instance string) leasepb.Leases_HoldClient {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	s.t.Cleanup(cancel)
	stream, err := leasepb.NewLeasesClient(s.conn).Hold(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := stream.Send(wants(instance, "messages", "acme")); err != nil {
		s.t.Fatal(err)
	}
	return stream
}

func wants(instance, name, key string) *leasepb.Report {
	return &leasepb.Report{Instance: instance, Session: 1, Version: 1, Number: 1, Stamp: 1e9, Demands: []*leasepb.Demand{
		{Handle: 1, Rate: 40, Resource: &leasepb.Resource{Limit: name, Key: [][]byte{[]byte(key)}}},
	}}
}

// until returns the first share that is as wanted.
func until(t *testing.T, stream leasepb.Leases_HoldClient, as func(*leasepb.Share) bool) *leasepb.Share {
	t.Helper()
	for {
		g, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range g.GetShares() {
			if as(s) {
				return s
			}
		}
	}
}

// Over the ports of the service: an instance is lent its part, operators see it,
// a new configuration reaches it, and a stop tells it.
func TestLeases(t *testing.T) {
	s := start(t, leasedConfig, stateIn(t.TempDir()))
	stream := s.hold("one")
	until(t, stream, func(l *leasepb.Share) bool { return l.GetGranted().GetRate() >= 40e6 })
	a := s.do(http.MethodGet, s.admin+"/v1/leases?limit=messages", "")
	for _, part := range []string{`"instance": "one"`, `"key": "account=\"acme\""`, `"capacity": 100`, `"demand": 40`, `"truncated": false`} {
		if a.status != 200 || !strings.Contains(a.body, part) {
			t.Errorf("%d, no %s in %s", a.status, part, a.body)
		}
	}
	if a := s.do(http.MethodGet, s.http+"/v1/leases", ""); a.status != 404 {
		t.Errorf("keys are shown on a port for everybody: %d %s", a.status, a.body)
	}
	late := time.After(20 * time.Second)
	for metrics := ""; !strings.Contains(metrics, `stint_lease_capacity{limit="messages"} 100`); {
		select {
		case <-late:
			t.Fatalf("metrics: %s", metrics)
		default:
			metrics = s.do(http.MethodGet, s.admin+"/metrics", "").body
		}
		if strings.Contains(metrics, "acme") {
			t.Fatal("a key is in the metrics")
		}
	}
	write(t, s.path, strings.Replace(leasedConfig, "100/s", "5000/s", 1))
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	until(t, stream, func(l *leasepb.Share) bool { return l.GetLimit().GetRate() == 5000e6 })
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	for {
		if _, err := stream.Recv(); err != nil {
			if status.Code(err) != codes.Unavailable {
				t.Errorf("a stop ends streams with %v", err)
			}
			return
		}
	}
}

// A message that is too large ends its stream and disturbs nobody.
func TestLargeReport(t *testing.T) {
	s := start(t, leasedConfig, stateIn(t.TempDir()))
	stream := s.hold("one")
	until(t, stream, func(l *leasepb.Share) bool { return l.GetGranted().GetRate() > 0 })
	large := wants("two", "messages", strings.Repeat("x", 10<<20))
	bad, err := leasepb.NewLeasesClient(s.conn).Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = bad.Send(large) // Recv says why it failed
	if _, err := bad.Recv(); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "larger than max") {
		t.Errorf("10 MB: %v", err)
	}
	if got := short(s.should(request("any", 1, descriptor("ip=192.0.2.7")))); !strings.HasPrefix(got, "OK") {
		t.Errorf("another service on the port answers %s", got)
	}
	if err := stream.Send(&leasepb.Report{Instance: "one", Session: 1, Number: 2, Stamp: 2e9}); err != nil {
		t.Error(err)
	}
	for {
		g, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if g.GetEcho() == 2e9 {
			return
		}
	}
}

// After an end with something lent, the next start lends nothing before those leases
// have ended; after an end with nothing lent, at once.
func TestStateDirectory(t *testing.T) {
	dir := t.TempDir()
	first := start(t, leasedConfig, stateIn(dir))
	stream := first.hold("one")
	lent := until(t, stream, func(l *leasepb.Share) bool { return l.GetGranted().GetRate() > 0 })
	if lent.GetRecovering() {
		t.Error("the first start waits for leases that nobody has")
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second := start(t, leasedConfig, stateIn(dir))
	if l := until(t, second.hold("two"), func(*leasepb.Share) bool { return true }); !l.GetRecovering() || l.GetGranted().GetRate() != 0 {
		t.Errorf("leases of the first are out: %v", l)
	}
	claim := wants("one", "messages", "acme")
	claim.Demands[0].Lease, claim.Demands[0].Claim = lent.GetLease(), lent.GetToken()
	owner, err := leasepb.NewLeasesClient(second.conn).Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Send(claim); err != nil {
		t.Fatal(err)
	}
	if l := until(t, owner, func(*leasepb.Share) bool { return true }); !l.GetRecovering() || l.GetGranted().GetRate() != lent.GetGranted().GetRate() {
		t.Errorf("who had %v of the first claims %v of the second", lent.GetGranted(), l)
	}
	if err := second.stop(); err != nil {
		t.Fatal(err)
	}
	idle := t.TempDir()
	for range 2 {
		if err := start(t, leasedConfig, stateIn(idle)).stop(); err != nil {
			t.Fatal(err)
		}
	}
	third := start(t, leasedConfig, stateIn(idle))
	until(t, third.hold("three"), func(l *leasepb.Share) bool { return l.GetGranted().GetRate() > 0 && !l.GetRecovering() })
}

func TestBadStateDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "leases.json"), []byte("?"), 0o600); err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{dir: "is not the state of a coordinator", filepath.Join(dir, "leases.json"): "directory"} {
		if _, err := server.New(server.Options{StateDir: where}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", where, err)
		}
	}
}
