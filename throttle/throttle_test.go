package throttle_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/throttle"
)

func newThrottle(t *testing.T, o throttle.Options) *throttle.Throttle {
	t.Helper()
	th, err := throttle.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return th
}

// A full queue evicts the lowest for a higher request, refuses others, and tells each.
func TestEvictionIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := newThrottle(t, throttle.Options{Concurrency: 1, MaxWaiting: 1})
		first, d, err := th.Start(t.Context(), throttle.Request{})
		if err != nil || !d.Allowed {
			t.Fatalf("first: %v, %v", d, err)
		}
		told := make(chan limit.Decision, 1)
		go func() {
			_, d, _ := th.Start(context.Background(), throttle.Request{Criticality: throttle.Sheddable})
			told <- d
		}()
		synctest.Wait()
		admitted := make(chan *throttle.Work, 1)
		go func() {
			w, _, _ := th.Start(context.Background(), throttle.Request{Criticality: throttle.Critical})
			admitted <- w
		}()
		if d := <-told; d.Allowed || d.Results[0].Reason != limit.ReasonEvicted || d.Status != 503 {
			t.Errorf("the evicted is told %+v", d)
		}
		_, d, _ = th.Start(t.Context(), throttle.Request{Criticality: throttle.Critical})
		if d.Allowed || d.Results[0].Reason != limit.ReasonQueueFull || d.RetryAfter() <= 0 {
			t.Errorf("an equal one is told %+v", d)
		}
		first.Done()
		w := <-admitted
		w.Done()
		w.Done()
		s := th.Stats()
		if s.Running != 0 || s.Waiting != 0 || s.Classes[throttle.Sheddable].Evicted != 1 || s.Classes[throttle.Critical].Done != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

// The age bound and deadlines end waits with their reasons.
func TestWaitsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := newThrottle(t, throttle.Options{Concurrency: 1, MaxWait: 300 * time.Millisecond})
		hold, _, _ := th.Start(t.Context(), throttle.Request{})
		begin := time.Now()
		_, d, err := th.Start(t.Context(), throttle.Request{})
		if err != nil || d.Allowed || d.Results[0].Reason != limit.ReasonQueueTimeout || time.Since(begin) != 300*time.Millisecond {
			t.Errorf("after %v: %+v, %v", time.Since(begin), d, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, d, err = th.Start(ctx, throttle.Request{Cost: 10 * time.Millisecond})
		if err != nil || d.Allowed || d.Results[0].Reason != limit.ReasonDeadline {
			t.Errorf("%+v, %v", d, err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		if _, _, err = th.Start(ctx, throttle.Request{}); err != context.Canceled {
			t.Errorf("error %v", err)
		}
		hold.Done()
	})
}

// A caller whose context ends in the moment in which its request starts has the Work: nothing that
// has started is lost.
func TestStartAndCancelAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := newThrottle(t, throttle.Options{Concurrency: 1})
		for range 200 {
			first, _, _ := th.Start(t.Context(), throttle.Request{})
			if first == nil {
				t.Fatal("a request that had started was given up")
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan *throttle.Work, 1)
			go func() {
				w, _, _ := th.Start(ctx, throttle.Request{})
				ended <- w
			}()
			synctest.Wait()
			cancel()
			first.Done()
			if w := <-ended; w != nil {
				w.Done()
			}
		}
		if s := th.Stats(); s.Running != 0 {
			t.Errorf("%d run", s.Running)
		}
	})
}
