package throttle_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/throttle"
)

func start(t *testing.T, th *throttle.Throttle, r throttle.Request) *throttle.Work {
	t.Helper()
	w, d, err := th.Start(t.Context(), r)
	if err != nil || !d.Allowed {
		t.Fatalf("%+v: %+v, %v", r, d, err)
	}
	return w
}

// A running request is found by its context, is dearest when it has cost most, and is cancelled by
// its number, with a cause that says who did it.
func TestRunningAndCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := newThrottle(t, throttle.Options{Concurrency: 3, Meter: throttle.ServiceTime()})
		a, b, c := start(t, th, throttle.Request{Route: "a"}), start(t, th, throttle.Request{Route: "b", User: "anna"}), start(t, th, throttle.Request{Route: "c"})
		if throttle.SetCost(t.Context(), time.Second) || !throttle.SetCost(b.Context(), time.Minute) || throttle.FromContext(b.Context()) != b {
			t.Error("the Work was not found by its context")
		}
		time.Sleep(time.Second)
		r := th.Running(2)
		if len(r) != 2 || r[0].Route != "b" || r[0].User != "anna" || r[0].Cost != time.Minute || r[0].Age != time.Second || r[1].Cost != time.Second || len(th.Running(9)) != 3 {
			t.Errorf("running: %+v", r)
		}
		if !th.Cancel(b.ID()) || th.Cancel(b.ID()) || th.Cancel(999) || context.Cause(b.Context()) != throttle.ErrCancelled {
			t.Errorf("cancelled: %v", context.Cause(b.Context()))
		}
		if !th.Cancel(c.ID()) || context.Cause(c.Context()) != throttle.ErrCancelled || !th.Running(1)[0].Cancelled {
			t.Error("one whose context nobody had asked for was not cancelled")
		}
		b.Done()
		a.Done()
		if a.Context().Err() != context.Canceled || th.Cancel(a.ID()) {
			t.Error("one that is done still has a context")
		}
		b.SetCost(time.Hour)
		c.Done()
		if s := th.Stats(); s.Actual != time.Minute+2*time.Second {
			t.Errorf("actual cost %v", s.Actual)
		}
	})
}

// Debts are paid: what a request has cost beyond its prediction is charged at once by SetCost, and
// the next one waits until the rate has paid it. A refund lets it start earlier.
func TestSettlement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := newThrottle(t, throttle.Options{Rate: 1, Burst: 10 * time.Millisecond, Meter: throttle.ServiceTime(), MaxWait: 10 * time.Second})
		w := start(t, th, throttle.Request{Cost: 10 * time.Millisecond})
		w.SetCost(510 * time.Millisecond)
		begin := time.Now()
		next := start(t, th, throttle.Request{Cost: 10 * time.Millisecond})
		if got := time.Since(begin); got != 510*time.Millisecond {
			t.Errorf("the next waited %v, want 510ms", got)
		}
		w.Done()
		next.SetCost(0) // all of it is refunded
		next.Done()
		begin = time.Now()
		start(t, th, throttle.Request{Cost: 10 * time.Millisecond}).Done()
		if got := time.Since(begin); got != 0 {
			t.Errorf("after a refund the next waited %v", got)
		}
	})
}

// While overloaded the newest request of a key is first, and the oldest when it is not.
func TestNewestFirst(t *testing.T) {
	for newest, want := range map[bool]string{false: "0 1 2", true: "2 1 0"} {
		synctest.Test(t, func(t *testing.T) {
			th := newThrottle(t, throttle.Options{Concurrency: 1, MaxWaiting: 3, NewestFirst: newest})
			hold := start(t, th, throttle.Request{})
			var order []string
			for i := range 3 {
				go func() {
					w, _, _ := th.Start(context.Background(), throttle.Request{})
					order = append(order, fmt.Sprint(i))
					w.Done()
				}()
				synctest.Wait()
			}
			if _, d, _ := th.Start(t.Context(), throttle.Request{}); d.Allowed {
				t.Fatal("the queue is not full")
			}
			hold.Done()
			synctest.Wait()
			if got := strings.Join(order, " "); got != want {
				t.Errorf("newest first %v: served in the order %s, want %s", newest, got, want)
			}
		})
	}
}

// A request that cannot be done by its deadline is refused at once: those of its key are ahead.
func TestDeadlineAtTheDoor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := newThrottle(t, throttle.Options{Rate: 1, Meter: throttle.ServiceTime(), MaxWait: 10 * time.Second})
		start(t, th, throttle.Request{Cost: time.Second}).SetCost(time.Second)
		for range 3 {
			go func() { _, _, _ = th.Start(context.Background(), throttle.Request{Cost: time.Second}) }()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		begin := time.Now()
		_, d, err := th.Start(ctx, throttle.Request{Cost: time.Millisecond})
		if err != nil || d.Allowed || d.Results[0].Reason != limit.ReasonDeadline || time.Since(begin) > 0 {
			t.Errorf("after %v: %+v, %v", time.Since(begin), d, err)
		}
		if retry := d.RetryAfter(); retry < 3*time.Second || retry > 5*time.Second {
			t.Errorf("retry after %v, want the time in which three seconds of work start", retry)
		}
		time.Sleep(10 * time.Second)
	})
}

// meter counts and says that each request has cost 7 ms.
type meter struct{ begun, ended atomic.Int64 }

func (m *meter) Begin() time.Duration { return time.Duration(m.begun.Add(1)) }

func (m *meter) End(mark, _ time.Duration) time.Duration {
	m.ended.Add(int64(mark))
	return 7 * time.Millisecond
}

// The default Predictor follows what requests cost, a Meter tells it, and hooks are called.
func TestPredictionAndHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log []string
		add := func(format string, args ...any) { log = append(log, fmt.Sprintf(format, args...)) }
		m := &meter{}
		th := newThrottle(t, throttle.Options{
			Concurrency: 1, MaxWaiting: 1, Meter: m,
			Hooks: throttle.Hooks{
				OnStart:  func(c throttle.Criticality, p, w time.Duration) { add("start %v %v %v", c, p, w) },
				OnRefuse: func(c throttle.Criticality, r limit.Reason, w time.Duration) { add("refuse %v %v %v", c, r, w) },
				OnLeave:  func(c throttle.Criticality, w time.Duration) { add("leave %v %v", c, w) },
				OnDone: func(c throttle.Criticality, p, a, s time.Duration) {
					add("done %v %v %v %v", c, p, a, s)
				},
			},
		})
		w := start(t, th, throttle.Request{Route: "r"})
		_, _, _ = th.Start(t.Context(), throttle.Request{Route: "new"})
		w.Done()
		w.Done()
		w = start(t, th, throttle.Request{Route: "r", Criticality: throttle.Critical})
		w.SetCost(3 * time.Millisecond)
		w.Done()
		w = start(t, th, throttle.Request{Route: "r"})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		_, _, _ = th.Start(ctx, throttle.Request{})
		w.Done()
		got, want := strings.Join(log, "\n"), `start sheddable_plus 5ms 0s
refuse sheddable_plus queue_timeout 1s
done sheddable_plus 5ms 7ms 1s
start critical 7.04ms 0s
done critical 7.04ms 3ms 0s
start sheddable_plus 7.04ms 0s
leave sheddable_plus 1ms
done sheddable_plus 7.04ms 7ms 1ms`
		if got != want {
			t.Errorf("hooks:\n%s\nwant\n%s", got, want)
		}
		if m.begun.Load() != 3 || m.ended.Load() != 1+2+3 {
			t.Errorf("%d begun", m.begun.Load())
		}
	})
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		o    throttle.Options
		want string
	}{
		{throttle.Options{}, "throttle: neither Rate nor Concurrency is set: nothing would ever wait"},
		{throttle.Options{Rate: -1, Adaptive: &throttle.Adaptive{}}, "throttle: Rate -1 is not from 0 to 1e+06 CPU-seconds per second\nthrottle: Adaptive needs Concurrency, the most that it may rise to"},
		{throttle.Options{Concurrency: 2, Adaptive: &throttle.Adaptive{Min: 3}, MaxWaiting: -1, MaxWait: -1}, "throttle: Adaptive.Min 3 is not from 0 to Concurrency 2\nthrottle: MaxWaiting -1 is not from 0 to 1048576\nthrottle: MaxWait -1ns is not from 0 to 8760h0m0s"},
	} {
		if th, err := throttle.New(c.o); th != nil || err == nil || err.Error() != c.want {
			t.Errorf("%+v: %v, want %s", c.o, err, c.want)
		}
	}
	th := newThrottle(t, throttle.Options{Concurrency: 1})
	for want, r := range map[string]throttle.Request{
		"throttle: a request of unknown criticality 9":        {Criticality: 9},
		"throttle: a request of level 128, want 0 to 127":     {Level: 128, HasLevel: true},
		"throttle: a request that costs -1ns, want 0 or more": {Cost: -1},
	} {
		if _, _, err := th.Start(t.Context(), r); err == nil || err.Error() != want {
			t.Errorf("%+v: %v, want %s", r, err, want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := th.Start(ended, throttle.Request{}); err != context.Canceled {
		t.Errorf("error %v", err)
	}
	if s := th.Stats(); s.Running != 0 || s.Classes[throttle.SheddablePlus] != (throttle.ClassStats{}) {
		t.Errorf("stats %+v", s)
	}
}

// A cancelled request says nothing of how long its route takes: the next one may still be in time.
func TestCancelledTeachesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := newThrottle(t, throttle.Options{Concurrency: 1})
		w := start(t, th, throttle.Request{Route: "r", Cost: time.Second})
		th.Cancel(w.ID())
		time.Sleep(time.Second)
		w.Done()
		hold := start(t, th, throttle.Request{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		begin := time.Now()
		time.AfterFunc(time.Second/4, hold.Done)
		if w, d, err := th.Start(ctx, throttle.Request{Route: "r", Cost: time.Second}); w == nil || time.Since(begin) != time.Second/4 {
			t.Errorf("after %v: %+v, %v", time.Since(begin), d, err)
		}
	})
}
