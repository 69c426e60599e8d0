package crossings_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
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
	servers  []*crossings.Watcher

	mu    sync.Mutex
	noted []crossings.Event // by any server
}

// newSite starts servers in a bubble of synctest. stop ends them.
func newSite(t testing.TB, servers int, kept store.Records) (s *site, stop func()) {
	now := func() limit.Time { return limit.At(time.Now()) }
	st := memory.New(memory.Options{Now: now})
	c, err := st.Bind(store.Spec{ID: "month", Policy: limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: quota, Period: hour}}})
	if err != nil {
		t.Fatal(err)
	}
	s = &site{t: t, store: st, counters: c}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range servers {
		w := crossings.NewWatcher(crossings.Options{Records: kept, Now: now, Logger: slog.New(slog.DiscardHandler), Noted: func(e *crossings.Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.noted = append(s.noted, *e)
		}})
		s.servers = append(s.servers, w)
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

// events returns what was noted since the last call, once nothing more comes.
func (s *site) events() (events []crossings.Event) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	events, s.noted = s.noted, nil
	return events
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
		var all []crossings.Event
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
			got = got[:0]
			for _, e := range s.events() {
				got, all = append(got, text(&e)), append(all, e)
			}
			if have := strings.Join(got, " "); have != step.want {
				t.Fatalf("%+d: %q, want %q", step.cost, have, step.want)
			}
		}
		time.Sleep(hour)
		s.take(0, "acme", 100)
		got = nil
		ids := map[string]bool{}
		for i, e := range append(all, s.events()...) {
			got = append(got, text(&e))
			if e.Seq != uint64(i+1) || ids[e.ID] || e.Record != all[0].Record || e.Limit != "month" || e.Key[0].Value != "acme" ||
				!e.WindowEnd.Equal(e.WindowEnd.Truncate(hour)) || e.WindowEnd.Before(e.Time) {
				t.Errorf("%+v", e)
			}
			ids[e.ID] = true
		}
		if want := "soft@81 hard@100 saturated@100 under:hard@99 under:soft@80 soft@100 hard@100"; strings.Join(got, " ") != want {
			t.Fatal(got)
		}
	})
}

// TestID: an event has the same ID whoever finds it, and whenever, so that a receiver can tell that it is the same.
func TestID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids []string
		for range 2 { // of which the second knows nothing of the first
			s, stop := newSite(t, 1, records.New(nil, 0))
			s.take(0, "acme", 81)
			ids = append(ids, s.events()[0].ID)
			stop()
			time.Sleep(time.Minute)
		}
		if ids[0] != ids[1] {
			t.Error(ids)
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
			got := map[string][]string{}
			for _, e := range s.events() {
				got[e.Key[0].Value] = append(got[e.Key[0].Value], text(&e))
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
}

var errLost = fmt.Errorf("lost: %w", store.ErrUnavailable)

func (s *shaky) fate() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.IntN(10)
}

func (s *shaky) Swap(ctx context.Context, table, key string, old, value []byte, keep time.Duration) (bool, []byte, error) {
	fate := s.fate()
	switch fate {
	case 0:
		return false, nil, errLost
	case 1:
		time.Sleep(time.Second)
	}
	swapped, present, err := s.Records.Swap(ctx, table, key, old, value, keep)
	if fate == 2 {
		return false, nil, errLost // it was done
	}
	return swapped, present, err
}

// TestConcurrent: many requests at once on several servers, of which some get no answer from the records: one server
// notes each event, once.
func TestConcurrent(t *testing.T) {
	for seed := range seeding.Draw(t, 20) {
		synctest.Test(t, func(t *testing.T) { concurrent(t, seed) })
	}
}

func concurrent(t *testing.T, seed uint64) {
	s, stop := newSite(t, 4, &shaky{Records: records.New(nil, 0), rnd: rand.New(rand.NewPCG(15, seed))})
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
	time.Sleep(time.Minute) // what the records did not take is tried again
	seen := map[string][]string{}
	events := s.events()
	slices.SortFunc(events, func(a, b crossings.Event) int { return int(a.Seq) - int(b.Seq) })
	for _, e := range events {
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
}

// TestBounds: keys that there is no room for are counted.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := func() limit.Time { return limit.At(time.Now()) }
		w := crossings.NewWatcher(crossings.Options{Records: records.New(nil, 0), Now: now, MaxKeys: 80})
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { w.Run(ctx) })
		defer func() { cancel(); all.Wait() }()
		for i := range 1000 {
			w.Note(&crossings.Standing{Counter: "c", Name: "c", Key: []byte(fmt.Sprint(i)), Watch: crossings.All, Window: time.Minute, Used: 9, Quota: 10, Nominal: 10, SoftPercent: 50})
			synctest.Wait()
		}
		st := w.Stats()
		if st.Events["soft"] > 80 || st.Events["soft"] < 60 || st.Dropped[crossings.DroppedKeys] != 1000-st.Events["soft"] {
			t.Fatalf("%+v", st)
		}
	})
}

// TestFormerRecords: a record that has undelivered events, as they were kept in it formerly, is one of what happened.
func TestFormerRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := records.New(nil, 0)
		s, stop := newSite(t, 2, kept)
		defer stop()
		end := time.Now().Truncate(hour).Add(hour)
		former := fmt.Sprintf(`{"v":1,"seq":7,"w":[{"e":%d,"k":%d,"h":1}],"p":[{"id":"evt_AAAAAAAAAAAAAAAAAAAAAA","kind":"soft","seq":7,"limit":"month",`+
			`"key":[{"Name":"customer","Value":"acme"}],"time":"2000-01-01T00:00:00Z","window_end":"2000-01-01T01:00:00Z","used":81,"quota":100,"nominal":100}]}`,
			end.UnixNano(), end.Add(hour).UnixNano())
		record := string(store.AppendKey(nil, "month")) + "acme"
		if ok, _, err := kept.Swap(t.Context(), "crossings", record, nil, []byte(former), hour); !ok || err != nil {
			t.Fatal(ok, err)
		}
		s.take(0, "acme", 90)
		s.take(1, "acme", 10)
		if got := s.events(); len(got) != 1 || text(&got[0]) != "hard@100" || got[0].Seq != 8 {
			t.Error(got)
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
		if events := s.events(); len(events) != 4 {
			t.Fatal(len(events))
		}
	})
}
