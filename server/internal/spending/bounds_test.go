package spending

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/lending"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// spender is a store with a coordinator, as seen from inside.
type spender struct {
	*Store
	counters map[string]store.Counters
	set      *rules.Set
}

// begin starts one on the limits in text. The bubble ends it with stop.
func begin(t *testing.T, text string, parted func()) (s *spender, stop func()) {
	t.Helper()
	set, err := rules.Parse("test", []byte("limits:\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler)
	service := lending.New(lending.Options{Limits: set, State: lending.State{Epoch: 1}, Logger: logger}, 1)
	own, err := New(Options{
		Store: memory.New(memory.Options{}), Limits: set, Logger: logger,
		Connect: func(ctx context.Context) (Stream, error) { return service.Pipe(ctx, 0) },
	})
	if err != nil {
		t.Fatal(err)
	}
	own.parted = parted
	s = &spender{own, map[string]store.Counters{}, set}
	for _, v := range set.Variants() {
		if s.counters[v.ID], err = s.Bind(store.Spec{ID: v.ID, Policy: v.Policy}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	lends, stopLending := context.WithCancel(t.Context())
	var spending, lender sync.WaitGroup
	lender.Go(func() { service.Run(lends) })
	spending.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return s, func() {
		cancel()
		spending.Wait()
		stopLending()
		lender.Wait()
	}
}

func (s *spender) charge(name string, cost int64) store.Charge {
	return store.Charge{Counters: s.counters[name], Key: store.AppendKey(nil, "1"), Cost: cost, OnFailure: store.FailTake}
}

// remains is what Peek says of a limit.
func (s *spender) remains(t *testing.T, name string) int64 {
	t.Helper()
	c := []store.Charge{s.charge(name, 0)}
	if _, err := s.Peek(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return c[0].Verdict.Remaining
}

// TestAliasIsUsedAgain: a resource that is closed and opened again keeps its name, so that the client
// has the first lease closed before it opens the second; and the name is forgotten 30 s after it was
// retired for the last time.
func TestAliasIsUsedAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	a, begin, id := newAliases(), time.Now(), lease.ResourceID{Limit: "l", Key: "k"}
	name, other := a.add(id), a.add(lease.ResourceID{Limit: "l", Key: "o"})
	if name == other {
		t.Fatalf("two resources are called %q", name)
	}
	for i := range 3 {
		a.retire(begin.Add(time.Duration(i)*20*time.Second), name)
		a.sweep(begin.Add(time.Duration(i)*20*time.Second + 15*time.Second))
		if again := a.add(id); again != name {
			t.Errorf("it is called %q, and was %q", again, name)
		}
	}
	a.sweep(begin.Add(time.Hour))
	if len(a.known) != 2 || len(a.retired) != 0 || len(a.closed) != 0 {
		t.Errorf("%d names, %d retired, %d closed, while two are in use", len(a.known), len(a.retired), len(a.closed))
	}
	a.retire(begin.Add(time.Hour), name)
	a.sweep(begin.Add(2 * time.Hour))
	if again := a.add(id); again == name || len(a.known) != 2 {
		t.Errorf("%q is known after two hours", name)
	}
}

// TestAliasesAreForgotten: a name is known for 30 s after it was retired, to the nanosecond,
// whichever others are retired before and after it.
func TestAliasesAreForgotten(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	a := newAliases()
	begin := time.Now()
	var names []string
	for i := range 10 {
		names = append(names, a.add(lease.ResourceID{Limit: "l", Key: fmt.Sprint(i)}))
	}
	for i, name := range names[:8] {
		a.retire(begin.Add(time.Duration(i/2)*time.Second), name)
	}
	for _, tt := range []struct {
		after time.Duration
		gone  int
	}{{0, 0}, {30*time.Second - 1, 0}, {30 * time.Second, 2}, {30 * time.Second, 2}, {32*time.Second - 1, 4}, {32 * time.Second, 6}, {time.Hour, 8}} {
		a.sweep(begin.Add(tt.after))
		for i, name := range names {
			demands := []lease.Demand{{Resource: lease.ResourceID{Limit: name}}, {Handle: 7}}
			a.resolve(demands)
			want := lease.ResourceID{Limit: "l", Key: fmt.Sprint(i)}
			if i < tt.gone {
				want = lease.ResourceID{}
			}
			if demands[0].Resource != want || demands[1].Resource != (lease.ResourceID{}) {
				t.Errorf("name %d after %v: %+v, want %+v", i, tt.after, demands, want)
			}
		}
	}
	if again := a.add(lease.ResourceID{Limit: "l"}); again == names[0] || a.known[again].Limit != "l" {
		t.Errorf("a name that was forgotten is given again: %q", again)
	}
}

// TestAwaitIsBounded: what is waited for is seen at the next check, and is not waited
// for longer than was said, or than the caller waits.
func TestAwaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, d := range []time.Duration{0, pollEvery, pollFull, 50 * time.Millisecond, 500 * time.Millisecond} {
			for _, holds := range []int{0, 1, 2, 50, math.MaxInt} {
				for _, patience := range []time.Duration{time.Hour, pollEvery / 2, 10*pollEvery + 1} {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					begin, calls := time.Now(), 0
					came, err := await(ctx, d, func() bool { calls++; return calls == holds })
					cancel()
					took := d
					if holds > 0 && holds <= int(d/pollEvery) {
						took = time.Duration(holds) * pollEvery
					}
					if patience < took {
						if came || !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != patience {
							t.Errorf("for %v, with %v of patience: %v, %v after %v", d, patience, came, err, time.Since(begin))
						}
						continue
					}
					if want := holds > 0 && holds <= int(d/pollEvery); came != want || err != nil || time.Since(begin) != took {
						t.Errorf("for %v, holds at call %d: %v, %v after %v, want %v after %v", d, holds, came, err, time.Since(begin), want, took)
					}
				}
			}
		}
	})
}

// TestDebtIsWhatWasTaken: what was taken of a bucket and has not come back by the rate of the
// limit that is known, against plain numbers: nothing comes back before a rate is known, and
// never more than was taken.
func TestDebtIsWhatWasTaken(t *testing.T) {
	terms := []limit.Result{{}, {Quota: 10, Window: limit.Never}, {Quota: 1e9, Window: time.Second}, {Quota: 10, Window: time.Second}, {Quota: 3, Window: 7 * time.Second}, {Quota: 1, Window: time.Hour}}
	for seed := range seeding.Draw(t, 50) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 31))
			d, taken, each, at := debt{}, 0.0, time.Duration(0), time.Now()
			for step := range 100 {
				time.Sleep(time.Duration(r.Int64N(1 << r.IntN(34))))
				known := &terms[r.IntN(len(terms))]
				if known.Quota > 0 && known.Window < limit.Never {
					each = known.Window / time.Duration(known.Quota)
				}
				if each > 0 && taken > 0 {
					taken = max(0, taken-float64(time.Since(at))/float64(each))
				}
				if each > 0 || taken <= 0 {
					taken, at = max(0, taken), time.Now()
				}
				if r.IntN(3) == 0 {
					n := r.Int64N(20)
					d.add(n, known)
					taken += float64(n)
				}
				want := taken
				if known.Quota > 0 {
					want = min(want, float64(known.Quota))
				}
				if got := d.tokens(known).Float(); math.Abs(got-want) > 2e-6 {
					t.Fatalf("seed %d, step %d: %v are taken, want %v: %+v", seed, step, got, want, *known)
				}
			}
		})
	}
}

// TestDoubtIsWorthOneQuestion: that a full limit has less than some cost is believed for a
// second: a larger cost is asked for at once, the same or a smaller one not.
func TestDoubtIsWorthOneQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := doubt{}
		for step, tt := range []struct {
			after time.Duration
			n     int64
			want  bool
		}{
			{0, 5, true},
			{0, 5, false},
			{0, 4, false},
			{0, 6, true},
			{time.Second - 1, 6, false},
			{1, 6, true},
			{0, 6, false},
			{time.Second, 1, true},
			{0, 2, true},
			{0, 2, false},
			{time.Hour, 0, false},
			{0, 1, true},
		} {
			time.Sleep(tt.after)
			if got := d.worth(tt.n); got != tt.want {
				t.Errorf("step %d: %d is worth a question: %v", step, tt.n, got)
			}
		}
	})
}

// TestAdmittedWithNoneLeft: a request that took the last tokens is admitted without a reason, and
// with nothing to wait for; they come back once.
func TestAdmittedWithNoneLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := begin(t, "  - {name: a, key: [k], rate: 10/day, sharing: leased}\n", nil)
		defer stop()
		if ok, err := s.Take(t.Context(), []store.Charge{s.charge("a", 1)}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		time.Sleep(time.Second)
		c := s.charge("a", 9)
		e := s.known(s.lent["a"], c.Key)
		defer e.Done()
		r := e.Value.charger.(*rate)
		p := &part{charge: &c, entry: e}
		if err := r.prepare(t.Context(), p, true); err != nil || !c.Verdict.Allowed || c.Verdict.Reason != limit.ReasonNone || c.Verdict.RetryAfter != 0 || c.Verdict.Remaining != 0 || p.unknown || !p.held {
			t.Errorf("admitted with none left: %+v, %v, %+v", c.Verdict, err, p)
		}
		p.rollback()
		p.rollback() // once is enough
		if got := s.remains(t, "a"); got != 9 && got != 8 {
			t.Errorf("%d remain after it was given back, want 9 but for a part of one", got)
		}
	})
}

// TestReloadBetweenTwoLeases: a limit that stops being leased while a request holds another one
// takes nothing of that: the request begins again, and is charged once.
func TestReloadBetweenTwoLeases(t *testing.T) {
	const text = `
  - {name: a, key: [k], rate: 10/day, sharing: leased}
  - {name: b, key: [k], rate: 10/day%s}
`
	after, err := rules.Parse("test", []byte("limits:\n"+fmt.Sprintf(text, "")))
	if err != nil {
		t.Fatal(err)
	}
	for at := 1; at <= 5; at++ {
		synctest.Test(t, func(t *testing.T) {
			var s *spender
			asked := -1000
			s, stop := begin(t, fmt.Sprintf(text, ", sharing: leased"), func() {
				if asked++; asked == at {
					s.Reload(after, nil)
				}
			})
			defer stop()
			both := func() []store.Charge { return []store.Charge{s.charge("a", 2), s.charge("b", 2)} }
			if ok, err := s.Take(t.Context(), both()); !ok || err != nil {
				t.Fatal(ok, err)
			}
			time.Sleep(time.Second)
			asked = 0
			if ok, err := s.Take(t.Context(), both()); !ok || err != nil {
				t.Errorf("reload at question %d: %v, %v", at, ok, err)
			}
			time.Sleep(time.Second)
			asked = -1000
			if got := s.remains(t, "a"); got != 6 && got != 5 {
				t.Errorf("reload at question %d: %d remain of 10 after two requests for 2", at, got)
			}
		})
	}
}

// TestReloadKeepsLeases: a reload that leaves a limit as it is leaves it its leases, and what
// is known of them; one that makes it another kind does not.
func TestReloadKeepsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := begin(t, "  - {name: a, key: [k], rate: 10/day, sharing: leased}\n  - {name: b, key: [k], rate: 10/day, sharing: leased}\n", nil)
		defer stop()
		if ok, err := s.Take(t.Context(), []store.Charge{s.charge("a", 1), s.charge("b", 1)}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		before := s.known(s.lent["a"], s.charge("a", 0).Key)
		before.Done()
		set, err := rules.Parse("test", []byte("limits:\n  - {name: a, key: [k], rate: 20/day, sharing: leased}\n  - {name: b, key: [k], algorithm: concurrency, max_in_flight: 3, timeout: 1h, sharing: leased}\n"))
		if err != nil {
			t.Fatal(err)
		}
		for _, again := range []*rules.Set{s.set, set} {
			s.Reload(again, nil)
			now := s.known(s.lent["a"], s.charge("a", 0).Key)
			if now != before || s.lent["a"].most.Load() != again.Limits()[0].Base.Policy.Quota() {
				t.Errorf("its lease is another one, or the most it admits is %d", s.lent["a"].most.Load())
			}
			now.Done()
		}
		if s.Keys() != 1 || !s.lent["b"].semaphore {
			t.Errorf("%d keys, want that of the limit that stayed what it was", s.Keys())
		}
	})
}

// TestNewKeyAfterTheEnd: a key that comes when the leases have been given back is none, and
// its limit answers as a store that does not.
func TestNewKeyAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := begin(t, "  - {name: a, key: [k], rate: 10/day, sharing: leased}\n  - {name: p, key: [k], algorithm: concurrency, max_in_flight: 3, timeout: 1h, sharing: leased}\n", nil)
		stop()
		for _, name := range []string{"a", "p"} {
			if ok, err := s.Take(t.Context(), []store.Charge{s.charge(name, 1)}); ok || !errors.Is(err, store.ErrUnavailable) || s.Keys() != 0 {
				t.Errorf("%s: %v, %v; %d keys", name, ok, err, s.Keys())
			}
		}
	})
}

// TestWorkIsUsedAgain: to sort the charges of a request takes no memory.
func TestWorkIsUsedAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	set, err := rules.Parse("test", []byte("limits:\n  - {name: a, key: [k], rate: 10/day, sharing: leased}\n  - {name: x, key: [k], rate: 10/day}\n"))
	if err != nil {
		t.Fatal(err)
	}
	own, err := New(Options{Store: memory.New(memory.Options{}), Limits: set})
	if err != nil {
		t.Fatal(err)
	}
	var charges []store.Charge
	for _, v := range set.Variants() {
		c, err := own.Bind(store.Spec{ID: v.ID, Policy: v.Policy})
		if err != nil {
			t.Fatal(err)
		}
		charges = append(charges, store.Charge{Counters: c, Key: []byte("k"), Cost: 1})
	}
	n := testing.AllocsPerRun(1000, func() {
		w := own.sort(charges)
		if len(w.leased) != 1 || len(w.exact) != 1 {
			t.Fatalf("%+v", w)
		}
		own.release(w)
	})
	if n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// TestInstanceNameIsChecked: a name that the coordinator would refuse is refused here.
func TestInstanceNameIsChecked(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	set, err := rules.Parse("test", []byte("limits: []\n"))
	if err != nil {
		t.Fatal(err)
	}
	for n, good := range map[int]bool{0: true, 247: true, 248: false} { // and nine for the number
		s, err := New(Options{Store: memory.New(memory.Options{}), Limits: set, Instance: strings.Repeat("i", n)})
		if (err == nil) != good || (s == nil) == good {
			t.Errorf("a name of %d bytes: %v", n, err)
		}
	}
}
