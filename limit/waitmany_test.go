package limit

import (
	"errors"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/fixed"
)

const crowd = 100_000

// processorTime is what this process has used of the processors so far: a machine that does
// other work does not make it longer.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// crowded returns a limiter of p with that many waiters.
func crowded(t testing.TB, p Policy, longest time.Duration, done func(error)) (*Limiter, []func() bool) {
	t.Helper()
	l := newLimiter(t, p)
	for l.Allow() {
	}
	cancels := make([]func() bool, crowd)
	for i := range cancels {
		cancels[i] = l.WaitFunc(1, longest, done)
	}
	return l, cancels
}

// Whatever a hundred thousand do, it takes a time that grows with their number and not
// with its square, which would be minutes.
func TestCrowd(t *testing.T) {
	const within = 20 * time.Second // of a processor; 0.2 s is usual
	policies := []Policy{
		bucketPolicy(PerHour(10), 10),
		{Algorithm: LeakyBucket, Rate: PerHour(10), Burst: 10},
		{Algorithm: FixedWindow, Rate: PerHour(10)},
		{Algorithm: SlidingWindowCounter, Rate: PerHour(10)},
		{Algorithm: SlidingWindowLog, Rate: Rate{MaxLogCount, 24 * time.Hour}},
	}
	bounds := map[string]time.Duration{"whenever": Never, "in a century": 100 * 365 * 24 * time.Hour}
	for _, p := range policies {
		for bound, longest := range bounds {
			for order, index := range map[string]func(i int) int{
				"first to last": func(i int) int { return i },
				"last to first": func(i int) int { return crowd - 1 - i },
				"at random":     func(i int) int { return i * 7919 % crowd },
			} {
				if bound == "whenever" && order != "at random" {
					continue // nothing of them is planned, whatever their order
				}
				start := processorTime()
				l, cancels := crowded(t, p, longest, func(err error) { t.Errorf("told %v", err) })
				joined := processorTime() - start
				for i := range cancels {
					if !cancels[index(i)]() {
						t.Fatalf("%v: cancel of %d failed", p.Algorithm, index(i))
					}
				}
				if took := processorTime() - start; took > within {
					t.Errorf("%v, waiting %s, leaving %s: %v, %v of it to join", p.Algorithm, bound, order, took, joined)
				}
				if len(l.slots) != 0 || l.cost != (fixed.Wide{}) || l.unplanned != (fixed.Wide{}) {
					t.Errorf("%v: %d slots left", p.Algorithm, len(l.slots))
				}
			}
		}
	}
	for _, p := range policies[:3] { // those whose line is summed up
		start := processorTime()
		l, cancels := crowded(t, p, 100*365*24*time.Hour, func(error) {})
		for i := range 20_000 { // one leaves, one comes, and wants to know
			cancels[i*4999%crowd]()
			l.WaitFunc(1, 100*365*24*time.Hour, func(error) {})
			l.WaitFunc(1, time.Hour, func(error) {})
		}
		if took := processorTime() - start; took > within {
			t.Errorf("%v: coming and going took %v", p.Algorithm, took)
		}
	}
}

// Reservations behind a crowd, and a waiter behind them, do not make it slow either.
func TestCrowdOfReservations(t *testing.T) {
	const within = 20 * time.Second // of a processor
	l := newLimiter(t, bucketPolicy(PerHour(1000), 1))
	now, start := time.Now(), processorTime()
	held := make([]Reservation, crowd)
	for i := range held {
		held[i] = l.ReserveN(now, 1)
	}
	for i := crowd / 2; i < crowd; i++ {
		held[i*7919%crowd].CancelAt(now)
	}
	for range crowd / 2 {
		if r := l.ReserveN(now, 1); r.DelayFrom(now) > crowd*4*time.Second {
			t.Fatal("it got no place that was given back")
		}
	}
	l.WaitFunc(1, Never, func(error) {})
	for i := range crowd / 2 {
		held[i*7919%crowd].CancelAt(now)
	}
	if took := processorTime() - start; took > within {
		t.Errorf("it took %v", took)
	}
}

func TestCrowdUnderAnotherPolicy(t *testing.T) {
	const within = 20 * time.Second // of a processor
	var mu sync.Mutex
	called := sync.NewCond(&mu)
	var granted, refused int
	start := processorTime()
	l, _ := crowded(t, bucketPolicy(PerHour(10), 10), 100*365*24*time.Hour, func(err error) {
		mu.Lock()
		defer mu.Unlock()
		called.Signal()
		switch {
		case err == nil:
			granted++
		case errors.Is(err, ErrWaitTooLong):
			refused++
		default:
			t.Error(err)
		}
	})
	for range 10 {
		for _, p := range []Policy{bucketPolicy(PerHour(11), 10), {Algorithm: FixedWindow, Rate: PerHour(10)}} {
			if err := l.SetPolicy(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := l.SetPolicy(Policy{Algorithm: FixedWindow, Rate: PerHour(1)}); err != nil { // for 100 years: 876,000 hours
		t.Fatal(err)
	}
	if err := l.SetPolicy(Policy{Algorithm: FixedWindow, Rate: Rate{1, 24 * time.Hour}}); err != nil {
		t.Fatal(err)
	}
	if err := l.SetPolicy(Policy{Algorithm: FixedWindow, Rate: Rate{MaxCount, 24 * time.Hour}}); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for granted+refused < crowd {
		called.Wait()
	}
	if took := processorTime() - start; took > within {
		t.Errorf("it took %v", took)
	}
	// Another algorithm starts afresh, with a window of 10, ten times here and for the
	// bucket in between.
	if days := 100 * 365; granted < days || granted > days+20*10+1 {
		t.Errorf("%d granted, %d refused: in a hundred years there are %d days", granted, refused, days)
	}
}

// Many callers wait, leave and change the policy concurrently, in real time: each wait ends once
// or is given up, in the order of the line.
func TestWaitFuncStorm(t *testing.T) {
	for _, p := range []Policy{
		bucketPolicy(PerSecond(20_000), 10),
		{Algorithm: LeakyBucket, Rate: PerSecond(20_000), Burst: 10},
		{Algorithm: FixedWindow, Rate: Rate{20, time.Millisecond}},
		{Algorithm: SlidingWindowLog, Rate: Rate{20, time.Millisecond}},
	} {
		l := newLimiter(t, p)
		const each, workers = 300, 8
		var wg, dones sync.WaitGroup
		for g := range uint64(workers) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(g, 11))
				last := -1 // this worker's latest grant; dones are called one at a time
				for i := range each {
					told := false
					longest := Never
					if r.IntN(3) == 0 {
						longest = time.Duration(r.IntN(int(3 * time.Millisecond)))
					}
					dones.Add(1)
					cancel := l.WaitFunc(1+r.Int64N(3), longest, func(err error) {
						defer dones.Done()
						switch {
						case errors.Is(err, ErrWaitTooLong):
						case err != nil:
							t.Error(err)
						case told || i <= last:
							t.Errorf("%d was told after %d", i, last)
						default:
							last = i
						}
						told = true
					})
					switch r.IntN(8) {
					case 0:
						if cancel() {
							dones.Done()
						}
					case 1:
						q := p
						q.Rate.Count += r.Int64N(20)
						if err := l.SetPolicy(q); err != nil {
							t.Error(err)
						}
					case 2:
						l.Reserve().Cancel()
					case 3:
						l.Allow()
					}
				}
			})
		}
		wg.Wait()
		dones.Wait()
		if err := l.Wait(t.Context()); err != nil { // all that was reserved has acted
			t.Error(err)
		}
		l.lock()
		if l.pending != 0 || l.waiting != 0 || len(l.slots) > journal || l.cost != (fixed.Wide{}) {
			t.Errorf("%v: left behind: %d slots, %d pending, %d waiting", p.Algorithm, len(l.slots), l.pending, l.waiting)
		}
		l.unlock()
	}
}

func TestWaitFuncAllocations(t *testing.T) {
	l, nobody := newLimiter(t, bucketPolicy(PerSecond(1e9), 1e9)), func(error) {}
	if n := testing.AllocsPerRun(1000, func() { l.WaitFunc(1, 0, nobody) }); n != 0 {
		t.Errorf("%v allocations for a permit that is there", n)
	}
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, bucketPolicy(PerHour(1), 1))
		l.Allow()
		defer l.WaitFunc(1, Never, nobody)()
		if n := testing.AllocsPerRun(1000, func() { l.WaitFunc(1, Never, nobody)() }); n > 1 {
			t.Errorf("%v allocations for one who waits, want that of its cancel", n)
		}
	})
}
