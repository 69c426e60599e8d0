package pool

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// TestPoolAgainstExact: what is lent comes out of the pool and goes back into it; with the
// loans the rate and the burst are always those of the limit, the level is what came with the
// rate, and neither is there more than fits beside what is under way.
func TestPoolAgainstExact(t *testing.T) {
	for seed := range seeding.Draw(t, 300) {
		r := rand.New(rand.NewPCG(seed, 72))
		all := lease.Capacity{Rate: fixed.Amount(r.Int64N(int64(1000 * fixed.Token))), Burst: fixed.Whole(r.Int64N(1000))}
		p := Pool{Rate: all.Rate, Burst: all.Burst, At: limit.Time(1000 * time.Second)}
		var lent []lease.Capacity
		level, at := int64(0), limit.Time(1000*time.Second) // in units
		for step := range 300 {
			now := at + limit.Time(r.Int64N(int64(time.Second))>>r.IntN(30))
			if r.IntN(5) == 0 {
				now = at - limit.Time(r.Int64N(int64(time.Second))) // a clock that steps back
			}
			p.Refill(now)
			if now > at {
				if p.Rate > 0 && level < int64(p.Burst-p.Reserved)*1e9 {
					level = min(level+int64(p.Rate)*int64(now-at), int64(p.Burst-p.Reserved)*1e9)
				}
				at = now
			}
			switch r.IntN(4) {
			case 0:
				h := lease.Capacity{Rate: fixed.Amount(r.Int64N(max(1, int64(p.Rate)))), Burst: fixed.Amount(r.Int64N(max(1, int64(p.Burst)))), Tokens: fixed.Amount(r.Int64N(max(1, int64(p.Level))))}
				p.Lend(h)
				lent = append(lent, h)
				level -= int64(h.Tokens) * 1e9
			case 1:
				if len(lent) == 0 {
					break
				}
				h := lent[0]
				lent = lent[1:]
				p.TakeBack(h)
				level += int64(h.Tokens) * 1e9
			case 2:
				change := lease.Capacity{Rate: fixed.Amount(r.Int64N(int64(10*fixed.Token))) - 5*fixed.Token, Burst: fixed.Whole(r.Int64N(20) - 10)}
				p.Resize(change.Rate, change.Burst)
				all = all.Add(change)
				level += int64(change.Burst) * 1e9
				p.Refill(now)
			case 3:
				p.Reserved = fixed.Amount(r.Int64N(max(1, int64(p.Burst)/2)))
				p.Clip()
			}
			level = min(level, int64(p.Burst-p.Reserved)*1e9)
			sum := lease.Capacity{Rate: p.Rate, Burst: p.Burst}
			for _, h := range lent {
				sum.Rate, sum.Burst = sum.Rate+h.Rate, sum.Burst+h.Burst
			}
			if sum != all {
				t.Fatalf("seed %d, step %d: with what is lent %+v, want %+v", seed, step, sum, all)
			}
			if got := int64(p.Level)*1e9 + int64(p.Remainder); got != level {
				t.Fatalf("seed %d, step %d: level %d, want %d: %+v", seed, step, got, level, p)
			}
		}
	}
}
