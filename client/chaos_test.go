package client

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// ledger notes when cost was admitted, and looks for an interval with too much.
type ledger struct {
	mu   sync.Mutex
	at   []time.Time
	cost []int64
}

func (l *ledger) admit(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at, l.cost = append(l.at, time.Now()), append(l.cost, n)
}

// check holds every interval against burst + rate x T: the bucket that all of them
// are together is never below empty.
func (l *ledger) check(t *testing.T, rate, burst float64) (total int64) {
	t.Helper()
	level := burst
	for i, n := range l.cost {
		if i > 0 {
			level = min(burst, level+rate*l.at[i].Sub(l.at[i-1]).Seconds())
		}
		total += n
		if level -= float64(n); level < -1e-3 {
			t.Fatalf("%v over the limit, at %v", -level, l.at[i].Sub(l.at[0]))
		}
	}
	return total
}

// TestNeverOverWhateverHappens: all verbs, in several instances, while the coordinator
// crashes, is mute, comes back without memory, and limiters close and open.
func TestNeverOverWhateverHappens(t *testing.T) {
	t.Parallel()
	for seed := range seeding.Draw(t, 4) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 9))
			h := newHub(t, time.Duration(1+rng.IntN(40))*time.Millisecond)
			h.terms["m"] = rateOf(100, 20)
			var book ledger
			var wg sync.WaitGroup
			end := time.Now().Add(time.Minute)
			for i, name := range []string{"one", "two", "three"} {
				l := openLimit(t, h.run(t, name), "m", LimitOptions{Weight: uint32(i)})
				for k := range 4 {
					own := rand.New(rand.NewPCG(seed, uint64(10*i+k)))
					wg.Go(func() {
						for time.Now().Before(end) {
							use(t, own, l, &book)
							time.Sleep(time.Duration(own.ExpFloat64() * float64(60*time.Millisecond)))
						}
					})
				}
			}
			for epoch := uint64(2); time.Now().Before(end); epoch++ {
				time.Sleep(time.Duration(rng.IntN(8000)) * time.Millisecond)
				switch rng.IntN(3) {
				case 0:
					h.crash()
					time.Sleep(time.Duration(rng.IntN(7000)) * time.Millisecond)
					h.set(func() { h.down = false; h.start(epoch, lease.DefaultLease+lease.DefaultLease/50) })
				case 1:
					h.set(func() { h.mute = true })
					time.Sleep(time.Duration(rng.IntN(7000)) * time.Millisecond)
					h.set(func() { h.mute = false })
				default:
					h.set(func() {
						for _, p := range h.streams {
							p.end()
						}
					})
				}
			}
			wg.Wait()
			if total := book.check(t, 100, 20); total < 1000 {
				t.Errorf("seed %d: %d admitted in a minute of 100/s", seed, total)
			}
		})
	}
}

// use calls one verb.
func use(t *testing.T, rng *rand.Rand, l *Limiter, book *ledger) {
	n := 1 + rng.Int64N(3)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(3000))*time.Millisecond)
	defer cancel()
	switch rng.IntN(7) {
	case 0, 1:
		if l.AllowN(time.Now(), n) {
			book.admit(n)
		}
	case 2:
		if d, err := l.Take(ctx, limit.Request{Cost: n}); err == nil && d.Allowed {
			book.admit(n)
		}
	case 3:
		if l.WaitN(ctx, n) == nil {
			book.admit(n)
		}
	case 6:
		told := make(chan error, 1)
		stop := l.WaitFunc(n, time.Duration(rng.IntN(1500))*time.Millisecond, func(err error) { told <- err })
		select {
		case err := <-told:
			if err == nil {
				book.admit(n)
			}
		case <-ctx.Done():
			if !stop() && <-told == nil {
				book.admit(n)
			}
		}
	case 4:
		if l.WaitMaxN(ctx, n, 100*time.Millisecond) == nil {
			book.admit(n)
		}
	default:
		r := l.ReserveN(time.Now(), n)
		if !r.OK() {
			return
		}
		for d := r.Delay(); d > 0; d = r.Delay() {
			if d > 3*time.Second {
				r.Cancel()
				return
			}
			time.Sleep(d)
		}
		book.admit(n)
	}
}
