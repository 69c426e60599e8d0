package memory

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// held is what a table really holds, as the budget should have it.
func held(t testing.TB, c *Counters) int64 {
	switch table := c.table.Load().get().(type) {
	case nil, admitsAll:
		return 0
	case *wordTable:
		var n int64
		for i := range table.shards {
			if a := table.shards[i].slots.Load(); a != nil {
				n += a.bytes()
			}
		}
		return n
	case *lockedTable[limit.BucketState]:
		return table.holds()
	case *lockedTable[limit.FixedState]:
		return table.holds()
	case *lockedTable[limit.LogState]:
		return table.holds()
	case *lockedTable[limit.SlidingState]:
		return table.holds()
	case *lockedTable[limit.InFlightState]:
		return table.holds()
	default:
		t.Fatalf("unknown table %T", table)
		return 0
	}
}

// holds is what the list of bans occupies.
func (b *bans) holds() (n int64) {
	if b == nil {
		return 0
	}
	for i := range b.shards {
		for _, e := range b.shards[i].keys {
			n += e.bytes()
		}
	}
	return n
}

func (t *lockedTable[S]) holds() int64 {
	var n int64
	outside := func(s *S) {
		if t.rule.bytes != nil {
			n += int64(t.rule.bytes(s))
		}
	}
	for i := range t.shards {
		sh := &t.shards[i]
		n += int64(len(sh.hashes)) * t.entryBytes()
		for j := range sh.states {
			outside(&sh.states[j])
		}
	}
	outside(&t.overflow.states[0])
	return n
}

// The budget says what the tables really hold, whatever they went through: floods,
// sweeps, changes from each kind of table to each other, refunds, resets, permits.
func TestBudgetEqualsWhatIsHeld(t *testing.T) {
	all := []limit.Policy{{Unlimited: true}, {Algorithm: limit.LeakyBucket, Rate: limit.PerSecond(1), Burst: 4}}
	for _, p := range floods() {
		all = append(all, p)
		p.Rate.Count++
		p.MaxInFlight++
		all = append(all, p)
	}
	for seed := range seeding.Draw(t, 2) {
		clock := newManual()
		s := New(Options{MaxBytes: 96 << 10, Now: clock.now})
		counters := make([]*Counters, 3)
		churn := func(g uint64, steps int) {
			r := rand.New(rand.NewPCG(seed, g))
			for range steps {
				i := r.IntN(len(counters))
				c := counters[i]
				charges := []store.Charge{one(c, fmt.Sprint(r.IntN(3000))), one(counters[r.IntN(len(counters))], fmt.Sprint(r.IntN(50)))}
				charges[0].Permit = r.Uint64N(100)
				switch r.IntN(40) {
				case 0:
					if r.IntN(10) == 0 {
						mustBind(t, s, fmt.Sprint(i), all[r.IntN(len(all))])
					}
				case 1:
					clock.advance(time.Duration(r.Int64N(int64(10 * time.Minute))))
				case 2:
					c.table.Load().get().sweep()
				case 3:
					_ = s.Reset(t.Context(), charges)
				case 4:
					_ = s.Refund(t.Context(), charges)
				case 5, 6:
					_ = s.Finish(t.Context(), charges)
				case 7, 8, 9:
					mustTake(t, s, charges...)
				default:
					mustTake(t, s, charges[0])
				}
			}
		}
		for i := range counters {
			counters[i] = mustBind(t, s, fmt.Sprint(i), all[i])
			mustTake(t, s, one(counters[i], "k"))
		}
		for round := range 4 {
			var wg sync.WaitGroup
			for g := range uint64(3) {
				wg.Go(func() { churn(g+10*uint64(round), 3000) })
			}
			wg.Wait()
			var want int64
			for _, c := range counters {
				want += held(t, c) + c.bans.Load().holds()
			}
			if got := s.Stats().Bytes; got != want {
				t.Fatalf("seed %d, round %d: the budget says %d bytes, the tables hold %d", seed, round, got, want)
			}
		}
		for _, c := range counters {
			if err := s.Unbind(c); err != nil {
				t.Fatal(err)
			}
		}
		if got := s.Stats().Bytes; got != 0 {
			t.Fatalf("seed %d: %d bytes when nothing is bound", seed, got)
		}
	}
}

// A new ban costs no more for the bans that there are, though those last longer than their entries say: the clock, which
// is read for each entry that is looked at, is read a bounded number of times for each.
func TestCostOfABan(t *testing.T) {
	var reads, now int64
	s := New(Options{Now: func() limit.Time { reads++; return limit.Time(now) }})
	policy := limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 1, Period: time.Hour}, Align: limit.AlignFirstHit, Ban: time.Minute, BanFromNow: true}
	bind := func() store.Counters {
		c, err := s.Bind(store.Spec{ID: "a", Policy: policy})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c, n := bind(), 0
	ban := func(more int) (each int64) {
		reads = 0
		for before := n; n < before+more; n++ {
			if ok, err := s.Take(t.Context(), []store.Charge{{Counters: c, Key: fmt.Append(nil, n), Cost: 2}}); ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		if f := s.BanFigures(c); f.Begun != uint64(n) || f.Unlisted != 0 {
			t.Fatalf("%d bans: %+v", n, f)
		}
		return reads / int64(more)
	}
	few := ban(100 * shardCount)
	policy.Ban = 24 * time.Hour
	c = bind()
	now = int64(2 * time.Minute)
	if many := ban(10 * shardCount); many > 4*few {
		t.Errorf("the clock is read %d times for each ban beside others whose entries have ended, %d times otherwise", many, few)
	}
}
