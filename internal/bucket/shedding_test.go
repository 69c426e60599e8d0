package bucket

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// TestDraws: of what a suppressed bucket is asked passes the part that is not shed, and with
// draws that make up for each other hardly more or less than that.
func TestDraws(t *testing.T) {
	verbs := map[string]func(b *Bucket, now limit.Time) (ok, decided bool){
		"Allow": func(b *Bucket, now limit.Time) (bool, bool) { return b.Allow(now, 1) },
		"Try":   func(b *Bucket, now limit.Time) (bool, bool) { return b.Try(now, 1) },
		"Prepare": func(b *Bucket, now limit.Time) (bool, bool) {
			_, ok, decided := b.Prepare(now, 1)
			if ok {
				b.Commit(1)
			}
			return ok, decided
		},
	}
	for verb, take := range verbs {
		for _, independent := range []bool{false, true} {
			testDraws(t, verb, take, independent)
		}
	}
}

func testDraws(t *testing.T, verb string, take func(b *Bucket, now limit.Time) (ok, decided bool), independent bool) {
	t.Helper()
	r := seeding.Rand(t)
	b := NewBucket(nil)
	b.Random(r.Float64)
	now := limit.Time(time.Hour)
	b.Update(now, 1000*fixed.Token, 50*fixed.Token, 50*fixed.Token)
	b.Suppress(now, Suppression{Reject: 0.9, Rate: 100 * fixed.Token, Burst: 20 * fixed.Token}, independent)
	passed, repeats, last := 0, 0, false
	least, most := math.MaxInt, 0
	for second := range 200 {
		n := 0
		for range 1000 {
			now = now.Add(time.Duration(r.ExpFloat64() * float64(time.Millisecond)))
			ok, decided := take(b, now)
			if !decided {
				t.Fatal("not decided")
			}
			if ok {
				n++
				if last {
					repeats++
				}
			}
			last = ok
		}
		if passed += n; second > 0 {
			least, most = min(least, n), max(most, n)
		}
	}
	if mean := float64(passed) / 200_000; mean < 0.098 || mean > 0.102 {
		t.Errorf("%s, independent %v: %v passed, want a tenth", verb, independent, mean)
	}
	// The number in 1,000 independent draws has a deviation of 9.5.
	if spread := most - least; independent && spread < 35 || !independent && spread > 35 {
		t.Errorf("%s, independent %v: %d to %d of 1,000", verb, independent, least, most)
	}
	if repeats == 0 {
		t.Errorf("%s, independent %v: no two in a row passed: that is no draw", verb, independent)
	}
}

// TestSuppressAndAmend: what is lent and what is suppressed do not get in each other's way.
func TestSuppressAndAmend(t *testing.T) {
	b := NewBucket(nil)
	now := limit.Time(time.Hour)
	b.Update(now, 1000*fixed.Token, 50*fixed.Token, 50*fixed.Token)
	b.Suppress(now, Suppression{Reject: 1, Rate: 10 * fixed.Token, Burst: 2 * fixed.Token}, false)
	if got := b.MaxCost(now); got != 2 {
		t.Errorf("depth %d while suppressed", got)
	}
	if ok, decided := b.Allow(now, 1); ok || !decided {
		t.Errorf("all is to be refused: %v %v", ok, decided)
	}
	b.Join(2)
	if !b.Serve(now, 2) {
		t.Error("who waits is not drawn")
	}
	if _, held := b.Update(now, 2000*fixed.Token, 80*fixed.Token, 0); held != 80*fixed.Token {
		t.Errorf("held %v, want what is lent", held)
	}
	if got := b.MaxCost(now); got != 2 {
		t.Errorf("depth %d while suppressed", got)
	}
	for _, reject := range []float64{math.NaN(), -1, 0} {
		b.Suppress(now, Suppression{Reject: reject, Rate: 1, Burst: 1}, false)
		if got := b.MaxCost(now); got != 80 {
			t.Errorf("depth %d after suppression has ended by %v", got, reject)
		}
	}
	if got := b.Remaining(now); got != 0 {
		t.Errorf("%d created", got)
	}
	b.Suppress(now, Suppression{Reject: math.Inf(1), Rate: fixed.MaxAmount, Burst: fixed.MaxAmount}, false)
	if ok, _ := b.Allow(now.Add(time.Second), 1); ok {
		t.Error("passed at a part of infinity")
	}
}

// TestSuppressConcurrent is for the race detector: nothing is admitted above what is in
// force at any time.
func TestSuppressConcurrent(t *testing.T) {
	b := NewBucket(nil)
	now := limit.Time(time.Hour)
	b.Update(now, 0, 1000*fixed.Token, 1000*fixed.Token)
	var passed [4]int
	var wg sync.WaitGroup
	for i := range passed {
		wg.Go(func() {
			for range 20_000 {
				if ok, _ := b.Allow(now, 1); ok {
					passed[i]++
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 1000 {
			b.Suppress(now, Suppression{Reject: float64(i%10) / 10, Rate: fixed.Token, Burst: fixed.Amount(100+i%7) * fixed.Token}, false)
		}
	})
	wg.Wait()
	if sum := passed[0] + passed[1] + passed[2] + passed[3]; sum > 1000 {
		t.Errorf("%d of 1,000 passed", sum)
	}
}

func TestSuppressedAllowDoesNotAllocate(t *testing.T) {
	b := NewBucket(nil)
	now := limit.Time(time.Hour)
	b.Update(now, 1000*fixed.Token, 50*fixed.Token, 50*fixed.Token)
	b.Suppress(now, Suppression{Reject: 0.5, Rate: 500 * fixed.Token, Burst: 50 * fixed.Token}, false)
	if n := testing.AllocsPerRun(1000, func() {
		now = now.Add(time.Millisecond)
		b.Allow(now, 1)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
