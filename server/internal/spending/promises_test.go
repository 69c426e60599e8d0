package spending_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server/internal/spending"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// settle lets the coordinator and the lease agree.
func settle() { time.Sleep(time.Second) }

// What is refunded can be used again, but for a part of a token, and a bucket gets no fuller
// than full: the count of what is used and not refunded is the oracle.
func TestRefundsAgainstCount(t *testing.T) {
	for seed := range seeding.Draw(t, some(20, 2)) {
		synctest.Test(t, func(t *testing.T) {
			f, stop := open(t, spending.Options{}, "  - {name: a, key: [k], rate: 40/day, sharing: leased}\n")
			defer stop()
			r := rand.New(rand.NewPCG(seed, 3))
			left := int64(40)
			for step := range 100 {
				n := r.Int64N(8)
				if r.IntN(3) == 0 {
					if err := f.Refund(t.Context(), []store.Charge{f.charge("a", "1", n)}); err != nil {
						t.Fatal(err)
					}
					left = min(40, left+n)
					continue
				}
				charges := []store.Charge{f.charge("a", "1", n)}
				if r.IntN(2) == 0 { // with another, so that it is prepared and may be rolled back
					charges = append(charges, f.charge("a", "2", r.Int64N(2)*1000))
				}
				got, err := f.Take(t.Context(), charges)
				impossible := len(charges) == 2 && charges[1].Cost > 0
				if err != nil || got && (impossible || n > left) || !got && !impossible && n < left {
					t.Fatalf("seed %d, step %d: %v, %v for %d of %d that are left: %+v", seed, step, got, err, n, left, charges)
				}
				if got {
					left -= n
				}
				if r.IntN(4) == 0 {
					settle()
				}
			}
		})
	}
}

// The verdict of each charge says how its bucket stands afterwards: less by what was taken,
// and as before when another charge refused.
func TestVerdictsSayHowItStands(t *testing.T) {
	if testing.Short() {
		t.Skip("TestFleetOfReservations has the same goroutines: nothing for the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{}, `
  - {name: a, key: [k], rate: 10/day, sharing: leased}
  - {name: b, key: [k], rate: 8/day, sharing: leased}
  - {name: x, key: [k], rate: 6/day}
  - {name: z, key: [k], rate: 5/day, count_refused: true}
`)
		defer stop()
		remain := func(charges []store.Charge, want ...int64) {
			t.Helper()
			for i, c := range charges {
				if c.Verdict.Remaining != want[i] || c.Failed {
					t.Errorf("charge %d: %+v, failed %v, want %d to remain", i, c.Verdict, c.Failed, want[i])
				}
			}
		}
		all := func(cost int64) []store.Charge {
			return []store.Charge{f.charge("a", "1", cost), f.charge("b", "1", cost), f.charge("x", "1", cost), f.charge("z", "1", cost)}
		}
		f.take(true, all(1)...) // which knows only of the lease that it was given
		settle()
		remain(f.take(true, all(2)...), 7, 5, 3, 2)
		settle()
		// The store behind refuses: the leases have what they had.
		refused := f.take(false, f.charge("a", "1", 1), f.charge("b", "1", 1), f.charge("x", "1", 4))
		for i, want := range []int64{7, 5, 3} { // a part of a token may be lost on the way back
			if got := refused[i].Verdict.Remaining; got != want && (i == 2 || got != want-1) {
				t.Errorf("charge %d: %d remain, want %d", i, got, want)
			}
		}
		if v := refused[2].Verdict; v.Allowed || v.Reason != limit.ReasonRate || v.RetryAfter <= 0 {
			t.Errorf("who refused: %+v", v)
		}
		if !refused[0].Verdict.Allowed || !refused[1].Verdict.Allowed {
			t.Errorf("who did not refuse: %+v", refused)
		}
		settle()
		// A lease refuses: behind it only what counts refused requests is taken.
		refused = f.take(false, f.charge("a", "1", 1), f.charge("b", "1", 6), f.charge("x", "1", 1), f.charge("z", "1", 1))
		remain(refused, 7, 5, 3, 1)
		if v := refused[1].Verdict; v.Allowed || v.Reason != limit.ReasonRate || v.RetryAfter <= 0 || v.RetryAfter > 24*time.Hour {
			t.Errorf("who refused: %+v", v)
		}
		if !refused[2].Verdict.Allowed {
			t.Errorf("who did not refuse: %+v", refused[2].Verdict)
		}
		settle()
		// A peek takes nothing, nor does a cost of 0.
		for range 3 {
			if got, err := f.Peek(t.Context(), []store.Charge{f.charge("a", "1", 7), f.charge("x", "1", 3)}); err != nil || !got {
				t.Errorf("peek: %v, %v", got, err)
			}
			if got, err := f.Peek(t.Context(), []store.Charge{f.charge("a", "1", 8), f.charge("x", "1", 3)}); err != nil || got {
				t.Errorf("peek: %v, %v", got, err)
			}
			if got, err := f.Peek(t.Context(), []store.Charge{f.charge("a", "1", 7), f.charge("x", "1", 4)}); err != nil || got {
				t.Errorf("peek: %v, %v", got, err)
			}
			remain(f.take(true, f.charge("a", "1", 0), f.charge("x", "1", 0)), 7, 3)
		}
		// What can never fit says so, and is no demand.
		large := f.take(false, f.charge("a", "1", 11))[0].Verdict
		if large.Allowed || large.Reason != limit.ReasonCost || large.RetryAfter != limit.Never {
			t.Errorf("a cost above the limit: %+v", large)
		}
		remain(f.take(true, f.charge("a", "another", 0)), 10) // nobody uses it
		// Used up exactly, and not beyond.
		f.take(true, f.charge("a", "1", 7))
		settle()
		refused = f.take(false, f.charge("a", "1", 1))
		remain(refused, 0)
		if v := refused[0].Verdict; v.Reason != limit.ReasonRate || v.RetryAfter < time.Hour || v.RetryAfter > 145*time.Minute { // a rate is rounded down to millionths of a token per second
			t.Errorf("used up: %+v, want the time of a token", v)
		}
		time.Sleep(145 * time.Minute)
		f.take(true, f.charge("a", "1", 1))
		f.take(false, f.charge("a", "1", 1))
	})
}

// A peek fills in the verdict of every charge, as a request would, and takes nothing.
func TestPeekFillsInVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{}, `
  - {name: a, key: [k], rate: 10/day, sharing: leased}
  - {name: x, key: [k], rate: 6/day}
`)
		defer stop()
		f.take(true, f.charge("a", "1", 1), f.charge("x", "1", 1))
		settle()
		for range 3 {
			charges := []store.Charge{f.charge("a", "1", 9), f.charge("x", "1", 5)}
			if ok, err := f.Peek(t.Context(), charges); err != nil || !ok || !charges[0].Verdict.Allowed || !charges[1].Verdict.Allowed {
				t.Errorf("all that is left: %v, %v: %+v", ok, err, charges)
			}
			charges = []store.Charge{f.charge("a", "1", 9), f.charge("x", "1", 6)}
			if ok, err := f.Peek(t.Context(), charges); err != nil || ok || !charges[0].Verdict.Allowed || charges[1].Verdict.Reason != limit.ReasonRate || charges[1].Verdict.Remaining != 5 {
				t.Errorf("one more: %v, %v: %+v", ok, err, charges)
			}
		}
	})
}

// When one lease has refused, the verdicts of the others say whether they would have: where
// more may come they would not, and where the limit is used up they would.
func TestVerdictsBesideARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{}, `
  - {name: a, key: [k], rate: 10/day, sharing: leased}
  - {name: b, key: [k], rate: 1000/day, sharing: leased}
  - {name: p, key: [k], algorithm: concurrency, max_in_flight: 1000, timeout: 1h, sharing: leased}
`)
		defer stop()
		f.take(true, f.charge("a", "1", 10))
		settle()
		f.take(true, f.charge("b", "1", 1))
		p := f.charge("p", "1", 1)
		p.Permit = 1
		f.take(true, p)
		for range 2 {
			c := f.take(false, f.charge("a", "1", 1), f.charge("b", "1", 900), f.charge("p", "1", 900), f.charge("b", "new", 900))
			for i, want := range []bool{false, true, true, true} {
				if c[i].Verdict.Allowed != want || c[i].Failed {
					t.Errorf("charge %d: %+v, failed %v, want %v", i, c[i].Verdict, c[i].Failed, want)
				}
			}
			settle()
		}
		f.take(true, f.charge("b", "1", 999))
		settle()
		c := f.take(false, f.charge("a", "1", 1), f.charge("b", "1", 1), f.charge("b", "1", 0))
		if v := c[1].Verdict; v.Allowed || v.Reason != limit.ReasonRate {
			t.Errorf("used up: %+v", v)
		}
		if v := c[2].Verdict; !v.Allowed {
			t.Errorf("a cost of 0: %+v", v)
		}
	})
}

// A refund after the bucket has filled up again adds nothing.
func TestLateRefund(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{}, "  - {name: a, key: [k], rate: 10/s, sharing: leased}\n")
		defer stop()
		f.take(true, f.charge("a", "1", 10))
		time.Sleep(30 * time.Second)
		if err := f.Refund(t.Context(), []store.Charge{f.charge("a", "1", 10)}); err != nil {
			t.Error(err)
		}
		taken := 0
		for range 30 {
			if ok, err := f.Take(t.Context(), []store.Charge{f.charge("a", "1", 1), f.charge("a", "other", 0)}); err == nil && ok {
				taken++
			}
		}
		// While it is asked, some of its waits are as long as a token takes to come.
		if taken < 10 || taken > 15 {
			t.Errorf("%d were taken of a bucket of 10", taken)
		}
	})
}

// behind is a store that does not answer while it is down.
type behind struct {
	store.BanKeeper
	down bool
}

var errDown = fmt.Errorf("down: %w", store.ErrUnavailable)

func (b *behind) Take(ctx context.Context, c []store.Charge) (bool, error) {
	if b.down {
		return false, errDown
	}
	return b.BanKeeper.Take(ctx, c)
}

func (b *behind) Peek(ctx context.Context, c []store.Charge) (bool, error) {
	if b.down {
		return false, errDown
	}
	return b.BanKeeper.Peek(ctx, c)
}

// Where the store behind does not answer, the request fails, the leases have what they had,
// and no caller gets an admission.
func TestStoreBehindDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := &behind{BanKeeper: memory.New(memory.Options{})}
		f, stop := open(t, spending.Options{Store: down}, `
  - {name: a, key: [k], rate: 10/day, sharing: leased}
  - {name: b, key: [k], rate: 10/day, sharing: leased}
  - {name: p, key: [k], algorithm: concurrency, max_in_flight: 3, sharing: leased}
  - {name: x, key: [k], rate: 10/day}
  - {name: z, key: [k], rate: 10/day, count_refused: true}
`)
		defer stop()
		f.take(true, f.charge("a", "1", 4), f.charge("b", "1", 4), f.charge("p", "1", 1))
		settle()
		down.down = true
		for _, charges := range [][]store.Charge{
			{f.charge("a", "1", 6), f.charge("x", "1", 1)},
			{f.charge("a", "1", 6), f.charge("b", "1", 6), f.charge("p", "1", 2), f.charge("x", "1", 1)},
			{f.charge("a", "1", 7), f.charge("x", "1", 1)}, // refused by the lease
			{f.charge("a", "1", 7), f.charge("z", "1", 1)},
			{f.charge("x", "1", 1)},
		} {
			for _, ask := range []func(context.Context, []store.Charge) (bool, error){f.Take, f.Peek} {
				if got, err := ask(t.Context(), charges); got || !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("%+v: %v, %v, want an error", charges, got, err)
				}
			}
		}
		down.down = false
		f.take(true, f.charge("a", "1", 6), f.charge("b", "1", 6), f.charge("p", "1", 2), f.charge("x", "1", 10), f.charge("z", "1", 10))
		f.take(false, f.charge("a", "1", 1))
	})
}

// A request whose context ends while it waits for a lease, or for an answer about a key that has none, fails with the
// context's error, and takes nothing.
func TestContextEndsWhileItWaits(t *testing.T) {
	for _, asks := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var f *fixture
			up := make(chan struct{}) // closed when the coordinator begins to answer
			o := spending.Options{Ask: byLease, Connect: func(ctx context.Context) (spending.Stream, error) {
				select {
				case <-ctx.Done():
					return nil, ctx.Err()
				case <-up:
					return f.coordinator.Pipe(ctx, 0)
				}
			}}
			if asks {
				o.Ask = func(ctx context.Context, _ int, asks []lease.Ask) ([]lease.Answer, error) {
					select {
					case <-ctx.Done():
						return nil, ctx.Err()
					case <-up:
						return f.coordinator.Answer(ctx, 0, asks)
					}
				}
			}
			f, stop := open(t, o, `
  - {name: a, key: [k], rate: 10/day, sharing: leased}
  - {name: b, key: [k], rate: 10/day, sharing: leased}
  - {name: p, key: [k], algorithm: concurrency, max_in_flight: 3, sharing: leased}
`)
			defer stop()
			synctest.Wait() // until it asks
			for _, charges := range [][]store.Charge{
				{f.charge("a", "1", 1)},
				{f.charge("p", "1", 1)},
				{f.charge("a", "1", 1), f.charge("b", "1", 1)},
				{f.charge("a", "1", 1), f.charge("p", "1", 1)},
			} {
				for _, ask := range []func(context.Context, []store.Charge) (bool, error){f.Take, f.Peek} {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
					begun := time.Now()
					got, err := ask(ctx, charges)
					if got || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%+v: %v, %v, want %v", charges, got, err, context.DeadlineExceeded)
					}
					if d := time.Since(begun); d != 10*time.Millisecond {
						t.Errorf("%+v: ended after %v", charges, d)
					}
					cancel()
				}
			}
			close(up)
			settle()
			f.take(true, f.charge("a", "1", 10), f.charge("b", "1", 10), f.charge("p", "1", 3))
		})
	}
}

// A refund to a bucket of which nothing was taken adds nothing to it.
func TestRefundOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{}, `
  - {name: a, key: [k], rate: 10/day, sharing: leased}
  - {name: x, rate: 1/day}
`)
		defer stop()
		f.take(true, f.charge("x", "", 1))
		f.take(false, f.charge("a", "1", 3), f.charge("x", "", 1)) // it has a lease
		if err := f.Refund(t.Context(), []store.Charge{f.charge("a", "1", 5)}); err != nil {
			t.Error(err)
		}
		taken := 0
		for range 20 {
			if ok, err := f.Take(t.Context(), []store.Charge{f.charge("a", "1", 1)}); err == nil && ok {
				taken++
			}
			settle()
		}
		if taken != 10 {
			t.Errorf("%d of 10 were taken", taken)
		}
	})
}

// TestRefundOutlivesTheLease: tokens that were refunded to a lease are there after the lease was closed as idle.
func TestRefundOutlivesTheLease(t *testing.T) {
	if testing.Short() {
		t.Skip("TestFleetOfReservations has the same goroutines: nothing for the race detector")
	}
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			f, stop := open(t, spending.Options{}, "  - {name: a, key: [k], rate: 10/day, sharing: leased}\n")
			defer stop()
			for range 7 { // so often that there is a lease
				f.take(true, f.charge("a", "1", 1))
			}
			if err := f.Refund(t.Context(), []store.Charge{f.charge("a", "1", 5)}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(4 * time.Minute)
			f.take(true, f.charge("a", "1", 8))
			f.take(false, f.charge("a", "1", 1))
		})
	}
}

// Two servers that spend leases of one coordinator: in sum never more than the limit has, and
// whichever is asked admits what is left: permits at the second time of asking, and tokens,
// which the other has to spare, within 20 seconds of asking.
func TestTwoServers(t *testing.T) {
	// Of other seeds one in 50 fails: the last token is in two parts, at the coordinator and at the server that asks.
	for seed := range uint64(some(10, 1)) {
		synctest.Test(t, func(t *testing.T) {
			const text = `
  - {name: a, key: [k], rate: 100/day, sharing: leased}
  - {name: p, key: [k], algorithm: concurrency, max_in_flight: 40, timeout: 1h, sharing: leased}
`
			one, stopOne := open(t, spending.Options{}, text)
			defer stopOne()
			two, stopTwo := open(t, spending.Options{Connect: func(ctx context.Context) (spending.Stream, error) { return one.coordinator.Pipe(ctx, 0) }, Ask: asking(one.coordinator)}, text)
			defer stopTwo()
			r := rand.New(rand.NewPCG(seed, 5))
			left, patience := map[string]int64{"a": 100, "p": 40}, map[string]int{"a": 20, "p": 2}
			type use struct {
				at     *fixture
				charge store.Charge
			}
			var uses []use
			for step := range 60 {
				name, cost := []string{"a", "p"}[r.IntN(2)], 1+r.Int64N(12)
				f := []*fixture{one, two}[r.IntN(2)]
				c := f.charge(name, "1", cost)
				c.Permit = uint64(step)
				got := false
				for try := 0; try < patience[name] && !got; try++ {
					ok, err := f.Take(t.Context(), []store.Charge{c})
					if err != nil {
						t.Fatalf("seed %d, step %d: %v", seed, step, err)
					}
					got = ok
					settle()
				}
				if want := cost <= left[name]; got != want {
					t.Fatalf("seed %d, step %d: %s: %v for %d of %d", seed, step, name, got, cost, left[name])
				}
				if got {
					left[name] -= cost
					if name == "p" {
						uses = append(uses, use{f, c})
					}
				}
				if len(uses) > 0 && r.IntN(3) == 0 {
					u := uses[0]
					uses = uses[1:]
					if err := u.at.Finish(t.Context(), []store.Charge{u.charge}); err != nil {
						t.Fatal(err)
					}
					left["p"] += u.charge.Cost
					settle()
				}
			}
		})
	}
}

// Many at once: never more than the limits have in sum, over one limit or two, and all of it
// can be had, with refunds at once as well.
func TestManyAtOnce(t *testing.T) {
	t.Run("taken", func(t *testing.T) { manyAtOnce(t, false) })
	t.Run("refunded", func(t *testing.T) { manyAtOnce(t, true) })
}

func manyAtOnce(t *testing.T, refunds bool) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{}, `
  - {name: a, key: [k], rate: 500/day, sharing: leased}
  - {name: b, key: [k], rate: 300/day, sharing: leased}
`)
		defer stop()
		var mu sync.Mutex
		var wg sync.WaitGroup
		taken := map[string]int64{}
		for worker := range 20 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(worker), 4))
				for range 60 {
					var charges []store.Charge
					for _, name := range [][]string{{"a"}, {"b"}, {"a", "b"}}[r.IntN(3)] {
						charges = append(charges, f.charge(name, "1", 1+r.Int64N(3)))
					}
					got, err := f.Take(t.Context(), charges)
					if err != nil {
						t.Error(err)
					}
					if got && refunds && r.IntN(4) == 0 {
						if err := f.Refund(t.Context(), charges); err != nil {
							t.Error(err)
						}
						got = false
					}
					mu.Lock()
					for _, c := range charges {
						if got {
							taken[c.Counters.Spec().ID] += c.Cost
						}
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		settle()
		for name, most := range map[string]int64{"a": 500, "b": 300} {
			for refused := 0; refused < 20; { // what is left, which may come back from the coordinator
				if ok, err := f.Take(t.Context(), []store.Charge{f.charge(name, "1", 1)}); err == nil && ok {
					taken[name]++
					continue
				}
				refused++
				settle()
			}
			if taken[name] > most || taken[name] < most-5 {
				t.Errorf("%s: %d of %d were taken", name, taken[name], most)
			}
		}
	})
}
