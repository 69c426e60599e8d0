package keyadmin_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/audit"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/keyadmin"
	"github.com/stint-io/stint/internal/observe"
	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/durable"
	"github.com/stint-io/stint/store/memory"
	"github.com/stint-io/stint/store/redis"
)

const file = `
limits:
  - {name: month, key: [customer], algorithm: fixed_window, rate: 100/month, overrides: [{when: {plan: gold}, rate: 1000/month}]}
  - {name: burst, key: [customer], match: {burst: yes}, rate: 50/s}
  - {name: calls, key: [customer], match: {calls: yes}, algorithm: concurrency, max_in_flight: 3, timeout: 1m}
`

type desk struct {
	*testing.T
	engine  *engine.Engine
	store   store.Store
	records store.Records
	grants  *keyadmin.Grants
	keys    *keyadmin.Keys
	log     *audit.Log
	seen    observed
}

// observed are the changes that an engine tells of.
type observed []string

func (o *observed) Observe(e observe.Event) {
	for _, c := range e.Charges {
		*o = append(*o, fmt.Sprintf("%d %s %d", e.Kind, c.Counters.Spec().ID, c.Cost))
	}
}

func open(t *testing.T, rec store.Records) *desk {
	t.Helper()
	return openOn(t, memory.New(memory.Options{}), rec)
}

// openOn is open with counters in st, which is closed in the end.
func openOn(t *testing.T, st store.Store, rec store.Records) *desk {
	t.Helper()
	set, err := rules.Parse("limits", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	if rec == nil {
		rec = records.New(nil, 0)
	}
	grants := keyadmin.NewGrants(rec, nil, nil)
	d := &desk{T: t, store: st, records: rec, grants: grants, log: audit.New(rec, nil, 0)}
	e, err := engine.New(st, set, engine.Options{Raise: grants.Raise, Observers: []observe.Observer{&d.seen}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	d.engine, d.keys = e, keyadmin.New(keyadmin.Options{Engine: e, Records: rec, Audit: d.log, Grants: grants})
	return d
}

func (d *desk) take(n int64) limit.Result {
	d.Helper()
	dec, err := d.engine.Take(d.Context(), limit.Request{Attributes: attrs, Cost: n})
	if err != nil {
		d.Fatal(err)
	}
	return dec.Results[0]
}

var (
	attrs = []limit.Attribute{{Name: "customer", Value: "acme"}}
	month = keyadmin.Key{Limit: "month", Attributes: attrs}
	jo    = keyadmin.Change{Who: "jo"}
)

// drawn are other members, of which some do not answer.
type drawn struct {
	names []string
	used  map[string]int64 // of the members that answer
}

func (d *drawn) Members() []string { return d.names }

func (d *drawn) Change(_ context.Context, member string, c keyadmin.Remote) (keyadmin.State, error) {
	used, ok := d.used[member]
	if !ok {
		return keyadmin.State{}, errors.New("no route")
	}
	back := used
	if c.Action == "refund" {
		back = min(c.N, used)
	}
	return keyadmin.State{Used: used - back, Remaining: 100 - used + back, Changed: back}, nil
}

// Whichever members do not answer: the answer names those that were asked in vain, and so does the list of changes.
func TestMembersThatDoNotAnswer(t *testing.T) {
	for seed := range seeding.Draw(t, 50) {
		r := rand.New(rand.NewPCG(seed, 2))
		d := open(t, nil)
		others := &drawn{used: map[string]int64{}}
		for i := range 1 + r.IntN(5) {
			name := fmt.Sprint("member", i)
			if others.names = append(others.names, name); r.IntN(2) == 0 {
				others.used[name] = r.Int64N(50)
			}
		}
		keys := keyadmin.New(keyadmin.Options{
			Engine: d.engine, Records: d.records, Audit: d.log, Grants: keyadmin.NewGrants(d.records, nil, nil),
			Others: others, Logger: slog.New(slog.DiscardHandler),
		})
		if n := r.Int64N(50); n > 0 {
			d.take(n)
		}
		var s keyadmin.State
		var err error
		if r.IntN(2) == 0 {
			s, err = keys.Reset(t.Context(), month, jo)
		} else {
			s, err = keys.Refund(t.Context(), month, 1+r.Int64N(200), jo)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range s.Members {
			if _, answers := others.used[m.Member]; !answers {
				t.Errorf("seed %d: %s did not answer, and is among %+v", seed, m.Member, s.Members)
			}
		}
		notes, _, err := d.log.List(t.Context(), "key month customer=acme", "", 1)
		if err != nil || len(notes) != 1 {
			t.Fatal(notes, err)
		}
		asked := strings.Count(notes[0].After, "member")
		for _, name := range s.Unreached {
			if _, answers := others.used[name]; answers || !strings.Contains(notes[0].After, name) {
				t.Errorf("seed %d: %q does not name %s, which was not reached (it answers: %v)", seed, notes[0].After, name, answers)
			}
		}
		if unknown := len(others.names) - len(others.used); asked != len(s.Unreached) || notes[0].Action == "key.reset" && asked != unknown {
			t.Errorf("seed %d: %q, %+v, and %d of %d do not answer", seed, notes[0].After, s, unknown, len(others.names))
		}
	}
}

// Step by step: what is used, given back, granted and reset; and what is noted of it.
func TestWalkThrough(t *testing.T) {
	d := open(t, nil)
	d.take(60 - 20)
	d.take(20)
	if s, err := d.keys.Refund(t.Context(), month, 15, jo); err != nil || s.Used != 45 || s.Changed != 15 || s.Remaining != 55 {
		t.Fatal(s, err)
	}
	if s, err := d.keys.Refund(t.Context(), month, 1000, jo); err != nil || s.Used != 0 || s.Changed != 45 {
		t.Fatal("more than was taken: ", s, err)
	}
	if s, err := d.keys.Refund(t.Context(), month, 1000, jo); err != nil || s.Changed != 0 || s.Remaining != 100 {
		t.Fatal("of nothing: ", s, err)
	}
	if s, err := d.keys.Grant(t.Context(), month, 30, jo); err != nil || s.Quota != 130 || s.Granted != 30 || s.Remaining != 130 {
		t.Fatal(s, err)
	}
	for range 2 {
		d.take(50)
	}
	if r := d.take(30); !r.Allowed || r.Quota != 130 || r.Remaining != 0 {
		t.Fatal(r)
	}
	if r := d.take(1); r.Allowed {
		t.Fatal("above what was granted: ", r)
	}
	if _, err := d.keys.Grant(t.Context(), month, 71, jo); !errors.Is(err, keyadmin.ErrBadRequest) || !strings.Contains(err.Error(), "100 is the most") {
		t.Fatal(err)
	}
	if s, err := d.keys.Grant(t.Context(), month, 70, jo); err != nil || s.Quota != 200 || s.Remaining != 70 {
		t.Fatal(s, err)
	}
	if s, err := d.keys.Reset(t.Context(), month, jo); err != nil || s.Quota != 100 || s.Used != 0 || s.Changed != 130 {
		t.Fatal(s, err)
	}
	all, err := d.keys.Get(t.Context(), month)
	if err != nil || len(all) != 2 || all[1].Override != "plan=gold" || all[1].Quota != 1000 || all[0].ResetAfter != 0 {
		t.Fatal(all, err)
	}
	notes, _, err := d.log.List(t.Context(), "key month customer=acme", "", 100)
	if err != nil || len(notes) != 6 || notes[0].Action != "key.reset" || notes[0].Who != "jo" || notes[0].Before != "used 130 of 200" {
		t.Fatal(notes, err)
	}
}

// TestResetAfterGrantWasForgotten: in each store a reset gives back all that was used, with a grant that holds and
// with one that another member has taken back already, as one that resets the key at all members does.
func TestResetAfterGrantWasForgotten(t *testing.T) {
	stores := map[string]func(t *testing.T, draw int) store.Store{
		"memory": func(*testing.T, int) store.Store { return memory.New(memory.Options{}) },
		"durable": func(t *testing.T, _ int) store.Store {
			st, err := durable.Open(durable.Options{Path: filepath.Join(t.TempDir(), "counts.db")})
			if err != nil {
				t.Fatal(err)
			}
			return st
		},
	}
	addr := redistest.Start(t).Addr()
	stores["redis"] = func(t *testing.T, draw int) store.Store {
		st, err := redis.New(redis.Options{Addrs: []string{addr}, Timeout: 5 * time.Second, Prefix: fmt.Sprintf("reset%d:", draw)})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			draw := 0
			for seed := range seeding.Draw(t, 10) {
				draw++
				rnd := rand.New(rand.NewPCG(seed, 4))
				one := openOn(t, memory.New(memory.Options{}), nil)
				two := openOn(t, open(t, draw), one.records)
				granted := 1 + rnd.Int64N(100)
				if _, err := one.keys.Grant(t.Context(), month, granted, jo); err != nil {
					t.Fatal(err)
				}
				if err := two.grants.Read(t.Context()); err != nil {
					t.Fatal(err)
				}
				n := 100 + granted
				if rnd.IntN(2) == 0 {
					n = 1 + rnd.Int64N(n)
				}
				if r := two.take(n); !r.Allowed {
					t.Fatalf("seed %d: %d of %d: %v", seed, n, 100+granted, r)
				}
				if rnd.IntN(2) == 0 {
					if _, err := one.keys.Reset(t.Context(), month, jo); err != nil {
						t.Fatal(err)
					}
				}
				if err := two.grants.Read(t.Context()); err != nil {
					t.Fatal(err)
				}
				if s, err := two.keys.Reset(t.Context(), month, jo); err != nil || s.Changed != n || s.Used != 0 || s.Remaining != 100 {
					t.Fatalf("seed %d: %d used, %d granted: %+v, %v", seed, n, granted, s, err)
				}
			}
		})
	}
}

// Observers of the engine are told of each change by hand as of each request.
func TestChangesAreObserved(t *testing.T) {
	d := open(t, nil)
	d.take(60)
	for _, change := range []func() (keyadmin.State, error){
		func() (keyadmin.State, error) { return d.keys.Refund(t.Context(), month, 15, jo) },
		func() (keyadmin.State, error) { return d.keys.Grant(t.Context(), month, 30, jo) },
		func() (keyadmin.State, error) { return d.keys.Reset(t.Context(), month, jo) },
	} {
		if _, err := change(); err != nil {
			t.Fatal(err)
		}
	}
	id := d.engine.Counters("month", nil)[0].Counters.Spec().ID
	want := fmt.Sprintf("[%d %s 60 %d %[2]s 15 %[4]d %[2]s 30 %[5]d %[2]s 0]", observe.Taken, id, observe.Returned, observe.Granted, observe.Reset)
	if got := fmt.Sprint(d.seen); got != want {
		t.Errorf("observed %s, want %s", got, want)
	}
}

// What cannot be is refused, says why, and changes nothing.
func TestRefused(t *testing.T) {
	d := open(t, nil)
	d.take(10)
	key := func(name string, a ...limit.Attribute) keyadmin.Key { return keyadmin.Key{Limit: name, Attributes: a} }
	for _, tt := range []struct {
		key  keyadmin.Key
		n    int64
		want string
	}{
		{key("mont", attrs...), 1, `did you mean "month"`},
		{key("", attrs...), 1, "no such limit"},
		{key("month"), 1, "give each of them"},
		{key("month", limit.Attribute{Name: "custmer", Value: "x"}), 1, "did you mean customer"},
		{keyadmin.Key{Limit: "month", Override: "plan=tin", Attributes: attrs}, 1, `want one of "", "plan=gold"`},
		{month, 0, "want 1 to"},
		{month, -5, "want 1 to"},
		{month, 1 << 62, "above the cap"},
		{month, 101, "above the cap"},
		{key("burst", attrs...), 1, "nothing can be granted"},
		{key("calls", attrs...), 1, "nothing can be granted"},
	} {
		if _, err := d.keys.Grant(t.Context(), tt.key, tt.n, keyadmin.Change{Who: "jo", ID: "x"}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v %d: %v", tt.key, tt.n, err)
		}
	}
	if _, err := d.keys.Refund(t.Context(), key("calls", attrs...), 1, jo); err == nil {
		t.Error("a refund of what is in flight")
	}
	if s, err := d.keys.Get(t.Context(), month); err != nil || s[0].Used != 10 || s[0].Quota != 100 {
		t.Error(s, err)
	}
	if notes, _, _ := d.log.List(t.Context(), "", "", 10); len(notes) != 0 {
		t.Error(notes)
	}
	if _, err := d.keys.Grant(t.Context(), month, 1, keyadmin.Change{ID: strings.Repeat("x", 300)}); err == nil {
		t.Error("a long ID")
	}
}

// With one request ID a change is made once, however often and by however many it is asked for, in whatever process.
func TestOnce(t *testing.T) {
	rec := records.New(nil, 0)
	here, there := open(t, rec), open(t, rec)
	here.take(90)
	there.take(90)
	by := keyadmin.Change{Who: "jo", ID: "ticket-7"}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			d := []*desk{here, there}[i%2]
			s, err := d.keys.Grant(context.Background(), month, 40, by)
			if err != nil && !errors.Is(err, keyadmin.ErrUnfinished) || err == nil && (s.Granted != 40 || s.Changed != 40) {
				t.Error(s, err)
			}
		})
	}
	all.Wait()
	s, err := there.keys.Grant(t.Context(), month, 40, by)
	if err != nil || !s.Repeated || s.Granted != 40 {
		t.Fatal(s, err)
	}
	if _, err := here.keys.Grant(t.Context(), month, 41, by); !errors.Is(err, keyadmin.ErrConflict) {
		t.Fatal(err)
	}
	if notes, _, err := here.log.List(t.Context(), "", "", 10); err != nil || len(notes) != 1 || notes[0].Request != "ticket-7" {
		t.Fatal(notes, err)
	}
}

// broken fails after it has done what is asked for, as a store that answers too late.
type broken struct {
	store.Records
	fail func() bool
}

func (b *broken) Swap(ctx context.Context, table, key string, old, value []byte, keep time.Duration) (bool, []byte, error) {
	ok, present, err := b.Records.Swap(ctx, table, key, old, value, keep)
	if err == nil && b.fail() {
		return false, nil, store.ErrUnavailable
	}
	return ok, present, err
}

// However the records fail, and however often it is tried again with the same ID, a key is granted no more than once.
func TestFailing(t *testing.T) {
	rnd := seeding.Rand(t)
	for range 100 {
		d := open(t, &broken{records.New(nil, 0), func() bool { return rnd.IntN(3) == 0 }})
		by := keyadmin.Change{Who: "jo", ID: "a"}
		for range 10 {
			s, err := d.keys.Grant(t.Context(), month, 40, by)
			if err == nil && s.Granted != 40 {
				t.Fatal(s)
			}
		}
		all, err := d.keys.Get(t.Context(), month)
		if err != nil || all[0].Granted != 0 && all[0].Granted != 40 {
			t.Fatal(all, err)
		}
	}
}

// What another process grants holds here once it is read, until the window ends.
func TestSeen(t *testing.T) {
	rec := records.New(nil, 0)
	here, there := open(t, rec), open(t, rec)
	if _, err := here.keys.Grant(t.Context(), month, 50, jo); err != nil {
		t.Fatal(err)
	}
	now := limit.At(time.Now())
	grants := keyadmin.NewGrants(rec, func() limit.Time { return now }, nil)
	e, err := engine.New(there.store, there.engine.Set(), engine.Options{Raise: grants.Raise})
	if err != nil {
		t.Fatal(err)
	}
	take := func() limit.Result {
		dec, err := e.Take(t.Context(), limit.Request{Attributes: attrs, Cost: 101, Peek: true})
		if err != nil {
			t.Fatal(err)
		}
		return dec.Results[0]
	}
	if r := take(); r.Allowed {
		t.Fatal("before it was read: ", r)
	}
	if err := grants.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := take(); !r.Allowed || r.Quota != 150 {
		t.Fatal(r)
	}
	now = now.Add(32 * 24 * time.Hour)
	if r := take(); r.Allowed {
		t.Fatal("after the window: ", r)
	}
}

// reserved is what is reserved of every key.
type reserved struct {
	n         int64
	forgotten int
}

func (r *reserved) Held(context.Context, string, []byte) (int64, error) { return r.n, nil }
func (r *reserved) Forget(context.Context, string, []byte) error        { r.forgotten++; return nil }

// TestRefundOfDebt: whatever a key has used, in debt or not, a refund gives back what it says, and never more than was
// used without what is reserved.
func TestRefundOfDebt(t *testing.T) {
	for seed := range seeding.Draw(t, 50) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		d := open(t, nil)
		held := &reserved{n: rnd.Int64N(2) * rnd.Int64N(100)}
		d.keys = keyadmin.New(keyadmin.Options{Engine: d.engine, Records: d.records, Audit: d.log, Reserved: held})
		used := int64(0)
		for range 1 + rnd.IntN(4) {
			n := 1 + rnd.Int64N(150)
			c := d.engine.Counters("month", nil)[0]
			key, _ := c.Limit.KeyFrom(attrs)
			charge := []store.Charge{{Counters: c.Counters, Key: key, Cost: n, CountRefused: true, Shadow: true}}
			if _, err := d.store.Take(t.Context(), charge); err != nil {
				t.Fatal(err)
			}
			used += n
		}
		ask := 1 + rnd.Int64N(2*used)
		s, err := d.keys.Refund(t.Context(), month, ask, jo)
		if err != nil {
			t.Fatal(err)
		}
		if most := max(0, used-held.n); s.Changed > min(ask, most) || held.n == 0 && s.Changed != min(ask, used) {
			t.Fatalf("seed %d: %d used, %d reserved: a refund of %d gave %d", seed, used, held.n, ask, s.Changed)
		}
		if left := used - s.Changed; s.Used != min(left, 100) {
			t.Fatalf("seed %d: %d used after %d of %d came back", seed, s.Used, s.Changed, used)
		}
		if s, err = d.keys.Reset(t.Context(), month, jo); err != nil || s.Used != 0 || held.forgotten != 1 {
			t.Fatal(s, err, held.forgotten)
		}
	}
}
