package memory

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// tokens is a bucket in exact fractions.
type tokens struct {
	have *big.Rat
	at   time.Time
}

func whole(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

// now brings b up to the present.
func (b *tokens) now(p limit.Policy) *big.Rat {
	now := time.Now()
	more := new(big.Rat).Mul(big.NewRat(p.Rate.Count, int64(p.Rate.Period)), whole(int64(now.Sub(b.at))))
	if more.Add(more, b.have); more.Cmp(whole(p.Burst)) > 0 {
		more = whole(p.Burst)
	}
	b.have, b.at = more, now
	return b.have
}

// floor is how many whole ones there are.
func (b *tokens) floor() int64 {
	return new(big.Int).Quo(b.have.Num(), b.have.Denom()).Int64()
}

// giveBack is a refund; what is more than it holds is lost.
func (b *tokens) giveBack(p limit.Policy, n int64) {
	if b.have = new(big.Rat).Add(b.have, whole(n)); b.have.Cmp(whole(p.Burst)) > 0 {
		b.have = whole(p.Burst)
	}
}

// wait is how many nanoseconds it takes for so much to come.
func wait(p limit.Policy, lacks *big.Rat) float64 {
	nanos, _ := lacks.Mul(lacks, big.NewRat(int64(p.Rate.Period), p.Rate.Count)).Float64()
	return nanos
}

// Whatever is done with the keys of a Keyed that goes by the system's clock, each has what a
// bucket of exact fractions has: Allow, whose way takes no lock and calls nothing, AllowN,
// Take, Peek, Refund and Reset.
func TestKeyedAgainstExactFractions(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 150) {
		r := rand.New(rand.NewPCG(seed, 59))
		p := limit.Policy{Rate: limit.Rate{Count: 1 + r.Int64N(50), Period: time.Duration(1+r.Int64N(100)) * time.Millisecond}, Burst: 1 + r.Int64N(8)}
		if seed%5 == 0 {
			p.Rate = limit.Rate{Count: 999_983, Period: 999_979 * time.Millisecond} // which no word holds
		}
		synctest.Test(t, func(t *testing.T) {
			k := mustKeyed(t, p, Options{})
			buckets := map[string]*tokens{}
			mean := int64(p.Window()) / p.Burst
			for step := range 600 {
				if r.IntN(3) == 0 {
					<-time.After(time.Duration(1 + r.Int64N(2*mean)))
				}
				key, n := fmt.Sprint(r.IntN(5)), r.Int64N(p.Burst+2)
				b := buckets[key]
				if b == nil {
					b = &tokens{whole(p.Burst), time.Now()}
					buckets[key] = b
				}
				have := b.now(p)
				fail := func(what string, got, want any) {
					t.Fatalf("seed %d, step %d: %v: %v there, %s: %v, want %v", seed, step, p, have.FloatString(3), what, got, want)
				}
				switch op := r.IntN(12); op {
				default:
					want := have.Cmp(whole(1)) >= 0
					if got := k.Allow(key); got != want {
						fail("Allow", got, want)
					} else if got {
						b.have = new(big.Rat).Sub(have, whole(1))
					}
				case 0:
					want := have.Cmp(whole(n)) >= 0
					if got := k.AllowN(key, n); got != want {
						fail(fmt.Sprint("AllowN ", n), got, want)
					} else if got {
						b.have = new(big.Rat).Sub(have, whole(n))
					}
				case 1, 2:
					want := have.Cmp(whole(n)) >= 0
					ask := k.Take
					if op == 2 {
						ask = k.Peek
					}
					v, err := ask(key, n)
					if err != nil || v.Allowed != want {
						fail(fmt.Sprint("Take or Peek ", n), v, want)
					}
					if want {
						b.have = new(big.Rat).Sub(have, whole(n))
					}
					if v.Remaining != b.floor() {
						fail("Remaining", v.Remaining, b.floor())
					}
					late := wait(p, new(big.Rat).Sub(whole(n), have))
					if retry := float64(v.RetryAfter); !want && n <= p.Burst && (retry < late-1 || retry > late+2) {
						fail("RetryAfter", v.RetryAfter, time.Duration(late))
					}
					if op == 2 {
						b.have = have
					}
				case 3:
					k.Refund(key, n)
					b.giveBack(p, n)
				case 4:
					if r.IntN(4) == 0 {
						k.Reset(key)
						b.have = whole(p.Burst)
					}
				}
			}
		})
	}
}

// A shadow charge and an enforced one on one bucket are one charge that is enforced; shadow
// ones alone never refuse. Whatever is refused takes nothing.
func TestShadowBesideEnforcedOnOneBucket(t *testing.T) {
	for name, p := range floods() {
		s := New(Options{})
		c := mustBind(t, s, name, p)
		left := func(key string) int64 {
			charges := []store.Charge{{Counters: c, Key: []byte(key), Cost: 0}}
			if _, err := s.Peek(t.Context(), charges); err != nil {
				t.Fatal(err)
			}
			return charges[0].Verdict.Remaining
		}
		for i, tt := range []struct {
			costs   []int64
			shadow  []bool
			allowed bool
			left    int64
		}{
			{[]int64{1, 1}, []bool{true, false}, true, 1},
			{[]int64{1, 2}, []bool{false, true}, true, 0},
			{[]int64{2, 2}, []bool{true, false}, false, 3},
			{[]int64{2, 2}, []bool{false, true}, false, 3},
			{[]int64{2, 2}, []bool{true, true}, true, 3},
			{[]int64{1, 1}, []bool{true, true}, true, 1},
			{[]int64{1, 1, 2}, []bool{true, true, false}, false, 3},
			{[]int64{1, 1, 1}, []bool{true, false, true}, true, 0},
		} {
			key := fmt.Sprint("k", i)
			var charges []store.Charge
			for j, cost := range tt.costs {
				charges = append(charges, store.Charge{Counters: c, Key: []byte(key), Cost: cost, Shadow: tt.shadow[j], Permit: uint64(1 + j)})
			}
			want := tt.left
			if p.CountRefused && !tt.allowed {
				want = 0 // it counts what it refused
			}
			allowed, err := s.Take(t.Context(), charges)
			if err != nil || allowed != tt.allowed {
				t.Errorf("%s: %v: allowed %v, %v", name, tt, allowed, err)
			}
			if p.CountRefused && tt.left == 3 {
				continue // shadow ones that are refused count as well
			}
			if got := left(key); got != want {
				t.Errorf("%s: %v: %d left, want %d", name, tt, got, want)
			}
		}
	}
}
