package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store/memory"
)

func newWaiting(t *testing.T, yaml string) *engine.Engine {
	t.Helper()
	e, err := engine.New(memory.New(memory.Options{}), parse(t, yaml), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestQueueWalk: two in a second, and who comes beyond that waits for at most 2.1 s.
func TestQueueWalk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newWaiting(t, `
limits:
  - {name: slow, key: [user], rate: 2/s, burst: 1, on_exceed: {queue: {max_wait: 2100ms}, reject: 503}}
  - {name: hard, match: {path: /hard}, rate: 0/s, on_exceed: {reject: 403}}
`)
		start := time.Now()
		var mu sync.Mutex
		var got []string
		var wg sync.WaitGroup
		ask := func(who string, d time.Duration, attrs ...string) {
			wg.Go(func() {
				a, err := e.TakeWithin(t.Context(), limit.Request{Attributes: attributes(attrs...)}, d)
				mu.Lock()
				defer mu.Unlock()
				got = append(got, fmt.Sprintf("%s %v %d at %v %v", who, a.Allowed, a.Status, time.Since(start), err))
			})
			synctest.Wait()
		}
		for i := range 6 {
			ask(fmt.Sprint(i), limit.Never, "user=u")
		}
		ask("other", limit.Never, "user=v")
		ask("impatient", 0, "user=u")
		ask("hard", limit.Never, "user=u", "path=/hard")
		wg.Wait()
		want := []string{
			"0 true 0 at 0s <nil>",
			"5 false 503 at 0s <nil>", // would come after 2.5 s
			"other true 0 at 0s <nil>",
			"impatient false 503 at 0s <nil>",
			"hard false 503 at 0s <nil>", // its turn would come too late as well
			"1 true 0 at 500ms <nil>", "2 true 0 at 1s <nil>", "3 true 0 at 1.5s <nil>", "4 true 0 at 2s <nil>",
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got\n%q\nwant\n%q", got, want)
		}
		ask("alone", limit.Never, "user=w", "path=/hard")
		if last := got[len(got)-1]; last != "alone false 403 at 2s <nil>" {
			t.Errorf("a limit without a queue: %s", last)
		}
		for _, q := range e.QueueTallies() {
			if q.Waiting != 0 || q.Admitted != 6 || q.Late != 2 {
				t.Errorf("counted: %+v", q)
			}
		}
	})
}

// Every request is answered exactly once, in the order of arrival under its key, within max_wait,
// and no more is admitted than the limit allows, whatever is cancelled or reloaded meanwhile.
func TestQueueAnswersEachOnce(t *testing.T) {
	for seed := range seeding.Draw(t, 20) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 13))
			limits := func(length int) string {
				return fmt.Sprintf("limits: [{name: a, key: [user], rate: 10/s, burst: 2, on_exceed: {queue: {max_wait: 1s, length: %d}}}]", length)
			}
			e := newWaiting(t, limits(20))
			type answer struct {
				user, who int
				allowed   bool
				waited    time.Duration
				err       error
			}
			var mu sync.Mutex
			var answers []answer
			var wg sync.WaitGroup
			start := time.Now()
			reloaded := false
			const requests = 400
			for i := range requests {
				user := r.IntN(3)
				ctx, cancel := context.WithCancel(t.Context())
				if r.IntN(10) == 0 {
					time.AfterFunc(time.Duration(r.Int64N(int64(time.Second))), cancel)
				}
				wg.Go(func() {
					defer cancel()
					began := time.Now()
					d, err := e.Take(ctx, limit.Request{Attributes: attributes(fmt.Sprintf("user=%d", user))})
					mu.Lock()
					defer mu.Unlock()
					answers = append(answers, answer{user, i, d.Allowed && err == nil, time.Since(began), err})
				})
				synctest.Wait()
				<-time.After(time.Duration(r.Int64N(int64(40 * time.Millisecond))))
				if r.IntN(100) == 0 {
					reloaded = true
					if err := e.Swap(parse(t, limits(10+r.IntN(20)))); err != nil {
						t.Fatal(err)
					}
				}
			}
			wg.Wait()
			if len(answers) != requests {
				t.Fatalf("seed %d: %d answers to %d requests", seed, len(answers), requests)
			}
			last, admitted := map[int]int{}, map[int]int{}
			for _, a := range answers {
				if a.err != nil && !errors.Is(a.err, context.Canceled) || a.waited > time.Second {
					t.Fatalf("seed %d: %+v", seed, a)
				}
				if a.allowed {
					if a.who < last[a.user] && !reloaded {
						t.Fatalf("seed %d: %d of user %d overtook %d", seed, a.who, a.user, last[a.user])
					}
					last[a.user] = max(last[a.user], a.who)
					admitted[a.user]++
				}
			}
			for user, n := range admitted {
				if most := 2 + int(10*time.Since(start)/time.Second) + 1; n > most {
					t.Errorf("seed %d: user %d was admitted %d times, want at most %d", seed, user, n, most)
				}
			}
			if q := e.QueueTallies(); q[0].Waiting != 0 {
				t.Errorf("seed %d: %d still wait", seed, q[0].Waiting)
			}
		})
	}
}

// A permit that is given back wakes who waits for it.
func TestQueueOfPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newWaiting(t, "limits: [{name: a, algorithm: concurrency, max_in_flight: 1, on_exceed: {queue: {max_wait: 30s}}}]")
		first, err := e.Take(t.Context(), limit.Request{})
		if err != nil || first.Permit == 0 {
			t.Fatal(first, err)
		}
		done := make(chan limit.Decision, 1)
		go func() {
			d, _ := e.Take(t.Context(), limit.Request{})
			done <- d
		}()
		<-time.After(10 * time.Millisecond)
		began := time.Now()
		if err := e.Finish(t.Context(), limit.Request{}, first.Permit); err != nil {
			t.Fatal(err)
		}
		if d := <-done; !d.Allowed || d.Permit == 0 || time.Since(began) > time.Millisecond {
			t.Errorf("%+v after %v", d, time.Since(began))
		}
	})
}
