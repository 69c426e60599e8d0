package spending

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/lending"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// TestNothingIsRemembered: of keys that came once, and of permits that ended, nothing stays
// in memory; an alias is known for 30 s after its lease, for what the client still reports.
func TestNothingIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, err := rules.Parse("test", []byte(`limits:
  - {name: a, key: [k], rate: 10/day, sharing: leased}
  - {name: p, algorithm: concurrency, max_in_flight: 100, timeout: 1h, sharing: leased}
`))
		if err != nil {
			t.Fatal(err)
		}
		logger := slog.New(slog.DiscardHandler)
		service := lending.New(lending.Options{Limits: set, State: lending.State{Epoch: 1}, Logger: logger}, 1)
		s, err := New(Options{Store: memory.New(memory.Options{}), Limits: set, Logger: logger, Connect: func(ctx context.Context) (Stream, error) { return service.Pipe(ctx, 0) }})
		if err != nil {
			t.Fatal(err)
		}
		counters := map[string]store.Counters{}
		for _, v := range set.Variants() {
			if counters[v.ID], err = s.Bind(store.Spec{ID: v.ID, Policy: v.Policy}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		lends, stopLending := context.WithCancel(t.Context())
		var spender, lender sync.WaitGroup
		lender.Go(func() { service.Run(lends) })
		spender.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		for i := range 1000 {
			charges := []store.Charge{{Counters: counters["a"], Key: store.AppendKey(nil, fmt.Sprint(i%100)), Cost: 1}, {Counters: counters["p"], Cost: 1, Permit: uint64(i)}}
			if _, err := s.Take(t.Context(), charges); err != nil {
				t.Fatal(err)
			}
			if err := s.Finish(t.Context(), charges); err != nil {
				t.Fatal(err)
			}
			s.table.Each(func(l keyLease) {
				g, ok := l.charger.(*permits)
				if !ok {
					return
				}
				g.mu.Lock()
				held, due := len(g.held), len(g.due)
				g.mu.Unlock()
				if held > 0 || due > 4*fewDue {
					t.Errorf("%s: %d permits and %d endings are remembered", l.of.name, held, due)
				}
			})
		}
		remembered := func(when string, keys, aliases int) {
			t.Helper()
			n := s.names
			n.mu.Lock()
			defer n.mu.Unlock()
			if s.Keys() != keys || len(n.known) != aliases || len(n.closed) != aliases-keys {
				t.Errorf("%s: %d keys, %d aliases, %d of them closed; want %d keys, %d aliases", when, s.Keys(), len(n.known), len(n.closed), keys, aliases)
			}
		}
		remembered("in use", 101, 101)
		time.Sleep(idleAfter + 2*sweepEvery)
		remembered("a minute later", 0, 101)
		time.Sleep(forgetAfter - 5*time.Second)
		remembered("soon after", 0, 101)
		time.Sleep(10 * time.Second)
		remembered("in the end", 0, 0)
		cancel()
		spender.Wait()
		stopLending()
		lender.Wait()
	})
}

// TestAgain: a call that meets a reload begins again, and one that meets nothing else fails as
// if the store did not answer.
func TestAgain(t *testing.T) {
	for moved := range 6 {
		calls := 0
		allowed, err := again(func() (bool, error) {
			if calls++; calls <= moved {
				return false, errMoved
			}
			return true, nil
		})
		if moved < 2 && (!allowed || err != nil || calls != moved+1) {
			t.Errorf("%d reloads: %v, %v after %d calls", moved, allowed, err, calls)
		}
		if moved > 4 && (allowed || !errors.Is(err, store.ErrUnavailable)) {
			t.Errorf("reloads all the time: %v, %v", allowed, err)
		}
	}
	broken := errors.New("broken")
	if allowed, err := again(func() (bool, error) { return false, broken }); allowed || !errors.Is(err, broken) {
		t.Errorf("another error: %v, %v", allowed, err)
	}
}
