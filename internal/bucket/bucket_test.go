package bucket

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

const (
	second = limit.Time(time.Second)
	start  = 1000 * second
)

func bucketOf(now limit.Time, rate fixed.Amount, depth, tokens int64) *Bucket {
	b := NewBucket(nil)
	b.Update(now, rate, fixed.Whole(depth), fixed.Whole(tokens))
	return b
}

func allow(t *testing.T, b *Bucket, now limit.Time, n int64) bool {
	t.Helper()
	allowed, decided := b.Allow(now, n)
	if !decided {
		t.Fatalf("Allow(%d, %d) did not decide", now, n)
	}
	return allowed
}

func TestBucketWalk(t *testing.T) {
	b := NewBucket(nil)
	if allow(t, b, start, 1) || !allow(t, b, start, 0) {
		t.Fatal("an empty bucket of rate 0 holds just nothing")
	}
	if surplus, held := b.Update(start, 10*fixed.Token, 4*fixed.Token, 5*fixed.Token+1); surplus != fixed.Token+1 || held != 4*fixed.Token {
		t.Fatalf("Update = %v, %v, want 1.000001 surplus, 4 held", surplus, held)
	}
	for i := range 4 {
		if !allow(t, b, start, 1) {
			t.Fatalf("token %d is not there", i)
		}
	}
	if allow(t, b, start+second/10-1, 1) || !allow(t, b, start+second/10, 1) || allow(t, b, start+second/10, 1) {
		t.Fatal("a token comes every 100 ms, not before")
	}
	if allow(t, b, start+100*second, 5) || allow(t, b, start+100*second, -1) || !allow(t, b, start+100*second, 4) {
		t.Fatal("the depth is 4")
	}
	if r := b.Observe(start + 100*second); r.Admitted != 9*fixed.Token || r.Attempted != 17*fixed.Token || r.Level != 0 {
		t.Fatalf("Observe = %+v", r)
	}
	if r := b.Observe(start + 100*second + second/4); r.Level != 2_500_000 {
		t.Fatalf("level after 250 ms is %v, want 2.5", r.Level)
	}
	if surplus, _ := b.Update(start+100*second+second/4, 5*fixed.Token, fixed.Token, 0); surplus != 1_500_000 {
		t.Fatalf("surplus %v, want 1.5", surplus)
	}
	if surplus, _ := b.Update(start+100*second+second/4, 5*fixed.Token, fixed.Token, -250_000); surplus != 250_000 {
		t.Fatalf("taken out %v, want 0.25", surplus)
	}
	if r := b.Observe(start + 100*second + second/4); r.Level != 750_000 {
		t.Fatalf("level %v, want 0.75", r.Level)
	}
}

func TestLargest(t *testing.T) {
	l := largest{since: start}
	l.note(1)
	if got := l.at(start, 0); got != 0 {
		t.Fatalf("largest %v after a cost of 1, want 0", got)
	}
	l.note(5)
	l.note(3)
	for _, tt := range []struct {
		at   limit.Time
		want fixed.Amount
	}{{0, 5 * fixed.Token}, {9, 5 * fixed.Token}, {11, 5 * fixed.Token}, {20, 5 * fixed.Token}, {21, 0}, {90, 0}} {
		if got := l.at(start+tt.at*second, 0); got != tt.want {
			t.Fatalf("after %d s the largest is %v, want %v", tt.at, got, tt.want)
		}
	}
	l.note(7)
	if got := l.at(start+500*second, 1); got != 7*fixed.Token {
		t.Fatalf("largest %v while it waits, want 7", got)
	}
}

func TestBucketDeadline(t *testing.T) {
	var d Deadline
	b := NewBucket(&d)
	b.Update(start, fixed.Token, 10*fixed.Token, 10*fixed.Token)
	if allow(t, b, start, 1) {
		t.Fatal("a deadline of 0 has passed")
	}
	d.Store(int64(start + second))
	if !allow(t, b, start, 1) || !allow(t, b, start+second-1, 1) || allow(t, b, start+second, 1) {
		t.Fatal("spent until the deadline, and not at it")
	}
	d.Store(int64(start + 3*second))
	if !allow(t, b, start+2*second, 1) {
		t.Fatal("a later deadline lets it go on")
	}
}

func TestBucketFallback(t *testing.T) {
	var d Deadline
	b := NewBucket(&d)
	b.UpdateFallback(start, fixed.Token, 2*fixed.Token)
	if !allow(t, b, start, 2) || allow(t, b, start, 1) || !allow(t, b, start+second, 1) {
		t.Fatal("before the first lease a fallback starts full")
	}
	b.UpdateFallback(start+2*second, fixed.Token, 5*fixed.Token)
	if !allow(t, b, start+2*second, 1) || allow(t, b, start+2*second, 1) {
		t.Fatal("another fallback goes on where the one before it was")
	}
	d.Store(int64(start + 100*second))
	if surplus, _ := b.Update(start+50*second, 10*fixed.Token, 5*fixed.Token, 2*fixed.Token); surplus != 0 {
		t.Fatalf("%v of a fallback is surplus: it was not lent", surplus)
	}
	if !allow(t, b, start+50*second, 2) || allow(t, b, start+50*second, 1) {
		t.Fatal("the lease came with 2 tokens")
	}
	d.Store(0)
	if allow(t, b, start+100*second, 1) {
		t.Fatal("the lease has ended")
	}
	b.UpdateFallback(start+100*second, 2*fixed.Token, 2*fixed.Token)
	if !allow(t, b, start+100*second, 2) || allow(t, b, start+100*second, 1) || !allow(t, b, start+101*second, 2) {
		t.Fatal("2 per second without a lease")
	}
	b.Update(start+101*second, 0, 0, 0)
	if allow(t, b, start+110*second, 1) {
		t.Fatal("no fallback is left")
	}
}

// TestBucketAgainstLimit: where ticks divide evenly, a Bucket answers as
// limit.Bucket does.
func TestBucketAgainstLimit(t *testing.T) {
	rng := seeding.Rand(t)
	for _, perSecond := range []int64{1, 5, 100, 1000, 8000, 1_000_000, 500_000_000, 1_000_000_000} {
		policy := limit.Policy{Rate: limit.Rate{Count: perSecond, Period: time.Second}, Burst: 1 + rng.Int64N(50)}
		oracle := limit.NewBucket(policy)
		var state limit.BucketState
		b := bucketOf(start, fixed.Whole(perSecond), policy.Burst, policy.Burst)
		now := start
		admitted := 0
		for i := range 20_000 {
			now += limit.Time(rng.ExpFloat64() * 2e9 / float64(perSecond))
			cost := 1 + rng.Int64N(3)
			want := oracle.Take(&state, now, cost).Allowed
			if got := allow(t, b, now, cost); got != want {
				t.Fatalf("%d/s, step %d: Allow(%d) = %v, limit.Bucket says %v", perSecond, i, cost, got, want)
			}
			if want {
				admitted++
			}
		}
		if admitted == 0 || admitted == 20_000 {
			t.Fatalf("%d/s: %d of 20000 admitted, so nothing was compared", perSecond, admitted)
		}
	}
}

// TestBucketNeverOver: any rate, any burst, any steps: never more than
// burst + rate x T, and at most a millionth or one tick less.
func TestBucketNeverOver(t *testing.T) {
	rng := seeding.Rand(t)
	for range 3000 {
		rate := fixed.Amount(math.Exp(rng.Float64()*math.Log(float64(fixed.MaxAmount)-1))) + 1
		depth := int64(math.Exp(rng.Float64() * math.Log(4.6e12)))
		b := bucketOf(start, rate, depth, depth)
		now, admitted := start, int64(0)
		interval := math.Exp(rng.Float64() * math.Log(1e17))
		for range 50 {
			now += limit.Time(rng.Float64() * interval)
			for k := depth; k > 0; k /= 2 {
				if allow(t, b, now, k) {
					admitted += k
				}
			}
			most := float64(depth) + float64(rate)/1e6*float64(now-start)/1e9
			if float64(admitted) > most*(1+1e-12) {
				t.Fatalf("rate %v depth %d: %d admitted in %d ns, at most %v", rate, depth, admitted, now-start, most)
			}
		}
	}
}

// TestBucketUses: a bucket that is emptied often gives its rate but for a millionth.
func TestBucketUses(t *testing.T) {
	for _, rate := range []fixed.Amount{1000, 3333, fixed.Token, 3 * fixed.Token, 999_983 * fixed.Token, 7_777_777 * fixed.Token, 123_456_789 * fixed.Token, 3_999_999_999_999 * fixed.Token} {
		b := bucketOf(start, rate, 1<<20, 0)
		step := limit.Time(math.Max(1, 1e15/float64(rate)))
		now, admitted := start, int64(0)
		for range 10_000 {
			now += step
			if n := b.Remaining(now); n > 0 && allow(t, b, now, n) {
				admitted += n
			}
		}
		want := math.Min(float64(rate)/1e6*float64(now-start)/1e9, math.MaxInt64)
		if got := float64(admitted); got > want || got < want*(1-2e-6)-1 {
			t.Errorf("%v/s: %v admitted of %v", rate, got, want)
		}
	}
}

// TestBucketRebases: time beyond the span neither fills nor empties a bucket.
func TestBucketRebases(t *testing.T) {
	b := bucketOf(start, 1_000_000_000_000*fixed.Token, 1_000_000, 0)
	span := limit.Time(b.setting.Load().span)
	for i := range limit.Time(10) {
		now := start + span + i*(span+1)
		if !allow(t, b, now, 1_000_000) || allow(t, b, now, 1) {
			t.Fatal("full, then empty")
		}
		if got := b.Observe(now).Level; got != 0 {
			t.Fatalf("level %v of an empty bucket", got)
		}
	}
	slow := bucketOf(start, 1, 2, 2)
	far := limit.Time(slow.setting.Load().span)
	if !allow(t, slow, start+far, 2) || allow(t, slow, start+far+1, 1) {
		t.Fatal("an empty bucket is empty after its time was counted anew")
	}
}

// TestBucketsConserve: rate, burst and tokens that move between buckets create none.
func TestBucketsConserve(t *testing.T) {
	rng := seeding.Rand(t)
	for range 300 {
		const n = 4
		var bs [n]*Bucket
		var rates, depths [n]fixed.Amount
		rate, depth := fixed.Amount(0), fixed.Amount(0)
		for i := range bs {
			rates[i], depths[i] = fixed.Amount(rng.Int64N(int64(1000*fixed.Token))), fixed.Whole(rng.Int64N(20))
			bs[i] = NewBucket(nil)
			bs[i].Update(start, rates[i], depths[i], depths[i])
			rate, depth = rate+rates[i], depth+depths[i]
		}
		now, admitted, loose := start, int64(0), fixed.Amount(0)
		for range 300 {
			now += limit.Time(rng.Int64N(int64(5 * time.Millisecond)))
			i, j := rng.IntN(n), rng.IntN(n)
			if i != j {
				dr, dd := fixed.Amount(rng.Int64N(int64(rates[i])+1)), fixed.Whole(rng.Int64N(depths[i].Floor()+1))
				rates[i], depths[i] = rates[i]-dr, depths[i]-dd
				before := bs[i].Observe(now).Level
				surplus, held := bs[i].Update(now, rates[i], depths[i], 0)
				after := bs[i].Observe(now).Level
				if held != depths[i] || after+surplus > before || after+surplus < before-2 {
					t.Fatalf("level %v became %v and %v surplus; held %v of %v", before, after, surplus, held, depths[i])
				}
				rates[j], depths[j] = rates[j]+dr, depths[j]+dd
				before, loose = bs[j].Observe(now).Level, loose+surplus
				surplus, _ = bs[j].Update(now, rates[j], depths[j], loose)
				if got := bs[j].Observe(now).Level + surplus; got > before+loose || got < before+loose-3 {
					t.Fatalf("%v and %v became %v", before, loose, got)
				}
				loose = surplus
			}
			for range rng.IntN(6) {
				k, cost := rng.IntN(n), 1+rng.Int64N(4)
				if allow(t, bs[k], now, cost) {
					admitted += cost
				}
			}
			if most := depth.Float() + rate.Float()*time.Duration(now-start).Seconds(); float64(admitted) > most+1e-9 {
				t.Fatalf("%d admitted by all, at most %v", admitted, most)
			}
		}
	}
}

func TestBucketLine(t *testing.T) {
	b := bucketOf(start, 10*fixed.Token, 5, 2)
	b.Freeze()
	if _, decided := b.Allow(start, 1); decided {
		t.Fatal("a frozen bucket decides nothing")
	}
	b.Join(4)
	b.Join(3)
	if r := b.Observe(start); r.Waiting != 7*fixed.Token || r.Attempted != 7*fixed.Token || r.Admitted != 0 || r.Level != 2*fixed.Token {
		t.Fatalf("Observe = %+v", r)
	}
	if b.Serve(start, 4) {
		t.Fatal("2 tokens serve 4")
	}
	if d := b.Earliest(start, 4); d != 200*time.Millisecond {
		t.Fatalf("the first waits %v, want 200ms", d)
	}
	if d := b.Earliest(start, 7); d != 500*time.Millisecond {
		t.Fatalf("both wait %v, want 500ms", d)
	}
	b.Update(start, 20*fixed.Token, 5*fixed.Token, fixed.Token)
	if d := b.Earliest(start, 4); d != 50*time.Millisecond {
		t.Fatalf("the first waits %v, want 50ms", d)
	}
	if !b.Serve(start+second/20, 4) {
		t.Fatal("4 tokens serve 4")
	}
	b.Leave(3)
	b.Thaw()
	if allow(t, b, start+second/20, 1) || !allow(t, b, start+second/10, 1) {
		t.Fatal("after the line the bucket goes on where it was")
	}
	b.Refund(start+second/10, 1)
	if got := b.Remaining(start + second/10); got != 1 {
		t.Fatalf("%d after a refund, want 1", got)
	}
	if r := b.Observe(start + second/10); r.Attempted != 9*fixed.Token || r.Admitted != 5*fixed.Token || r.Waiting != 0 {
		t.Fatalf("Observe = %+v", r)
	}
}

// TestBucketConcurrent: many take while the setting changes all the time.
func TestBucketConcurrent(t *testing.T) {
	b := bucketOf(start, 1_000_000*fixed.Token, 1000, 1000)
	var clock, admitted atomic.Int64
	clock.Store(int64(start))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20_000 {
				now := limit.Time(clock.Add(97))
				if ok, _ := b.Allow(now, 3); ok {
					admitted.Add(3)
				}
			}
		})
	}
	loose := fixed.Amount(0)
	wg.Go(func() {
		for i := range 2000 {
			now := limit.Time(clock.Load())
			loose, _ = b.Update(now, fixed.Amount(1+i%2)*500_000*fixed.Token, fixed.Whole(int64(500+i%500)), loose)
			if i%50 == 0 {
				b.Freeze()
				b.Observe(now)
				b.Thaw()
			}
		}
	})
	wg.Wait()
	end := limit.Time(clock.Load())
	r := b.Observe(end)
	if r.Admitted != fixed.Whole(admitted.Load()) {
		t.Errorf("counted %v admitted, want %d", r.Admitted, admitted.Load())
	}
	if most := 1000 + 1e6*time.Duration(end-start).Seconds(); float64(admitted.Load())+r.Level.Float()+loose.Float() > most {
		t.Errorf("%d admitted and %v left, of at most %v", admitted.Load(), r.Level, most)
	}
}

func TestBucketAllocatesNothing(t *testing.T) {
	b := bucketOf(start, 1000*fixed.Token, 10, 10)
	now := start
	if n := testing.AllocsPerRun(1000, func() { now += 1000; b.Allow(now, 1) }); n != 0 {
		t.Errorf("%v allocations per Allow, want 0", n)
	}
}

// BenchmarkBucketAllow measures Allow with the clock that a limit.Limiter reads, so
// that both can be compared: admitted, and refused.
func BenchmarkBucketAllow(b *testing.B) {
	origin := time.Now()
	for name, rate := range map[string]fixed.Amount{"admitted": 4_000_000_000 * fixed.Token, "refused": 1} {
		b.Run(name, func(b *testing.B) {
			s := bucketOf(1, rate, 1_000_000, 1)
			s.Allow(1, 1)
			for b.Loop() {
				if allowed, _ := s.Allow(1+limit.Time(time.Since(origin)), 1); allowed != (rate > 1) {
					b.Fatal("wrong answer")
				}
			}
		})
	}
}

// BenchmarkLimiterAllow is the in-process limiter beside it.
func BenchmarkLimiterAllow(b *testing.B) {
	for name, count := range map[string]int64{"admitted": 4_000_000_000, "refused": 1} {
		b.Run(name, func(b *testing.B) {
			l, err := limit.NewLimiter(limit.Policy{Rate: limit.Rate{Count: count, Period: time.Second}, Burst: count})
			if err != nil {
				b.Fatal(err)
			}
			if count == 1 {
				l.SetRate(limit.Rate{Count: 1, Period: 24 * time.Hour})
				l.Allow()
			}
			for b.Loop() {
				if l.Allow() != (count > 1) {
					b.Fatal("wrong answer")
				}
			}
		})
	}
}
