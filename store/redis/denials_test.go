package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// quiet are options for a server without a journal that anybody reads.
func quiet(address string) Options {
	return Options{Addrs: []string{address}, Timeout: patient, Logger: new(journal).logger()}
}

// takeOne takes 1 and says whether that was answered from memory.
func takeOne(t *testing.T, s *Store, c store.Counters) (ok, local bool) {
	t.Helper()
	one := []store.Charge{charge(c, "k", 1)}
	before := s.Stats()
	ok, err := s.Take(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	after := s.Stats()
	if after.LocalRefusals > before.LocalRefusals && after.Calls != before.Calls {
		t.Error("a refusal from memory made a call")
	}
	return ok, after.LocalRefusals > before.LocalRefusals
}

// useUp empties the bucket and has its refusal remembered.
func useUp(t *testing.T, s *Store, c store.Counters) {
	t.Helper()
	await(t, "a refusal from memory", func() bool { _, local := takeOne(t, s, c); return local })
	before := s.Stats()
	for range 1000 {
		if ok, local := takeOne(t, s, c); ok || !local {
			t.Fatalf("admitted %v, from memory %v", ok, local)
		}
	}
	if after := s.Stats(); after.Calls != before.Calls || after.LocalRefusals != before.LocalRefusals+1000 {
		t.Errorf("1000 refusals made %d calls", after.Calls-before.Calls)
	}
}

// TestDenials has refusals answered from memory for as long as nothing ends them.
func TestDenials(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	s, other := connected(t, quiet(proxy.Addr()), nil), connected(t, quiet(server.Addr()), nil)
	p := tokens(1, time.Hour, 5)
	take := func(c store.Counters) (ok, local bool) { return takeOne(t, s, c) }
	full := func(c store.Counters) { useUp(t, s, c) }
	for _, way := range []struct {
		name string
		do   func(id string) error
	}{
		{"refund elsewhere", func(id string) error {
			return other.Refund(t.Context(), []store.Charge{charge(bind(t, other, id, p), "k", 1)})
		}},
		{"reset elsewhere", func(id string) error {
			return other.Reset(t.Context(), []store.Charge{charge(bind(t, other, id, p), "k", 1)})
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			c := bind(t, s, way.name, p)
			full(c)
			if err := way.do(way.name); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			await(t, "the end of the refusals", func() bool { ok, _ := take(c); return ok })
			t.Logf("heard of %v after it was answered", time.Since(began).Round(time.Microsecond))
			if took := time.Since(began); took > 500*time.Millisecond {
				t.Errorf("refused for %v after it", took)
			}
		})
	}
	t.Run("own refund and reset", func(t *testing.T) { ownRelease(t, s, p) })
	t.Run("another policy", func(t *testing.T) {
		c := bind(t, s, "rebound", p)
		full(c)
		bind(t, s, "rebound", tokens(1, time.Hour, 50))
		if ok, local := take(c); !ok || local {
			t.Errorf("a larger burst: admitted %v, from memory %v", ok, local)
		}
	})
	t.Run("not heard of", func(t *testing.T) {
		c := bind(t, s, "deaf", p)
		full(c)
		proxy.Refuse(true)
		proxy.Cut()
		await(t, "the subscription to be missed", func() bool { return !s.denials.on.Load() })
		before := s.Stats().LocalRefusals
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		one := []store.Charge{charge(c, "k", 1)}
		if ok, err := s.Take(ctx, one); ok || s.Stats().LocalRefusals != before {
			t.Errorf("refused from memory without a subscription: %v, %v", ok, err)
		}
		if err := other.Reset(t.Context(), []store.Charge{charge(bind(t, other, "deaf", p), "k", 1)}); err != nil {
			t.Fatal(err)
		}
		proxy.Refuse(false)
		began := time.Now()
		await(t, "the store to answer", func() bool { return s.Ready() == nil })
		if ok, _ := take(c); !ok {
			t.Error("refused after a reset that it could not hear of")
		}
		await(t, "the subscription", func() bool { return s.denials.on.Load() })
		t.Logf("subscribed again %v after the connection was possible", time.Since(began).Round(time.Millisecond))
		// Another of the connections that were cut may show it only now.
		await(t, "a call that meets no cut connection", func() bool { _, err := s.Take(t.Context(), one); return err == nil })
		full(c)
	})
}

// TestNeverEarlyNeverLate asks at and around the times that refusals name. Whoever
// waits as long as told is admitted, unless another was faster.
func TestNeverEarlyNeverLate(t *testing.T) {
	server := redistest.Start(t)
	s := connected(t, quiet(server.Addr()), nil)
	for _, p := range []limit.Policy{
		tokens(1000, time.Second, 1),
		{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 2, Period: 2 * time.Millisecond}},
		{Algorithm: limit.SlidingWindowCounter, Rate: limit.Rate{Count: 2, Period: 2 * time.Millisecond}, Rounding: limit.RoundDown},
	} {
		c := bind(t, s, fmt.Sprint("l", p.Algorithm), p)
		before := s.Stats()
		var list []bracket
		rounds := 0
		for ; rounds < 400; rounds++ {
			one := []store.Charge{charge(c, "k", 1)}
			var ok bool
			for range 20 {
				asked := time.Now()
				var err error
				if ok, err = s.Take(t.Context(), one); err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				list = append(list, bracket{asked.UnixNano(), time.Now().UnixNano()})
			}
			if ok {
				continue // it is faster than the limit
			}
			told := time.Now()
			v := one[0].Verdict
			if v.RetryAfter <= 0 {
				t.Fatalf("%v: refused with a wait of %v", p.Algorithm, v.RetryAfter)
			}
			// Again and again, mostly from memory.
			for time.Since(told) < v.RetryAfter {
				if rand.IntN(4) == 0 {
					again := time.Now()
					if ok, err := s.Take(t.Context(), one); err != nil {
						t.Fatal(err)
					} else if ok {
						list = append(list, bracket{again.UnixNano(), time.Now().UnixNano()})
						v.RetryAfter = 0
					}
				}
			}
			if v.RetryAfter == 0 {
				continue
			}
			asked := time.Now()
			if ok, err := s.Take(t.Context(), one); err != nil || !ok {
				t.Fatalf("%v: round %d: told to wait %v, refused after %v with a further wait of %v (%v)", p.Algorithm, rounds, v.RetryAfter, asked.Sub(told), one[0].Verdict.RetryAfter, err)
			}
			list = append(list, bracket{asked.UnixNano(), time.Now().UnixNano()})
		}
		after := s.Stats()
		t.Logf("%v: %d rounds, %d from memory, %d calls, %d admitted", p.Algorithm, rounds, after.LocalRefusals-before.LocalRefusals, after.Calls-before.Calls, len(list))
		if p.Algorithm == limit.TokenBucket {
			if excess, _, _ := worstExcess(list, 1e-6, 1); excess > 0.01 {
				t.Errorf("%.2f more than burst + rate x T", excess)
			}
		}
	}
}

// TestHotKey has one key asked for by many, far from its server.
func TestHotKey(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	s := connected(t, quiet(proxy.Addr()), nil)
	c := bind(t, s, "l", still(1<<40))
	const far = 5 * time.Millisecond
	proxy.Delay(far)
	before := s.Stats()
	began := time.Now()
	var wg sync.WaitGroup
	for n := range 64 {
		wg.Go(func() {
			for time.Since(began) < time.Second {
				if ok, err := s.Take(context.Background(), []store.Charge{charge(c, "k", 1+int64(n)%7)}); !ok || err != nil {
					t.Errorf("Take: %v, %v", ok, err)
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	after := s.Stats()
	calls, requests := after.Calls-before.Calls, after.Operations-before.Operations
	most := uint64(took/far) + 4
	t.Logf("%d requests in %d calls in %v, at most %d at one per round trip", requests, calls, took.Round(time.Millisecond), most)
	if calls > most {
		t.Errorf("%d calls, want at most %d", calls, most)
	}
	if requests < 20*calls {
		t.Errorf("%d requests in %d calls", requests, calls)
	}
}

// TestArrivalOrder has requests of different costs wait for one call, and compares
// the decisions with those of package limit in the order of arrival.
func TestArrivalOrder(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	s := connected(t, quiet(proxy.Addr()), nil)
	for round := range 10 {
		const burst = 100
		c := bind(t, s, fmt.Sprint("l", round), still(burst))
		if ok, err := s.Take(t.Context(), []store.Charge{charge(c, "k", 1)}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		proxy.Delay(5 * time.Millisecond)
		costs := make([]int64, 40)
		ops := make([]*operation, len(costs))
		for i := range costs {
			costs[i] = 1 + rand.Int64N(12)
			o := newOperation(verbTake, s.clock())
			o.fill([]store.Charge{charge(c, "k", costs[i])}, true)
			ops[i] = o
			l := s.laneOf(o.parts[0].key)
			l.enqueue(o)
		}
		left := int64(burst - 1)
		var got, want []bool
		for i, o := range ops {
			<-o.done
			if o.err != nil {
				t.Fatal(o.err)
			}
			got, want = append(got, o.allowed), append(want, costs[i] <= left)
			if costs[i] <= left {
				left -= costs[i]
			}
			if o.parts[0].verdict.Remaining != left {
				t.Errorf("round %d, request %d: %d remain, want %d", round, i, o.parts[0].verdict.Remaining, left)
			}
			o.release()
		}
		proxy.Delay(0)
		if !slices.Equal(got, want) {
			t.Errorf("round %d: costs %v were decided\n%v, want\n%v", round, costs, got, want)
		}
	}
}

// ownRelease has a store refund and reset what it remembers as refused.
func ownRelease(t *testing.T, s *Store, p limit.Policy) {
	c := bind(t, s, "own", p)
	late := 0
	for i := range 300 {
		await(t, "a refusal from memory", func() bool { _, local := takeOne(t, s, c); return local })
		one, err := []store.Charge{charge(c, "k", 1)}, error(nil)
		if i%2 == 0 {
			err = s.Refund(t.Context(), one)
		} else {
			err = s.Reset(t.Context(), one)
		}
		if err != nil {
			t.Fatal(err)
		}
		if ok, _ := takeOne(t, s, c); !ok {
			late++
		}
	}
	if late > 0 {
		t.Errorf("after %d of 300 refunds and resets that had been answered the same store refused from memory", late)
	}
}
