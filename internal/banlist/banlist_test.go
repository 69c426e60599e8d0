package banlist

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

func newBans(t testing.TB, yaml string, o memory.Options) (*Bans, *engine.Engine) {
	t.Helper()
	set, err := rules.Parse("l.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(memory.New(o), set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return New(e), e
}

func take(t testing.TB, e *engine.Engine, attrs ...limit.Attribute) bool {
	t.Helper()
	d, err := e.Take(context.Background(), limit.Request{Attributes: attrs})
	if err != nil {
		t.Fatal(err)
	}
	return d.Allowed
}

// all reads all pages.
func all(t testing.TB, b *Bans, name string, page int) (list []Ban) {
	t.Helper()
	for after := ""; ; {
		some, next, err := b.Page(context.Background(), name, after, page)
		if err != nil {
			t.Fatal(err)
		}
		if len(some) > page {
			t.Errorf("a page of %d has %d", page, len(some))
		}
		list = append(list, some...)
		if after = next; after == "" {
			return list
		}
	}
}

// TestManyBans: thirty thousand keys are banned while the list is read page by page and bans are
// lifted and begin anew; then each is listed once, and all are lifted.
func TestManyBans(t *testing.T) {
	keys := 30_000
	if testing.Short() {
		keys = 5_000
	}
	const workers = 4
	b, e := newBans(t, "limits: [{name: a, key: [user], rate: 1/h, on_exceed: {ban: {for: 10h, from: now}}}]", memory.Options{})
	var banning, reading sync.WaitGroup
	var stop atomic.Bool
	for w := range workers {
		banning.Go(func() {
			for i := w; i < keys; i += workers {
				user := limit.Attribute{Name: "user", Value: fmt.Sprintf("user-%d", i)}
				take(t, e, user)
				take(t, e, user)
				if i%50 == 0 {
					if n, err := b.Lift(context.Background(), "a", []limit.Attribute{user}); n != 1 || err != nil {
						t.Errorf("%v: lifted %d, %v", user, n, err)
					}
					take(t, e, user)
					take(t, e, user)
				}
			}
		})
	}
	reading.Go(func() {
		for !stop.Load() {
			all(t, b, "", 1000)
		}
	})
	banning.Wait()
	stop.Store(true)
	reading.Wait()
	seen := map[string]bool{}
	for _, ban := range all(t, b, "a", 1000) {
		if user := ban.Key[0].Value; seen[user] || !ban.Exact || ban.Left > 10*time.Hour {
			t.Fatalf("%+v, listed before: %v", ban, seen[user])
		}
		seen[ban.Key[0].Value] = true
	}
	if f := b.Tallies()[0]; len(seen) != keys || f.Active != int64(keys) || f.Begun != uint64(keys+keys/50) || f.Unlisted != 0 {
		t.Errorf("%d are listed, want %d; counted %+v", len(seen), keys, f)
	}
	lifted := 0
	for n := -1; n != 0; lifted += n {
		var err error
		if n, err = b.LiftAll(context.Background(), "", 10_000); err != nil {
			t.Fatal(err)
		}
	}
	if lifted != keys || len(all(t, b, "", 10)) != 0 || b.Tallies()[0].Active != 0 {
		t.Errorf("lifted %d, want %d", lifted, keys)
	}
}

// A flood of other keys frees nobody who is banned, and the memory stays within its budget.
func TestFloodFreesNobody(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const budget = 1 << 20
	b, e := newBans(t, "limits: [{name: a, key: [user], rate: 1/h, on_exceed: {ban: {for: 10h}}}]", memory.Options{MaxBytes: budget})
	victims := []limit.Attribute{}
	for i := range 100 {
		user := limit.Attribute{Name: "user", Value: fmt.Sprintf("banned-%d", i)}
		victims = append(victims, user)
		take(t, e, user)
		take(t, e, user)
	}
	for i := range 100_000 {
		user := limit.Attribute{Name: "user", Value: fmt.Sprintf("flood-%d", i)}
		take(t, e, user)
		take(t, e, user) // and bans as many as there is room for
	}
	for _, user := range victims {
		if take(t, e, user) {
			t.Fatalf("%s was freed by the flood", user.Value)
		}
		if n, err := b.Lift(context.Background(), "a", []limit.Attribute{user}); n != 1 || err != nil {
			t.Errorf("%s: lifted %d, %v", user.Value, n, err)
		}
	}
	k, _ := e.BanKeeper()
	if st := k.(*memory.Store).Stats(); st.Bytes > budget {
		t.Errorf("%d bytes, the budget is %d", st.Bytes, budget)
	}
}

// Limits, overrides and keys of several attributes are listed together, in pages of any size, and
// what is listed as exact is lifted by what is shown.
func TestPages(t *testing.T) {
	for seed := range seeding.Draw(t, 20) {
		r := rand.New(rand.NewPCG(seed, 3))
		b, e := newBans(t, `
limits:
  - {name: a, match: {on: a}, key: [user, ip], rate: 1/h, on_exceed: {ban: {for: 1h}}, overrides: [{when: {user: u1}, rate: 2/h}]}
  - {name: b, match: {on: b}, key: [user], missing: all, rate: 1/h, on_exceed: {ban: {for: 2h}}}
  - {name: c, match: {on: c}, rate: 1/h, on_exceed: {ban: {for: 3h}}}
  - {name: plain, rate: 1000/s}
`, memory.Options{})
		want := map[string]bool{}
		for range 40 {
			on := string("abc"[r.IntN(3)])
			attrs := []limit.Attribute{{Name: "on", Value: on}}
			if on != "c" && (on != "b" || r.IntN(4) > 0) {
				attrs = append(attrs, limit.Attribute{Name: "user", Value: fmt.Sprintf("u%d", r.IntN(4))})
			}
			if on == "a" {
				attrs = append(attrs, limit.Attribute{Name: "ip", Value: []string{"192.0.2.7", "2001:db8::1", "no address"}[r.IntN(3)]})
			}
			for range 3 {
				take(t, e, attrs...)
			}
			text := on
			for _, a := range attrs[1:] {
				text += " " + a.Name + "=" + strings.Replace(a.Value, "2001:db8::1", "2001:db8::/64", 1)
			}
			want[text] = true
		}
		got := map[string]bool{}
		for _, ban := range all(t, b, "", 1+r.IntN(20)) {
			text := ban.Limit
			for _, a := range ban.Key {
				text += " " + a.Name + "=" + a.Value
			}
			if got[text] || ban.Key == nil || !ban.Exact || (ban.Override != "") != strings.HasPrefix(text, "a user=u1") {
				t.Fatalf("seed %d: %+v", seed, ban)
			}
			got[text] = true
			if n, err := b.Lift(context.Background(), ban.Limit, ban.Key); n != 1 || err != nil {
				t.Errorf("seed %d: %s: lifted %d, %v", seed, text, n, err)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("seed %d: listed %v, want %v", seed, got, want)
		}
	}
}

// Wrong questions are errors of the caller, and change nothing.
func TestWrongQuestions(t *testing.T) {
	b, e := newBans(t, "limits: [{name: login, key: [user, ip], rate: 1/h, on_exceed: {ban: {for: 1h}}}, {name: plain, rate: 1/s}]", memory.Options{})
	ctx := context.Background()
	for _, name := range []string{"logn", "plain", "\x00"} {
		if _, err := b.Lift(ctx, name, nil); !errors.Is(err, ErrNoBans) || !errors.Is(err, engine.ErrBadRequest) || !strings.Contains(err.Error(), ": no limit of that name bans; ") || !strings.Contains(err.Error(), "login") {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, key := range [][]limit.Attribute{nil, {{Name: "user", Value: "u"}}, {{Name: "usr", Value: "u"}, {Name: "ip", Value: "1"}}} {
		if _, err := b.Lift(ctx, "login", key); !errors.Is(err, engine.ErrBadRequest) {
			t.Errorf("%v: %v", key, err)
		}
	}
	for _, after := range []string{"x", "AAAA", "!", strings.Repeat("A", 1000)} {
		if _, _, err := b.Page(ctx, "", after, 10); err == nil {
			t.Errorf("%.10q was taken", after)
		}
	}
	if !take(t, e, limit.Attribute{Name: "user", Value: "u"}, limit.Attribute{Name: "ip", Value: "192.0.2.1"}) {
		t.Error("refused")
	}
}
