package spending

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/store"
)

// TestRunTwice: the leases are held by one Run; another one says so and ends.
func TestRunTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := begin(t, "  - {name: a, key: [k], rate: 10/day, sharing: leased}\n", nil)
		defer stop()
		synctest.Wait()
		if err := s.Run(t.Context()); err == nil {
			t.Error("it runs twice")
		}
		if ok, err := s.Take(t.Context(), []store.Charge{s.charge("a", 1)}); !ok || err != nil {
			t.Errorf("after that: %v, %v", ok, err)
		}
	})
}

// TestPermitTakenAnew: a permit that has ended and is taken again has its whole time-out, and
// not what was left of it.
func TestPermitTakenAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := begin(t, "  - {name: p, key: [k], algorithm: concurrency, max_in_flight: 3, timeout: 60s, sharing: leased}\n", nil)
		defer stop()
		begun := time.Now()
		at := func(d time.Duration) { time.Sleep(d - time.Since(begun)) }
		take := func(permit uint64, n int64) (charges []store.Charge, ok bool) {
			c := s.charge("p", n)
			c.Permit = permit
			charges = []store.Charge{c}
			ok, err := s.Take(t.Context(), charges)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // the lease follows
			return charges, ok
		}
		end := func(charges []store.Charge) {
			if err := s.Finish(t.Context(), charges); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		free := func(want int64, when string) {
			t.Helper()
			if _, ok := take(98, want+1); ok {
				t.Errorf("%s: more than %d places are free", when, want)
			}
			probe, ok := take(99, want)
			if !ok {
				t.Errorf("%s: fewer than %d places are free", when, want)
			}
			end(probe)
		}
		first, _ := take(1, 1)
		end(first)
		take(2, 1)
		at(30 * time.Second)
		free(2, "one has ended")
		at(40 * time.Second)
		take(1, 1)
		free(1, "it is taken again")
		at(65 * time.Second)
		free(2, "the other is over")
		at(90 * time.Second)
		free(2, "before its time")
		at(102 * time.Second)
		if _, ok := take(3, 3); !ok {
			t.Error("its time is over, and not all places are free")
		}
	})
}

// notes is a store that counts its calls.
type notes struct {
	store.BanKeeper
	refunds, finishes, resets int
}

func (n *notes) Refund(ctx context.Context, c []store.Charge) error {
	n.refunds += len(c)
	return n.BanKeeper.Refund(ctx, c)
}

func (n *notes) Finish(ctx context.Context, c []store.Charge) error {
	n.finishes += len(c)
	return n.BanKeeper.Finish(ctx, c)
}

func (n *notes) Reset(ctx context.Context, c []store.Charge) error {
	n.resets += len(c)
	return n.BanKeeper.Reset(ctx, c)
}

// TestWhatGoesBehind: what is given back of a lease goes to no other store; what the lease does
// not know of may be from before the limit was leased, so permits go to the store behind too.
func TestWhatGoesBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := begin(t, "  - {name: a, key: [k], rate: 10/day, sharing: leased}\n  - {name: p, key: [k], algorithm: concurrency, max_in_flight: 3, timeout: 1h, sharing: leased}\n  - {name: x, key: [k], rate: 10/day}\n", nil)
		defer stop()
		n := &notes{BanKeeper: s.BanKeeper}
		s.BanKeeper = n
		behind := func(what string, got *int, want int) {
			t.Helper()
			if *got != want {
				t.Errorf("%s: the store behind is told of %d charges, want %d", what, *got, want)
			}
			*got = 0
		}
		charge := func(name string, permit uint64) store.Charge {
			c := s.charge(name, 1)
			c.Permit = permit
			return c
		}
		if ok, err := s.Take(t.Context(), []store.Charge{charge("a", 1), charge("p", 1)}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		for what, tt := range map[string]struct {
			ask         func(context.Context, []store.Charge) error
			count       *int
			taken, none int // calls for a permit that is taken, and for one that is not
		}{"refund": {s.Refund, &n.refunds, 0, 0}, "finish": {s.Finish, &n.finishes, 0, 1}, "reset": {s.Reset, &n.resets, 1, 1}} {
			if err := tt.ask(t.Context(), []store.Charge{charge("a", 1)}); err != nil {
				t.Error(err)
			}
			behind(what+" of a rate", tt.count, 0)
			if err := tt.ask(t.Context(), []store.Charge{charge("a", 1), charge("x", 1)}); err != nil {
				t.Error(err)
			}
			behind(what+" of two rates", tt.count, 1)
			if ok, err := s.Take(t.Context(), []store.Charge{charge("p", 2)}); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if err := tt.ask(t.Context(), []store.Charge{charge("p", 2)}); err != nil {
				t.Error(err)
			}
			behind(what+" of a place", tt.count, tt.taken)
			if err := tt.ask(t.Context(), []store.Charge{charge("p", 77)}); err != nil {
				t.Error(err)
			}
			behind(what+" of no place", tt.count, tt.none)
			if err := s.Finish(t.Context(), []store.Charge{charge("p", 2)}); err != nil {
				t.Error(err)
			}
			n.finishes = 0
			time.Sleep(time.Second)
		}
	})
}

// TestCallerLeavesAFullLimit: a caller whose context ends while a full limit is asked again is
// gets its error, and not a refusal.
func TestCallerLeavesAFullLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := begin(t, "  - {name: a, key: [k], rate: 10/day, sharing: leased}\n", nil)
		defer stop()
		for range 100 {
			if _, err := s.Take(t.Context(), []store.Charge{s.charge("a", 1)}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), pollFull/2)
		defer cancel()
		begun := time.Now()
		if ok, err := s.Take(ctx, []store.Charge{s.charge("a", 1)}); ok || !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != pollFull/2 {
			t.Errorf("%v, %v after %v, want its own error after %v", ok, err, time.Since(begun), pollFull/2)
		}
	})
}
