package crossings_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/crossings"
	"github.com/stint-io/stint/internal/observe"
	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// watchedStore is a store of one window of an hour, whose changes are observed as those of an engine are, in a bubble of
// synctest.
type watchedStore struct {
	store.Store
	*crossings.Observer
	counters store.Counters
	logged   []string
	stop     func()
}

func watch(t *testing.T, quota int64, l crossings.Limit) *watchedStore {
	now := func() limit.Time { return limit.At(time.Now()) }
	st := memory.New(memory.Options{Now: now})
	spec := store.Spec{ID: "month", Policy: limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: quota, Period: hour}}}
	c, err := st.Bind(spec)
	if err != nil {
		t.Fatal(err)
	}
	w := &watchedStore{Store: st, counters: c}
	var mu sync.Mutex
	w.Observer = crossings.NewObserver(crossings.NewWatcher(crossings.Options{
		Records: records.New(nil, 0), Now: now, Logger: slog.New(slog.DiscardHandler),
		Noted: func(e *crossings.Event) {
			mu.Lock()
			defer mu.Unlock()
			w.logged = append(w.logged, text(e))
		},
	}))
	l.Name, l.Specs = "month", []store.Spec{spec}
	l.Show = func(key []byte) []limit.Attribute { return []limit.Attribute{{Name: "customer", Value: string(key)}} }
	w.Watch([]crossings.Limit{l})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(ctx, st)
	}()
	w.stop = func() {
		cancel()
		<-ended
	}
	return w
}

func (w *watchedStore) Take(ctx context.Context, charges []store.Charge) (bool, error) {
	allowed, err := w.Store.Take(ctx, charges)
	w.Observe(observe.Event{Allowed: allowed, Charges: charges})
	return allowed, err
}

func (w *watchedStore) Refund(ctx context.Context, charges []store.Charge) error {
	defer w.Observe(observe.Event{Kind: observe.Returned, Charges: charges})
	return w.Store.Refund(ctx, charges)
}

func (w *watchedStore) Reset(ctx context.Context, charges []store.Charge) error {
	defer w.Observe(observe.Event{Kind: observe.Reset, Charges: charges})
	return w.Store.Reset(ctx, charges)
}

func (w *watchedStore) granted(c store.Charge) {
	w.Observe(observe.Event{Kind: observe.Granted, Charges: []store.Charge{c}})
}

// events returns what was logged since the last call, once nothing more comes.
func (w *watchedStore) events() string {
	synctest.Wait()
	defer func() { w.logged = w.logged[:0] }()
	return strings.Join(w.logged, " ")
}

func (w *watchedStore) charge(cost int64) store.Charge {
	return store.Charge{Counters: w.counters, Key: []byte("acme"), Cost: cost}
}

// TestStoreWalk: what each call of a store causes, with a soft threshold of 80 % and a quota of 150 % of 100.
func TestStoreWalk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, 150, crossings.Limit{Watch: crossings.All, SoftPercent: 80, HardPercent: 150})
		defer w.stop()
		take := func(c store.Charge) func(context.Context) error {
			return func(ctx context.Context) error {
				_, err := w.Take(ctx, []store.Charge{c})
				return err
			}
		}
		charged := w.charge(20) // afterwards, whether it fits or not
		charged.CountRefused, charged.Shadow = true, true
		own := w.charge(1)
		own.Quota, own.HasQuota = 1000, true
		for _, step := range []struct {
			name string
			do   func(context.Context) error
			want string
		}{
			{"a look takes nothing", func(ctx context.Context) error { _, err := w.Peek(ctx, []store.Charge{w.charge(100)}); return err }, ""},
			{"up to the soft threshold", take(w.charge(80)), ""},
			{"above it", take(w.charge(1)), "soft@81"},
			{"up to the quota", take(w.charge(69)), "hard@150"},
			{"charged afterwards, no request is refused", take(charged), ""},
			{"refused", take(w.charge(1)), "saturated@150"},
			{"with a larger quota of its own", take(own), ""},
			{"granted more", func(context.Context) error { w.granted(w.charge(50)); return nil }, ""},
			{"given back", func(ctx context.Context) error { return w.Refund(ctx, []store.Charge{w.charge(30)}) }, "under:hard@141"},
			{"reset", func(ctx context.Context) error { return w.Reset(ctx, []store.Charge{w.charge(0)}) }, "under:soft@0"},
		} {
			if err := step.do(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := w.events(); got != step.want {
				t.Errorf("%s: %q, want %q", step.name, got, step.want)
			}
		}
		w.Watch(nil)
		if err := take(w.charge(150))(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := w.events(); got != "" {
			t.Errorf("unwatched: %q", got)
		}
	})
}

// TestStoreOracle: whatever is taken, charged and given back in whatever window, the events of a key are those of
// one count: soft, hard and saturated when it first comes there in a window, under when it first leaves.
func TestStoreOracle(t *testing.T) {
	for seed := range seeding.Draw(t, 20) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			softPercent, hardPercent := rnd.IntN(2)*(50+rnd.IntN(50)), 100+rnd.IntN(3)*50
			quota := int64(10 + rnd.IntN(200))
			// The largest nominal count of which quota is the hard threshold or less: what the file has.
			nominal := (quota*100 + int64(hardPercent) - 1) / int64(hardPercent)
			soft := nominal * int64(softPercent) / 100
			w := watch(t, quota, crossings.Limit{Watch: crossings.All, SoftPercent: softPercent, HardPercent: hardPercent})
			defer w.stop()
			used, end := int64(0), time.Now().Truncate(hour).Add(hour)
			had := map[string]bool{}
			var want []string
			once := func(word string, if_ bool) {
				if if_ && !had[word] {
					had[word] = true
					want = append(want, fmt.Sprintf("%s@%d", word, used))
				}
			}
			for range 300 {
				want = want[:0]
				if rnd.IntN(40) == 0 {
					time.Sleep(time.Duration(rnd.Int64N(int64(2 * hour))))
				}
				if !time.Now().Before(end) {
					used, had, end = 0, map[string]bool{}, time.Now().Truncate(hour).Add(hour)
				}
				switch n := 1 + rnd.Int64N(quota/4+1); rnd.IntN(5) {
				case 0:
					was := used
					used = max(used-n, 0)
					if err := w.Refund(t.Context(), []store.Charge{w.charge(n)}); err != nil {
						t.Fatal(err)
					}
					once("under:hard", had["hard"] && was >= quota && used < quota)
					once("under:soft", had["soft"] && was > soft && used <= soft)
				default:
					allowed, err := w.Take(t.Context(), []store.Charge{w.charge(n)})
					if err != nil {
						t.Fatal(err)
					}
					if fits := used+n <= quota; fits != allowed {
						t.Fatal(allowed, used, n, quota)
					} else if fits {
						used += n
					}
					once("soft", softPercent > 0 && used > soft)
					once("hard", used >= quota)
					once("saturated", !allowed)
				}
				if got := w.events(); got != strings.Join(want, " ") {
					t.Fatalf("seed %d: used %d of %d, soft above %d: %q, want %q", seed, used, quota, soft, got, want)
				}
			}
		})
	}
}
