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

	"github.com/stint-io/stint/internal/seeding"
)

// hostile is a Taker that says anything: it is slow, answers nonsense, fails, and ends
// its goroutine. It holds back what it admits of some keys: see delayed.
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
		if what%4 == 0 && delayed(req) {
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

// asked is how often it was called.
func (h *hostile) asked() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.takes
}

// delayed reports whether admissions of a key may be held back. Their call-backs come in one line with time-outs of other
// keys, which delay them, so that the order in which they are told is not that in which they were released.
func delayed(req Request) bool {
	key, _ := req.Get("key")
	return key >= "d"
}

func (h *hostile) Finish(_ context.Context, _ Request, permit uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, permit)
	return nil
}

var errHostile = errors.New("hostile")

// Whatever the Taker answers and whatever callers do: each wait ends once or is given up, in
// order under each key; no permit is lost; nobody waits beyond its bound; the Taker is not
// called in a loop; once nobody waits, it is asked again; and no goroutine is left, since a
// bubble with one does not end.
func TestQueueStorm(t *testing.T) {
	t.Parallel()
	for seed := range seeding.Draw(t, max(1, histories(t)/20)) {
		synctest.Test(t, func(t *testing.T) { queueStorm(t, rand.New(rand.NewPCG(seed, 17)), seed) })
	}
}

// storm is one run of it.
type storm struct {
	t     *testing.T
	r     *rand.Rand
	seed  uint64
	taker *hostile
	queue *Queue
	wg    sync.WaitGroup

	mu      sync.Mutex
	ended   map[int]int    // how often each was
	grants  map[string]int // the latest of each key, plus 1
	cancels []func()
}

func queueStorm(t *testing.T, r *rand.Rand, seed uint64) {
	h := &hostile{r: rand.New(rand.NewPCG(seed, 19)), held: map[uint64]bool{}}
	s := &storm{t: t, r: r, seed: seed, taker: h, ended: map[int]int{}, grants: map[string]int{}}
	s.queue = newQueue(t, h, QueueOptions{Parallel: 1 + r.IntN(4), MaxWaiting: 5 + r.IntN(60), MaxLines: 1 + r.IntN(5), Recheck: 200 * time.Millisecond})
	const steps = 150
	start := time.Now()
	for i := range steps {
		s.step(i)
	}
	<-time.After(2 * time.Second)
	h.mu.Lock()
	h.calm = true
	if per := float64(h.takes) / time.Since(start).Seconds(); per > 2500 {
		t.Errorf("storm %d: the Taker was asked %.0f times a second", seed, per)
	}
	h.mu.Unlock()
	<-time.After(10 * time.Second)
	for key := 'a'; key < 'a'+6; key++ { // nobody waits any more, so that each Take is the Taker's
		before := h.asked()
		if d, err := s.queue.Take(s.t.Context(), requestOf(string(key), 1)); err != nil || !d.Allowed || h.asked() != before+1 {
			t.Errorf("storm %d: with %d in line a Take of %c is answered with %+v, %v, and the Taker was asked %d times", seed, s.queue.Waiting(), key, d, err, h.asked()-before)
		} else {
			_ = s.queue.Finish(s.t.Context(), Request{}, d.Permit)
		}
	}
	s.queue.Close()
	s.wg.Wait()
	synctest.Wait()
	for i := range steps {
		if s.ended[i] != 1 {
			t.Errorf("storm %d: %d ended %d times", seed, i, s.ended[i])
		}
	}
	if q := s.queue; q.waiting != 0 || len(q.lanes) != 0 || q.alarms.Len() != 0 || q.asking != 0 || q.lines.Load() != 0 {
		t.Errorf("storm %d: left behind: %d wait in %d lines, %d alarms, %d ask", seed, q.waiting, len(q.lanes), q.alarms.Len(), q.asking)
	}
	if len(h.held) != 0 {
		t.Errorf("storm %d: %d permits are lost", seed, len(h.held))
	}
}

func (s *storm) step(i int) {
	req := requestOf(string(rune('a'+s.r.IntN(6))), s.r.Int64N(4))
	longest := []time.Duration{0, 5 * time.Millisecond, 50 * time.Millisecond, time.Second, Never}[s.r.IntN(5)]
	came := time.Now()
	switch s.r.IntN(12) {
	case 0:
		<-time.After(time.Duration(s.r.Int64N(int64(100 * time.Millisecond))))
		fallthrough
	case 1:
		if len(s.cancels) > 0 {
			s.cancels[s.r.IntN(len(s.cancels))]()
		}
		s.end(i)
	case 2:
		s.wg.Go(func() {
			d, err := s.queue.Take(s.t.Context(), req)
			if err == nil && d.Permit != 0 {
				_ = s.queue.Finish(s.t.Context(), req, d.Permit)
			}
			s.end(i)
		})
	case 3, 4, 5:
		s.wg.Go(func() {
			ctx, cancel := context.WithCancel(s.t.Context())
			defer cancel()
			if i%2 == 0 {
				defer time.AfterFunc(time.Duration(i)*10*time.Millisecond, cancel).Stop()
			}
			d, err := s.queue.WaitMax(ctx, req, longest)
			s.told(i, req, came, longest, false, d, err)
		})
	default:
		s.call(i, req, came, longest)
	}
}

func (s *storm) call(i int, req Request, came time.Time, longest time.Duration) {
	s.wg.Add(1)
	var returned atomic.Bool // so that done is not called in this goroutine
	cancel := s.queue.WaitFunc(req, longest, func(d Decision, err error) {
		defer s.wg.Done()
		s.told(i, req, came, longest, returned.Load() && d.Delay == 0, d, err)
		switch i % 17 {
		case 0:
			time.Sleep(30 * time.Millisecond)
		case 1:
			s.queue.Waiting()
		case 2:
			_, _ = s.queue.Take(context.Background(), Request{Peek: true})
		case 3:
			if returned.Load() {
				runtime.Goexit()
			}
		}
	})
	returned.Store(true)
	s.cancels = append(s.cancels, func() {
		if cancel() {
			s.end(i)
			s.wg.Done()
		}
	})
}

func (s *storm) end(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended[i]++
}

func (s *storm) told(i int, req Request, came time.Time, longest time.Duration, fifo bool, d Decision, err error) {
	s.end(i)
	if err != nil {
		return
	}
	key, _ := req.Get("key")
	s.mu.Lock()
	if fifo && !delayed(req) && s.grants[key] > i+1 {
		s.t.Errorf("storm %d: %d was admitted after %d", s.seed, i, s.grants[key]-1)
	}
	s.grants[key] = i + 1
	s.mu.Unlock()
	if waited := time.Since(came); longest < Never && longest > 0 && waited > longest+60*time.Millisecond {
		// One of 0 asks once, and a Taker that does not care for its context makes the
		// first try late, a look and a Take, as that is made in the caller's goroutine.
		s.t.Errorf("storm %d: %d was admitted after %v, wanted %v", s.seed, i, waited, longest)
	}
	if d.Permit != 0 {
		s.taker.mu.Lock()
		defer s.taker.mu.Unlock()
		if !s.taker.held[d.Permit] {
			s.t.Errorf("storm %d: a permit was told and given back", s.seed)
		}
		delete(s.taker.held, d.Permit)
	}
}

// A hundred thousand waiters in one line, and as many in lines of their own, arrive, leave in
// any order and are served: without a goroutine for each, and in a time that is not quadratic in
// their number.
func TestQueueCrowd(t *testing.T) {
	const within = 20 * time.Second // of a processor; 1 s is usual
	for _, lines := range []int{1, crowd / 2} {
		start := processorTime()
		k := &keyed{p: bucketPolicy(PerHour(1), 1)}
		queue := newQueue(t, k, QueueOptions{})
		goroutines := runtime.NumGoroutine()
		var mu sync.Mutex
		called := sync.NewCond(&mu)
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
				called.Signal()
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
		mu.Lock()
		for granted+left < crowd {
			called.Wait()
		}
		mu.Unlock()
		queue.Close()
		if n := queue.Waiting(); n != 0 {
			t.Errorf("%d wait still", n)
		}
		mu.Lock()
		if granted+left != crowd {
			t.Errorf("%d granted, %d left", granted, left)
		}
		mu.Unlock()
		if took := processorTime() - start; took > within {
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
