package tables

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/bench/internal/measure"
	"github.com/stint-io/stint/limit"
)

// The waiters' bounds, in turn.
var waiterBounds = [3]time.Duration{0, 50 * time.Millisecond, time.Second}

// waiterRounds is how often each contender is run; the worst round counts for what must
// never happen. Small crowds, which are for tests, are run once.
const waiterRounds = 3

// waiting is what lets callers wait. WaitFunc calls done once, from any goroutine; close
// ends what it has started.
type waiting struct {
	name    string
	blocks  bool // its callers are goroutines
	exact   bool // it says at once who would wait in vain, by the policy
	policy  limit.Policy
	open    func(p limit.Policy) (wait func(d time.Duration, done func(error)), close func(), err error)
	starved bool // nothing is ever admitted: it is for time-outs
	floor   bool // it is told when permits are due
	asks    bool // what it could not ask for in time, when the machine stood still, is lost
}

// told is what became of one waiter.
type told struct {
	after    [2]limit.Time // of the call: between which times it came
	over     atomic.Bool   // the call has returned
	at       limit.Time    // when it was told
	err      error
	returned bool // told after the call had returned
}

// waitersRun is one run.
type waitersRun struct {
	all        []told
	order      []int // of those admitted
	goroutines int   // at most, beyond those before
	joined     time.Duration
	cpu        time.Duration
	late       []time.Duration // of grants that were waited for
	overdue    []time.Duration // of time-outs
	vain       int             // told after a wait that it was too long
	wrong      int             // refused though in time, or let wait though late
	inversions int
}

// Waiters lets many wait for one limit.
func Waiters(cfg Config, rep *Report) error {
	n := cfg.Waiters
	rate := limit.PerSecond(int64(n / 8))
	bucket := limit.Policy{Rate: rate, Burst: int64(n / 80)}
	window := limit.Policy{Algorithm: limit.FixedWindow, Rate: rate}
	contenders := []waiting{
		{name: "limit.Limiter", policy: bucket, exact: true, open: openLimiter},
		{name: "limit.Limiter, in a process at work", policy: bucket, exact: true, open: openLimiterAtWork},
		{name: "limit.Queue before a Taker", policy: bucket, exact: true, asks: true, open: openQueue},
		{name: "x/time/rate, a goroutine each", policy: bucket, blocks: true, open: openXTime},
		{name: "no limiter: one timer, set to each time", policy: bucket, floor: true, open: openFloor},
		{name: "limit.Limiter, fixed window", policy: window, exact: true, open: openLimiter},
		{name: "our model of LINE's, fixed window", policy: window, open: openLINE},
		{name: "limit.Queue, limit used up by others", policy: bucket, open: openStarved, starved: true},
	}
	bytes, err := weighAll(contenders, n)
	if err != nil {
		return err
	}
	runs := make([][]waitersRun, len(contenders))
	rounds := waiterRounds
	if n < 10_000 {
		rounds = 1
	}
	for range rounds {
		for i, c := range contenders {
			r, err := runWaiters(c, n)
			if err != nil {
				return err
			}
			runs[i] = append(runs[i], r)
			runtime.GC()
		}
	}
	rows := make([][]string, len(contenders))
	for i, c := range contenders {
		var err error
		if rows[i], err = waitersRow(rep, c, runs[i], n, bytes[i]); err != nil {
			return err
		}
	}
	rep.Section(fmt.Sprintf("%d who wait for one limit", n),
		fmt.Sprintf("%d callers come at once, one after the other, with bounds of 0, 50 and 1000 ms in turn, for a limit of %v: a token bucket with a burst of %d, or fixed windows of the wall clock's seconds, whose permits all fall due at one instant. %d runs of each, in turn;", n, rate, bucket.Burst, rounds),
		"counts are of the worst run, times are medians of the runs.",
		"*In vain*: told only after waiting that the wait was too long. *Wrong*: by the policy's arithmetic the permit would have come in time for one who was refused, or too late for one who was let wait; the rivals' arithmetic is not known to the table.",
		"*Inversions*: told of a permit after somebody who came later. *Late*: from the time at which a permit was due by the arithmetic, for x/time/rate the i-th from when the bucket had i, or at which a wait was over, until the caller's function ran; timers, scheduler and collector are in it.",
		"Go's timers on Linux are rounded up to a millisecond while nothing else runs in the process, and looked at all the time while something does: hence the row at work.",
		"*Goroutines*: at most, beyond those before. *To come*: until all have been told or stand in line, for each; with goroutines, until all are started. *Bytes*: of heap and stacks for each, when all wait.")
	rep.Table([]string{"", "admitted", "refused at once", "in vain", "wrong", "inversions", "late, p50, ms", "p99", "max", "goroutines", "to come, µs", "CPU, s", "bytes"}, rows)
	return nil
}

func waitersRow(rep *Report, c waiting, runs []waitersRun, n int, bytes string) ([]string, error) {
	var admitted, atOnce, vain, wrong, inversions, goroutines int
	var p50, p99, most, join, cpu measure.Series
	for _, r := range runs {
		late := r.late
		if c.starved {
			late = r.overdue
		}
		if len(late) < n/10 {
			return nil, fmt.Errorf("bench: %s: %d waited only", c.name, len(late))
		}
		slices.Sort(late)
		ms := func(q float64) float64 {
			return float64(late[min(len(late)-1, int(q*float64(len(late))))].Microseconds()) / 1000
		}
		p50, p99, most = append(p50, ms(0.5)), append(p99, ms(0.99)), append(most, ms(1))
		join = append(join, float64(r.joined.Nanoseconds())/float64(n)/1000)
		cpu = append(cpu, r.cpu.Seconds())
		admitted = max(admitted, len(r.order))
		atOnce = max(atOnce, n-len(r.order)-r.vain)
		vain, wrong, inversions = max(vain, r.vain), max(wrong, r.wrong), max(inversions, r.inversions)
		goroutines = max(goroutines, r.goroutines)
	}
	if strings.HasPrefix(c.name, "limit.") {
		rep.AtMost("waiters: "+c.name+", inversions", float64(inversions), 0, "")
		rep.AtMost("waiters: "+c.name+", goroutines", float64(goroutines), 70, "")
		if c.exact {
			rep.AtMost("waiters: "+c.name+", told wrongly at once", float64(wrong), 0, "")
		}
		if c.exact && !c.asks {
			rep.AtMost("waiters: "+c.name+", told in vain", float64(vain), 0, "")
		}
		if c.policy.Algorithm == limit.TokenBucket {
			rep.AtMost("waiters: "+c.name+", p99 lateness", p99.Median(), 1, " ms")
		}
	}
	w := fmt.Sprint(wrong)
	if !c.exact {
		w = "–"
	}
	return []string{
		c.name, fmt.Sprint(admitted), fmt.Sprint(atOnce), fmt.Sprint(vain), w, fmt.Sprint(inversions),
		fmt.Sprintf("%.3f", p50.Median()), fmt.Sprintf("%.3f", p99.Median()), fmt.Sprintf("%.3f", most.Median()),
		fmt.Sprint(goroutines), fmt.Sprintf("%.2f", join.Median()), fmt.Sprintf("%.2f", cpu.Median()), bytes,
	}, nil
}

// recorder notes what waiters are told, in its order.
type recorder struct {
	origin time.Time
	epoch  limit.Time
	before int // goroutines

	mu   sync.Mutex
	run  waitersRun
	left sync.WaitGroup
}

func newRecorder(n int) *recorder {
	now := time.Now()
	r := &recorder{origin: now, epoch: limit.At(now), before: runtime.NumGoroutine()}
	r.run.all = make([]told, n)
	r.run.order = make([]int, 0, n)
	r.left.Add(n)
	return r
}

func (r *recorder) now() limit.Time { return r.epoch.Add(time.Since(r.origin)) }

func (r *recorder) tell(i int, err error) {
	at := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &r.run.all[i]
	w.at, w.err, w.returned = at, err, w.over.Load()
	if err == nil {
		r.run.order = append(r.run.order, i)
	}
	if i%64 == 0 {
		r.run.goroutines = max(r.run.goroutines, runtime.NumGoroutine()-r.before)
	}
	r.left.Done()
}

func runWaiters(c waiting, n int) (waitersRun, error) {
	wait, end, err := c.open(c.policy)
	if err != nil {
		return waitersRun{}, fmt.Errorf("bench: %s: %w", c.name, err)
	}
	defer end()
	if c.policy.Algorithm == limit.FixedWindow {
		startOfSecond()
	}
	r := newRecorder(n)
	cpu, err := measure.OwnCPU()
	if err != nil {
		return waitersRun{}, err
	}
	for i := range n {
		w, d, done := &r.run.all[i], waiterBounds[i%3], func(err error) { r.tell(i, err) }
		if c.blocks {
			go func() {
				w.after[0] = r.now()
				wait(d, done)
			}()
			continue
		}
		w.after[0] = r.now()
		wait(d, done)
		w.after[1] = r.now()
		w.over.Store(true)
	}
	r.run.joined = time.Since(r.origin)
	r.run.goroutines = max(r.run.goroutines, runtime.NumGoroutine()-r.before)
	r.left.Wait()
	used, err := measure.OwnCPU()
	r.run.cpu = used - cpu
	r.judge(c)
	return r.run, err
}

// startOfSecond waits until a tenth into the wall clock's next second, so that all come
// within one window.
func startOfSecond() {
	now := time.Now()
	<-time.After(now.Truncate(time.Second).Add(1100 * time.Millisecond).Sub(now))
}

// judge holds what was told against the arithmetic.
func (r *recorder) judge(c waiting) {
	run := &r.run
	last := -1
	for _, i := range run.order {
		if i < last && !c.blocks {
			run.inversions++
		}
		last = max(last, i)
	}
	if c.blocks {
		r.judgeGoroutines(c)
		return
	}
	// The limiter's own reading of the clock is between the two of a call.
	early, late := newArithmetic(c.policy), newArithmetic(c.policy)
	var vain []limit.Time // when those who waited in vain left; until then others were behind them
	for i := range run.all {
		w, d := &run.all[i], waiterBounds[i%3]
		switch {
		case w.err != nil && w.returned:
			run.vain++
			run.overdue = append(run.overdue, time.Duration(w.at-w.after[0].Add(d)))
			if vain = append(vain, w.at); c.starved {
				vain = nil
			}
		case w.err != nil:
			due := late.due(w.after[1])
			for _, at := range vain {
				if at > w.after[0] {
					due = due.Add(perToken(c.policy))
				}
			}
			if due <= w.after[0].Add(d) && !c.starved {
				run.wrong++
			}
		default:
			due := early.take(w.after[0])
			late.take(w.after[1])
			if due > w.after[1].Add(d) {
				run.wrong++
			}
			if w.returned {
				run.late = append(run.late, time.Duration(w.at-due))
			}
		}
	}
}

// judgeGoroutines is judge for callers that are goroutines: their order is that in which
// they came to run, and the i-th permit is due when the bucket has it.
func (r *recorder) judgeGoroutines(c waiting) {
	run := &r.run
	slices.SortFunc(run.order, func(a, b int) int { return cmp.Compare(run.all[a].at, run.all[b].at) })
	latest := limit.Time(0)
	a := newArithmetic(c.policy)
	first := run.all[run.order[0]].after[0]
	for _, i := range run.order {
		w := &run.all[i]
		if w.after[0] < latest {
			run.inversions++
		}
		latest = max(latest, w.after[0])
		run.late = append(run.late, max(0, time.Duration(w.at-a.take(first))))
	}
	for i := range run.all {
		if w := &run.all[i]; w.err != nil && w.at > w.after[0].Add(10*time.Millisecond) {
			run.vain++
		}
	}
}

// arithmetic says when permits are due that are taken one after the other.
type arithmetic struct {
	take1 func(now limit.Time, peek bool) limit.Verdict
	last  limit.Time
}

func newArithmetic(p limit.Policy) *arithmetic {
	if p.Algorithm == limit.FixedWindow {
		w, s := limit.NewFixedCounter(p), limit.FixedState{}
		return &arithmetic{take1: func(now limit.Time, peek bool) limit.Verdict {
			if peek {
				return w.Peek(s, now, 1)
			}
			return w.Take(&s, now, 1)
		}}
	}
	b, s := limit.NewBucket(p), limit.BucketState{}
	return &arithmetic{take1: func(now limit.Time, peek bool) limit.Verdict {
		if peek {
			return b.Peek(s, now, 1)
		}
		return b.Take(&s, now, 1)
	}}
}

// due is when one who comes at now, behind all who took, has a permit.
func (a *arithmetic) due(now limit.Time) limit.Time {
	at := max(now, a.last)
	for {
		v := a.take1(at, true)
		if v.Allowed {
			return at
		}
		at = at.Add(v.RetryAfter)
	}
}

func (a *arithmetic) take(now limit.Time) limit.Time {
	a.last = a.due(now)
	a.take1(a.last, false)
	return a.last
}

// weighAll weighs all: those with goroutines last, since what these leave behind goes away
// only by and by.
func weighAll(contenders []waiting, n int) ([]string, error) {
	bytes := make([]string, len(contenders))
	for _, blocks := range []bool{false, true} {
		for i, c := range contenders {
			switch {
			case c.floor:
				bytes[i] = "–"
			case c.blocks == blocks:
				b, err := weighWaiters(c, n)
				if err != nil {
					return nil, err
				}
				bytes[i] = fmt.Sprintf("%.0f", b)
			}
		}
	}
	return bytes, nil
}

// weighWaiters is how many bytes each of n takes who all wait, unbounded but for a day.
func weighWaiters(c waiting, n int) (float64, error) {
	p := c.policy
	p.Rate, p.Burst = limit.PerHour(1), 1
	before := liveBytes(c.blocks)
	wait, end, err := c.open(p)
	if err != nil {
		return 0, fmt.Errorf("bench: %s: %w", c.name, err)
	}
	var left sync.WaitGroup
	left.Add(n)
	nobody := func(error) { left.Done() }
	const century = 100 * 365 * 24 * time.Hour
	wait(century, nobody)
	for range n - 1 {
		if c.blocks {
			go wait(century, nobody)
		} else {
			wait(century, nobody)
		}
	}
	if c.blocks {
		<-time.After(300 * time.Millisecond) // until they stand in line; there is no telling when
	}
	bytes := float64(liveBytes(c.blocks)-before) / float64(n)
	runtime.KeepAlive(wait)
	end()
	if c.blocks {
		left.Wait()
	}
	return bytes, nil
}

// liveBytes is the heap in use, and the stacks.
func liveBytes(stacks bool) int64 {
	heap := liveHeap()
	if !stacks {
		return heap
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return heap + int64(m.StackInuse)
}

func openLimiter(p limit.Policy) (func(time.Duration, func(error)), func(), error) {
	l, err := limit.NewLimiter(p)
	return func(d time.Duration, done func(error)) { l.WaitFunc(1, d, done) }, func() {}, err
}

// openLimiterAtWork is openLimiter beside a goroutine that always has something to do, and
// lets others run after a microsecond or so of it.
func openLimiterAtWork(p limit.Policy) (func(time.Duration, func(error)), func(), error) {
	var stop atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for sum := uint64(0); !stop.Load(); runtime.Gosched() {
			for i := range uint64(1000) {
				sum += i * i
			}
			if sum == 1 {
				return // never: so that the work is done
			}
		}
	}()
	wait, _, err := openLimiter(p)
	return wait, func() { stop.Store(true); <-ended }, err
}

func openQueue(p limit.Policy) (func(time.Duration, func(error)), func(), error) {
	l, err := limit.NewLimiter(p)
	if err != nil {
		return nil, nil, err
	}
	return openTaker(l)
}

func openTaker(t limit.Taker) (func(time.Duration, func(error)), func(), error) {
	q, err := limit.NewQueue(t, limit.QueueOptions{})
	return func(d time.Duration, done func(error)) {
		q.WaitFunc(limit.Request{}, d, func(_ limit.Decision, err error) { done(err) })
	}, q.Close, err
}

// starved is a Taker whose limit others use up.
type starved struct{}

func (starved) Take(context.Context, limit.Request) (limit.Decision, error) {
	return limit.Decision{Results: []limit.Result{{Limit: "starved", Cost: 1, Verdict: limit.Verdict{
		Reason: limit.ReasonRate, RetryAfter: 5 * time.Millisecond,
	}}}}, nil
}

func openStarved(limit.Policy) (func(time.Duration, func(error)), func(), error) {
	return openTaker(starved{})
}
