package client

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

func hold(t *testing.T, l *Limiter, n int64) *Hold {
	t.Helper()
	h, d, err := l.Hold(t.Context(), n)
	if err != nil || d.Allowed != (h != nil) {
		t.Fatal(h, d, err)
	}
	return h
}

func TestHoldWalk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lentAll(t, 10, 1000)
		if h := hold(t, l, 1000); h.Cost() != 1000 || h.Clamped() {
			t.Error(h)
		} else if err := h.Commit(100); err != nil || l.Remaining() != 900 {
			t.Error(err, l.Remaining())
		} else if err := h.Commit(100); err != nil || l.Remaining() != 900 {
			t.Error(err, l.Remaining())
		} else if err := h.Commit(101); !errors.Is(err, ErrSettled) || !errors.Is(h.Release(), ErrSettled) {
			t.Error(err)
		}
		a, b := hold(t, l, 500), hold(t, l, 400)
		if hold(t, l, 1) != nil {
			t.Error("nothing is left")
		}
		if err := a.Commit(700); err != nil { // 200 of debt: 20 s
			t.Error(err)
		}
		if err := b.Release(); err != nil || l.Remaining() != 200 {
			t.Error(err, l.Remaining()) // the debt is paid of what came back
		}
		c := hold(t, l, 200)
		if err := c.Commit(300); err != nil { // 100 of debt: 10 s
			t.Error(err)
		}
		time.Sleep(9 * time.Second)
		if l.Allow() {
			t.Error("the debt is not paid")
		}
		time.Sleep(1200 * time.Millisecond)
		if !l.Allow() {
			t.Error("the debt is paid")
		}
		time.Sleep(5 * time.Minute)
		if h := hold(t, l, 5000); h.Cost() != 1000 || !h.Clamped() {
			t.Error(h)
		} else if err := h.Release(); err != nil || l.Remaining() != 1000 {
			t.Error(err, l.Remaining())
		}
	})
}

// Whatever is held, and committed with less or more: what was committed, but for the debt that nobody has paid yet, and
// what is held are never above the burst and what was refilled.
func TestHoldNeverOver(t *testing.T) {
	for seed := range seeding.Draw(t, 20) {
		synctest.Test(t, func(t *testing.T) {
			rnd, begin := rand.New(rand.NewPCG(seed, 7)), time.Now()
			const rate, burst = 50, 300
			l := lentAll(t, rate, burst)
			var open []*Hold
			committed, held := int64(0), int64(0)
			for range 300 {
				time.Sleep(time.Duration(rnd.Int64N(int64(300 * time.Millisecond))))
				if len(open) == 0 || rnd.IntN(2) == 0 {
					before := int64(burst) + int64(rate*time.Since(begin).Seconds()) - committed - held
					cost := 1 + rnd.Int64N(120)
					h := hold(t, l, cost)
					if h == nil {
						continue
					}
					if cost > before {
						t.Fatalf("seed %d: %d were admitted of %d", seed, cost, before)
					}
					open, held = append(open, h), held+cost
					continue
				}
				i := rnd.IntN(len(open))
				h := open[i]
				open = append(open[:i], open[i+1:]...)
				actual := rnd.Int64N(h.Cost()*3/2 + 1)
				if err := h.Commit(actual); err != nil {
					t.Fatal(err)
				}
				committed, held = committed+actual, held-h.Cost()
			}
		})
	}
}

// Tokens that a Commit gives back go to the waiters of that moment, in their order.
func TestHoldServesWhoWaits(t *testing.T) {
	for seed := range seeding.Draw(t, 30) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 8))
			burst := 20 + rnd.Int64N(300)
			l := lentAll(t, 1, burst)
			var open []*Hold
			for l.Remaining() > 0 {
				open = append(open, hold(t, l, 1+rnd.Int64N(l.Remaining())))
			}
			var wants []int64
			var served atomic.Int64
			for range 1 + rnd.IntN(10) {
				n := 1 + rnd.Int64N(burst/2)
				wants = append(wants, n)
				l.WaitFunc(n, limit.Never, func(err error) {
					if err != nil {
						t.Error(err)
					}
					served.Add(1)
				})
			}
			left := int64(0)
			rnd.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
			for _, h := range open {
				actual := rnd.Int64N(h.Cost() + 1)
				if err := h.Commit(actual); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				left += h.Cost() - actual
				want := int64(0)
				for len(wants) > 0 && wants[0] <= left {
					left, wants, want = left-wants[0], wants[1:], want+1
				}
				if got := served.Swap(0); got != want {
					t.Fatalf("seed %d: %d of %d were used: %d are served, want %d", seed, actual, h.Cost(), got, want)
				}
			}
		})
	}
}

func TestHoldBadInput(t *testing.T) {
	l := lentAll(t, 10, 100)
	for _, bad := range []int64{0, -1, math.MinInt64, math.MaxInt64} {
		if h, _, err := l.Hold(t.Context(), bad); err == nil || h != nil {
			t.Error(bad, h)
		}
	}
	h := hold(t, l, 10)
	for _, bad := range []int64{-1, math.MinInt64, math.MaxInt64} {
		if err := h.Commit(bad); err == nil {
			t.Error(bad)
		}
	}
	if err := h.Commit(limit.MaxCount); err != nil || l.Allow() {
		t.Error(err)
	}
}

// A hold of a key is of that key alone. The key stays in the table until the hold is settled and its debt is paid; a
// request without the attribute is held nothing of, and what cannot be held is an error that changes nothing.
func TestHoldOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, time.Millisecond)
		h.terms["m"] = rateOf(10, 100)
		c, stop := h.begin(t, "one")
		defer stop()
		k, err := c.Keyed("m", []string{"account"}, KeyedOptions{})
		if err != nil {
			t.Fatal(err)
		}
		hold := func(account string, n int64) *Hold {
			t.Helper()
			req := limit.Request{Cost: n}
			if account != "" {
				req.Attributes = []limit.Attribute{{Name: "account", Value: account}}
			}
			h, d, err := k.Hold(t.Context(), req)
			if err != nil || d.Allowed != (h != nil) {
				t.Fatal(h, d, err)
			}
			return h
		}
		a, other := hold("a", 100), hold("b", 100)
		if hold("a", 1) != nil || other == nil {
			t.Error("a key has its own limit")
		}
		if err := other.Release(); err != nil {
			t.Error(err)
		}
		time.Sleep(5 * time.Minute)
		if n := k.Keys(); n != 1 {
			t.Errorf("%d keys, want the one that is held", n)
		}
		if b := hold("a", 100); b == nil {
			t.Error("it was refilled")
		} else if err := errors.Join(a.Commit(1100), b.Commit(100)); err != nil { // 1000 of debt: 100 s
			t.Error(err)
		}
		time.Sleep(95 * time.Second)
		if n := k.Keys(); n != 1 || hold("a", 1) != nil {
			t.Errorf("%d keys, before the debt is paid", n)
		}
		time.Sleep(7 * time.Second)
		if last := hold("a", 1); last == nil || last.Release() != nil || last.Release() != nil {
			t.Error("the debt is paid")
		}
		time.Sleep(5 * time.Minute)
		if n := k.Keys(); n != 0 {
			t.Errorf("%d keys in the end", n)
		}
		if none := hold("", 5); none == nil || none.Cost() != 5 || none.Commit(50) != nil || !errors.Is(none.Commit(51), ErrSettled) {
			t.Error("no limit applies")
		}
		for _, bad := range []int64{0, -1, math.MinInt64, math.MaxInt64} {
			if h, _, err := k.Hold(t.Context(), limit.Request{Cost: bad}); err == nil || h != nil {
				t.Error(bad, h)
			}
		}
		places, err := c.Keyed("p", []string{"account"}, KeyedOptions{Semaphore: true})
		if err != nil {
			t.Fatal(err)
		}
		if h, _, err := places.Hold(t.Context(), limit.Request{Cost: 1}); err == nil || h != nil {
			t.Error("of what is in flight")
		}
		if n := k.Keys() + places.Keys(); n > 1 { // the one that asks whether the name is right
			t.Errorf("%d keys after bad input", n)
		}
	})
}
