package pool

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// TestPoolOfAges: however large the rate and however long nobody looked, the pool is full and no
// more; a rate below zero, of a cut limit whose parts are still out, takes nothing away.
func TestPoolOfAges(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := rand.New(rand.NewPCG(1, 91))
	for range 10_000 {
		p := Pool{Rate: fixed.Amount(r.Int64N(int64(1) << r.IntN(63))), Burst: fixed.Amount(r.Int64N(int64(1) << r.IntN(63)))}
		p.Reserved = fixed.Amount(r.Int64N(int64(p.Burst/2 + 1)))
		p.Level = fixed.Amount(r.Int64N(int64(p.Room()+1))) - fixed.Amount(r.Int64N(int64(p.Burst+1)))
		if r.IntN(4) == 0 {
			p.Level = p.Room() - 1
		}
		p.Remainder = uint64(r.Int64N(1e9))
		if p.Level == p.Room() {
			p.Remainder = 0
		}
		was, dt := p, r.Int64N(int64(1)<<r.IntN(63))
		p.Refill(limit.Time(dt))
		sum := new(big.Int).Mul(big.NewInt(int64(was.Rate)), big.NewInt(dt))
		sum.Add(sum, new(big.Int).SetUint64(was.Remainder))
		came := uint64(math.MaxUint64)
		if sum.Quo(sum, big.NewInt(1e9)); sum.IsUint64() {
			came = sum.Uint64()
		}
		want := was.Room()
		if came < uint64(was.Room()-was.Level) {
			want = was.Level + fixed.Amount(came)
		}
		if p.Level != want || p.Level == p.Room() && p.Remainder != 0 {
			t.Fatalf("%+v is %+v after %d, want a level of %d", was, p, dt, want)
		}
	}
	p := Pool{Rate: -5 * fixed.Token, Burst: 10 * fixed.Token, Level: 3 * fixed.Token}
	if p.Refill(limit.Time(time.Hour)); p.Level != 3*fixed.Token || p.At != limit.Time(time.Hour) {
		t.Errorf("%+v: a rate below 0 takes something away", p)
	}
}
