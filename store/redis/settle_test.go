package redis

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// flaps is how often Redis goes away in TestFlapping.
var flaps = flag.Int("flaps", 8, "outages of TestFlapping")

// TestSettled: what was counted, refused or not, while Redis was away leaves in Redis the state that
// it would have left had it been charged at once, to the microsecond, under every kind of limit; and
// with two instances one that is at least as strict.
func TestSettled(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	server := redistest.Start(t)
	var clock atomic.Int64
	clock.Store(1_700_000_000_000_000_000)
	now := func() limit.Time { return limit.Time(clock.Load()) }
	stores := []*Store{connected(t, quiet(server.Addr()), now), connected(t, quiet(server.Addr()), now)}
	for seed := range seeding.Draw(t, 150) {
		r := rand.New(rand.NewPCG(seed, 7))
		p := limit.Policy{Rate: limit.Rate{Count: 1 + r.Int64N(100), Period: time.Duration(1+r.IntN(20)) * time.Second}, Burst: 1 + r.Int64N(100)}
		if r.IntN(3) == 0 {
			p.Algorithm = []limit.Algorithm{limit.FixedWindow, limit.SlidingWindowCounter, limit.LeakyBucket}[r.IntN(3)]
		}
		id, instances := fmt.Sprint("settled", seed), 1+r.IntN(2)
		book := &model{policy: p} // charged in time
		var counters []store.Counters
		for _, s := range stores {
			counters = append(counters, bind(t, s, id, p))
		}
		key := stores[0].keyOf(counters[0], "k")
		for range 8 {
			clock.Add(r.Int64N(int64(p.Rate.Period)) / 1000 * 1000)
			one := []store.Charge{charge(counters[0], "k", r.Int64N(1+p.Quota()))}
			if _, err := stores[0].Take(t.Context(), one); err != nil {
				t.Fatal(err)
			}
			book.take(now(), one[0].Cost, 0)
			book.settled()
		}
		windows := p.Algorithm == limit.FixedWindow || p.Algorithm == limit.SlidingWindowCounter
		if windows { // what is admitted in a window counts in that window
			clock.Store((clock.Load()/int64(p.Rate.Period) + 1) * int64(p.Rate.Period))
		}
		book.policy.CountRefused = true
		for range 1 + r.IntN(20) {
			if !windows {
				clock.Add(r.Int64N(int64(p.Rate.Period)/4) / 1000 * 1000)
			}
			i, cost := r.IntN(instances), r.Int64N(1+p.Quota()/4)
			c := counters[i].(*Counters)
			stores[i].localCharges.mu.Lock()
			stores[i].charged(&part{counters: c, rule: c.bound.Load().rule, key: key, cost: cost, terms: terms{counts: true}}, 0)
			stores[i].localCharges.mu.Unlock()
			if v := book.peek(now(), cost); cost > 0 && v.Allowed {
				book.take(now(), cost, 0)
			} else {
				book.refuse(now(), cost)
			}
		}
		clock.Add(r.Int64N(int64(p.Rate.Period)/8) / 1000 * 1000)
		for _, s := range stores {
			s.settle(s.lanes[0].breaker)
		}
		want := book.peek(now(), 0)
		var got limit.Verdict
		for tries := 0; tries == 0 || tries < 2000 && (got.ResetAfter+3*time.Microsecond < want.ResetAfter || got.Remaining > want.Remaining); tries++ {
			for i, s := range stores {
				one := []store.Charge{charge(counters[i], "k", 0)}
				if _, err := s.Peek(t.Context(), one); err != nil {
					t.Fatal(err)
				}
				got = one[0].Verdict
			}
		}
		if late := got.ResetAfter - want.ResetAfter; late < -3*time.Microsecond || got.Remaining > want.Remaining || instances == 1 && (late > 3*time.Microsecond || got.Remaining < want.Remaining-1) {
			t.Fatalf("seed %d, %+v: full after %v with %d left, want %v with %d", seed, p, got.ResetAfter, got.Remaining, want.ResetAfter, want.Remaining)
		}
	}
}

// keyOf is the key in Redis of a key of some counters.
func (s *Store) keyOf(c store.Counters, key string) string {
	return string(appendKey([]byte(c.(*Counters).bound.Load().head), []byte(key)))
}

// TestFlapping: a server that stands still for half of the time, time after time, brings no
// share of its own: over all of it the limit holds, but for what one share admits at once.
func TestFlapping(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	o := quiet(server.Addr())
	o.Timeout, o.Local, o.Instances = 20*time.Millisecond, memory.New(memory.Options{}), 1
	s := connected(t, o, nil)
	const rate, burst = 400, 200
	c := bind(t, s, "l", tokens(rate, time.Second, burst))
	await(t, "an answer", func() bool {
		_, err := s.Take(t.Context(), []store.Charge{charge(c, "other", 1)})
		return err == nil // a busy machine may take longer than the time-out
	})
	began := time.Now()
	var all atomic.Int64
	l := startLoad(t, 8, time.Millisecond, func(int) (store.Charge, bool, error) {
		one := []store.Charge{local(c, 0)}
		ok, err := s.Take(context.Background(), one)
		if ok {
			all.Add(1)
		}
		return one[0], ok, err
	})
	// What each half refills is what would be taken twice: 60 tokens, and all of them more than the bound leaves.
	for range *flaps {
		server.Freeze()
		pass(150 * time.Millisecond)
		server.Thaw()
		pass(150 * time.Millisecond)
	}
	l.stop.Store(true)
	l.wg.Wait()
	took := time.Since(began)
	most := int64(2*burst + rate*took.Seconds() + 1)
	t.Logf("admitted %d in %v, %d of them without Redis' word; at most %d", all.Load(), took.Round(time.Millisecond), l.failed.Load(), most)
	if all.Load() > most {
		t.Errorf("admitted %d in %v, want at most %d", all.Load(), took, most)
	}
	if l.failed.Load() == 0 || l.admitted.Load()+l.refused.Load() == 0 {
		t.Error("the server was not away, or not there")
	}
}

// TestNeverReached: instances that have never reached Redis do not each take the whole limit;
// one whose Options have the number of instances takes its share.
func TestNeverReached(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	t.Parallel()
	for told, want := range map[int]int{0: 100 / assumedInstances, 4: 25, 1: 100} {
		admitted := 0
		for range 3 {
			o := quiet("127.0.0.1:1")
			o.Timeout, o.Local, o.Instances = time.Millisecond, memory.New(memory.Options{}), told
			s, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			c := bind(t, s, "l", still(100))
			for range 150 {
				if ok, err := s.Take(t.Context(), []store.Charge{local(c, 0)}); err != nil {
					t.Fatal(err)
				} else if ok {
					admitted++
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if admitted != 3*want {
			t.Errorf("told of %d instances, three admitted %d, want %d each", told, admitted, want)
		}
	}
}
