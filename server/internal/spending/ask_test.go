package spending_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server/internal/spending"
	"github.com/stint-io/stint/store"
)

const daily = "  - {name: a, key: [k], rate: 30/day, sharing: leased}\n"

// TestKeyThatComesOften: a key has a lease from its fifth request within a second on, and not before; in sum
// it has its limit, and the lease is given up when it is idle.
func TestKeyThatComesOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{}, daily)
		defer stop()
		synctest.Wait() // it runs
		for i := range 8 {
			c := f.take(true, f.charge("a", "seldom", 1))
			if v := c[0].Verdict; v.Remaining != int64(29-i) || v.ResetAfter <= 0 {
				t.Errorf("request %d: %+v", i, v)
			}
			time.Sleep(300 * time.Millisecond)
		}
		if n := f.Keys(); n != 0 {
			t.Errorf("%d leases of keys that come seldom", n)
		}
		time.Sleep(time.Second)
		for i := range 30 {
			f.take(true, f.charge("a", "often", 1))
			if n := f.Keys(); n != min(1, (i+1)/5) {
				t.Fatalf("%d leases after %d requests", n, i+1)
			}
		}
		if v := f.take(false, f.charge("a", "often", 1))[0].Verdict; v.Reason != limit.ReasonRate || v.RetryAfter <= 0 {
			t.Errorf("%+v", v)
		}
		time.Sleep(65 * time.Second)
		if n := f.Keys(); n != 0 {
			t.Errorf("%d leases of idle keys", n)
		}
		if v := f.take(false, f.charge("a", "often", 1))[0].Verdict; v.Reason != limit.ReasonRate || v.RetryAfter <= 0 || v.Remaining != 0 {
			t.Errorf("%+v", v)
		}
	})
}

// TestPeekTakesNothing: a peek at a key without a lease says what is left of it, and a refund and a reset reach it.
func TestPeekTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f *fixture
		var taking atomic.Int64
		ask := func(ctx context.Context, _ int, asks []lease.Ask) ([]lease.Answer, error) {
			for i := range asks {
				if !asks[i].Peek {
					taking.Add(1)
				}
			}
			return f.coordinator.Answer(ctx, 0, asks)
		}
		f, stop := open(t, spending.Options{Ask: ask}, daily)
		defer stop()
		synctest.Wait() // it runs
		wants := func(what string, remaining int64) {
			t.Helper()
			before := taking.Load()
			defer func() {
				if n := taking.Load() - before; n > 0 {
					t.Errorf("%s: %d questions of a peek take something", what, n)
				}
			}()
			c := []store.Charge{f.charge("a", "x", 1)}
			if ok, err := f.Peek(t.Context(), c); err != nil || ok != (remaining > 0) || c[0].Verdict.Remaining != remaining {
				t.Errorf("%s: %v, %v, %+v, want %d", what, ok, err, c[0].Verdict, remaining)
			}
			time.Sleep(time.Second)
		}
		wants("new", 30)
		f.take(true, f.charge("a", "x", 12))
		wants("12 taken", 18)
		if err := f.Refund(t.Context(), []store.Charge{f.charge("a", "x", 5)}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		wants("5 refunded", 23)
		f.take(true, f.charge("a", "x", 23))
		wants("all taken", 0)
		if err := f.Reset(t.Context(), []store.Charge{f.charge("a", "x", 1)}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		wants("reset", 30)
		if n := f.Keys(); n != 0 {
			t.Errorf("%d leases", n)
		}
	})
}

// TestRefundOfWhatWasAskedFor: what was taken without a lease can be refunded when there is one, and is there again.
func TestRefundOfWhatWasAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{}, daily)
		defer stop()
		synctest.Wait() // it runs
		for range 5 {
			f.take(true, f.charge("a", "x", 6))
		}
		if f.Keys() != 1 {
			t.Fatalf("%d leases", f.Keys())
		}
		f.take(false, f.charge("a", "x", 1))
		for range 5 {
			if err := f.Refund(t.Context(), []store.Charge{f.charge("a", "x", 6)}); err != nil {
				t.Error(err)
			}
		}
		for range 29 { // and a part of one more
			f.take(true, f.charge("a", "x", 1))
		}
		time.Sleep(time.Second)
		f.take(false, f.charge("a", "x", 2))
	})
}

// TestRefundBeforeAnAnswer: what a request gives back counts as used until the coordinator has answered, and a lease that is
// opened meanwhile makes no more of it than there is.
func TestRefundBeforeAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f *fixture
		ask := func(ctx context.Context, _ int, asks []lease.Ask) ([]lease.Answer, error) {
			if asks[0].Cost < 0 {
				time.Sleep(200 * time.Millisecond)
			}
			return f.coordinator.Answer(ctx, 0, asks)
		}
		f, stop := open(t, spending.Options{Ask: ask}, daily)
		defer stop()
		synctest.Wait() // it runs
		for range 4 {
			f.take(true, f.charge("a", "x", 1))
		}
		f.take(false, f.charge("a", "x", 10), f.charge("a", "y", 1000))
		if f.Keys() != 1 {
			t.Fatalf("%d leases", f.Keys())
		}
		if err := f.Refund(t.Context(), []store.Charge{f.charge("a", "x", 30)}); err != nil {
			t.Fatal(err)
		}
		taken := int64(0)
		for range 20 {
			for n := range int64(10) {
				if ok, err := f.Take(t.Context(), []store.Charge{f.charge("a", "x", 10-n)}); err != nil {
					t.Fatal(err)
				} else if ok {
					taken += 10 - n
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		if taken != 29 && taken != 30 { // a part of a token may be lost
			t.Errorf("%d were taken of 30", taken)
		}
	})
}

// TestLateAnswer: a request whose answer does not come is decided by a lease, and what the answer takes after all
// goes back; one whose caller leaves takes nothing.
func TestLateAnswer(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var slow atomic.Bool
			var f *fixture
			ask := func(ctx context.Context, _ int, asks []lease.Ask) ([]lease.Answer, error) {
				if slow.Load() {
					time.Sleep(700 * time.Millisecond)
				}
				return f.coordinator.Answer(context.WithoutCancel(ctx), 0, asks)
			}
			f, stop := open(t, spending.Options{Ask: ask}, daily)
			defer stop()
			synctest.Wait() // it runs
			slow.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			if leaves {
				ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
			}
			defer cancel()
			began := time.Now()
			ok, err := f.Take(ctx, []store.Charge{f.charge("a", "x", 10)})
			switch took := time.Since(began); {
			case leaves && (!errors.Is(err, context.DeadlineExceeded) || took > 150*time.Millisecond):
				t.Errorf("%v, %v after %v", ok, err, took)
			case !leaves && (!ok || err != nil || took > 600*time.Millisecond):
				t.Errorf("%v, %v after %v", ok, err, took)
			}
			slow.Store(false)
			time.Sleep(70 * time.Second)
			c := []store.Charge{f.charge("a", "x", 1)}
			want := int64(20)
			if leaves {
				want = 30
			}
			if ok, err := f.Peek(t.Context(), c); err != nil || !ok || c[0].Verdict.Remaining != want {
				t.Errorf("leaves %v: %+v, want %d", leaves, c[0].Verdict, want)
			}
		})
	}
}

// TestCoordinatorThatHangs: one request waits for a coordinator that does not answer, those of the next second do
// not, and then it is asked again.
func TestCoordinatorThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		var f *fixture
		ask := func(ctx context.Context, _ int, asks []lease.Ask) ([]lease.Answer, error) {
			if hangs.Load() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return f.coordinator.Answer(ctx, 0, asks)
		}
		f, stop := open(t, spending.Options{Ask: ask}, daily)
		defer stop()
		synctest.Wait() // it runs
		hangs.Store(true)
		for i := range 20 {
			began := time.Now()
			f.take(true, f.charge("a", fmt.Sprint("x", i), 1))
			if took := time.Since(began); (took > 400*time.Millisecond) != (i == 0) {
				t.Errorf("request %d took %v", i, took)
			}
		}
		hangs.Store(false)
		time.Sleep(2 * time.Second)
		before := f.Keys()
		if f.take(true, f.charge("a", "y", 1)); f.Keys() != before {
			t.Error("the key has a lease: it was not asked for")
		}
	})
}

// TestAsksThatFail: while the coordinator cannot be asked, keys are decided by leases.
func TestAsksThatFail(t *testing.T) {
	for what, ask := range map[string]spending.Ask{
		"an error": func(context.Context, int, []lease.Ask) ([]lease.Answer, error) { return nil, errors.New("away") },
		"too few": func(_ context.Context, _ int, asks []lease.Ask) ([]lease.Answer, error) {
			return make([]lease.Answer, len(asks)-1), nil
		},
		"no": byLease,
	} {
		synctest.Test(t, func(t *testing.T) {
			f, stop := open(t, spending.Options{Ask: ask}, daily)
			defer stop()
			f.take(true, f.charge("a", "x", 30))
			if f.take(false, f.charge("a", "x", 1)); f.Keys() != 1 {
				t.Errorf("%s: %d leases", what, f.Keys())
			}
		})
	}
}

// TestAsksGoTogether: requests that come at once are asked for together, in batches that are bounded, each gets its
// own answer, and those that come at the end of the store are answered too.
func TestAsksGoTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f *fixture
		var calls, most, under, deepest atomic.Int64
		ask := func(ctx context.Context, shard int, asks []lease.Ask) ([]lease.Answer, error) {
			calls.Add(1)
			most.Store(max(most.Load(), int64(len(asks))))
			deepest.Store(max(deepest.Load(), under.Add(1)))
			defer under.Add(-1)
			if shard != int(asks[0].Resource.Key[len(asks[0].Resource.Key)-1])%3 {
				t.Errorf("%q was asked of shard %d", asks[0].Resource.Key, shard)
			}
			time.Sleep(time.Millisecond)
			return f.coordinator.Answer(ctx, 0, asks)
		}
		f, stop := open(t, spending.Options{Ask: ask, Shards: 3, ShardOf: func(id lease.ResourceID) int { return int(id.Key[len(id.Key)-1]) % 3 }}, daily)
		synctest.Wait() // it runs
		const n = 9000
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				key := fmt.Sprint(i)
				if v := f.take(true, f.charge("a", key, int64(1+i%30)))[0].Verdict; v.Remaining != int64(29-i%30) {
					t.Errorf("key %s: %+v", key, v)
				}
			})
		}
		all.Wait()
		if c := calls.Load(); c > n/100 || most.Load() > 500 || deepest.Load() > 6 || f.Keys() != 0 {
			t.Errorf("%d calls of at most %d, %d at once, %d leases", c, most.Load(), deepest.Load(), f.Keys())
		}
		for i := range 100 {
			all.Go(func() {
				_, err := f.Take(t.Context(), []store.Charge{f.charge("a", fmt.Sprint("end", i), 1)})
				if err != nil && !errors.Is(err, store.ErrUnavailable) {
					t.Error(err)
				}
			})
		}
		stop()
		all.Wait()
	})
}
