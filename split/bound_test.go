package split_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/split"
)

// TestBoundIsExact: a waiter with a bound gets its permit when one without a bound would, to the
// nanosecond, if that is within the bound; otherwise it fails at once. With windows, which costs
// above 1 must not cross, and without.
func TestBoundIsExact(t *testing.T) {
	early, inTime := 0, 0
	for seed := range seeding.Draw(t, 200) {
		r := rand.New(rand.NewPCG(seed, 11))
		options := split.Options{}
		if r.IntN(4) > 0 {
			options.Window, options.Pacing = time.Second, []split.Pacing{split.AtOnce, split.Even}[r.IntN(2)]
		}
		rate, most := int64(3+r.IntN(8)), 1+r.IntN(3)
		ahead := make([]int64, r.IntN(15))
		for i := range ahead {
			ahead[i] = int64(1 + r.IntN(most))
		}
		n, pause := int64(1+r.IntN(most)), time.Duration(r.IntN(2500))*time.Millisecond
		// last is the answer to a waiter behind the others, and after how long it came.
		last := func(bound time.Duration) (after time.Duration, err error) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, split.Terms{Total: limit.PerSecond(rate), Part: split.Instance(0, 1), Burst: int64(most)}, options)
				time.Sleep(pause)
				for _, n := range ahead {
					l.WaitFunc(n, limit.Never, func(error) {})
				}
				begin := time.Now()
				called := make(chan struct{})
				l.WaitFunc(n, bound, func(e error) { after, err = time.Since(begin), e; close(called) })
				<-called
				synctest.Wait()
			})
			return after, err
		}
		free, err := last(limit.Never)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for _, bound := range []time.Duration{free - 1, free, free + 1, free / 2, 2 * free} {
			if bound < 0 {
				continue
			}
			after, err := last(bound)
			if bound < free {
				if early++; !errors.Is(err, limit.ErrWaitTooLong) || after != 0 {
					t.Errorf("seed %d: %v after %v with a bound of %v, and without one after %v", seed, err, after, bound, free)
				}
			} else if inTime++; err != nil || after != free {
				t.Errorf("seed %d: %v after %v with a bound of %v, and without one after %v", seed, err, after, bound, free)
			}
		}
	}
	if early < 100 || inTime < 100 {
		t.Errorf("%d too late and %d in time: the test tries too little", early, inTime)
	}
}
