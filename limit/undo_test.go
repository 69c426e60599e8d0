package limit

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/seeding"
)

// TestUndoAmongOthers: a rollback restores every token although others have taken since, as long
// as the bucket would not have been full in between; also while there are waiters, and after.
func TestUndoAmongOthers(t *testing.T) {
	for seed := range seeding.Draw(t, 300) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 12))
			p := Policy{Rate: Rate{Count: 1 + r.Int64N(50), Period: time.Second}, Burst: 40}
			own, oracle := newLimiter(t, p), newLimiter(t, p)
			both := func(n int64) {
				if a, b := own.AllowN(time.Now(), n), oracle.AllowN(time.Now(), n); a && !b {
					t.Fatalf("seed %d: %d admitted beside what is held, and not without it", seed, n)
				}
			}
			both(30 + r.Int64N(6))
			if stays := r.IntN(2) == 0; r.IntN(3) == 0 { // and one waits, for a moment or for all of it
				for _, l := range []*Limiter{own, oracle} {
					if x := l.ReserveN(time.Now(), 40); !x.OK() {
						t.Fatal("not reserved")
					} else if stays {
						defer x.Cancel()
					} else {
						x.Cancel()
					}
				}
			}
			var held []Prepared
			for range 4 {
				var result Result
				h := must(own.Prepare(t.Context(), Request{Cost: 1}, false, &result))
				if result.Allowed {
					held = append(held, h)
				}
				time.Sleep(time.Duration(r.Int64N(int64(20 * time.Millisecond))))
			}
			both(1)
			time.Sleep(time.Duration(r.Int64N(int64(50 * time.Millisecond))))
			for _, h := range held {
				own.Rollback(h)
				own.Rollback(Prepared{}) // of nothing
			}
			if got, want := own.Remaining(), oracle.Remaining(); got < want-1 || got > want {
				t.Errorf("seed %d: %+v has %d after %d were undone, %d without them", seed, p, got, len(held), want)
			}
		})
	}
}

// TestKeptIsNotUndone: what was kept stays taken.
func TestKeptIsNotUndone(t *testing.T) {
	for _, p := range []Policy{
		{Rate: PerHour(1), Burst: 10},
		{Algorithm: FixedWindow, Rate: PerHour(10)},
		{Algorithm: SlidingWindowLog, Rate: PerHour(10)},
		{Algorithm: SlidingWindowCounter, Rate: PerHour(10)},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, p)
			var result Result
			h := must(l.Prepare(t.Context(), Request{Cost: 4}, false, &result))
			l.Commit(h)
			l.Commit(h)
			if p.Algorithm != TokenBucket { // whose holders never do both
				l.Rollback(h)
			}
			if got := l.Remaining(); got != 6 {
				t.Errorf("%v: %d left of 10 after 4 were kept", p.Algorithm, got)
			}
		})
	}
}

// TestFixedWindowLineOfCosts: waiters with different costs for fixed windows are each served in
// the first window with room behind those before it, and fail at once when that is too late.
func TestFixedWindowLineOfCosts(t *testing.T) {
	for seed := range seeding.Draw(t, 200) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 13))
			quota := 2 + r.Int64N(5)
			l := newLimiter(t, Policy{Algorithm: FixedWindow, Rate: Rate{Count: quota, Period: time.Second}, Align: AlignFirstHit})
			begin := time.Now()
			if !l.AllowN(begin, quota) {
				t.Fatal("the first window is full")
			}
			window, used := 0, quota
			type waiter struct{ want, got time.Duration }
			var line []*waiter
			for range 2 + r.IntN(12) {
				cost := 1 + r.Int64N(quota)
				next, after := window, used+cost
				if after > quota {
					next, after = window+1, cost
				}
				bound := time.Duration(r.IntN(6))*time.Second + 500*time.Millisecond
				if r.IntN(3) == 0 {
					bound = Never
				}
				w := &waiter{want: time.Duration(next) * time.Second, got: -1}
				late := false
				l.WaitFunc(cost, bound, func(err error) {
					if err != nil {
						late = true
					}
					w.got = time.Since(begin)
				})
				synctest.Wait()
				if want := w.want > bound; late != want {
					t.Fatalf("seed %d: cost %d of %d due after %v, told that it is too late for %v: %v", seed, cost, quota, w.want, bound, late)
				} else if !late {
					window, used = next, after
					line = append(line, w)
				}
			}
			time.Sleep(20 * time.Second)
			synctest.Wait()
			for i, w := range line {
				if w.got != w.want {
					t.Errorf("seed %d: number %d in line was let go after %v, want %v", seed, i, w.got, w.want)
				}
			}
		})
	}
}

// TestCeilDiv: a division is rounded up, and is for ever where it is more than a time can
// be, or by nothing.
func TestCeilDiv(t *testing.T) {
	r := seeding.Rand(t)
	small := func() uint64 { return r.Uint64() >> r.IntN(65) }
	for i := range 20_000 {
		hi, lo, n := small()>>r.IntN(65), small(), small()
		if i%4 == 0 { // a quotient around the largest time and the largest word, and what is left over
			n = max(n, 1)
			q := new(big.Int).SetUint64([]uint64{math.MaxInt64, math.MaxUint64}[r.IntN(2)])
			q.Add(q, big.NewInt(int64(r.IntN(5)-2))).Mul(q, new(big.Int).SetUint64(n))
			q.Add(q, new(big.Int).SetUint64([]uint64{0, 1, n / 2, n - 1}[r.IntN(4)]))
			if q.BitLen() > 128 {
				continue
			}
			hi, lo = new(big.Int).Rsh(q, 64).Uint64(), new(big.Int).And(q, new(big.Int).SetUint64(math.MaxUint64)).Uint64()
		}
		want := Never
		if sum := new(big.Int).Add(new(big.Int).Lsh(new(big.Int).SetUint64(hi), 64), new(big.Int).SetUint64(lo)); n == 0 && sum.Sign() == 0 {
			want = 0
		} else if n > 0 {
			d := new(big.Int).SetUint64(n)
			sum.Add(sum, d).Sub(sum, big.NewInt(1)).Div(sum, d)
			if sum.IsInt64() {
				want = time.Duration(sum.Int64())
			}
		}
		if got := ceilDiv(fixed.Wide{Hi: hi, Lo: lo}, n); got != want {
			t.Fatalf("(%d<<64 + %d)/%d is %d, want %d", hi, lo, n, got, want)
		}
	}
	if n, p := (Rate{}).ticks(); n != 0 || p != 1 {
		t.Errorf("a rate of zero is %d per %d", n, p)
	}
	if d := (Rate{}).durationOf(math.MaxInt64); d != Never {
		t.Errorf("at no rate all comes in %v", d)
	}
}

// TestWithQuota: the windows of another count are the same ones, with that count.
func TestWithQuota(t *testing.T) {
	r := seeding.Rand(t)
	for range 500 {
		p := Policy{Algorithm: FixedWindow, Rate: Rate{Count: r.Int64N(20), Period: time.Second}, CountRefused: r.IntN(2) == 0}
		of := NewFixedCounter(p)
		p.Rate.Count = r.Int64N(20)
		other, want := of.WithQuota(p.Rate.Count), NewFixedCounter(p)
		var a, b FixedState
		for now := seconds(100); now < seconds(110); now = now.Add(time.Duration(r.Int64N(int64(time.Second)))) {
			cost := r.Int64N(8)
			if x, y := other.Take(&a, now, cost), want.Take(&b, now, cost); x != y || a != b {
				t.Fatalf("%+v: %+v and %+v", p, x, y)
			}
		}
	}
}
