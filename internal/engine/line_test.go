package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store/memory"
)

// TestLineIsFair: callers that each ask again as soon as they are admitted, for random limits
// without on_exceed: queue, use all of the limit, and each gets its share of it, also where they
// ask several engines on one store.
func TestLineIsFair(t *testing.T) {
	for seed := range seeding.Draw(t, 4) {
		r := rand.New(rand.NewPCG(seed, 1))
		engines := 1 + r.IntN(3)
		rate, burst, callers := 1+r.IntN(100), 1+r.IntN(20), engines*(1+r.IntN(20/engines))
		if callers*5 > rate*4 { // the line is longer than the wait
			continue
		}
		algorithm := []string{"token_bucket", "sliding_window_log", "leaky_bucket"}[r.IntN(3)]
		yaml := fmt.Sprintf("limits: [{name: a, key: [user], rate: %d/s, algorithm: %s}]", rate, algorithm)
		if algorithm != "sliding_window_log" {
			yaml = fmt.Sprintf("limits: [{name: a, key: [user], rate: %d/s, burst: %d, algorithm: %s}]", rate, burst, algorithm)
		}
		synctest.Test(t, func(t *testing.T) {
			st, es := memory.New(memory.Options{}), make([]*engine.Engine, engines)
			for i := range es {
				var err error
				if es[i], err = engine.New(st, parse(t, yaml), engine.Options{}); err != nil {
					t.Fatal(err)
				}
			}
			const run = time.Minute
			ctx, cancel := context.WithTimeout(t.Context(), run)
			defer cancel()
			admitted, asked := make([]int, callers), 0
			var mu sync.Mutex
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					for ctx.Err() == nil {
						d, err := es[i%engines].TakeInLine(ctx, limit.Request{Attributes: attributes("user=u")}, 5*time.Second)
						mu.Lock()
						asked++
						if err == nil && d.Allowed {
							admitted[i]++
						}
						mu.Unlock()
						switch {
						case err != nil:
						case !d.Allowed:
							<-time.After(d.RetryAfter())
						default:
							<-time.After(max(d.Delay, time.Millisecond))
						}
					}
				})
			}
			wg.Wait()
			total := 0
			for _, n := range admitted {
				total += n
			}
			most := rate * int(run/time.Second)
			if callers == 1 && total < most*80/100 || callers > 1 && total < most*95/100 {
				t.Errorf("%s, %d callers: %d of %d were admitted", yaml, callers, total, most)
			}
			if low := slices.Min(admitted); low*callers < total/2 {
				t.Errorf("%s: %d engines admitted %v: one has less than half of its share", yaml, engines, admitted)
			}
			if engines == 1 && asked > total*21/20+2*callers {
				t.Errorf("%s: %d calls for %d permits", yaml, asked, total)
			}
		})
	}
}

// TestLineCostsOneCall: a request that may wait and is admitted at once asks the store once, as one that does not wait.
func TestLineCostsOneCall(t *testing.T) {
	for seed := range seeding.Draw(t, 20) {
		r := rand.New(rand.NewPCG(seed, 2))
		yaml := "limits:\n"
		for i := range 1 + r.IntN(3) {
			algorithm := []string{"token_bucket", "sliding_window_log", "fixed_window", "leaky_bucket"}[r.IntN(4)]
			yaml += fmt.Sprintf("  - {name: l%d, key: [user], rate: %d/s, algorithm: %s}\n", i, 1+r.IntN(50), algorithm)
		}
		f, b := newFlaky(t, yaml)
		admitted := 0
		for range 100 {
			b.now.Add(r.Int64N(int64(time.Second)))
			req := limit.Request{Attributes: attributes(fmt.Sprint("user=", r.IntN(3))), Cost: 1 + r.Int64N(3), Peek: true}
			d, err := b.Take(t.Context(), req)
			if err != nil || !d.Allowed {
				continue
			}
			req.Peek, f.calls = false, nil
			if d, err = b.TakeInLine(t.Context(), req, 10*time.Second); err != nil || !d.Allowed || !slices.Equal(f.calls, []string{"take"}) {
				t.Fatalf("seed %d: %+v, %v after %v of\n%s", seed, d, err, f.calls, yaml)
			}
			admitted++
		}
		if admitted == 0 {
			t.Errorf("seed %d: nothing was admitted of\n%s", seed, yaml)
		}
	}
}

// TestLineOfTheLimitThatRefuses: a request that waits for a bucket of its own holds up nobody who waits for a
// bucket that both meet.
func TestLineOfTheLimitThatRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newWaiting(t, `
limits:
  - {name: all, rate: 10/s, burst: 1}
  - {name: user, key: [user], rate: 1/s, burst: 1}
  - {name: hard, match: {path: /hard}, rate: 0/s, on_exceed: {reject: 403}}
  - {name: own, match: {path: /own}, rate: 1/s, burst: 1, on_exceed: {queue: {max_wait: 500ms}}}
`)
		start := time.Now()
		var mu sync.Mutex
		got := map[string]string{}
		var wg sync.WaitGroup
		ask := func(who string, d time.Duration, attrs ...string) {
			wg.Go(func() {
				a, err := e.TakeInLine(t.Context(), limit.Request{Attributes: attributes(attrs...)}, d)
				mu.Lock()
				defer mu.Unlock()
				got[who] = fmt.Sprint(a.Allowed, " ", a.Status, " at ", time.Since(start).Round(time.Millisecond), " ", err)
			})
			synctest.Wait()
		}
		ask("first", time.Minute, "user=a")
		ask("second of a", time.Minute, "user=a") // a's own bucket is free after a second
		ask("b", time.Minute, "user=b")
		ask("c", time.Minute, "user=c")
		ask("d", time.Minute, "user=d")
		ask("second of d", time.Minute, "user=d") // it finds out when it is the first in line
		ask("e", time.Minute, "user=e")
		ask("hard", time.Minute, "user=f", "path=/hard")
		wg.Wait()
		<-time.After(time.Second - time.Since(start)%time.Second)
		ask("own 1", time.Minute, "user=g", "path=/own")
		wg.Wait()
		<-time.After(100 * time.Millisecond)
		ask("own 2", time.Minute, "user=h", "path=/own")
		wg.Wait()
		for who, want := range map[string]string{
			"first": "true 0 at 0s <nil>", "b": "true 0 at 100ms <nil>", "c": "true 0 at 200ms <nil>",
			"d": "true 0 at 300ms <nil>", "e": "true 0 at 400ms <nil>",
			"second of a": "true 0 at 1s <nil>", "second of d": "true 0 at 1.3s <nil>", "hard": "false 429 at 0s <nil>",
			"own 1": "true 0 at 2s <nil>", "own 2": "false 429 at 2.1s <nil>", // its own queue is not as long
		} {
			if got[who] != want {
				t.Errorf("%s: %s, want %s", who, got[who], want)
			}
		}
	})
}

// TestLineIsNotOvertaken: a costly request gets its turn although cheaper ones that wait would fit before.
func TestLineIsNotOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newWaiting(t, "limits: [{name: a, key: [user], rate: 10/s, burst: 10}]")
		req := limit.Request{Attributes: attributes("user=u"), Cost: 10}
		if d, err := e.TakeInLine(t.Context(), req, time.Minute); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		start, admitted := time.Now(), make(chan time.Duration, 1)
		go func() {
			_, _ = e.TakeInLine(t.Context(), req, time.Minute)
			admitted <- time.Since(start)
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for ctx.Err() == nil {
					<-time.After(150 * time.Millisecond)
					_, _ = e.TakeInLine(ctx, limit.Request{Attributes: attributes("user=u"), Cost: 1}, 5*time.Second)
				}
			})
		}
		if waited := <-admitted; waited > 1010*time.Millisecond {
			t.Errorf("it waited %v, want a second", waited)
		}
		wg.Wait()
	})
}

// TestLineOfPermits: a permit that is given back wakes the first in line.
func TestLineOfPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newWaiting(t, "limits: [{name: a, key: [user], algorithm: concurrency, max_in_flight: 1}]")
		req := limit.Request{Attributes: attributes("user=u")}
		first, err := e.TakeInLine(t.Context(), req, time.Minute)
		if err != nil || first.Permit == 0 {
			t.Fatal(first, err)
		}
		done := make(chan limit.Decision, 1)
		go func() {
			d, _ := e.TakeInLine(t.Context(), req, time.Minute)
			done <- d
		}()
		<-time.After(10 * time.Millisecond)
		began := time.Now()
		if err := e.Finish(t.Context(), req, first.Permit); err != nil {
			t.Fatal(err)
		}
		if d := <-done; !d.Allowed || d.Permit == 0 || time.Since(began) > time.Millisecond {
			t.Errorf("%+v after %v", d, time.Since(began))
		}
	})
}
