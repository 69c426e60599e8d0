package coordinator

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
		p := pool{rate: fixed.Amount(r.Int64N(int64(1) << r.IntN(63))), burst: fixed.Amount(r.Int64N(int64(1) << r.IntN(63)))}
		p.reserved = fixed.Amount(r.Int64N(int64(p.burst/2 + 1)))
		p.level = fixed.Amount(r.Int64N(int64(p.room()+1))) - fixed.Amount(r.Int64N(int64(p.burst+1)))
		if r.IntN(4) == 0 {
			p.level = p.room() - 1
		}
		p.remainder = uint64(r.Int64N(1e9))
		if p.level == p.room() {
			p.remainder = 0
		}
		was, dt := p, r.Int64N(int64(1)<<r.IntN(63))
		p.refill(limit.Time(dt))
		sum := new(big.Int).Mul(big.NewInt(int64(was.rate)), big.NewInt(dt))
		sum.Add(sum, new(big.Int).SetUint64(was.remainder))
		came := uint64(math.MaxUint64)
		if sum.Quo(sum, big.NewInt(1e9)); sum.IsUint64() {
			came = sum.Uint64()
		}
		want := was.room()
		if came < uint64(was.room()-was.level) {
			want = was.level + fixed.Amount(came)
		}
		if p.level != want || p.level == p.room() && p.remainder != 0 {
			t.Fatalf("%+v is %+v after %d, want a level of %d", was, p, dt, want)
		}
	}
	p := pool{rate: -5 * fixed.Token, burst: 10 * fixed.Token, level: 3 * fixed.Token}
	if p.refill(limit.Time(time.Hour)); p.level != 3*fixed.Token || p.at != limit.Time(time.Hour) {
		t.Errorf("%+v: a rate below 0 takes something away", p)
	}
}
