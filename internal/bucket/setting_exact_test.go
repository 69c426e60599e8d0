package bucket

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/gcra"
	"github.com/stint-io/stint/limit"
)

func bigOf(n uint64) *big.Int { return new(big.Int).SetUint64(n) }

func product(of ...uint64) *big.Int {
	p := big.NewInt(1)
	for _, n := range of {
		p.Mul(p, bigOf(n))
	}
	return p
}

// quotient is a/b, rounded up or down, and most where that is above most.
func quotient(a, b *big.Int, up bool, most uint64) uint64 {
	if up {
		a = new(big.Int).Add(a, new(big.Int).Sub(b, big.NewInt(1)))
	}
	q := new(big.Int).Quo(a, b)
	if q.Cmp(bigOf(most)) > 0 {
		return most
	}
	return q.Uint64()
}

// randomTermsOf are setting of any rate and burst: powers of ten and of two with what is just beside
// them, and between.
func randomTermsOf(r *rand.Rand) *setting {
	rate := fixed.Amount(1) << r.IntN(63)
	switch r.IntN(3) {
	case 0:
		rate = fixed.Amount(math.Pow10(r.IntN(18)))
	case 1:
		rate = fixed.Amount(r.Int64N(int64(rate)) + 1)
	}
	rate = min(max(0, rate+fixed.Amount(r.IntN(3)-1)), fixed.MaxAmount)
	whole := uint64(r.Int64N(int64(1)<<r.IntN(43))) + uint64(r.IntN(2))
	return newSetting(limit.Time(r.Int64N(1000)), rate, whole)
}

// TestTermsOfAnyRate: whatever the rate and the burst, a token takes no less time than the rate
// says, and no more than a millionth more where ticks can be so fine; they are as fine as that
// needs and as fits, and a full bucket, all the time that is counted and one cost more fit a word.
func TestTermsOfAnyRate(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := seeding.Rand(t)
	coarse, refined, long := 0, 0, 0
	for range 30_000 {
		c := randomTermsOf(r)
		if full := product(c.Quota, c.Token); full.Cmp(bigOf(gcra.Room)) > 0 || c.Full != full.Uint64() {
			t.Fatalf("%+v: a full bucket is %v ticks, want %d and at most 2^61", c, full, c.Full)
		}
		if c.frozenWord != c.Full || c.level(c.frozenWord, 0) != 0 || c.word.Load() != wordFrozen {
			t.Fatalf("%+v: setting begin frozen and empty", c)
		}
		if c.rate == 0 {
			if c.scale != 0 || c.span != math.MaxInt64 || c.Quota > 0 && c.Token < 1<<17 {
				t.Fatalf("%+v: nothing refills, and a token has many parts", c)
			}
			continue
		}
		// A token takes token/scale * 2^down ns, and has to take 1e15/rate at least.
		took, exact := product(c.Token, 1<<c.down, uint64(c.rate)), product(perNanosecond, c.scale)
		if took.Cmp(exact) < 0 {
			t.Fatalf("%+v: a token comes early", c)
		}
		fits := product(2, max(c.Quota, 1), c.Token).Cmp(bigOf(gcra.Room)) <= 0
		switch {
		case c.down > 0:
			coarse++
			if c.scale != 1 || c.Token < 2 {
				t.Fatalf("%+v: a tick is 2^%d ns, and a token at least two ticks", c, c.down)
			}
			if most := new(big.Int).Add(exact, product(2, 1<<c.down, uint64(c.rate))); took.Cmp(most) > 0 {
				t.Fatalf("%+v: a token takes more than two ticks too long", c)
			}
		case c.scale > 1<<usualFineness:
			refined++
			if c.scale > 1<<mostFineness {
				t.Fatalf("%+v: ticks finer than 2^-32 ns", c)
			}
			// Half as fine would not have been precise.
			if half := quotient(product(perNanosecond, c.scale/2), bigOf(uint64(c.rate)), true, math.MaxUint64); half >= precision {
				t.Fatalf("%+v: ticks are finer than a millionth of a token needs", c)
			}
		case c.scale < 1<<usualFineness && fits:
			t.Fatalf("%+v: ticks are coarser than need be", c)
		}
		if c.Token < precision && c.scale < 1<<mostFineness && fits && c.down == 0 {
			t.Fatalf("%+v: a token has less than a million ticks, where more fit", c)
		}
		last := c.tick(c.span)
		if c.span < math.MaxInt64 {
			long++
			if got := quotient(product(c.span, c.scale), bigOf(1<<c.down), false, math.MaxUint64); got != last || last != gcra.Room {
				t.Fatalf("%+v: at the end of the span the tick is %d, want 2^61", c, last)
			}
		} else if last > gcra.Room {
			t.Fatalf("%+v: the tick at the end of time is %d", c, last)
		}
		if c.late(math.MaxInt64) < c.Full && c.span < math.MaxInt64 || c.late(c.span) != last || c.late(math.MaxUint64) != c.late(2*c.span) {
			t.Fatalf("%+v: past its span every bucket is full", c)
		}
	}
	if coarse < 1000 || refined < 1000 || long < 1000 {
		t.Errorf("%d of coarse ticks, %d of fine ones, %d of a span that ends: the settings are too tame", coarse, refined, long)
	}
}

// TestTermsAgainstIntegers: what a bucket holds, when it holds more, what fits, and what comes of a
// rate in a while, are those of integers without bounds.
func TestTermsAgainstIntegers(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := seeding.Rand(t)
	endless, brought := 0, 0
	for range 20_000 {
		c := randomTermsOf(r)
		tick := c.tick(uint64(r.Int64N(1<<r.IntN(61)+1)) % max(1, c.span))
		word := tick + uint64(r.Int64N(int64(c.Full)+1))
		if r.IntN(4) == 0 {
			word = tick - min(tick, uint64(r.IntN(3))) // full
		}
		free := c.Full - (max(word, tick) - tick)
		level := new(big.Int).Quo(new(big.Int).Mul(bigOf(free), bigOf(uint64(fixed.Token))), bigOf(c.Token))
		if got := c.level(word, tick); level.Cmp(bigOf(uint64(got))) != 0 || c.Free(word, tick) != free {
			t.Fatalf("%+v: the level at %d of %d is %v and %d, want %v and %d", c, tick, word, got, c.Free(word, tick), level, free)
		}

		n := r.Int64N(int64(1) << r.IntN(45))
		if r.IntN(2) == 0 {
			n = min(int64(c.Quota), n) + int64(r.IntN(2))
		}
		next, fits := c.Take(word, tick, uint64(n))
		if want := product(uint64(n), c.Token).Cmp(bigOf(free)) <= 0; fits != want {
			t.Fatalf("%+v: %d of %d ticks fit: %v", c, n, free, fits)
		}
		if fits && c.Free(next, tick) != free-uint64(n)*c.Token {
			t.Fatalf("%+v: %d ticks are left of %d after %d were taken", c, c.Free(next, tick), free, n)
		}

		missing := new(big.Int).Sub(product(uint64(n), c.Token), bigOf(free))
		want := uint64(0)
		switch {
		case missing.Sign() <= 0:
		case c.scale == 0:
			want = uint64(limit.Never)
		case c.down > 0:
			if want = quotient(new(big.Int).Lsh(missing, c.down), big.NewInt(1), false, math.MaxInt64); missing.BitLen()+int(c.down) > 62 {
				want = uint64(limit.Never)
			}
		default:
			want = quotient(missing, bigOf(c.scale), true, math.MaxInt64)
		}
		if got := c.until(word, tick, n); uint64(got) != want {
			t.Fatalf("%+v: %d come %v after %d of %d, want %v", c, n, got, tick, word, time.Duration(want))
		}
		if want == uint64(limit.Never) {
			endless++
		}

		d := limit.Time(r.Int64N(int64(longestPrepared) + 2))
		if r.IntN(4) == 0 {
			d = longestPrepared + limit.Time(r.IntN(3)-1)
		}
		rate := fixed.Amount(r.Int64N(int64(1) << r.IntN(63)))
		came := new(big.Int).Mul(product(uint64(rate), uint64(d)), bigOf(c.Token))
		want = quotient(came, bigOf(perNanosecond), true, math.MaxUint64)
		if whole := quotient(product(uint64(rate), uint64(d)), bigOf(perNanosecond), false, math.MaxUint64); d > longestPrepared || product(whole, c.Token).Cmp(bigOf(gcra.Room)) > 0 {
			want = math.MaxUint64
		} else {
			brought++
		}
		if got := c.brought(rate, d); got != want {
			t.Fatalf("%+v: %v/s bring %d ticks in %v, want %d", c, rate, got, time.Duration(d), want)
		}
		if c.brought(rate, -d-1) != 0 {
			t.Fatalf("%+v: something comes while time goes back", c)
		}
	}
	if endless < 1000 || brought < 5000 {
		t.Errorf("%d never come, and %d came in a while: too tame", endless, brought)
	}
}

// TestReceiveConserves: what is in a bucket, with what is added or taken out, is in the next one
// or returned, of any two settings; what is lost is less than a tick of either and a millionth.
func TestReceiveConserves(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := seeding.Rand(t)
	added, removed, over := 0, 0, 0
	for range 20_000 {
		from, to := randomTermsOf(r), randomTermsOf(r)
		free := uint64(r.Int64N(int64(from.Full) + 1))
		add := fixed.Amount(r.Int64N(int64(fixed.Token) << r.IntN(20)))
		add -= fixed.Amount(r.Int64N(int64(fixed.Token) << r.IntN(20)))
		if r.IntN(4) == 0 {
			add = add / fixed.Token * fixed.Token
		}
		surplus := to.receive(free, from, add)
		if surplus < 0 || to.frozenWord > to.Full {
			t.Fatalf("%v is returned, and the word is %d of %d", surplus, to.frozenWord, to.Full)
		}
		before := new(big.Rat).SetFrac(product(free, uint64(fixed.Token)), bigOf(from.Token))
		after := new(big.Rat).SetFrac(product(to.Full-to.frozenWord, uint64(fixed.Token)), bigOf(to.Token))
		want := new(big.Rat).Add(before, new(big.Rat).SetInt64(int64(add)))
		out := new(big.Rat).SetInt64(int64(surplus))
		if add < 0 {
			// What is taken out is returned, as far as there is any.
			removed++
			want = before
		}
		lost, _ := new(big.Rat).Sub(want, new(big.Rat).Add(after, out)).Float64()
		grain := 3 + 2*float64(fixed.Token)/float64(to.Token)
		if lost < 0 || lost > grain {
			t.Fatalf("%d ticks of %+v and %v: %v millionths are lost in %+v, surplus %v", free, from, add, lost, to, surplus)
		}
		level := fixed.Amount(quotient(product(free, uint64(fixed.Token)), bigOf(from.Token), false, math.MaxUint64))
		switch {
		case add > 0:
			added++
			if surplus > 0 && to.frozenWord != 0 {
				t.Fatalf("%v does not fit a bucket that is not full: %+v", surplus, to)
			}
			if surplus > 0 {
				over++
			}
		case add < 0 && float64(surplus) < float64(min(-add, level))-grain:
			t.Fatalf("%v of %v were taken out, want %v", surplus, level, -add)
		case add < 0 && surplus > min(-add, level) && to.frozenWord != 0:
			t.Fatalf("%v of %v were taken out, want %v, and the bucket is not full", surplus, level, -add)
		}
	}
	if added < 5000 || removed < 5000 || over < 1000 {
		t.Errorf("%d added, %d taken out, %d over: too tame", added, removed, over)
	}
}
