package limit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestQueueOfALeakyBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &keyed{p: Policy{Algorithm: LeakyBucket, Rate: PerSecond(10), Burst: 2}}
		queue, q := newQueue(t, k, QueueOptions{}), told{start: time.Now()}
		for i := range 8 {
			q.joinQueue(queue, i, requestOf("a", 1), Never)
		}
		q.joinQueue(queue, 8, requestOf("a", 1), 500*time.Millisecond) // 800 ms
		<-time.After(300 * time.Millisecond)
		held := q.joinQueue(queue, 9, requestOf("b", 1), 0)
		q.joinQueue(queue, 10, requestOf("b", 1), 99*time.Millisecond)
		q.joinQueue(queue, 11, requestOf("b", 1), 100*time.Millisecond)
		last := q.joinQueue(queue, 12, requestOf("b", 1), Never)
		if held() || !last() {
			t.Error("cancel of one who is held back")
		}
		<-time.After(2 * time.Second)
		got := q.all()
		want := []finish{{0, 0, 1, nil}, {8, 0, 1, ErrWaitTooLong}}
		for i := 1; i < 8; i++ {
			want = append(want, finish{i, time.Duration(i) * 100 * time.Millisecond, 1, nil})
			if i == 3 {
				want = append(want, finish{9, 300 * time.Millisecond, 1, nil}, finish{10, 300 * time.Millisecond, 1, ErrWaitTooLong})
			}
			if i == 4 {
				want = append(want, finish{11, 400 * time.Millisecond, 1, nil})
			}
		}
		slices.SortFunc(got, func(a, b finish) int { return int(a.after-b.after)*100 + a.who - b.who })
		slices.SortFunc(want, func(a, b finish) int { return int(a.after-b.after)*100 + a.who - b.who })
		for i, w := range want {
			if f := got[i]; f.who != w.who || f.after != w.after || !errors.Is(f.err, w.err) {
				t.Errorf("%d-th: %+v, want %+v", i, f, w)
			}
		}
	})
}

// places is a Finisher of permits in flight.
type places struct {
	mu      sync.Mutex
	f       InFlight
	s       InFlightState
	permits uint64
	open    map[uint64]bool
	origin  time.Time
}

func newPlaces(n int64) *places {
	return &places{f: NewInFlight(Policy{Algorithm: Concurrency, MaxInFlight: n, Timeout: time.Hour}), open: map[uint64]bool{}, origin: time.Now()}
}

func (p *places) Take(_ context.Context, req Request) (Decision, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.permits++
	v := p.f.Take(&p.s, Time(1+time.Since(p.origin)), costOf(req), p.permits)
	d := Decision{Allowed: v.Allowed, Results: []Result{{Limit: "places", Algorithm: Concurrency, Quota: 2, Cost: costOf(req), Verdict: v}}}
	if v.Allowed {
		d.Permit = p.permits
		p.open[d.Permit] = true
	}
	return d, nil
}

func (p *places) Finish(_ context.Context, _ Request, permit uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, permit)
	p.f.Finish(&p.s, permit)
	return nil
}

// Places come free when somebody finishes, not when the refusal says: the first in line
// asks then.
func TestQueueOfPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(2)
		queue := newQueue(t, p, QueueOptions{})
		start := time.Now()
		var mu sync.Mutex
		var order []int
		for i := range 8 {
			queue.WaitFunc(requestOf("a", 1), Never, func(d Decision, err error) {
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				if want := time.Duration(i/2) * time.Second; err != nil || time.Since(start) != want {
					t.Errorf("%d: %v after %v, want %v", i, err, time.Since(start), want)
				}
				permit := d.Permit
				time.AfterFunc(time.Second, func() {
					if err := queue.Finish(context.Background(), requestOf("a", 1), permit); err != nil {
						t.Error(err)
					}
				})
			})
		}
		queue.WaitFunc(requestOf("a", 1), 0, func(_ Decision, err error) {
			if !errors.Is(err, ErrWaitTooLong) {
				t.Error(err)
			}
		})
		<-time.After(10 * time.Second)
		synctest.Wait()
		if !slices.Equal(order, []int{0, 1, 2, 3, 4, 5, 6, 7}) || len(p.open) != 0 {
			t.Errorf("order %v, %d places are lost", order, len(p.open))
		}
	})
}
