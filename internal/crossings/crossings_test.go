package crossings_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/crossings"
	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

const (
	quota, nominal, soft = 100, 100, 80
	hour                 = time.Hour
)

// site is a store of counters, and servers that share it and the records beside it.
type site struct {
	t        testing.TB
	store    store.Store
	counters store.Counters
	records  store.Records
	books    []*crossings.Book
	servers  []*crossings.Watcher

	mu     sync.Mutex
	logged []crossings.Event
}

// newSite starts servers in a bubble of synctest. stop ends them.
func newSite(t testing.TB, servers int, kept store.Records) (s *site, stop func()) {
	now := func() limit.Time { return limit.At(time.Now()) }
	st := memory.New(memory.Options{Now: now})
	c, err := st.Bind(store.Spec{ID: "month", Policy: limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: quota, Period: hour}}})
	if err != nil {
		t.Fatal(err)
	}
	s = &site{t: t, store: st, counters: c, records: kept}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range servers {
		b := crossings.NewBook(kept, fmt.Sprint("server", i), now, 0, 0)
		w := crossings.NewWatcher(crossings.Options{Book: b, Now: now, Logger: slog.New(slog.DiscardHandler), Deliver: func() bool { return true }, Logged: func(e *crossings.Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.logged = append(s.logged, *e)
		}})
		s.books, s.servers = append(s.books, b), append(s.servers, w)
		all.Go(func() { w.Run(ctx) })
	}
	return s, func() { cancel(); all.Wait() }
}

// take takes from a key on a server, or gives back where cost is below 0, and returns what is used and whether it
// was admitted.
func (s *site) take(server int, key string, cost int64) (used int64, allowed bool) {
	s.t.Helper()
	ctx := s.t.Context()
	if cost < 0 {
		if err := s.store.Refund(ctx, []store.Charge{{Counters: s.counters, Key: []byte(key), Cost: -cost}}); err != nil {
			s.t.Fatal(err)
		}
	}
	charges := []store.Charge{{Counters: s.counters, Key: []byte(key), Cost: max(cost, 0)}}
	allowed, err := s.store.Take(ctx, charges)
	if err != nil {
		s.t.Fatal(err)
	}
	v := charges[0].Verdict
	used = quota - v.Remaining
	now := limit.At(time.Now())
	st := crossings.Standing{
		Counter: "month", Name: "month", Key: []byte(key), Watch: crossings.All, Window: hour,
		Show: func(key []byte) []limit.Attribute { return []limit.Attribute{{Name: "customer", Value: string(key)}} },
		Used: used, Quota: quota, Nominal: nominal, SoftPercent: soft, Refused: !v.Allowed, Lowered: max(-cost, 0),
	}
	if v.ResetAfter > 0 {
		st.End = now.Add(v.ResetAfter)
	}
	s.servers[server].Note(&st)
	return used, allowed
}

// deliver takes all events off the outbox, in the order in which they would be sent.
func (s *site) deliver(book int) (sent []crossings.Event) {
	s.t.Helper()
	ctx, b := s.t.Context(), s.books[book]
	waiting, err := b.Waiting(ctx, "", 10_000)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, r := range waiting {
		if ok, err := b.Claim(ctx, r.Key, time.Minute); !ok || err != nil {
			s.t.Fatal(ok, err)
		}
		for {
			e, ok, err := b.Next(ctx, r.Key)
			if err != nil {
				s.t.Fatal(err)
			}
			if !ok {
				break
			}
			sent = append(sent, e)
			if err := b.Delivered(ctx, r.Key, e.ID); err != nil {
				s.t.Fatal(err)
			}
		}
		if err := b.Release(ctx, r.Key); err != nil {
			s.t.Fatal(err)
		}
	}
	return sent
}

func text(e *crossings.Event) string {
	word := e.Kind
	if e.Under != "" {
		word += ":" + e.Under
	}
	return fmt.Sprintf("%s@%d", word, e.Used)
}

// TestWalk: a key is used up, refused, refunded, and used up again; then a window later.
func TestWalk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := newSite(t, 2, records.New(nil, 0))
		defer stop()
		var got []string
		for _, step := range []struct {
			server int
			cost   int64
			want   string
		}{
			{0, 80, ""},
			{1, 1, "soft@81"},
			{0, 18, ""},
			{1, 1, "hard@100"},
			{0, 1, "saturated@100"},
			{1, 1, ""},
			{0, -1, "under:hard@99"},
			{1, -18, ""},
			{1, -1, "under:soft@80"},
			{0, 20, ""}, // each once, whatever it does afterwards
			{0, 1, ""},
			{1, -50, ""},
		} {
			s.take(step.server, "acme", step.cost)
			synctest.Wait()
			s.mu.Lock()
			got = got[:0]
			for i := range s.logged {
				got = append(got, text(&s.logged[i]))
			}
			s.logged = nil
			s.mu.Unlock()
			if have := strings.Join(got, " "); have != step.want {
				t.Fatalf("%+d: %q, want %q", step.cost, have, step.want)
			}
		}
		time.Sleep(hour)
		s.take(0, "acme", 100)
		synctest.Wait()
		got = nil
		ids := map[string]bool{}
		for i, e := range s.deliver(1) {
			got = append(got, text(&e))
			if e.Seq != uint64(i+1) || ids[e.ID] || e.Limit != "month" || e.Key[0].Value != "acme" || !e.WindowEnd.Equal(e.WindowEnd.Truncate(hour)) || e.WindowEnd.Before(e.Time) {
				t.Errorf("%+v", e)
			}
			ids[e.ID] = true
		}
		if want := "soft@81 hard@100 saturated@100 under:hard@99 under:soft@80 soft@100 hard@100"; strings.Join(got, " ") != want {
			t.Fatal(got)
		}
		if more := s.deliver(0); len(more) > 0 {
			t.Fatal("delivered twice:", more)
		}
		time.Sleep(time.Minute)
		s.deliver(0)
		if left, err := s.books[0].Waiting(t.Context(), "", 1); err != nil || len(left) > 0 {
			t.Fatal("what was delivered stays on the list:", left, err)
		}
	})
}

// TestOracle: whatever is taken and given back on whichever server, at whatever time, in whatever window, the events
// are those of a simple count of each key and window: each at most once, in the order in which they happened.
func TestOracle(t *testing.T) {
	for seed := range seeding.Draw(t, 8) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(14, seed))
			kept := &shaky{Records: records.New(nil, 0), rnd: rand.New(rand.NewPCG(14, seed+100))}
			s, stop := newSite(t, 3, kept)
			defer stop()
			type at struct {
				key string
				end int64
			}
			had := map[at]map[string]bool{}
			want := map[string][]string{}
			for range 600 {
				key := fmt.Sprint("key", rnd.IntN(4))
				cost := 1 + rnd.Int64N(40)
				before, _ := s.take(0, key, 0)
				if rnd.IntN(3) == 0 {
					cost = -min(cost, before)
				}
				synctest.Wait()
				used, allowed := s.take(rnd.IntN(3), key, cost)
				// Records that fail are tried again: nothing else happens until they are.
				time.Sleep(time.Minute)
				synctest.Wait()

				w := at{key, time.Now().Add(-time.Minute).Truncate(hour).Unix()}
				if had[w] == nil {
					had[w] = map[string]bool{}
				}
				see := func(word string, holds bool) {
					if holds && !had[w][word] {
						had[w][word] = true
						want[key] = append(want[key], fmt.Sprintf("%s@%d", word, used))
					}
				}
				see("soft", used > soft)
				see("hard", used == quota)
				see("saturated", !allowed)
				see("under:hard", cost < 0 && used < quota && had[w]["hard"])
				see("under:soft", cost < 0 && used <= soft && had[w]["soft"])
			}
			kept.off.Store(true)
			got := map[string][]string{}
			for range 3 { // several servers deliver, one after the other
				for _, e := range s.deliver(rnd.IntN(3)) {
					got[e.Key[0].Value] = append(got[e.Key[0].Value], text(&e))
				}
			}
			for key, list := range want {
				if !slices.Equal(got[key], list) {
					t.Fatalf("seed %d, %s:\n got %v\nwant %v", seed, key, got[key], list)
				}
			}
		})
	}
}

// shaky are records that answer late or not at all: some did what was asked, some did not.
type shaky struct {
	store.Records
	mu  sync.Mutex
	rnd *rand.Rand
	off atomic.Bool
}

var errLost = fmt.Errorf("lost: %w", store.ErrUnavailable)

func (s *shaky) fate() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.IntN(10)
}

func (s *shaky) Swap(ctx context.Context, table, key string, old, value []byte, keep time.Duration) (bool, []byte, error) {
	fate := s.fate()
	switch {
	case s.off.Load():
	case fate == 0:
		return false, nil, errLost
	case fate == 1:
		time.Sleep(time.Second)
	}
	swapped, present, err := s.Records.Swap(ctx, table, key, old, value, keep)
	if fate == 2 && !s.off.Load() {
		return false, nil, errLost // it was done
	}
	return swapped, present, err
}

// TestConcurrent: many requests at once on several servers; each event is there once, in the order of Seq.
func TestConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := newSite(t, 4, records.New(nil, 0))
		defer stop()
		var all sync.WaitGroup
		for i := range 4 {
			for range 4 {
				all.Go(func() {
					for n := range 100 {
						s.take(i, fmt.Sprint("key", n%10), 1)
					}
				})
			}
		}
		all.Wait()
		synctest.Wait()
		seen := map[string][]string{}
		for _, e := range s.deliver(0) {
			list := append(seen[e.Key[0].Value], e.Kind)
			if seen[e.Key[0].Value] = list; e.Seq != uint64(len(list)) {
				t.Errorf("%+v", e)
			}
		}
		for key, list := range seen {
			slices.Sort(list)
			if strings.Join(list, " ") != "hard saturated soft" {
				t.Error(key, list)
			}
		}
		if len(seen) != 10 {
			t.Error(seen)
		}
	})
}

// TestBounds: what there is no room for is counted, and the next event of the key shows the gap.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := func() limit.Time { return limit.At(time.Now()) }
		b := crossings.NewBook(records.New(nil, 0), "a", now, 2, time.Hour)
		w := crossings.NewWatcher(crossings.Options{Book: b, Now: now, MaxKeys: 80, Deliver: func() bool { return true }})
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { w.Run(ctx) })
		defer func() { cancel(); all.Wait() }()
		for i := range 1000 {
			w.Note(&crossings.Standing{Counter: "c", Name: "c", Key: []byte(fmt.Sprint(i)), Watch: crossings.All, Window: time.Minute, Used: 9, Quota: 10, Nominal: 10, SoftPercent: 50})
			synctest.Wait()
		}
		st := b.Stats()
		if st.Events["soft"] > 80 || st.Events["soft"] < 60 || st.Waiting != 2 || st.Dropped[crossings.DroppedFull] != st.Events["soft"]-2 ||
			st.Dropped[crossings.DroppedKeys] != 1000-st.Events["soft"] {
			t.Fatalf("%+v", st)
		}
		time.Sleep(90 * time.Minute)
		keys, _ := b.Waiting(ctx, "", 10)
		for _, r := range keys {
			if e, ok, err := b.Next(ctx, r.Key); ok || err != nil {
				t.Fatal(e, err)
			}
		}
		if st := b.Stats(); st.Dropped[crossings.DroppedOld] != 2 || st.Waiting != 0 {
			t.Fatalf("%+v", st)
		}
	})
}

// TestLongKeys: a key of any length has a record of its own.
func TestLongKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := newSite(t, 1, records.New(nil, 0))
		defer stop()
		for _, key := range []string{"", "\x00", strings.Repeat("k", 5000), strings.Repeat("k", 5001)} {
			s.take(0, key, 90)
		}
		synctest.Wait()
		if sent := s.deliver(0); len(sent) != 4 {
			t.Fatal(len(sent))
		}
	})
}
