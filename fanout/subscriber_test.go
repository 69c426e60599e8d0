package fanout

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

func limiter(t testing.TB, rate limit.Rate, burst int64) *limit.Limiter {
	t.Helper()
	l, err := limit.NewLimiter(limit.Policy{Rate: rate, Burst: burst})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

type failing struct{ err error }

func (f failing) Take(context.Context, limit.Request) (limit.Decision, error) {
	return limit.Decision{}, f.err
}

// A subscriber with 2 per second, burst 2.
func TestSubscriberWalk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scopes, err := limit.All(limit.Scope{Name: "connection.out", Taker: limiter(t, limit.PerSecond(2), 2)})
		if err != nil {
			t.Fatal(err)
		}
		s := NewSubscriber(scopes)
		var log strings.Builder
		offer := func(position uint64, cost int64) {
			o, err := s.Offer(t.Context(), position, limit.Request{Cost: cost})
			fmt.Fprintf(&log, "%d", position)
			switch {
			case err != nil:
				fmt.Fprintf(&log, " error")
			case o.Deliver:
				fmt.Fprintf(&log, " deliver")
			default:
				fmt.Fprintf(&log, " drop")
			}
			if g := o.Gap; g.Dropped > 0 {
				fmt.Fprintf(&log, " after %+v", g)
			}
			fmt.Fprintln(&log)
		}
		offer(10, 0)
		offer(11, 0)
		offer(12, 0)
		offer(13, 0)
		offer(13, 0) // once more
		offer(17, 0) // some are for others
		time.Sleep(time.Second)
		offer(18, 3)
		offer(19, 2)
		offer(20, 0)
		gap, ok := s.Flush()
		fmt.Fprintf(&log, "flush %v %+v\n", ok, gap)
		gap, ok = s.Flush()
		fmt.Fprintf(&log, "flush %v %+v\n", ok, gap)
		if err := s.Drop(21, "queue", limit.ReasonConcurrency); err != nil || !s.Pending() {
			t.Error(err)
		}
		time.Sleep(time.Second)
		offer(22, 1)
		want := `10 deliver
11 deliver
12 drop
13 drop
13 error
17 drop
18 drop
19 deliver after {From:12 To:18 Dropped:4 Limit:connection.out Reason:rate_exceeded}
20 drop
flush true {From:20 To:20 Dropped:1 Limit:connection.out Reason:rate_exceeded}
flush false {From:0 To:0 Dropped:0 Limit: Reason:}
22 deliver after {From:21 To:21 Dropped:1 Limit:queue Reason:concurrency_exceeded}
`
		if log.String() != want {
			t.Errorf("got\n%swant\n%s", log.String(), want)
		}
	})
}

func TestSubscriberHostile(t *testing.T) {
	s := NewSubscriber(nil)
	for _, position := range []uint64{0, 1, math.MaxUint64} {
		if o, err := s.Offer(t.Context(), position, limit.Request{}); err != nil || !o.Deliver {
			t.Errorf("%d: %+v, %v", position, o, err)
		}
	}
	for _, position := range []uint64{0, math.MaxUint64} {
		if err := s.Drop(position, "", 0); !errors.Is(err, ErrPosition) || s.Pending() {
			t.Errorf("%d after the last of all: %v", position, err)
		}
	}
	broken := errors.New("broken")
	s = NewSubscriber(failing{broken})
	if o, err := s.Offer(t.Context(), 5, limit.Request{}); !errors.Is(err, broken) || o.Deliver {
		t.Errorf("%+v, %v", o, err)
	}
	if g, ok := s.Flush(); !ok || g != (Gap{From: 5, To: 5, Dropped: 1, Reason: limit.ReasonStoreFailure}) {
		t.Errorf("what could not be decided is in no gap: %+v", g)
	}
	s = NewSubscriber(limiter(t, limit.PerSecond(1), 1))
	if _, err := s.Offer(t.Context(), 1, limit.Request{Cost: -1}); !errors.Is(err, limit.ErrNegativeCost) || !s.Pending() {
		t.Errorf("a negative cost: %v", err)
	}
}

// account is a naive oracle: a list of positions, with what became of each.
type account map[uint64]string

func (a account) put(t *testing.T, position uint64, as string) {
	if was, twice := a[position]; twice {
		t.Fatalf("%d was %s and is %s", position, was, as)
	}
	a[position] = as
}

// gap puts the positions of g that were published into the account.
func (a account) gap(t *testing.T, g Gap, published []uint64) {
	if g.Dropped == 0 {
		return
	}
	n := uint64(0)
	for _, p := range published {
		if g.From <= p && p <= g.To {
			a.put(t, p, "in a gap")
			n++
		}
	}
	if n != g.Dropped || g.From > g.To || a[g.From] == "" || a[g.To] == "" {
		t.Fatalf("%+v covers %d", g, n)
	}
}

// TestEveryPositionOnce: what was delivered and the gaps together cover every position
// that was published, each exactly once, and in their order.
func TestEveryPositionOnce(t *testing.T) {
	for seed := range seeding.Draw(t, 500) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 5))
			s := NewSubscriber(limiter(t, limit.PerSecond(1+r.Int64N(100)), 1+r.Int64N(10)))
			seen, published, position, last := account{}, []uint64{}, r.Uint64N(10), uint64(0)
			note := func(g Gap) {
				if seen.gap(t, g, published); g.Dropped > 0 {
					if g.From <= last {
						t.Fatalf("seed %d: %+v after %d", seed, g, last)
					}
					last = g.To
				}
			}
			for range 300 {
				position += 1 + r.Uint64N(2)*r.Uint64N(5)
				published = append(published, position)
				if r.IntN(10) == 0 {
					if err := s.Drop(position, "queue", limit.ReasonConcurrency); err != nil {
						t.Fatal(err)
					}
				} else if o, err := s.Offer(t.Context(), position, limit.Request{Cost: r.Int64N(4)}); err != nil {
					t.Fatal(err)
				} else if o.Deliver {
					note(o.Gap)
					if seen.put(t, position, "delivered"); position <= last {
						t.Fatalf("seed %d: %d after %d", seed, position, last)
					}
					last = position
				} else if o.Gap.Dropped > 0 {
					t.Fatalf("seed %d: a drop carries %+v", seed, o.Gap)
				}
				if r.IntN(20) == 0 {
					g, _ := s.Flush()
					note(g)
				}
				if r.IntN(3) == 0 {
					time.Sleep(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
				}
			}
			g, _ := s.Flush()
			if note(g); len(seen) != len(published) {
				t.Fatalf("seed %d: %d of %d positions are accounted for", seed, len(seen), len(published))
			}
		})
	}
}

func FuzzSubscriber(f *testing.F) {
	f.Add([]byte{1, 0, 2, 1, 3, 2, 200, 0})
	f.Fuzz(func(t *testing.T, ops []byte) {
		s := NewSubscriber(nil)
		seen, published, position := account{}, []uint64{}, uint64(0)
		for i := 0; i+1 < len(ops); i += 2 {
			next := position + uint64(ops[i])%7
			var o Outcome
			var err error
			switch ops[i+1] % 3 {
			case 0:
				o, err = s.Offer(t.Context(), next, limit.Request{})
			case 1:
				err = s.Drop(next, "x", limit.ReasonRate)
			default:
				o.Gap, _ = s.Flush()
				seen.gap(t, o.Gap, published)
				continue
			}
			if repeated := len(published) > 0 && next <= position; repeated != errors.Is(err, ErrPosition) {
				t.Fatalf("%d after %d: %v", next, position, err)
			}
			if err != nil {
				continue
			}
			seen.gap(t, o.Gap, published)
			position, published = next, append(published, next)
			if o.Deliver {
				seen.put(t, next, "delivered")
			}
		}
		g, _ := s.Flush()
		if seen.gap(t, g, published); len(seen) != len(published) {
			t.Fatalf("%d of %d positions are accounted for", len(seen), len(published))
		}
	})
}

func TestOfferAllocatesNothing(t *testing.T) {
	s, position := NewSubscriber(nil), uint64(0)
	if n := testing.AllocsPerRun(1000, func() {
		if position++; position%3 == 0 {
			_ = s.Drop(position, "queue", limit.ReasonConcurrency)
		} else if _, err := s.Offer(t.Context(), position, limit.Request{}); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
