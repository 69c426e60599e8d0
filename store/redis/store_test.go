package redis

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/storetest"
)

// connected returns a store that has answered once.
func connected(t testing.TB, o Options, now func() limit.Time) *Store {
	t.Helper()
	s, err := open(o, now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	awaitReady(t, s)
	return s
}

// awaitReady waits until the store answers and hears of refunds.
func awaitReady(t testing.TB, s *Store) {
	t.Helper()
	await(t, "the store to answer", func() bool { return s.Ready() == nil && s.denials.on.Load() })
}

// await waits until something holds.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patient); !holds(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %v for %s", patient, what)
		}
	}
}

// patient is a time-out that a busy machine does not exceed.
const patient = time.Minute

// unhurried is one that a busy machine seldom exceeds, where a test waits for its end.
const unhurried = 500 * time.Millisecond

func TestStore(t *testing.T) {
	server := redistest.Start(t)
	storetest.Run(t, func(t testing.TB, now func() limit.Time) store.Store {
		server.Do("FLUSHALL")
		return connected(t, Options{Addrs: []string{server.Addr()}, Timeout: patient}, now)
	}, storetest.Options{Resolution: time.Microsecond, Shared: true, Concurrent: testing.Short()})
}
