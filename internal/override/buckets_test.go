package override

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store/memory"
)

type world struct {
	*testing.T
	now     limit.Time
	buckets *Buckets
	call    Call
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, now: limit.At(time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC))}
	b, err := NewBuckets(memory.New(memory.Options{Now: func() limit.Time { return w.now }}))
	if err != nil {
		t.Fatal(err)
	}
	w.buckets = b
	return w
}

func (w *world) take(key string, of Terms, cost int64) limit.Verdict {
	w.Helper()
	v, err := w.buckets.Take(w.Context(), &w.call, []byte(key), of, cost)
	if err != nil {
		w.Fatal(err)
	}
	return v
}

// The cases of redis-cell's own test, 5 at once and one per second, but for its case at 3.1 s and 9.5 s: it drops
// fractions of a second there, and admits up to a second early.
func TestAsRedisCell(t *testing.T) {
	w := newWorld(t)
	begin := w.now
	for i, c := range []struct {
		at, cost, remaining int64 // ms
		reset, retry        time.Duration
		limited             bool
	}{
		{0, 6, 5, 0, limit.Never, true},
		{0, 1, 4, time.Second, 0, false},
		{0, 1, 3, 2 * time.Second, 0, false},
		{0, 1, 2, 3 * time.Second, 0, false},
		{0, 1, 1, 4 * time.Second, 0, false},
		{0, 1, 0, 5 * time.Second, 0, false},
		{0, 1, 0, 5 * time.Second, time.Second, true},
		{3000, 1, 2, 3 * time.Second, 0, false},
		{3100, 1, 1, 3900 * time.Millisecond, 0, false},
		{4000, 1, 1, 4 * time.Second, 0, false},
		{8000, 1, 4, time.Second, 0, false},
		{9500, 1, 4, time.Second, 0, false},
		{9500, 0, 4, time.Second, 0, false},
		{9500, 2, 2, 3 * time.Second, 0, false},
		{9500, 5, 2, 3 * time.Second, 3 * time.Second, true},
	} {
		w.now = begin.Add(time.Duration(c.at) * time.Millisecond)
		v := w.take("foo", Terms{Burst: 5, Count: 1, Period: time.Second}, c.cost)
		if v.Allowed == c.limited || v.Remaining != c.remaining || v.ResetAfter != c.reset || v.RetryAfter != c.retry {
			t.Errorf("case %d: %+v, want %+v", i, v, c)
		}
	}
}

// Whatever terms come, each answer is that of package limit for a bucket of that burst and one token per interval, which
// is the period divided by the count and rounded up to a nanosecond; so the rate that was asked for is never exceeded.
func TestBucketsAgreeWithLimit(t *testing.T) {
	rnd := seeding.Rand(t)
	for range 300 {
		w := newWorld(t)
		terms := Terms{Burst: 1 + rnd.Int64N(50), Count: 1 + rnd.Int64N(1e4), Period: 1 + time.Duration(rnd.Int64N(int64(time.Minute)))}
		if terms.Count > int64(terms.Period) {
			continue
		}
		one, err := terms.interval()
		if err != nil || one*terms.Count < int64(terms.Period) || (one-1)*terms.Count >= int64(terms.Period) {
			t.Fatalf("%+v: %d, %v", terms, one, err)
		}
		var state limit.BucketState
		oracle := limit.NewBucket(limit.Policy{Rate: limit.Rate{Count: 1, Period: time.Duration(one)}, Burst: terms.Burst})
		for range 60 {
			cost := rnd.Int64N(terms.Burst + 3)
			want := oracle.Take(&state, w.now, cost)
			if got := w.take("k", terms, cost); got != want {
				t.Fatalf("%+v: cost %d:\n got %+v\nwant %+v", terms, cost, got, want)
			}
			w.now = w.now.Add(time.Duration(rnd.Int64N(one * 4)))
		}
	}
}

// Terms that change with each request give nothing away: what was used stays used. Each token takes its interval from the
// time that has passed and the longest that any bucket takes to fill, so at the highest rate no more than that is admitted.
func TestChangingTermsGiveNothing(t *testing.T) {
	w := newWorld(t)
	rnd := seeding.Rand(t)
	begin, sum := w.now, int64(0)
	for range 5000 {
		terms := Terms{Burst: 1 + rnd.Int64N(10), Count: 1 + rnd.Int64N(100), Period: time.Second}
		if w.take("k", terms, 1).Allowed {
			sum++
		}
		w.now = w.now.Add(time.Duration(rnd.Int64N(int64(4 * time.Millisecond))))
	}
	const longestFill = 10 * time.Second
	if most := int64((time.Duration(w.now-begin)+longestFill)/(10*time.Millisecond)) + 1; sum > most || sum < 10 {
		t.Errorf("%d admitted, want at most %d", sum, most)
	}
}

// A key is one bucket, however long buckets of its terms take to fill: what was taken under one is missing under the others.
func TestTermsShareABucket(t *testing.T) {
	terms := []Terms{
		{Burst: 10, Count: 10, Period: time.Hour},
		{Burst: 10, Count: 10, Period: time.Second},
		{Burst: 10, Count: 10, Period: 59 * time.Minute},
		{Burst: 1, Count: 1, Period: 30 * 24 * time.Hour},
	}
	for _, first := range terms {
		for _, then := range terms {
			w := newWorld(t)
			if v := w.take("k", first, first.Burst); !v.Allowed || v.Remaining != 0 {
				t.Fatalf("%+v: %+v", first, v)
			}
			// Of the time that is used each token of the other terms has its part, rounded up.
			one := int64(then.Period) / then.Count
			want := max(0, then.Burst-(int64(first.Period)+one-1)/one)
			if v := w.take("k", then, 0); v.Remaining != want {
				t.Errorf("%+v, then %+v: %d left, want %d", first, then, v.Remaining, want)
			}
			if used, err := w.buckets.Reset(t.Context(), &w.call, []byte("k")); err != nil || !used {
				t.Errorf("reset: %v, %v", used, err)
			}
			if used, err := w.buckets.Reset(t.Context(), &w.call, []byte("k")); err != nil || used {
				t.Errorf("a reset of nothing: %v, %v", used, err)
			}
			if v := w.take("k", then, then.Burst); !v.Allowed {
				t.Errorf("after a reset: %+v", v)
			}
		}
	}
}

// Terms that no bucket can have are refused, and so is a negative cost.
func TestBadTerms(t *testing.T) {
	w := newWorld(t)
	for i, c := range []struct {
		Terms
		cost int64
		bad  bool
	}{
		{Terms{0, 1, 1}, 1, true},
		{Terms{1, 0, 1}, 1, true},
		{Terms{1, 1, 0}, 1, true},
		{Terms{-1, 1, 1}, 1, true},
		{Terms{1, 2, 1}, 1, true},
		{Terms{math.MaxInt64, 1, 1}, 1, true},
		{Terms{math.MaxInt64, 1, math.MaxInt64}, 1, true},
		{Terms{2, 1, 1 << 60}, 1, true},
		{Terms{1, 1, 1}, -1, true},
		{Terms{1, 1, 1 << 59}, math.MaxInt64, false},
		{Terms{longest - 2, 1, 1}, math.MaxInt64, false},
		{Terms{1, 1, 1}, 1, false},
	} {
		v, err := w.buckets.Take(t.Context(), &w.call, fmt.Append(nil, i), c.Terms, c.cost)
		if errors.Is(err, ErrTerms) != c.bad || err == nil && c.cost > 1 && (v.Allowed || v.RetryAfter != limit.Never) {
			t.Errorf("%+v: %+v, %v", c, v, err)
		}
	}
}

func TestBucketsAllocateNothing(t *testing.T) {
	w := newWorld(t)
	key := []byte("k")
	for _, terms := range []Terms{{10, 100, time.Second}, {10, 1, time.Hour}} {
		if n := testing.AllocsPerRun(100, func() { _, _ = w.buckets.Take(t.Context(), &w.call, key, terms, 1) }); n != 0 {
			t.Errorf("%+v: %v allocations", terms, n)
		}
	}
}
