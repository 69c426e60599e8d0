package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// inTransit is for how long a call may count after its caller has had no answer: its time-out begins when it is sent,
// which a busy machine does a moment after it is asked for. A server that stands still tells nobody that this is over.
const inTransit = 30 * time.Millisecond

// TestVoid has a server that stood still run the calls that it was sent in that time. Those were
// decided without it, so they must charge nothing.
func TestVoid(t *testing.T) {
	server := redistest.Start(t)
	s := connected(t, Options{Addrs: []string{server.Addr()}, Timeout: unhurried, Logger: new(journal).logger()}, nil)
	for _, p := range []limit.Policy{
		still(1000),
		{Algorithm: limit.SlidingWindowLog, Rate: limit.Rate{Count: 1000, Period: time.Hour}},
		{Algorithm: limit.Concurrency, MaxInFlight: 1000, Timeout: time.Hour},
	} {
		c := bind(t, s, fmt.Sprint("l", p.Algorithm), p)
		take := func(key string) bool {
			one := []store.Charge{charge(c, key, 1)}
			ok, err := s.Take(t.Context(), one)
			return ok && err == nil
		}
		if !take("a") || !take("b") {
			t.Fatal("not admitted before")
		}
		ran := commandCalls(t, server)
		server.Freeze()
		var wg sync.WaitGroup
		for n := range 8 {
			wg.Go(func() {
				if take(string(rune('a' + n%2))) {
					t.Error("admitted by a server that stands still")
				}
			})
		}
		wg.Wait()
		pass(inTransit)
		server.Thaw()
		await(t, "Ready", func() bool { return s.Ready() == nil })
		a, b := used(t, s, c, "a"), used(t, s, c, "b")
		t.Logf("%v: %d and %d are charged; the server ran %d scripts after it", p.Algorithm, a, b, commandCalls(t, server)-ran)
		if a != 1 || b != 1 {
			t.Errorf("%v: %d and %d are charged, want 1 and 1", p.Algorithm, a, b)
		}
	}
}

// commandCalls is how many scripts a server has run.
func commandCalls(t *testing.T, server *redistest.Server) (n int64) {
	t.Helper()
	text := server.Text("INFO", "commandstats")
	for line := range strings.Lines(text) {
		if name, rest, ok := strings.Cut(line, ":calls="); ok && (name == "cmdstat_evalsha" || name == "cmdstat_eval") {
			var calls int64
			if _, err := fmt.Sscanf(rest, "%d,", &calls); err != nil {
				t.Fatal(err)
			}
			n += calls
		}
	}
	return n
}

// TestForgetful has the server lose what it knew: its scripts, its data, both.
func TestForgetful(t *testing.T) {
	server := redistest.Start(t)
	s := connected(t, quiet(server.Addr()), nil)
	c := bind(t, s, "l", still(3))
	full := func(what string) {
		t.Helper()
		for i := range 5 {
			var ok bool
			var err error
			await(t, "an answer", func() bool {
				ok, err = s.Take(t.Context(), []store.Charge{charge(c, "k", 1)})
				return err == nil
			})
			if ok != (i < 3) {
				t.Errorf("%s: request %d was admitted: %v", what, i, ok)
			}
		}
	}
	full("at first")
	server.Do("SCRIPT", "FLUSH")
	if ok, err := s.Take(t.Context(), []store.Charge{charge(c, "other", 1)}); !ok || err != nil {
		t.Errorf("without scripts: %v, %v", ok, err)
	}
	server.Do("FLUSHALL")
	s.denials.free(string(appendKey([]byte(c.(*Counters).bound.Load().head), []byte("k"))), 1<<62)
	full("after FLUSHALL")
	server.Restart()
	began := time.Now()
	s.denials.deaf()
	full("after a restart")
	t.Logf("exact again %v after the restart", time.Since(began).Round(time.Millisecond))
}

// TestFullServer has a server that takes no more writes.
func TestFullServer(t *testing.T) {
	server := redistest.Start(t)
	lines := new(journal)
	s := connected(t, Options{Addrs: []string{server.Addr()}, Timeout: patient, Logger: lines.logger()}, nil)
	var list []store.Counters
	var admitted [3]atomic.Int64
	for i, p := range []limit.Policy{
		still(1 << 40),
		{Algorithm: limit.SlidingWindowLog, Rate: limit.Rate{Count: 60000, Period: time.Hour}},
		{Algorithm: limit.Concurrency, MaxInFlight: 60000, Timeout: time.Hour},
	} {
		list = append(list, bind(t, s, fmt.Sprint("l", i), p))
	}
	l := startLoad(t, 12, 2*time.Millisecond, func(worker int) (store.Charge, bool, error) {
		one := []store.Charge{charge(list[worker%3], "k", 1)}
		one[0].OnFailure = store.FailReject
		ok, err := s.Take(context.Background(), one)
		if ok && err == nil {
			admitted[worker%3].Add(1)
		}
		return one[0], ok, err
	})
	l.each(t, 50)
	server.Do("CONFIG", "SET", "maxmemory", "1")
	await(t, "the loss", func() bool { return s.Ready() != nil })
	l.each(t, 50)
	t.Logf("Ready: %v", s.Ready())
	if err := s.Ready(); err == nil || !strings.Contains(err.Error(), "maxmemory") {
		t.Errorf("Ready says %v", err)
	}
	before := l.admitted.Load()
	l.each(t, 50)
	if got := l.admitted.Load(); got != before {
		t.Errorf("%d were admitted without memory", got-before)
	}
	server.Do("CONFIG", "SET", "maxmemory", "0")
	began := time.Now()
	await(t, "Ready", func() bool { return s.Ready() == nil && l.admitted.Load() > before })
	t.Logf("recovery %v; %d lines", time.Since(began).Round(time.Millisecond), len(lines.all()))
	l.end()
	if n := l.errs.Load(); n > 0 {
		t.Errorf("%d errors", n)
	}
	for i, c := range list {
		if got, want := used(t, s, c, "k"), admitted[i].Load(); got != want {
			t.Errorf("%v: %d are charged, %d were admitted", c.Spec().Policy.Algorithm, got, want)
		}
	}
	if n := len(lines.all()); n > 6 {
		t.Errorf("%d lines:\n%s", n, lines)
	}
}

// TestStrangeKeys has somebody else's values at some keys. Requests for others go on
// and are charged once.
func TestStrangeKeys(t *testing.T) {
	server := redistest.Start(t)
	lines := new(journal)
	o := quiet(server.Addr())
	o.Logger = lines.logger()
	s := connected(t, o, nil)
	log := bind(t, s, "log", limit.Policy{Algorithm: limit.SlidingWindowLog, Rate: limit.Rate{Count: 60000, Period: time.Hour}})
	places := bind(t, s, "places", limit.Policy{Algorithm: limit.Concurrency, MaxInFlight: 60000, Timeout: time.Hour})
	bucket := bind(t, s, "bucket", still(1<<40))
	key := func(c store.Counters) string {
		return string(appendKey([]byte(c.(*Counters).bound.Load().head), []byte("bad")))
	}
	server.Do("SET", key(log), "hello")
	server.Do("SET", key(places), "hello")
	server.Do("SET", key(bucket), "hello")
	all := []store.Counters{log, places, bucket}
	for _, c := range all {
		ok, err := s.Take(t.Context(), []store.Charge{charge(c, "bad", 1)})
		t.Logf("%s: %v, %v", c.Spec().ID, ok, err)
		// A text in the place of a bucket is no state, and makes way for one.
		if heals := c == bucket; ok != heals || !heals && !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v, %v, want an error that wraps ErrUnavailable", c.Spec().ID, ok, err)
		}
	}
	if err := s.Ready(); err != nil {
		t.Errorf("a strange key makes the store unready: %v", err)
	}
	var admitted [3]atomic.Int64
	var permits atomic.Uint64
	var wg sync.WaitGroup
	for n := range 24 {
		wg.Go(func() {
			for range 60 {
				which := n % 3
				c := charge(all[which], "good", 1)
				c.Permit = permits.Add(1)
				if n/3%2 == 0 {
					c.Key = []byte("bad")
				}
				ok, err := s.Take(context.Background(), []store.Charge{c})
				switch {
				case string(c.Key) == "bad":
					if err == nil && c.Counters != bucket {
						t.Errorf("%s: a strange key was decided: %v", all[which].Spec().ID, ok)
					}
				case !ok || err != nil:
					t.Errorf("%s: %v, %v", all[which].Spec().ID, ok, err)
				default:
					admitted[which].Add(1)
				}
			}
		})
	}
	wg.Wait()
	for i, c := range all {
		got, want := used(t, s, c, "good"), admitted[i].Load()
		if got != want {
			t.Errorf("%s: %d are charged, %d were admitted", c.Spec().ID, got, want)
		}
	}
	if n := len(lines.all()); n > 4 {
		t.Errorf("%d lines:\n%s", n, lines)
	}
	// Reset makes them good.
	for _, c := range all {
		if err := s.Reset(t.Context(), []store.Charge{charge(c, "bad", 1)}); err != nil {
			t.Errorf("%s: Reset of a strange key: %v", c.Spec().ID, err)
		}
		if ok, err := s.Take(t.Context(), []store.Charge{charge(c, "bad", 1)}); !ok || err != nil {
			t.Errorf("%s: after a reset %v, %v", c.Spec().ID, ok, err)
		}
	}
}

// TestStrangeKeyFar has requests for a strange key in the batches of others, whose
// server is far away.
func TestStrangeKeyFar(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	s := connected(t, Options{Addrs: []string{proxy.Addr()}, Timeout: patient, Logger: new(journal).logger()}, nil)
	c := bind(t, s, "log", limit.Policy{Algorithm: limit.SlidingWindowLog, Rate: limit.Rate{Count: 60000, Period: time.Hour}})
	server.Do("SET", string(appendKey([]byte(c.(*Counters).bound.Load().head), []byte("bad"))), "hello")
	proxy.Delay(5 * time.Millisecond)
	var good, failed atomic.Int64
	l := startLoad(t, 40, time.Millisecond, func(worker int) (store.Charge, bool, error) {
		if worker < 4 {
			one := []store.Charge{charge(c, "bad", 1)}
			ok, err := s.Take(context.Background(), one)
			return one[0], ok, err
		}
		one := []store.Charge{charge(c, fmt.Sprint("good", worker), 1)}
		ok, err := s.Take(context.Background(), one)
		good.Add(1)
		if err != nil {
			failed.Add(1)
		}
		return one[0], ok, err
	})
	l.each(t, 30)
	l.end()
	st := s.Stats()
	w, _ := l.cut()
	t.Logf("%d of %d requests for other keys failed; %v; %d calls", failed.Load(), good.Load(), w, st.Calls)
	if failed.Load() > 0 {
		t.Errorf("%d of %d requests for other keys failed", failed.Load(), good.Load())
	}
}

// local is a charge of 1 that counters in this process decide without Redis.
func local(c store.Counters, permit uint64) store.Charge {
	one := charge(c, "k", 1)
	one.OnFailure, one.Permit = store.FailLocal, permit
	return one
}

// share uses up half of 100 tokens and of 10 places without Redis, and gives some back.
func share(t *testing.T, s *Store, c, places store.Counters) {
	t.Helper()
	var taken []store.Charge
	for n := range 80 {
		one := []store.Charge{local(c, 0)}
		ok, err := s.Take(t.Context(), one)
		if err != nil || !one[0].Failed {
			t.Fatalf("request %d: %v, failed %v", n, err, one[0].Failed)
		}
		if ok {
			taken = append(taken, one[0])
		}
	}
	if len(taken) != 50 {
		t.Errorf("admitted %d, want the share of 50", len(taken))
	}
	if err := s.Refund(t.Context(), taken[:5]); err != nil {
		t.Error(err)
	}
	again := 0
	for range 20 {
		one := []store.Charge{local(c, 0)}
		if ok, err := s.Take(t.Context(), one); ok && err == nil {
			again++
		}
	}
	if again != 5 {
		t.Errorf("admitted %d after a refund of 5", again)
	}
	held := 0
	for n := range 8 {
		if ok, err := s.Take(t.Context(), []store.Charge{local(places, uint64(n))}); ok && err == nil {
			held++
		}
	}
	if held != 5 {
		t.Errorf("%d places are held, want the share of 5", held)
	}
	done := local(places, 0)
	done.Failed = true
	if err := s.Finish(t.Context(), []store.Charge{done}); err != nil {
		t.Logf("Finish while Redis is away: %v", err)
	}
	if ok, err := s.Take(t.Context(), []store.Charge{local(places, 99)}); !ok || err != nil {
		t.Errorf("no place after one ended: %v, %v", ok, err)
	}
}

// TestLocal divides limits by how many stores there are while Redis is away.
func TestLocal(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var list []*Store
	for range 3 {
		o := Options{Addrs: []string{server.Addr()}, Timeout: unhurried, Local: memory.New(memory.Options{}), Logger: new(journal).logger()}
		list = append(list, connected(t, o, nil))
	}
	await(t, "three instances to be seen by each", func() bool {
		return !slices.ContainsFunc(list, func(s *Store) bool { return s.Stats().Instances != 3 })
	})
	if err := list[2].Close(); err != nil {
		t.Fatal(err)
	}
	began, machine := time.Now(), machineLate(t)
	await(t, "an instance that ended to be missed", func() bool { return list[0].Stats().Instances == 2 && list[1].Stats().Instances == 2 })
	t.Logf("missed after %v", time.Since(began).Round(10*time.Millisecond))
	if took := time.Since(began); took > 5500*time.Millisecond+2*machine() {
		t.Errorf("an instance that ended is counted for %v", took)
	}
	p := still(100)
	places := limit.Policy{Algorithm: limit.Concurrency, MaxInFlight: 10, Timeout: time.Hour}
	var counters, inFlight []store.Counters
	for _, s := range list[:2] {
		counters, inFlight = append(counters, bind(t, s, "l", p)), append(inFlight, bind(t, s, "p", places))
	}
	for range 10 {
		if ok, err := list[0].Take(t.Context(), []store.Charge{local(counters[0], 0)}); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	// The first call of all has no time from which it is void.
	if ok, err := list[1].Take(t.Context(), []store.Charge{charge(counters[1], "other", 1)}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	server.Freeze()
	for i, s := range list[:2] {
		share(t, s, counters[i], inFlight[i])
	}
	server.Thaw()
	for i, s := range list[:2] {
		await(t, "Ready", func() bool { return s.Ready() == nil })
		await(t, "what was admitted without Redis to be charged", func() bool { return used(t, s, counters[i], "k") == 100 })
	}
}

// TestCloseUnderLoad closes a store that is in use, whatever its server does.
func TestCloseUnderLoad(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		t.Run(fmt.Sprintf("frozen %v", frozen), func(t *testing.T) {
			server := redistest.Start(t)
			first := len(ours())
			o := quiet(server.Addr())
			s, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			awaitReady(t, s)
			c := bind(t, s, "l", still(1<<40))
			const callers = 32
			var waiting atomic.Int64
			l := startLoad(t, callers, time.Millisecond, func(worker int) (store.Charge, bool, error) {
				one := []store.Charge{charge(c, fmt.Sprint("k", worker%5), 1)}
				waiting.Add(1)
				defer waiting.Add(-1)
				ok, err := s.Take(context.Background(), one)
				return one[0], ok, err
			})
			l.each(t, 20)
			if frozen {
				server.Freeze()
				await(t, "all to wait for the server", func() bool { return waiting.Load() == callers })
			}
			began := time.Now()
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			took := time.Since(began)
			l.each(t, 1) // those that were under way
			_, before := l.cut()
			l.each(t, 300) // so many that one moment in which the machine runs none of the callers is not a hundredth
			l.end()
			w, late := l.cut()
			t.Logf("Close took %v; after it %v", took.Round(time.Millisecond), w)
			if took > time.Second+before {
				t.Errorf("Close took %v", took)
			}
			if slow := w.at(0.99); slow > 5*time.Millisecond+late {
				t.Errorf("requests after Close waited %v; the machine adds %v", slow, late)
			}
			one := []store.Charge{charge(c, "k", 1)}
			for name, do := range map[string]func(context.Context, []store.Charge) error{"Refund": s.Refund, "Finish": s.Finish, "Reset": s.Reset} {
				if err := do(t.Context(), one); err == nil {
					t.Errorf("%s after Close succeeded", name)
				}
			}
			awaitLeft(t, first)
		})
	}
}
