package client

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// table opens a Keyed without a network.
func table(t *testing.T, o KeyedOptions) *Keyed {
	t.Helper()
	k, err := leased(t, 0, 0).lease.client.Keyed("k", []string{"account"}, o)
	if err != nil {
		t.Fatal(err)
	}
	k.client.lanes()[0].link.Store(linkDown) // nobody is asked
	return k
}

func account(name string) limit.Request {
	return limit.Request{Attributes: []limit.Attribute{{Name: "account", Value: name}}}
}

// touch uses a key, which is refused since nothing is lent.
func touch(t *testing.T, k *Keyed, name string) limit.Reason {
	t.Helper()
	d, err := k.Take(t.Context(), account(name))
	if err != nil || d.Allowed {
		t.Fatalf("key %s: %+v, %v", name, d, err)
	}
	return d.Results[0].Reason
}

// at is the lease of a key that has one.
func (k *Keyed) at(key string) keyLease {
	e := k.table.Find([]byte(key))
	defer e.Done()
	return e.Value
}

// accounts are those that have a lease.
func (k *Keyed) accounts() (all []string) {
	k.table.Each(func(v keyLease) { all = append(all, v.lease().id.Key[1:]) })
	slices.Sort(all)
	return all
}

// TestKeysIdleOut: a sweep closes the keys that nobody has asked for during Idle, and no
// others: not one that is in use or waited for, nor one that was used a moment less ago.
func TestKeysIdleOut(t *testing.T) {
	for _, gauge := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			const idle = 5 * time.Second
			k := table(t, KeyedOptions{Idle: idle, Semaphore: gauge})
			touch(t, k, "old")
			touch(t, k, "waited")
			e := k.at("\x06waited")
			if gauge {
				e.semaphore.AcquireFunc(1, limit.Never, func(error) {})
			} else {
				e.limiter.WaitFunc(1, limit.Never, func(error) {})
			}
			touch(t, k, "busy")
			busy := k.table.Find([]byte("\x04busy"))
			time.Sleep(1)
			touch(t, k, "young")
			time.Sleep(idle - 2)
			if k.table.Sweep(k.client.now()); k.Keys() != 4 {
				t.Fatalf("a moment before: %q", k.accounts())
			}
			time.Sleep(1)
			if k.table.Sweep(k.client.now()); !slices.Equal(k.accounts(), []string{"busy", "waited", "young"}) {
				t.Errorf("when one is idle for %v: %q", idle, k.accounts())
			}
			busy.Done()
			time.Sleep(1)
			if k.table.Sweep(k.client.now()); !slices.Equal(k.accounts(), []string{"waited"}) {
				t.Errorf("a moment later: %q", k.accounts())
			}
			touch(t, k, "old") // it is opened anew
			if k.client.lanes()[0].mu.Lock(); len(k.client.lanes()[0].leases) != 3 {
				t.Errorf("%d leases, want those of two keys and one without", len(k.client.lanes()[0].leases))
			}
			k.client.lanes()[0].mu.Unlock()
		})
	}
}

// TestFullTableMakesRoom: of a full table the key that was used longest ago makes room for a
// new one, if that was a second ago and it is not in use; else the new one is refused, with
// a retry-after of when one may have idled out.
func TestFullTableMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := table(t, KeyedOptions{MaxKeys: 3, Idle: time.Minute})
		refused := []int64{}
		k.client.opts.Hooks.OnRefuse = func(_ string, n int64, _ limit.Reason) { refused = append(refused, n) }
		for _, name := range []string{"a", "b", "c"} {
			touch(t, k, name)
			time.Sleep(100 * time.Millisecond)
		}
		busy := k.table.Find([]byte("\x01a"))
		time.Sleep(800*time.Millisecond - 1)
		// b was used a second ago but for a nanosecond.
		for _, peek := range []bool{false, true} {
			req := account("d")
			if req.Cost, req.Peek = 3, peek; peek {
				req.Cost = 4
			}
			d, err := k.Take(t.Context(), req)
			if err != nil || d.Allowed || d.Status != 429 || d.Results[0].Reason != limit.ReasonTableFull || d.Results[0].RetryAfter != time.Minute || d.Results[0].Cost != req.Cost {
				t.Errorf("a fourth key: %+v, %v", d, err)
			}
		}
		if d, err := k.Take(t.Context(), limit.Request{}); err != nil || !d.Allowed || len(d.Results) != 0 {
			t.Errorf("a request that the limit does not apply to: %+v, %v", d, err)
		}
		if !slices.Equal(refused, []int64{1, 1, 1, 3}) {
			t.Errorf("hooks were told of refusals of %v, want those of the keys that were touched and not that of a look", refused)
		}
		if err := k.Demand(account("d"), 1); err == nil || !strings.Contains(err.Error(), "3 keys") {
			t.Errorf("Demand: %v", err)
		}
		time.Sleep(1)
		if touch(t, k, "d") == limit.ReasonTableFull || !slices.Equal(k.accounts(), []string{"a", "c", "d"}) {
			t.Errorf("a moment later: %q", k.accounts())
		}
		busy.Done()
		time.Sleep(time.Second)
		touch(t, k, "c") // so it is the youngest
		if touch(t, k, "e"); !slices.Equal(k.accounts(), []string{"c", "d", "e"}) {
			t.Errorf("with the oldest idle: %q", k.accounts())
		}
		if touch(t, k, "c"); !slices.Equal(k.accounts(), []string{"c", "d", "e"}) {
			t.Errorf("one that is there needs no room: %q", k.accounts())
		}
	})
}

// TestKeysThatAreNone: a key that is too long is an error and not an admission, for each verb;
// what the table cannot open is one as well.
func TestKeysThatAreNone(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	k := table(t, KeyedOptions{})
	var r limit.Result
	for n, good := range map[int]bool{1022: true, 1023: false} { // and two for its length
		req := account(fmt.Sprintf("%0*d", n, 1))
		d, take := k.Take(t.Context(), req)
		_, hold := k.Prepare(t.Context(), req, false, &r)
		demand := k.Demand(req, 1)
		if d.Allowed || (take == nil) != good || (hold == nil) != good || (demand == nil) != good {
			t.Errorf("a key of %d bytes: %+v; Take %v, Hold %v, Demand %v", n, d, take, hold, demand)
		}
		if err := k.Finish(t.Context(), req, 1); err != nil {
			t.Errorf("Finish: %v", err)
		}
	}
	k.client.ended = true // as Run leaves it
	d, take := k.Take(t.Context(), account("new"))
	_, hold := k.Prepare(t.Context(), account("new"), false, &r)
	if demand := k.Demand(account("new"), 1); d.Allowed || !errors.Is(take, ErrClosed) || !errors.Is(hold, ErrClosed) || !errors.Is(demand, ErrClosed) {
		t.Errorf("after the end: %+v; Take %v, Hold %v, Demand %v", d, take, hold, demand)
	}
	if _, err := k.client.Keyed("n", []string{"account"}, KeyedOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("Keyed after the end: %v", err)
	}
}

// TestKeysOfASemaphore: permits are counted for each key by itself, and come back by the request
// that took them, once, and by no other.
func TestKeysOfASemaphore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, time.Millisecond)
		h.terms["k"] = placesOf(2)
		c := h.run(t, "one")
		k, err := c.Keyed("k", []string{"account"}, KeyedOptions{Semaphore: true, RefuseMissing: true})
		if err != nil {
			t.Fatal(err)
		}
		take := func(name string) (limit.Decision, error) { return k.Take(t.Context(), account(name)) }
		inUse := func(want int64, when string) {
			t.Helper()
			if got := k.at("\x01a").semaphore.InUse(); got != want {
				t.Errorf("%s: %d places of a are in use, want %d", when, got, want)
			}
		}
		var permits []uint64
		for _, name := range []string{"a", "a", "b"} {
			d, err := take(name)
			if err != nil || !d.Allowed || d.Permit == 0 || d.Results[0].Algorithm != limit.Concurrency {
				t.Fatalf("%s: %+v, %v", name, d, err)
			}
			permits = append(permits, d.Permit)
		}
		if d, err := take("a"); err != nil || d.Allowed || d.Results[0].Reason != limit.ReasonConcurrency {
			t.Errorf("a third place of a: %+v, %v", d, err)
		}
		inUse(2, "before")
		for _, req := range []limit.Request{{}, account("nobody"), account("b")} {
			if err := k.Finish(t.Context(), req, permits[0]+100); err != nil {
				t.Error(err)
			}
		}
		inUse(2, "after the ends of others")
		for range 2 {
			if err := k.Finish(t.Context(), account("a"), permits[1]); err != nil {
				t.Error(err)
			}
			inUse(1, "after one end")
		}
		var r limit.Result
		held, err := k.Prepare(t.Context(), account("a"), false, &r)
		if err != nil || !r.Allowed || held.Permit == 0 {
			t.Fatalf("Hold: %+v, %+v, %v", held, r, err)
		}
		inUse(2, "held")
		k.Rollback(held)
		inUse(1, "given back")
		if held, err = k.Prepare(t.Context(), account("a"), true, &r); err != nil || !r.Allowed {
			t.Fatalf("Hold: %+v, %v", r, err)
		}
		k.Commit(held)
		inUse(2, "kept")
		for _, none := range []limit.Prepared{{}, {Of: k, Cost: 1, Permit: held.Permit}} {
			k.Rollback(none)
			k.Commit(none)
		}
		inUse(2, "after holds of nobody")
		if d, err := k.Take(t.Context(), limit.Request{}); err != nil || d.Allowed || d.Results[0].Reason != limit.ReasonMissing || d.Results[0].Algorithm != limit.Concurrency {
			t.Errorf("without the key: %+v, %v", d, err)
		}
		k.Close()
		if k.Keys() != 0 || !slices.Equal(k.Attributes(), []string{"account"}) || !k.Shared() {
			t.Errorf("%d keys of %q after Close", k.Keys(), k.Attributes())
		}
	})
}

// TestPermitsOutlastIdle: however long a permit is held and nobody asks for its key, all instances together never have
// more of one key in flight than there are, and what comes back is free again.
func TestPermitsOutlastIdle(t *testing.T) {
	if testing.Short() {
		t.Skip("TestRunSweepsKeys has the same goroutines: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 2) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 9))
			most := 1 + rnd.Int64N(3)
			idle := time.Duration(1+rnd.IntN(10)) * time.Second
			h := newHub(t, time.Millisecond)
			h.terms["k"] = placesOf(most)
			var of [2]*Keyed
			for i := range of {
				var err error
				if of[i], err = h.run(t, string(rune('a'+i))).Keyed("k", []string{"account"}, KeyedOptions{Semaphore: true, Idle: idle}); err != nil {
					t.Fatal(err)
				}
			}
			type held struct {
				by     *Keyed
				key    string
				permit uint64
			}
			var inFlight []held
			for range 60 {
				time.Sleep(time.Duration(rnd.ExpFloat64() * float64(idle)))
				if i := rnd.IntN(10); i < len(inFlight) {
					one := inFlight[i]
					inFlight = slices.Delete(inFlight, i, i+1)
					if err := one.by.Finish(t.Context(), account(one.key), one.permit); err != nil {
						t.Fatal(err)
					}
					continue
				}
				one := held{by: of[rnd.IntN(2)], key: string(rune('a' + rnd.IntN(3)))}
				d, err := one.by.Take(t.Context(), account(one.key))
				if err != nil {
					t.Fatal(err)
				}
				if !d.Allowed {
					continue
				}
				one.permit = d.Permit
				inFlight = append(inFlight, one)
				n := int64(0)
				for _, other := range inFlight {
					if other.key == one.key {
						n++
					}
				}
				if n > most {
					t.Fatalf("seed %d: %d are in flight of %s, want at most %d", seed, n, one.key, most)
				}
			}
			for _, one := range inFlight {
				if err := one.by.Finish(t.Context(), account(one.key), one.permit); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Minute)
			for _, key := range []string{"a", "b", "c"} {
				for n := range most {
					if d, err := of[rnd.IntN(2)].Take(t.Context(), account(key)); err != nil || !d.Allowed {
						t.Fatalf("seed %d: %d permits of %s are in use, and the next of %d is refused: %+v, %v", seed, n, key, most, d, err)
					}
				}
			}
		})
	}
}

// TestKeysOfARate: a rate has nothing to finish, and does not apply to a request without the
// attribute.
func TestKeysOfARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, time.Millisecond)
		h.terms["r"] = rateOf(1, 2)
		c := h.run(t, "one")
		rate, err := c.Keyed("r", []string{"account"}, KeyedOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if d, err := rate.Take(t.Context(), account("a")); err != nil || !d.Allowed || d.Permit != 0 {
			t.Errorf("a rate: %+v, %v", d, err)
		}
		if err := rate.Finish(t.Context(), account("a"), 1); err != nil || rate.at("\x01a").limiter.Remaining() != 1 {
			t.Errorf("a rate has nothing to finish: %v, %d remain", err, rate.at("\x01a").limiter.Remaining())
		}
		if d, err := rate.Take(t.Context(), limit.Request{}); err != nil || !d.Allowed || len(d.Results) != 0 {
			t.Errorf("a limit that does not apply: %+v, %v", d, err)
		}
	})
}

// TestRunSweepsKeys: keys that are idle are closed without anybody asking, at the next sweep.
func TestRunSweepsKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, time.Millisecond)
		h.terms["k"] = rateOf(100, 100)
		k, err := h.run(t, "one").Keyed("k", []string{"account"}, KeyedOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			if d, err := k.Take(t.Context(), account(fmt.Sprint(i))); err != nil || !d.Allowed {
				t.Fatalf("%+v, %v", d, err)
			}
		}
		time.Sleep(DefaultIdle - sweepEvery)
		if k.Keys() != 10 {
			t.Errorf("%d keys before they were idle for %v", k.Keys(), DefaultIdle)
		}
		time.Sleep(2 * sweepEvery)
		if k.Keys() != 0 {
			t.Errorf("%d keys when they were idle for %v", k.Keys(), DefaultIdle+sweepEvery)
		}
	})
}
