package bucket

import (
	"math"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// TestUndoneIsAsIfNeverTaken: a bucket in which nothing else happened between a Hold and its Undo
// holds at every later moment, and at one before by a clock that stepped back, what it
// would hold without them.
func TestUndoneIsAsIfNeverTaken(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := seeding.Rand(t)
	for range 10_000 {
		rate, depth := fixed.Amount(r.Int64N(int64(fixed.Token)<<r.IntN(14))), 1+r.Int64N(30)
		held, oracle := bucketOf(start, rate, depth, r.Int64N(depth+1)), NewBucket(nil)
		oracle.Update(start, rate, fixed.Whole(depth), held.Observe(start).Level)
		at := start + limit.Time(r.Int64N(int64(4*time.Second))>>r.IntN(20))
		cost := 1 + r.Int64N(depth)
		h, taken, _ := held.Prepare(at, cost)
		later := at + limit.Time(r.Int64N(int64(4*time.Second))>>r.IntN(30))
		if r.IntN(4) == 0 {
			later = at
		}
		if taken {
			held.Rollback(later, h, cost)
		}
		moments := []limit.Time{later, later + limit.Time(r.Int64N(int64(time.Second))), later + 100*second}
		if later == at {
			moments = append(moments, at-limit.Time(r.Int64N(int64(time.Second))))
		}
		for _, now := range moments {
			if a, b := held.Observe(now).Level, oracle.Observe(now).Level; a != b {
				t.Fatalf("%v/s, %d deep: %d held at %v and undone %v later leave %v after %v, want %v", rate, depth, cost,
					time.Duration(at-start), time.Duration(later-at), a, time.Duration(now-later), b)
			}
		}
	}
}

// TestUndoUnderOtherTerms: where the lease was amended in between, what was held comes back but for
// what the faster rate brought since, for 5 ms; later nothing comes back, as what was there
// in between is not known. No more fits than the burst, and what was held of a lease that ended stays spent.
func TestUndoUnderOtherTerms(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const rate = 1000 * fixed.Token
	for _, tt := range []struct {
		what        string
		rate, depth fixed.Amount
		after       time.Duration
		cost        int64
		want        fixed.Amount
	}{
		{"the same setting", rate, 50 * fixed.Token, 4 * time.Millisecond, 10, 24 * fixed.Token},
		{"the same setting, late", rate, 50 * fixed.Token, 10 * time.Millisecond, 10, 30 * fixed.Token},
		{"another depth", rate, 40 * fixed.Token, 4 * time.Millisecond, 10, 20 * fixed.Token},
		{"a lower rate", rate / 2, 50 * fixed.Token, 4 * time.Millisecond, 10, 18 * fixed.Token},
		{"a higher rate", 2 * rate, 50 * fixed.Token, 4 * time.Millisecond, 10, 20 * fixed.Token},
		{"a higher rate, at once", 2 * rate, 50 * fixed.Token, 0, 10, 20 * fixed.Token},
		{"no rate", 0, 50 * fixed.Token, 4 * time.Millisecond, 10, 16 * fixed.Token},
		{"a higher rate, 5 ms later", 2 * rate, 50 * fixed.Token, 5 * time.Millisecond, 10, 20 * fixed.Token},
		{"a higher rate, more than 5 ms later", 2 * rate, 50 * fixed.Token, 5*time.Millisecond + 1, 10, 20*fixed.Token + 2},
		{"a higher rate that brought more than was held", 2 * rate, 50 * fixed.Token, 4 * time.Millisecond, 7, 21 * fixed.Token},
		{"less depth than was held", rate, 5 * fixed.Token, 0, 10, 5 * fixed.Token},
	} {
		b := bucketOf(start, rate, 50, 20)
		h, taken, _ := b.Prepare(start, tt.cost)
		if !taken {
			t.Fatal("not held")
		}
		if tt.rate != rate || tt.depth != 50*fixed.Token {
			b.Update(start, tt.rate, tt.depth, 0)
		}
		now := start.Add(tt.after)
		if b.Rollback(now, h, tt.cost); b.Observe(now).Level > tt.want || b.Observe(now).Level < tt.want-2 {
			t.Errorf("%s: %v is there, want %v", tt.what, b.Observe(now).Level, tt.want)
		}
	}
	var d Deadline
	d.Store(math.MaxInt64)
	b := NewBucket(&d)
	b.Update(start, 0, 10*fixed.Token, 10*fixed.Token)
	h, _, _ := b.Prepare(start, 4)
	d.Store(int64(start))
	b.Rollback(start, h, 4)
	if d.Store(math.MaxInt64); b.Remaining(start) != 6 {
		t.Errorf("%d of 10 remain after an Undo past the deadline, want 6", b.Remaining(start))
	}
}
