package limit

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

const second = Time(time.Second)

func TestBucketWalkThrough(t *testing.T) {
	b := NewBucket(Policy{Rate: PerSecond(4), Burst: 2})
	var s BucketState
	now := 1000 * second
	for _, step := range []struct {
		after     time.Duration
		cost      int64
		allowed   bool
		remaining int64
		retry     time.Duration
		reset     time.Duration
	}{
		{0, 1, true, 1, 0, 250 * time.Millisecond},
		{0, 1, true, 0, 0, 500 * time.Millisecond},
		{0, 1, false, 0, 250 * time.Millisecond, 500 * time.Millisecond},
		{100 * time.Millisecond, 1, false, 0, 150 * time.Millisecond, 400 * time.Millisecond},
		{150 * time.Millisecond, 1, true, 0, 0, 500 * time.Millisecond},
		{0, 2, false, 0, 500 * time.Millisecond, 500 * time.Millisecond},
		{time.Hour, 2, true, 0, 0, 500 * time.Millisecond},
		{0, 0, true, 0, 0, 500 * time.Millisecond},
		{0, 3, false, 0, Never, 500 * time.Millisecond},
	} {
		now = now.Add(step.after)
		v := b.Take(&s, now, step.cost)
		want := Verdict{Allowed: step.allowed, Remaining: step.remaining, RetryAfter: step.retry, ResetAfter: step.reset}
		switch {
		case step.cost > 2:
			want.Reason = ReasonCost
		case !step.allowed:
			want.Reason = ReasonRate
		}
		if v != want {
			t.Errorf("cost %d at %v:\n got %+v\nwant %+v", step.cost, time.Duration(now-1000*second), v, want)
		}
	}
}

func TestLeakyBucketPaces(t *testing.T) {
	b := NewBucket(Policy{Algorithm: LeakyBucket, Rate: PerSecond(10), Burst: 2})
	var s BucketState
	for i, want := range []time.Duration{0, 100 * time.Millisecond, 200 * time.Millisecond} {
		if v := b.Take(&s, second, 1); !v.Allowed || v.Delay != want {
			t.Errorf("request %d: %+v, want a delay of %v", i, v, want)
		}
	}
	if v := b.Take(&s, second, 1); v.Allowed || v.RetryAfter != 100*time.Millisecond {
		t.Errorf("a fourth with a queue of 2: %+v", v)
	}
}

// oracleBucket is a token bucket in rational numbers, written from the textbook:
// tokens grow by rate*elapsed up to the burst.
type oracleBucket struct {
	tokens, rate, burst *big.Rat
	last                Time
}

func newOracleBucket(p Policy) *oracleBucket {
	rate := new(big.Rat)
	if p.Rate.Count > 0 {
		rate.SetFrac64(p.Rate.Count, int64(p.Rate.Period))
	}
	burst := new(big.Rat).SetInt64(p.Burst)
	return &oracleBucket{tokens: new(big.Rat).Set(burst), rate: rate, burst: burst}
}

func (o *oracleBucket) take(now Time, cost int64) (allowed bool, remaining int64) {
	grown := new(big.Rat).Mul(o.rate, new(big.Rat).SetInt64(int64(now-o.last)))
	o.last = now
	if o.tokens.Add(o.tokens, grown); o.tokens.Cmp(o.burst) > 0 {
		o.tokens.Set(o.burst)
	}
	c := new(big.Rat).SetInt64(cost)
	if o.tokens.Cmp(c) >= 0 {
		o.tokens.Sub(o.tokens, c)
		allowed = true
	}
	whole := new(big.Int).Quo(o.tokens.Num(), o.tokens.Denom())
	return allowed, whole.Int64()
}

// rates from one per year to 2^62 per second, plain and odd.
var rates = []Rate{
	{},
	Every(365 * 24 * time.Hour),
	{Count: 1, Period: math.MaxInt64},
	{Count: 3, Period: 7},
	PerSecond(1), PerSecond(3), PerSecond(100), PerSecond(60_000), PerMinute(5),
	PerSecond(999_983), PerSecond(700_000_000), PerSecond(1 << 40), PerSecond(MaxCount),
	{Count: MaxCount, Period: math.MaxInt64},
	{Count: MaxCount - 1, Period: 1},
	{Count: 13, Period: 10 * time.Second},
}

func TestBucketEqualsRationalArithmetic(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for i := range 4000 {
		r := rand.New(rand.NewPCG(uint64(i), 7))
		p := Policy{Rate: rates[r.IntN(len(rates))], Burst: r.Int64N(1 << r.IntN(63))}
		b, o := NewBucket(p), newOracleBucket(p)
		packed, packs := b.Pack()
		var s BucketState
		var word uint64
		start := Time(r.Int64N(1 << 61))
		now := start
		o.last = now
		for range 40 {
			if r.IntN(3) > 0 {
				now = min(now.Add(time.Duration(r.Int64N(1<<r.IntN(50)))), start.Add(PackedHorizon-1))
			}
			cost := r.Int64N(1 << r.IntN(63))
			v := b.Take(&s, now, cost)
			allowed, remaining := o.take(now, cost)
			if v.Allowed != allowed || v.Remaining != remaining {
				t.Fatalf("case %d: %v burst %d, cost %d: %+v, want allowed %v, remaining %d", i, p.Rate, p.Burst, cost, v, allowed, remaining)
			}
			if !packs {
				continue
			}
			tick := packed.Tick(uint64(now-start) + 1)
			next, fits := packed.Take(word, tick, cost)
			if fits {
				word = next
			}
			got := packed.Verdict(word, tick, cost)
			if fits {
				got = packed.Verdict(word, tick, 0)
			}
			if fits != allowed || got != v {
				t.Fatalf("case %d: %v burst %d, cost %d: packed %v %+v, exact %+v", i, p.Rate, p.Burst, cost, fits, got, v)
			}
			if cost == 1 && fits {
				if one, ok := packed.TakeOne(word, tick); ok != b.Peek(s, now, 1).Allowed {
					t.Fatalf("TakeOne answered %v (%d)", ok, one)
				}
			}
		}
	}
}

// A retry at the time that a refusal named passes, and a nanosecond sooner does not.
func TestBucketRetryIsExact(t *testing.T) {
	for i := range 20_000 {
		r := rand.New(rand.NewPCG(uint64(i), 8))
		p := Policy{Rate: rates[r.IntN(len(rates))], Burst: 1 + r.Int64N(1<<r.IntN(63))}
		if r.IntN(2) == 0 {
			p.Algorithm, p.Burst = LeakyBucket, p.Burst-1
		}
		if p.Quota() == 0 {
			continue
		}
		b := NewBucket(p)
		var s BucketState
		now := Time(r.Int64N(1 << 60))
		b.Take(&s, now, p.Quota()-r.Int64N(p.Quota()))
		cost := 1 + r.Int64N(p.Quota())
		v := b.Peek(s, now, cost)
		if v.Allowed || v.RetryAfter > 1<<61 {
			continue
		}
		if !b.Peek(s, now.Add(v.RetryAfter), cost).Allowed {
			t.Fatalf("case %d: refused after the promised %v", i, v.RetryAfter)
		}
		if b.Peek(s, now.Add(v.RetryAfter-1), cost).Allowed {
			t.Fatalf("case %d: admitted a nanosecond before the promised %v", i, v.RetryAfter)
		}
	}
}

// No drift: after 10^9 takes at an odd rate, one every time one is due, the bucket
// is as full as it was. The takes come in one batch per step, so that the test
// does not last an hour; the state is the same.
func TestBucketDoesNotDrift(t *testing.T) {
	for _, rate := range []Rate{PerSecond(999_983), PerSecond(3), PerSecond(700_000_000), {Count: 7, Period: 13}} {
		const batch, steps = 1_000_000, 1000
		b := NewBucket(Policy{Rate: rate, Burst: 2 * batch})
		var s BucketState
		start := 1_000_000 * second
		b.Take(&s, start, 2*batch)
		for i := int64(1); i <= steps; i++ {
			// The moment at which batch*i tokens have come, rounded up.
			due := new(big.Int).Mul(big.NewInt(batch*i), big.NewInt(int64(rate.Period)))
			due.Add(due, big.NewInt(rate.Count-1)).Quo(due, big.NewInt(rate.Count))
			now := start.Add(time.Duration(due.Int64()))
			if b.Peek(s, now-1, batch).Allowed {
				t.Fatalf("%v: early at step %d", rate, i)
			}
			if v := b.Take(&s, now, batch); !v.Allowed {
				t.Fatalf("%v: late at step %d: %+v", rate, i, v)
			}
		}
	}
}

// In any interval T at most burst + rate*T is admitted, whatever the times and
// costs: the exact test over all intervals that begin and end at an admission.
func TestBucketHistoriesNeverOver(t *testing.T) {
	for seed := range seeding.Draw(t, histories(t)) {
		r := rand.New(rand.NewPCG(seed, 9))
		p := Policy{Rate: Rate{Count: 1 + r.Int64N(50), Period: time.Duration(1 + r.Int64N(1000))}, Burst: 1 + r.Int64N(20)}
		b := NewBucket(p)
		var s BucketState
		type admission struct {
			at   Time
			cost int64
		}
		var log []admission
		now := second
		for range 60 {
			now += Time(r.Int64N(60))
			at := now - Time(r.Int64N(30)) // a clock that steps back
			if cost := 1 + r.Int64N(5); b.Take(&s, at, cost).Allowed {
				log = append(log, admission{now, cost})
			}
		}
		for from := range log {
			var sum int64
			for to := from; to < len(log); to++ {
				sum += log[to].cost
				// A time up to 30 ns old stands for the interval before it.
				room := (int64(log[to].at-log[from].at)+30)*p.Rate.Count + p.Burst*int64(p.Rate.Period)
				if sum*int64(p.Rate.Period) > room {
					t.Fatalf("history %d: %d admitted in %v under %v burst %d", seed, sum, log[to].at-log[from].at, p.Rate, p.Burst)
				}
			}
		}
	}
}

// A change of policy keeps what was used, up to the whole new quota.
func TestBucketConvertKeepsWhatWasUsed(t *testing.T) {
	for i := range 20_000 {
		r := rand.New(rand.NewPCG(uint64(i), 10))
		from := Policy{Rate: rates[r.IntN(len(rates))], Burst: 1 + r.Int64N(1<<r.IntN(40))}
		to := Policy{Rate: rates[r.IntN(len(rates))], Burst: 1 + r.Int64N(1<<r.IntN(40))}
		a, b := NewBucket(from), NewBucket(to)
		now := Time(r.Int64N(1 << 60))
		var s BucketState
		used := r.Int64N(from.Burst + 1)
		a.Take(&s, now, used)
		got := b.Peek(b.Convert(s, &a, now), now, 0).Remaining
		if want := max(to.Burst-used, 0); got != want {
			t.Fatalf("case %d: used %d of %d, then %d remaining of %d, want %d", i, used, from.Burst, got, to.Burst, want)
		}
	}
}
