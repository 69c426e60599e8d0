package lending

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/testca"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/access"
)

// gatekeeper is a file of identities that a test changes.
type gatekeeper struct {
	t    *testing.T
	dir  string
	live *access.Live
}

const orders = "token-of-orders-000"

func newGatekeeper(t *testing.T, roles string) *gatekeeper {
	k := &gatekeeper{t: t, dir: t.TempDir()}
	testca.File(k.dir, "token", []byte(orders))
	var err error
	if k.live, err = access.Open(k.write(roles), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *gatekeeper) write(roles string) string {
	return testca.File(k.dir, "auth.yaml", fmt.Appendf(nil, "identities: [{name: orders, token_file: token, roles: [%s]}]", roles))
}

func (k *gatekeeper) change(roles string) {
	k.t.Helper()
	k.write(roles)
	if err := k.live.Reload(); err != nil {
		k.t.Fatal(err)
	}
}

func (k *gatekeeper) session() *access.Session {
	c, err := access.TokenOf(orders)
	if err != nil {
		k.t.Fatal(err)
	}
	return k.live.Begin(c)
}

// stream opens a stream of the identity.
func (k *gatekeeper) stream() *stream {
	k.t.Helper()
	ctx, cancel := context.WithCancelCause(k.t.Context())
	k.t.Cleanup(func() { cancel(nil) })
	st := newStream(ctx, cancel)
	if err := st.identify(k.session()); err != nil {
		k.t.Fatal(err)
	}
	return st
}

func report(instance string, session, number uint64, demands ...lease.Demand) *lease.Report {
	return &lease.Report{Member: lease.Member{Instance: instance, Session: session}, Number: number, Demands: demands}
}

func key(handle uint32, limit string) lease.Demand {
	return lease.Demand{Handle: handle, Resource: lease.ResourceID{Limit: limit}}
}

// admitted has the loop's side admit a report, as the reader would post it.
func (k *gatekeeper) admitted(s *members, now limit.Time, st *stream, r *lease.Report) (*member, error) {
	k.t.Helper()
	if err := st.permit(r); err != nil {
		return nil, err
	}
	m := s.admit(now, st, r, upTo5)
	if m == nil {
		end, ok := st.cause().(streamEnd)
		if !ok {
			k.t.Fatal("not admitted, and the stream goes on")
		}
		return nil, end.err
	}
	return m, nil
}

func index(t *testing.T) *limitIndex {
	t.Helper()
	set, err := rules.Parse("test", []byte("limits: [{name: shared, rate: 100/s, sharing: leased}, {name: other, rate: 100/s, sharing: leased}]"))
	if err != nil {
		t.Fatal(err)
	}
	return newLimitIndex(set)
}

func quiet() *members {
	return newMembers(lease.DefaultLease, slog.New(slog.DiscardHandler))
}

// TestKeysOfAnIdentity: what all instances of an identity have open is bounded, keys of sessions that were
// replaced included while their leases may run; what is above is refused one by one, and closed keys make room.
func TestKeysOfAnIdentity(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	k, s := newGatekeeper(t, `{lease: {limits: "*", max_keys: 3}}`), quiet()
	now := limit.Time(time.Hour)
	open := func(st *stream, r *lease.Report, refused ...uint32) {
		t.Helper()
		if _, err := k.admitted(s, now, st, r); err != nil {
			t.Fatal(err)
		}
		var got []uint32
		for _, d := range r.Demands {
			if d.Resource.Key == tooManyKeys {
				got = append(got, d.Handle)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(refused) {
			t.Errorf("refused %v, want %v; the identity has %d", got, refused, s.holdings["orders"].keys)
		}
	}
	one, two := k.stream(), k.stream()
	open(one, report("a", 1, 1, key(1, "shared"), key(2, "shared")))
	open(two, report("b", 2, 1, key(1, "shared"), key(2, "shared")), 2)
	open(one, report("a", 1, 2, key(1, "shared"), key(2, "shared"), key(3, "shared")), 3)
	closed := key(2, "shared")
	closed.Closed = true
	// The coordinator keeps what a report opens and closes at once, and what an old report closes.
	open(one, report("a", 1, 2, closed))
	open(two, report("b", 2, 2, key(9, "shared")), 9)
	opened := key(8, "shared")
	opened.Closed = true
	open(one, report("a", 1, 3, closed, closed, key(8, "shared"), opened))
	open(two, report("b", 2, 3, key(9, "shared")), 9)
	opened.Handle = 8
	open(one, report("a", 1, 4, opened))
	open(two, report("b", 2, 4, key(2, "shared")))
	// A new session of an instance does not free what the former one may hold still.
	one.end(nil)
	s.gone(one)
	again := k.stream()
	open(again, report("a", 9, 1, key(1, "shared")), 1)
	now = now.Add(3 * lease.DefaultLease)
	s.sweep(now, time.Hour)
	open(again, report("a", 9, 2, key(1, "shared")))
	if st, _ := index(t).resolve(lease.ResourceID{Limit: "shared", Key: tooManyKeys}); st.Rate != 0 {
		t.Errorf("such a key has terms: %+v", st)
	}
	// All of it is forgotten with the instances.
	for _, st := range []*stream{two, again} {
		st.end(nil)
		s.gone(st)
	}
	s.sweep(now.Add(3*lease.DefaultLease), time.Hour)
	if len(s.holdings) != 0 || len(s.byName) != 0 {
		t.Errorf("left over: %v, %v", s.holdings, s.byName)
	}
}

// TestInstancesOfAnIdentity: those that have gone count until their leases have ended, so that nobody fills
// the memory with new names on one stream after the other.
func TestInstancesOfAnIdentity(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	k, s := newGatekeeper(t, `{lease: {limits: "*", max_streams: 2}}`), quiet()
	now := limit.Time(time.Hour)
	join := func(i int) error {
		st := k.stream()
		defer s.gone(st)
		_, err := k.admitted(s, now, st, report(fmt.Sprint("i", i), 1, 1))
		return err
	}
	for i := range 4 {
		if err := join(i); err != nil {
			t.Fatal(err)
		}
	}
	if err := join(4); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "max_streams") {
		t.Errorf("the fifth instance of twice two: %v", err)
	}
	now = now.Add(3 * lease.DefaultLease)
	s.sweep(now, time.Hour)
	if err := join(4); err != nil {
		t.Errorf("after the leases of the others: %v", err)
	}
}

// TestStreamsOfAnIdentity: they are counted apart from those of others, and a stream that ends makes room.
func TestStreamsOfAnIdentity(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	k, a := newGatekeeper(t, `{lease: {limits: "*", max_streams: 2}}`), new(admission)
	st := k.stream()
	for range 2 {
		if err := a.enter(st, 100); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.enter(st, 100); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "the identity orders has 2 streams") {
		t.Errorf("a third stream of two: %v", err)
	}
	if err := a.enter(&stream{}, 100); err != nil {
		t.Errorf("a stream of nobody: %v", err)
	}
	a.leave(st)
	if err := a.enter(st, 100); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	for range 2 {
		a.leave(st)
	}
	a.leave(&stream{})
	if len(a.of) != 0 || a.streams != 0 {
		t.Errorf("left over: %v, %d", a.of, a.streams)
	}
}

// TestWhatAReportMayAskFor: limits of others are refused, bands and weights lowered; what is of sites is
// left out; usage of others' limits is not counted; the keys of servers are for members.
func TestWhatAReportMayAskFor(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	k, x := newGatekeeper(t, `{lease: {limits: ["sh*", mine], max_band: 3, max_weight: 10}}`), index(t)
	ask := func() *lease.Report {
		r := report("a", 1, 1, key(1, "shared"), key(2, "other"), lease.Demand{Handle: 3}, key(4, "mine"))
		r.Site, r.Demands[0].Most = true, lease.Capacity{Rate: 1, Burst: 1}
		r.Demands[0].Band, r.Demands[0].Weight = 255, 1<<31
		r.Demands[0].Claims = []lease.Claim{{Band: 255, Weight: 1 << 31}, {Band: 1, Weight: 1}}
		r.Demands[3].Band, r.Demands[3].Weight = 2, 0
		r.Demands[3].Resource.Key = "\x00key of a server"
		r.Usage = []lease.Usage{{Limit: "other", Admitted: 1}, {Limit: "shared", Admitted: 2}}
		return r
	}
	r, st := ask(), k.stream()
	if err := st.permit(r); err != nil {
		t.Fatal(err)
	}
	d := r.Demands
	if r.Instance != "orders/a" || d[0].Band != 3 || d[0].Weight != 10 || len(d[0].Claims) != 0 || r.Site || d[0].Most != (lease.Capacity{}) ||
		d[3].Band != 2 || d[3].Weight != 0 || d[0].Resource.Key == forbiddenKey || d[1].Resource.Key != forbiddenKey || d[2].Resource.Key == forbiddenKey {
		t.Errorf("%+v", r)
	}
	if len(r.Usage) != 1 || r.Usage[0].Limit != "shared" {
		t.Errorf("usage: %+v", r.Usage)
	}
	x.canonical(r)
	for _, name := range []string{"other", "shared", "no such limit"} {
		if _, st := x.resolve(lease.ResourceID{Limit: name, Key: forbiddenKey}); st != lease.StatusForbidden {
			t.Errorf("%s: %v", name, st)
		}
	}
	if d[1].Resource.Key != forbiddenKey {
		t.Errorf("a limit of others after its key was made canonical: %q", d[1].Resource.Key)
	}
	k.change("member")
	r = ask()
	if err := st.permit(r); err != nil || r.Demands[0].Band != 255 || r.Demands[1].Resource.Key == forbiddenKey || r.Instance != "orders/a" || len(r.Usage) != 2 {
		t.Errorf("a member: %+v, %v", r, err)
	}
	k.change("take")
	if err := st.permit(ask()); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "lacks the role lease") {
		t.Errorf("without the role: %v", err)
	}
}

// TestAnIdentityThatLosesALimit: what its instances hold of it is not renewed. They begin anew when their leases
// have ended; one that gains a limit goes on at once.
func TestAnIdentityThatLosesALimit(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	k, s := newGatekeeper(t, `{lease: {limits: [a]}}`), quiet()
	now, st := limit.Time(time.Hour), k.stream()
	number := uint64(0)
	next := func() error {
		number++
		_, err := k.admitted(s, now, st, report("i", 1, number))
		return err
	}
	for _, roles := range []string{`{lease: {limits: [a]}}`, `{lease: {limits: [a, b]}}`, `{lease: {limits: ["*"]}}`, "member"} {
		k.change(roles)
		if err := next(); err != nil {
			t.Fatalf("%s: %v", roles, err)
		}
	}
	k.change(`{lease: {limits: [a]}}`)
	for range 3 {
		if err := next(); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "may no longer be lent") {
			t.Errorf("after the limit was lost: %v", err)
		}
		s.gone(st)
		st = k.stream()
		now = now.Add(lease.DefaultLease / 2)
	}
	now = now.Add(lease.DefaultLease)
	s.sweep(now, time.Hour)
	if err := next(); err != nil {
		t.Errorf("after the leases have ended: %v", err)
	}
}

// TestEpochsThatAreBelieved: one above the coordinator's own is believed of members, and of every instance
// where there are no identities.
func TestEpochsThatAreBelieved(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	k, s := newGatekeeper(t, `lease`), quiet()
	for _, c := range []struct {
		st              *stream
		epoch, believed uint64
	}{
		{k.stream(), 4, 4}, {k.stream(), 5, 5}, {k.stream(), 6, 0}, {k.stream(), 1 << 62, 0}, {&stream{}, 6, 6},
	} {
		r := &lease.Report{Epoch: c.epoch}
		if s.believe(1, c.st, r, upTo5); r.Epoch != c.believed {
			t.Errorf("the epoch %d counts as %d, want %d", c.epoch, r.Epoch, c.believed)
		}
	}
	k.change("member")
	r := &lease.Report{Epoch: 1 << 61}
	if s.believe(1, k.stream(), r, upTo5); r.Epoch != 1<<61 {
		t.Errorf("a member's epoch counts as %d", r.Epoch)
	}
}

// upTo5 is a coordinator of epoch 5, which knows those before.
func upTo5(epoch uint64) bool { return epoch <= 5 }
