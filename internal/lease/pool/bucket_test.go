package pool

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// TestBucketAgainstExact: a bucket that is spent token by token has, within a millionth for each that is admitted,
// what one that counts in fractions has, and never more. Replicas never count with more than it has.
func TestBucketAgainstExact(t *testing.T) {
	for seed := range seeding.Draw(t, 300) {
		r := rand.New(rand.NewPCG(seed, 12))
		now := limit.Time(time.Hour)
		rate, burst := fixed.Amount(r.Int64N(int64(1)<<r.IntN(36))), fixed.Whole(1+r.Int64N(1<<r.IntN(12)))
		b := Bucket{Tokens: burst, At: now, Rate: rate, Burst: burst, Told: burst, ToldAt: now}
		exact, admitted := burst.Float(), 0
		told, toldAt, must := burst.Float(), now, 0
		for step := range 400 {
			dt := time.Duration(r.Int64N(int64(1) << r.IntN(40)))
			now = now.Add(dt)
			exact = min(burst.Float(), exact+rate.Float()*dt.Seconds())
			cost := fixed.Amount(r.Int64N(int64(burst)+1) - int64(burst)/8)
			if r.IntN(2) == 0 {
				cost = fixed.Token
			}
			if b.Take(now, cost) {
				admitted++
				exact = min(burst.Float(), exact-cost.Float())
			} else if cost.Float() <= exact-float64(admitted+2)/1e6 {
				t.Fatalf("seed %d, step %d: %v refused of %v", seed, step, cost, exact)
			}
			if level := b.Level(now).Float(); level > exact+1e-5 || level < exact-float64(admitted+2)/1e6-1e-6*math.Abs(exact) {
				t.Fatalf("seed %d, step %d: %v tokens, want %v", seed, step, level, exact)
			}
			if tokens, ok := b.Tell(now); ok {
				told, toldAt, must = tokens.Float(), now, must+1
			}
			if known := min(burst.Float(), told+rate.Float()*time.Duration(now-toldAt).Seconds()); known > exact+1e-5 {
				t.Fatalf("seed %d, step %d: replicas count with %v of %v", seed, step, known, exact)
			}
			if _, again := b.Tell(now); again {
				t.Fatalf("seed %d, step %d: told twice", seed, step)
			}
		}
	}
}

// TestBucketAsksAreFree: a refusal takes nothing, however often it is asked.
func TestBucketAsksAreFree(t *testing.T) {
	b := Bucket{At: limit.Time(time.Hour), Rate: 250, Burst: fixed.Token} // 4,000 s for a token
	for i := range 3_999_999 {
		if at := b.At.Add(time.Duration(i) * time.Millisecond); b.Take(at, fixed.Token) {
			t.Fatalf("admitted after %v", time.Duration(i)*time.Millisecond)
		}
	}
	if now := b.At.Add(4000 * time.Second); !b.Take(now, fixed.Token) {
		t.Errorf("%v tokens, want 1", b.Level(now))
	}
}

// TestBucketAdopts: what was used stays used when the terms change, and the lower rate counts up to then.
func TestBucketAdopts(t *testing.T) {
	begin := limit.Time(time.Hour)
	for _, c := range []struct {
		rate, burst float64
		after       time.Duration
		want        float64
	}{
		{1, 10, 2 * time.Second, 6},   // the same terms: 4 tokens and two that came
		{1, 100, 2 * time.Second, 96}, // 94 of 100 would be there, and two came
		{1, 5, 2 * time.Second, 1},    // 6 were used
		{1, 2, 2 * time.Second, -2},
		{100, 10, 2 * time.Second, 6},
		{0.5, 10, 2 * time.Second, 5},
		{0, 10, 2 * time.Second, 4},
		{1, 10, time.Minute, 10},
	} {
		b := Bucket{Tokens: 4 * fixed.Token, At: begin, Rate: fixed.Token, Burst: 10 * fixed.Token}
		now := begin.Add(c.after)
		b.Adopt(now, fixed.Amount(c.rate*1e6), fixed.Amount(c.burst*1e6))
		if got := b.Level(now).Float(); got != c.want {
			t.Errorf("%v/s burst %v after %v: %v tokens, want %v", c.rate, c.burst, c.after, got, c.want)
		}
	}
}

// TestUnlent: buckets are found as they were put, counted, and forgotten when they are full, by a sweep of all parts.
func TestUnlent(t *testing.T) {
	const n = 10_000
	var u Table[Bucket, *Bucket]
	now := limit.Time(time.Hour)
	id := func(i int) BucketID {
		return IDOf(lease.ResourceID{Limit: "l", Key: string(binary.BigEndian.AppendUint32(nil, uint32(i)))})
	}
	for range 2 {
		for i := range n {
			u.Put(id(i), Bucket{Tokens: fixed.Amount(i), At: now, Rate: fixed.Token, Burst: fixed.Token + fixed.Amount(i%2)*100*fixed.Token})
		}
	}
	for i := range n {
		if b, ok := u.Get(id(i)); !ok || b.Tokens != fixed.Amount(i) {
			t.Fatalf("bucket %d: %+v, %v", i, b, ok)
		}
	}
	u.Delete(id(n))
	u.Delete(id(n - 1))
	if _, ok := u.Get(id(n - 1)); ok || u.Len() != n-1 {
		t.Errorf("%d buckets, want %d", u.Len(), n-1)
	}
	now = now.Add(time.Second)
	for range parts {
		u.Sweep(now)
	}
	if u.Len() != n/2-1 {
		t.Errorf("%d buckets, want %d", u.Len(), n/2-1)
	}
	seen := 0
	u.Each(now, func(_ BucketID, b *Bucket) { seen++; b.Must = 7 })
	if b, ok := u.Get(id(1)); seen != u.Len() || !ok || b.Must != 7 {
		t.Errorf("%d of %d buckets, and one is %+v", seen, u.Len(), b)
	}
	if u.Each(now.Add(1000*time.Second), func(BucketID, *Bucket) { t.Error("a full bucket") }); u.Len() != 0 {
		t.Errorf("%d buckets that are full", u.Len())
	}
}
