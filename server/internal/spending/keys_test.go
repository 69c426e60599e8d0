package spending_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server/internal/spending"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// A key has its lease for a minute after the last request, and for as long as a permit of it
// is in use; a peek at one that has none opens none.
func TestKeysOfLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{Ask: byLease}, `
  - {name: a, key: [k], rate: 10/day, sharing: leased}
  - {name: p, key: [k], algorithm: concurrency, max_in_flight: 3, timeout: 1h, sharing: leased}
`)
		defer stop()
		keys := func(when string, want int) {
			t.Helper()
			if got := f.Keys(); got != want {
				t.Errorf("%s: %d keys, want %d", when, got, want)
			}
		}
		keys("at first", 0)
		f.take(true, f.charge("a", "1", 0))
		for _, call := range []func(context.Context, []store.Charge) error{f.Refund, f.Finish, f.Reset} {
			if err := call(t.Context(), []store.Charge{f.charge("a", "1", 1), f.charge("p", "1", 1)}); err != nil {
				t.Error(err)
			}
		}
		keys("nothing taken", 0)
		f.take(true, f.charge("a", "1", 1))
		f.take(true, f.charge("a", "2", 1))
		place := f.charge("p", "1", 1)
		place.Permit = 1
		f.take(true, place)
		keys("in use", 3)
		for range 11 { // one of them is asked for now and then
			time.Sleep(5 * time.Second)
			f.take(true, f.charge("a", "2", 0))
		}
		keys("55 s later", 3)
		time.Sleep(7 * time.Second)
		keys("a minute later", 2)
		f.take(true, f.charge("a", "1", 9)) // it is known what was used
		f.take(false, f.charge("a", "1", 1))
		time.Sleep(10 * time.Minute)
		keys("ten minutes later", 1) // the permit
		if err := f.Finish(t.Context(), []store.Charge{place}); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Minute)
		keys("when it ended", 0)
	})
}

// Requests over several leases, shadows and refusals leave no key in use: all are given back
// a minute later.
func TestNoKeyStaysInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{Ask: byLease}, `
  - {name: a, key: [k], rate: 10/day, sharing: leased}
  - {name: b, key: [k], rate: 10/day, sharing: leased}
  - {name: p, key: [k], algorithm: concurrency, max_in_flight: 3, timeout: 5s, sharing: leased}
  - {name: x, rate: 1/day}
`)
		defer stop()
		shadow := f.charge("b", "1", 1)
		shadow.Shadow = true
		counted := f.charge("a", "1", 1)
		counted.CountRefused = true
		for _, charges := range [][]store.Charge{
			{f.charge("a", "1", 1), f.charge("b", "1", 1), f.charge("p", "1", 1)},
			{f.charge("a", "1", 1), f.charge("b", "1", 1), f.charge("x", "", 1)},
			{f.charge("a", "1", 1), f.charge("b", "1", 11), f.charge("p", "1", 1)},
			{f.charge("a", "1", 1), shadow},
			{counted, f.charge("x", "", 1)},
		} {
			for _, ask := range []func(context.Context, []store.Charge) (bool, error){f.Peek, f.Take} {
				if _, err := ask(t.Context(), charges); err != nil {
					t.Error(err)
				}
			}
			for _, call := range []func(context.Context, []store.Charge) error{f.Refund, f.Finish} {
				if err := call(t.Context(), charges); err != nil {
					t.Error(err)
				}
			}
		}
		if got := f.Keys(); got != 3 {
			t.Errorf("%d keys, want 3", got)
		}
		time.Sleep(62 * time.Second)
		if got := f.Keys(); got != 0 {
			t.Errorf("%d keys a minute later", got)
		}
	})
}

// Before Run, and after it, leased limits answer as for a store that does not; the others
// count as ever.
func TestBeforeAndAfterRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := limits(t, "  - {name: a, rate: 10/day, sharing: leased}\n  - {name: x, rate: 10/day}\n")
		s, err := spending.New(spending.Options{Store: memory.New(memory.Options{}), Limits: set, Logger: slog.New(slog.DiscardHandler), Connect: func(context.Context) (spending.Stream, error) {
			return nil, errors.New("no")
		}})
		if err != nil {
			t.Fatal(err)
		}
		f := &fixture{Store: s, t: t, set: set, counters: map[string]store.Counters{}}
		for _, v := range set.Variants() {
			if f.counters[v.ID], err = s.Bind(store.Spec{ID: v.ID, Policy: v.Policy}); err != nil {
				t.Fatal(err)
			}
		}
		check := func(when string) {
			t.Helper()
			for how, want := range map[store.OnFailure]bool{store.FailAllow: true, store.FailReject: false, store.FailLocal: false} {
				c := f.charge("a", "", 1)
				c.OnFailure = how
				if c = f.take(want, c)[0]; !c.Failed {
					t.Errorf("%s: %+v", when, c)
				}
			}
			for _, charges := range [][]store.Charge{{f.charge("a", "", 1)}, {f.charge("a", "", 1), f.charge("x", "", 1)}} {
				if _, err := f.Take(t.Context(), charges); !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("%s: %v", when, err)
				}
			}
			f.take(true, f.charge("x", "", 1))
		}
		check("before")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		check("after")
		f.take(true, f.charge("x", "", 8))
		f.take(false, f.charge("x", "", 1))
	})
}

// A full table makes room for a new key by the one that was not used for the longest, never
// by one used within the second or with a permit in use.
func TestFullTableDropsTheLongestUnused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{MaxKeys: 5}, `
  - {name: p, key: [k], algorithm: concurrency, max_in_flight: 3, timeout: 1h, sharing: leased}
`)
		defer stop()
		permit := uint64(0)
		take := func(key string, want bool) store.Charge {
			t.Helper()
			permit++
			c := f.charge("p", key, 1)
			c.Permit = permit
			return f.take(want, c)[0]
		}
		var charges []store.Charge
		for _, key := range []string{"1", "2", "3", "4", "5"} {
			charges = append(charges, take(key, true))
			time.Sleep(2 * time.Second)
		}
		if v := take("6", false).Verdict; v.Reason != limit.ReasonTableFull || v.RetryAfter != time.Second {
			t.Errorf("all have places in use: %+v", v)
		}
		if err := f.Finish(t.Context(), charges[1:4]); err != nil { // 2, 3 and 4 are free
			t.Error(err)
		}
		take("7", false) // they were used a moment ago
		time.Sleep(1100 * time.Millisecond)
		if err := f.Finish(t.Context(), []store.Charge{f.charge("p", "2", 0)}); err != nil { // which is a use
			t.Error(err)
		}
		take("8", true)
		take("9", true)
		take("10", false) // 2 was used
		if got := f.Keys(); got != 5 {
			t.Errorf("%d keys, want 5", got)
		}
		for _, key := range []string{"1", "5"} {
			c := f.charge("p", key, 3)
			c.Permit = 1000
			f.take(false, c) // one permit of each is in use
		}
	})
}

// Reset makes what is held here as good as new: a bucket is full, and all permits are free.
func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{}, `
  - {name: a, key: [k], rate: 10/day, sharing: leased}
  - {name: p, key: [k], algorithm: concurrency, max_in_flight: 3, timeout: 1h, sharing: leased}
  - {name: x, key: [k], rate: 10/day}
`)
		defer stop()
		for range 3 {
			f.take(true, f.charge("a", "1", 10), f.charge("p", "1", 3), f.charge("x", "1", 10))
			settle()
			f.take(false, f.charge("a", "1", 1))
			if err := f.Reset(t.Context(), []store.Charge{f.charge("a", "1", 0), f.charge("p", "1", 0), f.charge("x", "1", 0)}); err != nil {
				t.Error(err)
			}
			settle()
			f.take(false, f.charge("p", "1", 4))
		}
		f.take(true, f.charge("a", "1", 10))
		f.take(false, f.charge("a", "1", 1))
	})
}

// A limit that becomes leased is spent by leases from then on, one that stops is counted
// behind, and a smaller one is not exceeded; counters bound before and after a reload go the
// same way.
func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const text = `
  - {name: a, key: [k], rate: %d/day%s}
  - {name: p, key: [k], algorithm: concurrency, max_in_flight: %d, timeout: 1h%s}
`
		const lent = ", sharing: leased"
		f, stop := open(t, spending.Options{Ask: byLease}, fmt.Sprintf(text, 10, "", 3, ""))
		defer stop()
		place := func(permit uint64, n int64) store.Charge {
			c := f.charge("p", "1", n)
			c.Permit = permit
			return c
		}
		reload := func(text string) {
			set := limits(t, text)
			for _, v := range set.Variants() {
				c, err := f.Bind(store.Spec{ID: v.ID, Policy: v.Policy})
				if err != nil {
					t.Fatal(err)
				}
				f.counters[v.ID] = c
			}
			f.Reload(set, f.coordinator.Reload)
			settle()
		}
		old := f.charge("a", "1", 1)
		f.take(true, f.charge("a", "1", 1), place(1, 2))
		if f.Keys() != 0 {
			t.Errorf("%d keys of limits that are not leased", f.Keys())
		}
		reload(fmt.Sprintf(text, 10, lent, 3, lent))
		f.take(true, f.charge("a", "1", 4), place(2, 1))
		f.take(true, old)
		if f.Keys() != 2 {
			t.Errorf("%d keys of two leased limits", f.Keys())
		}
		// A permit from before ends where it was taken, one from now on the lease.
		if err := f.Finish(t.Context(), []store.Charge{place(1, 0), place(2, 0)}); err != nil {
			t.Error(err)
		}
		// Smaller: no request is above it, and in sum no more is taken than of the larger.
		reload(fmt.Sprintf(text, 6, lent, 2, lent))
		if v := f.take(false, f.charge("a", "1", 7))[0].Verdict; v.Reason != limit.ReasonCost {
			t.Errorf("above the smaller limit: %+v", v)
		}
		taken := 5
		for range 10 {
			if ok, err := f.Take(t.Context(), []store.Charge{f.charge("a", "1", 1)}); err == nil && ok {
				taken++
			}
			settle()
		}
		if taken < 6 || taken > 10 {
			t.Errorf("%d taken of 10 and then 6", taken)
		}
		f.take(false, place(3, 3))
		f.take(true, place(3, 2))
		f.take(false, place(4, 1))
		// Not leased any more: behind, one was taken at the beginning, and the permits are free.
		reload(fmt.Sprintf(text, 10, "", 3, ""))
		if f.Keys() != 0 {
			t.Errorf("%d keys when nothing is leased", f.Keys())
		}
		f.take(true, f.charge("a", "1", 9))
		f.take(false, f.charge("a", "1", 1))
		f.take(false, old)
		f.take(true, place(5, 3))
	})
}

// A limit whose key changes is leased anew: leases of the former keys end, and the log has no
// fault of them, which no operator could act on.
func TestReloadOfAnotherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		const text = "  - {name: a, key: %s, rate: 10/day, sharing: leased}\n"
		f, stop := open(t, spending.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, fmt.Sprintf(text, "k"))
		const former = 20
		for i := range former {
			f.take(true, f.charge("a", strconv.Itoa(i), 1))
		}
		set := limits(t, fmt.Sprintf(text, "[k, l]"))
		f.Reload(set, f.coordinator.Reload)
		settle()
		if f.Keys() != 0 {
			t.Errorf("%d leases of keys that the limit has no more", f.Keys())
		}
		both := f.charge("a", "", 1)
		both.Key = store.AppendKey(store.AppendKey(nil, "1"), "2")
		f.take(true, both)
		stop() // the log is complete
		if log.Len() > 0 {
			t.Errorf("the log:\n%s", log.String())
		}
	})
}

// A request that waits for a lease when its limit stops being leased, or becomes another
// kind, is decided by what is in force then.
func TestReloadWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := func(ctx context.Context) (spending.Stream, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		const text = "  - {name: a, key: [k], rate: 10/day%s}\n  - {name: b, key: [k], rate: 10/day%s}\n  - {name: p, key: [k], algorithm: concurrency, max_in_flight: 3%s}\n"
		const lent = ", sharing: leased"
		f, stop := open(t, spending.Options{Connect: never}, fmt.Sprintf(text, lent, lent, lent))
		defer stop()
		for i, charges := range [][]store.Charge{
			{f.charge("a", "1", 1)},
			{f.charge("p", "2", 1)},
			{f.charge("a", "3", 1), f.charge("b", "3", 1)},
			{f.charge("a", "4", 1), f.charge("p", "4", 1)},
		} {
			for _, ask := range []func(context.Context, []store.Charge) (bool, error){f.Peek, f.Take} {
				f.Reload(limits(t, fmt.Sprintf(text, lent, lent, lent)), nil)
				type answer struct {
					allowed bool
					err     error
				}
				answers := make(chan answer, 1)
				go func() {
					allowed, err := ask(t.Context(), charges)
					answers <- answer{allowed, err}
				}()
				synctest.Wait()
				f.Reload(limits(t, fmt.Sprintf(text, "", "", "")), nil)
				if got := <-answers; got.err != nil || !got.allowed {
					t.Errorf("request %d: %v, %v, want that the store behind admits it", i, got.allowed, got.err)
				}
			}
		}
	})
}

// Counters of one name that are bound twice are the same limit, also when one of them is
// unbound and after a reload.
func TestBoundTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{}, "  - {name: a, key: [k], rate: 10/day, sharing: leased}\n")
		defer stop()
		first := f.charge("a", "1", 4)
		again, err := f.Bind(f.counters["a"].Spec())
		if err != nil {
			t.Fatal(err)
		}
		second := f.charge("a", "1", 4)
		second.Counters = again
		f.take(true, first)
		f.take(true, second)
		f.take(false, first)
		f.Reload(limits(t, "  - {name: a, key: [k], rate: 10/day}\n"), nil)
		f.take(true, first)
		f.take(true, second)
		f.take(false, first) // behind, eight were taken
		if f.Keys() != 0 {
			t.Errorf("%d keys", f.Keys())
		}
	})
}

// A shadow that cannot be decided refuses nothing, and its verdict says why or by what its
// limit would have.
func TestShadowWithoutLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{MaxKeys: 1, Ask: byLease}, `
  - {name: a, key: [k], rate: 10/day, sharing: leased}
  - {name: x, rate: 2/day}
`)
		defer stop()
		shadow := func(key string, cost int64) store.Charge {
			c := f.charge("a", key, cost)
			c.Shadow = true
			return c
		}
		f.take(true, f.charge("a", "1", 1))
		f.take(true, f.charge("a", "1", 0)) // in use now: the one before may have waited for a second
		if c := f.take(true, shadow("2", 1), f.charge("x", "", 1))[0]; c.Verdict.Allowed || c.Verdict.Reason != limit.ReasonTableFull {
			t.Errorf("the table is full: %+v", c)
		}
		if c := f.take(true, shadow("1", 11))[0]; c.Verdict.Allowed || c.Verdict.Reason != limit.ReasonCost {
			t.Errorf("it never fits: %+v", c)
		}
		settle()
		// Of a request that is refused a shadow takes nothing.
		f.take(false, shadow("1", 5), f.charge("x", "", 2))
		f.take(true, f.charge("a", "1", 9))
	})
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{Ask: byLease, Connect: func(context.Context) (spending.Stream, error) { return nil, errors.New("no") }}, `
  - {name: a, key: [k], rate: 10/day, sharing: leased}
  - {name: x, rate: 1/day}
`)
		defer stop()
		for _, how := range []store.OnFailure{store.FailTake, store.FailAllow, store.FailReject, store.FailLocal} {
			c := f.charge("a", "1", 1)
			c.Shadow, c.OnFailure = true, how
			// Where on_store_failure refuses, a tag marks.
			refuses := how == store.FailReject || how == store.FailLocal
			if v := f.take(true, c)[0].Verdict; v.Allowed == refuses {
				t.Errorf("%v: no lease: %+v", how, v)
			}
		}
	})
}
