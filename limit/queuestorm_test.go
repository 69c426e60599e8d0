package limit

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// hostile is a Taker that says anything: it is slow, answers nonsense, fails, and ends
// its goroutine.
type hostile struct {
	mu    sync.Mutex
	r     *rand.Rand
	calm  bool // admits everything
	takes int
	held  map[uint64]bool
	next  uint64
}

func (h *hostile) Take(ctx context.Context, req Request) (Decision, error) {
	h.mu.Lock()
	h.takes++
	calm, what, slow, after := h.calm, h.r.IntN(40), time.Duration(h.r.IntN(30))*time.Millisecond, time.Duration(h.r.IntN(50))*time.Millisecond
	quota, window := h.r.Int64()-h.r.Int64(), time.Duration(h.r.Int64()-h.r.Int64())
	h.mu.Unlock()
	if what%3 == 0 && !calm {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			if what == 3 {
				time.Sleep(slow) // does not care
			} else {
				return Decision{}, ctx.Err()
			}
		}
	}
	r := Result{Limit: "hostile", Quota: quota, Window: window, Algorithm: Algorithm(what % 7), Cost: costOf(req)}
	r.Reason, r.RetryAfter, r.Remaining = Reason(what%9), after, quota
	switch {
	case calm || what < 12:
		d := Decision{Allowed: true, Results: []Result{{Limit: "hostile", Verdict: Verdict{Allowed: true, Remaining: quota}}}}
		if what%4 == 0 {
			d.Delay = after
		}
		if what%2 == 0 && !req.Peek {
			h.mu.Lock()
			h.next++
			d.Permit = h.next
			h.held[d.Permit] = true
			h.mu.Unlock()
		}
		return d, nil
	case what == 12:
		return Decision{}, errHostile
	case what == 13:
		return Decision{}, nil
	case what < 16:
		r.RetryAfter = 0
	case what < 18:
		r.RetryAfter = -after - 1
	case what == 18:
		r.RetryAfter = Never
	case what == 19:
		r.RetryAfter = Never - 1
	case what < 22:
		r.RetryAfter = 1
	case what == 22:
		r.Shadow = true
	}
	return Decision{Results: []Result{r, {Limit: "other", Verdict: Verdict{Allowed: true, Remaining: math.MinInt64}}}}, nil
}

func (h *hostile) Finish(_ context.Context, _ Request, permit uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, permit)
	return nil
}

var errHostile = errors.New("hostile")

// Whatever the Taker answers and whatever callers do: each is told once or has left, in
// order under each key, no permit is lost, nobody waits beyond what it wants, the Taker is
// not asked in a loop, and no goroutine is left, without which a bubble does not end.
func TestQueueStorm(t *testing.T) {
	t.Parallel()
	for seed := range uint64(max(1, histories(t)/20)) {
		synctest.Test(t, func(t *testing.T) { queueStorm(t, rand.New(rand.NewPCG(seed, 17)), seed) })
	}
}

func queueStorm(t *testing.T, r *rand.Rand, seed uint64) {
	h := &hostile{r: rand.New(rand.NewPCG(seed, 19)), held: map[uint64]bool{}}
	queue := newQueue(t, h, QueueOptions{Parallel: 1 + r.IntN(4), MaxWaiting: 5 + r.IntN(60), MaxLines: 1 + r.IntN(5), Recheck: 200 * time.Millisecond})
	var mu sync.Mutex
	ended, grants := map[int]int{}, map[string]int{}
	var wg sync.WaitGroup
	var cancels []func()
	const steps = 150
	start := time.Now()
	told := func(i int, key string, came time.Time, longest time.Duration, fifo bool, d Decision, err error) {
		mu.Lock()
		defer mu.Unlock()
		ended[i]++
		if err == nil {
			if fifo && grants[key] > i+1 {
				t.Errorf("storm %d: %d was admitted after %d", seed, i, grants[key]-1)
			}
			grants[key] = i + 1
			if d.Permit != 0 {
				if !h.held[d.Permit] {
					t.Errorf("storm %d: a permit was told and given back", seed)
				}
				delete(h.held, d.Permit)
			}
		}
		if waited := time.Since(came); longest < Never && longest > 0 && waited > longest+30*time.Millisecond && err == nil {
			// One of 0 asks once, and a Taker that does not care for its context makes the
			// first try late, as that is made in the caller's goroutine.
			t.Errorf("storm %d: %d was admitted after %v, wanted %v", seed, i, waited, longest)
		}
	}
	for i := range steps {
		req := requestOf(string(rune('a'+r.IntN(6))), r.Int64N(4))
		longest := []time.Duration{0, 5 * time.Millisecond, 50 * time.Millisecond, time.Second, Never}[r.IntN(5)]
		key, _ := req.Get("key")
		came := time.Now()
		switch r.IntN(12) {
		case 0:
			<-time.After(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
			fallthrough
		case 1:
			if len(cancels) > 0 {
				cancels[r.IntN(len(cancels))]()
			}
			mu.Lock()
			ended[i]++
			mu.Unlock()
		case 2:
			wg.Go(func() {
				d, err := queue.Take(t.Context(), req)
				if err == nil && d.Permit != 0 {
					_ = queue.Finish(t.Context(), req, d.Permit)
				}
				mu.Lock()
				ended[i]++
				mu.Unlock()
			})
		case 3, 4, 5:
			wg.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if i%2 == 0 {
					defer time.AfterFunc(time.Duration(i)*10*time.Millisecond, cancel).Stop()
				}
				d, err := queue.WaitMax(ctx, req, longest)
				h.mu.Lock()
				defer h.mu.Unlock()
				told(i, key, came, longest, false, d, err)
			})
		default:
			wg.Add(1)
			var returned atomic.Bool // so that done is not called in this goroutine
			cancel := queue.WaitFunc(req, longest, func(d Decision, err error) {
				defer wg.Done()
				h.mu.Lock()
				told(i, key, came, longest, returned.Load() && d.Delay == 0, d, err)
				h.mu.Unlock()
				switch i % 17 {
				case 0:
					time.Sleep(30 * time.Millisecond)
				case 1:
					queue.Waiting()
				case 2:
					_, _ = queue.Take(context.Background(), Request{Peek: true})
				case 3:
					if returned.Load() {
						runtime.Goexit()
					}
				}
			})
			returned.Store(true)
			cancels = append(cancels, func() {
				if cancel() {
					mu.Lock()
					ended[i]++
					mu.Unlock()
					wg.Done()
				}
			})
		}
	}
	<-time.After(2 * time.Second)
	h.mu.Lock()
	h.calm = true
	if per := float64(h.takes) / time.Since(start).Seconds(); per > 2500 {
		t.Errorf("storm %d: the Taker was asked %.0f times a second", seed, per)
	}
	h.mu.Unlock()
	<-time.After(10 * time.Second)
	queue.Close()
	wg.Wait()
	synctest.Wait()
	for i := range steps {
		if ended[i] != 1 {
			t.Errorf("storm %d: %d ended %d times", seed, i, ended[i])
		}
	}
	if queue.waiting != 0 || len(queue.lanes) != 0 || len(queue.alarms) != 0 || queue.asking != 0 || queue.lines.Load() != 0 {
		t.Errorf("storm %d: left behind: %d wait in %d lines, %d alarms, %d ask", seed, queue.waiting, len(queue.lanes), len(queue.alarms), queue.asking)
	}
	if len(h.held) != 0 {
		t.Errorf("storm %d: %d permits are lost", seed, len(h.held))
	}
}

// A hundred thousand in one line, and as many in lines of their own, who come, leave in
// any order and are let go: no goroutine for them, and no time that grows with the
// square of their number.
func TestQueueCrowd(t *testing.T) {
	const within = 20 * time.Second // slow machines and the race detector; 1 s is usual
	for _, lines := range []int{1, crowd / 2} {
		start := time.Now()
		k := &keyed{p: bucketPolicy(PerHour(1), 1)}
		queue := newQueue(t, k, QueueOptions{})
		goroutines := runtime.NumGoroutine()
		var mu sync.Mutex
		granted := 0
		cancels := make([]func() bool, crowd)
		keys := make([]string, lines)
		for i := range keys {
			keys[i] = strconv.Itoa(i)
		}
		for i := range cancels {
			longest := Never
			if i%2 == 0 {
				longest = 100 * 365 * 24 * time.Hour
			}
			cancels[i] = queue.WaitFunc(requestOf(keys[i%lines], 1), longest, func(_ Decision, err error) {
				mu.Lock()
				defer mu.Unlock()
				if granted++; err != nil {
					t.Error(err)
				}
			})
		}
		if got := runtime.NumGoroutine(); got > goroutines+DefaultParallel+2 {
			t.Errorf("%d goroutines, %d before", got, goroutines)
		}
		if queue.Waiting() != crowd-lines {
			t.Errorf("%d wait", queue.Waiting())
		}
		left := 0
		for i := range crowd / 2 {
			if cancels[i*7919%crowd]() {
				left++
			}
		}
		k.set(t, Policy{Algorithm: TokenBucket, Rate: PerSecond(MaxCount), Burst: crowd})
		for queue.Waiting() > 0 && time.Since(start) < within {
			runtime.Gosched()
		}
		queue.Close()
		mu.Lock()
		if granted+left != crowd {
			t.Errorf("%d granted, %d left", granted, left)
		}
		mu.Unlock()
		if took := time.Since(start); took > within {
			t.Errorf("%d lines: it took %v", lines, took)
		}
	}
}

// scarce answers from a stock, and allocates nothing.
type scarce struct {
	left    int64
	results [1]Result
}

func (s *scarce) Take(_ context.Context, req Request) (Decision, error) {
	if s.left -= costOf(req); s.left >= 0 {
		return Decision{Allowed: true}, nil
	}
	s.results[0] = Result{Cost: 1, Verdict: Verdict{Reason: ReasonRate, RetryAfter: time.Hour}}
	return Decision{Results: s.results[:]}, nil
}

func TestQueueAllocations(t *testing.T) {
	s := &scarce{left: 1 << 40}
	queue := newQueue(t, s, QueueOptions{})
	req := requestOf("a", 1)
	nobody := func(Decision, error) {}
	verbs := map[string]func(){
		"Take":     func() { _, _ = queue.Take(context.Background(), req) },
		"Wait":     func() { _, _ = queue.Wait(context.Background(), req) },
		"WaitMax":  func() { _, _ = queue.WaitMax(context.Background(), req, 0) },
		"WaitFunc": func() { queue.WaitFunc(req, Never, nobody) },
	}
	for name, verb := range verbs {
		if n := testing.AllocsPerRun(1000, verb); n != 0 {
			t.Errorf("%s: %v allocations for a permit that is there", name, n)
		}
	}
	s.left = 0
	other := requestOf("b", 1)
	queue.WaitFunc(other, Never, nobody)
	s.left = 1 << 40
	for name, verb := range verbs { // while others wait in a line of their own
		if n := testing.AllocsPerRun(1000, verb); n != 0 {
			t.Errorf("%s: %v allocations beside a line", name, n)
		}
	}
	req = other
	if n := testing.AllocsPerRun(1000, func() { queue.WaitFunc(req, Never, nobody)() }); n > 3 {
		t.Errorf("%v allocations for one who waits, want the place, its attributes and its cancel", n)
	}
	queue.Close()
}
