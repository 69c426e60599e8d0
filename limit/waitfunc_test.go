package limit

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/fixed"
)

// told is what the call-backs of one limiter got, in order.
type told struct {
	start time.Time
	mu    sync.Mutex
	list  []finish
}

func (q *told) join(l *Limiter, who int, cost int64, longest time.Duration) (cancel func() bool) {
	return l.WaitFunc(cost, longest, func(err error) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.list = append(q.list, finish{who, time.Since(q.start), cost, err})
	})
}

func (q *told) all() []finish {
	synctest.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.list)
}

func TestWaitFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, q := newLimiter(t, bucketPolicy(PerSecond(2), 3)), told{start: time.Now()}
		goroutines := runtime.NumGoroutine()
		q.join(l, 0, 3, 0)
		q.join(l, 1, 2, Never)
		second := q.join(l, 2, 1, 2*time.Second)
		q.join(l, 3, 1, 1999*time.Millisecond) // would come after 2 s
		q.join(l, 4, 4, Never)
		q.join(l, 5, -1, Never)
		q.join(l, 6, 0, 0)
		q.join(l, 7, 1, -1)
		q.join(l, 8, 1, 2*time.Second)
		q.join(l, 9, 1, 2*time.Second)                       // 2.5 s
		if got := runtime.NumGoroutine(); got > goroutines { // those of tests before may end
			t.Errorf("%d goroutines, %d before anybody waited", got, goroutines)
		}
		at := []struct {
			who   int
			after time.Duration
			err   error
		}{
			{0, 0, nil},
			{3, 0, ErrWaitTooLong},
			{4, 0, ErrExceedsQuota},
			{5, 0, ErrNegativeCost},
			{6, 0, nil},
			{7, 0, ErrWaitTooLong},
			{9, 0, ErrWaitTooLong},
			{1, time.Second, nil},
			{8, 1500 * time.Millisecond, nil}, // 2 left
			{10, 2 * time.Second, nil},
		}
		<-time.After(500 * time.Millisecond)
		if !second() || second() {
			t.Error("cancel: want true, once")
		}
		if l.Allow() {
			t.Error("Allow passed those who wait")
		}
		tenth := q.join(l, 10, 1, 1500*time.Millisecond)
		<-time.After(5 * time.Second)
		got := q.all()
		if tenth() {
			t.Error("cancelled what was told")
		}
		for i, want := range at {
			if i >= len(got) {
				t.Fatalf("told %d, want %d", len(got), len(at))
			}
			if f := got[i]; f.who != want.who || f.after != want.after || !errors.Is(f.err, want.err) {
				t.Errorf("%d-th: %+v, want %+v", i, f, want)
			}
		}
		if len(l.slots) != 0 || l.cost != (fixed.Wide{}) || l.unplanned != (fixed.Wide{}) {
			t.Errorf("left behind: %d slots, cost %v", len(l.slots), l.cost)
		}
	})
}

// A change of policy ends the waits that would be too long, and the others go on.
func TestWaitFuncUnderATighterPolicy(t *testing.T) {
	for _, p := range []Policy{
		bucketPolicy(PerSecond(10), 1),
		{Algorithm: FixedWindow, Rate: Rate{1, 100 * time.Millisecond}},
		{Algorithm: SlidingWindowLog, Rate: Rate{1, 100 * time.Millisecond}},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, q := newLimiter(t, p), told{start: time.Now()}
			l.Allow()
			for i := range 9 {
				q.join(l, i, 1, time.Second)
			}
			q.join(l, 9, 1, Never)
			p.Rate = Every(300 * time.Millisecond)
			if err := l.SetPolicy(p); err != nil {
				t.Fatal(err)
			}
			for i, f := range q.all() {
				if f.who != i+3 || f.after != 0 || !errors.Is(f.err, ErrWaitTooLong) {
					t.Errorf("%v: %+v, want all from the fourth on sent away at once", p.Algorithm, f)
				}
			}
			<-time.After(5 * time.Second)
			got := q.all()[6:]
			for i, who := range []int{0, 1, 2, 9} {
				if f := got[i]; f.who != who || f.err != nil || f.after > time.Duration(i+1)*300*time.Millisecond {
					t.Errorf("%v: %+v, want %d after about %d x 300ms", p.Algorithm, f, who, i+1)
				}
			}
		})
	}
}

func TestWaitIsEndedByATighterPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, q := newLimiter(t, bucketPolicy(PerSecond(1), 1)), line{start: time.Now()}
		l.Allow()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		q.join(l, ctx, 0, 1)
		if err := l.SetRate(PerMinute(1)); err != nil {
			t.Fatal(err)
		}
		q.wg.Wait()
		if f := q.done[0]; f.after != 0 || !errors.Is(f.err, ErrWaitTooLong) || !errors.Is(f.err, context.DeadlineExceeded) {
			t.Errorf("%+v", f)
		}
	})
}

// One done is slow, calls the limiter in every way, or ends its goroutine: the others
// are called all the same, in their order, by one goroutine at a time.
func TestWaitFuncBadManners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, bucketPolicy(PerSecond(100), 1))
		var mu sync.Mutex
		var order []int
		inside, nested := 0, 0
		note := func(who int, then func()) func(error) {
			return func(err error) {
				mu.Lock()
				if inside++; inside > 1 || err != nil {
					t.Errorf("%d: %d dones at a time, %v", who, inside, err)
				}
				order = append(order, who)
				mu.Unlock()
				defer func() { mu.Lock(); inside--; mu.Unlock() }()
				then()
			}
		}
		l.Allow()
		for i := range 20 {
			then := func() {}
			switch i {
			case 3:
				then = func() { time.Sleep(50 * time.Millisecond) }
			case 5:
				then = func() { runtime.Goexit() }
			case 7:
				then = func() {
					l.Allow()
					l.Reserve().Cancel()
					if err := l.SetRate(PerSecond(100)); err != nil {
						t.Error(err)
					}
					l.WaitFunc(1, Never, note(100, func() { nested++ }))
					l.WaitFunc(0, Never, func(error) { nested++ })
					l.WaitFunc(1, 0, func(err error) {
						if nested++; !errors.Is(err, ErrWaitTooLong) {
							t.Error(err)
						}
					})
					if err := l.Wait(t.Context()); err != nil { // needs no done to be called
						t.Error(err)
					}
				}
			}
			l.WaitFunc(1, Never, note(i, then))
		}
		<-time.After(time.Second)
		synctest.Wait()
		want := make([]int, 20, 21)
		for i := range want {
			want[i] = i
		}
		if want = append(want, 100); !slices.Equal(order, want) || nested != 3 {
			t.Errorf("told %v, %d nested", order, nested)
		}
		if n := goroutinesIn("waitline.(*Dispatcher"); n != 0 {
			t.Errorf("%d goroutines call nobody", n)
		}
	})
}

// A call-back that is made at once may panic: the caller recovers, and nobody else is affected.
func TestWaitFuncPanicAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, q := newLimiter(t, bucketPolicy(PerSecond(1), 2)), told{start: time.Now()}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic is swallowed")
				}
			}()
			l.WaitFunc(1, 0, func(error) {
				q.join(l, 0, 1, 0) // there at once, told afterwards
				if len(q.list) > 0 {
					t.Error("a done was called within another")
				}
				panic("done")
			})
		}()
		q.join(l, 1, 1, Never)
		<-time.After(2 * time.Second)
		if got := q.all(); len(got) != 2 || got[0].who != 0 || got[0].after != 0 || got[1].after != time.Second {
			t.Errorf("%+v", got)
		}
	})
}
