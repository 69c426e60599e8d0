package remote_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/bench/internal/contender"
	"github.com/stint-io/stint/bench/internal/redisserver"
	"github.com/stint-io/stint/bench/internal/remote"
)

func limiters() []remote.Contender {
	return append([]remote.Contender{remote.Stint(), remote.Bare()}, remote.Rivals()...)
}

func start(t *testing.T) *redisserver.Server {
	t.Helper()
	s, err := redisserver.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func open(t *testing.T, s *redisserver.Server, c remote.Contender, p contender.Plan) remote.Limiter {
	t.Helper()
	l, err := c.New(s.Addr, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// Of twice the burst, asked for by several callers at once, each contender admits
// exactly the burst, and does so for every key: one that was wired up wrongly
// would be fast.
func TestContendersLimit(t *testing.T) {
	const burst, callers = 200, 8
	s := start(t)
	for _, c := range limiters() {
		t.Run(c.Name, func(t *testing.T) {
			l := open(t, s, c, contender.Plan{Count: 1, Period: time.Hour, Burst: burst})
			for _, key := range []string{"a", "b"} {
				var admitted atomic.Int64
				var all sync.WaitGroup
				for range callers {
					call := l.Caller()
					all.Go(func() {
						for range 2 * burst / callers {
							a, err := call(t.Context(), key)
							if err != nil {
								t.Error(err)
							}
							if a.Allowed {
								admitted.Add(1)
							}
						}
					})
				}
				all.Wait()
				if admitted.Load() != burst {
					t.Errorf("key %s: %d of %d admitted, want %d", key, admitted.Load(), 2*burst, burst)
				}
			}
		})
	}
}

// What is left and when to come again are decoded, not only yes and no.
func TestAnswersAreComplete(t *testing.T) {
	s := start(t)
	for _, c := range limiters() {
		t.Run(c.Name, func(t *testing.T) {
			call := open(t, s, c, contender.Plan{Count: 1, Period: time.Hour, Burst: 3}).Caller()
			for _, want := range []remote.Answer{{Allowed: true, Remaining: 2}, {Allowed: true, Remaining: 1}, {Allowed: true}, {}} {
				got, err := call(context.Background(), "k")
				if err != nil || got.Allowed != want.Allowed || got.Remaining != want.Remaining {
					t.Errorf("got %+v, %v, want %+v", got, err, want)
				}
				if wait := got.RetryAfter; !want.Allowed && (wait < time.Minute || wait > 3*time.Hour) {
					t.Errorf("refused, to come again in %v, want about an hour", wait)
				}
			}
		})
	}
}
