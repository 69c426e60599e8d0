package remote

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/stint-io/stint/bench/internal/contender"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/redis"
)

// patience is the deadline of stint's calls. Longer than its users would set, so
// that a machine with other work on it shows in the latency and not as errors.
const patience = time.Second

// stint is the Redis store of this project.
type stint struct {
	store    *redis.Store
	counters store.Counters
}

func newStint(addr string, p contender.Plan) (Limiter, error) {
	s, err := redis.New(redis.Options{Addrs: []string{addr}, Timeout: patience, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	c, err := s.Bind(store.Spec{ID: "bench", Policy: p.Policy()})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	l := &stint{s, c}
	if err := l.ready(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return l, nil
}

// ready waits, at most 10 seconds, until the store is connected: it does so beside
// its callers, and answers them with errors meanwhile.
func (s *stint) ready() error {
	late := time.After(10 * time.Second)
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		_, err := s.store.Peek(context.Background(), []store.Charge{{Counters: s.counters, Key: []byte("ready")}})
		if !errors.Is(err, store.ErrUnavailable) {
			return err
		}
		select {
		case <-late:
			return err
		case <-again.C:
		}
	}
}

// RoundTrip is what its calls take, a smoothed mean of the last ones.
func (s *stint) RoundTrip() time.Duration { return s.store.Stats().RoundTrip }

func (s *stint) Close() error { return s.store.Close() }

func (s *stint) Caller() Caller {
	charge := make([]store.Charge, 1)
	var buf []byte
	return func(ctx context.Context, key string) (Answer, error) {
		buf = append(buf[:0], key...)
		charge[0] = store.Charge{Counters: s.counters, Key: buf, Cost: 1}
		allowed, err := s.store.Take(ctx, charge)
		v := &charge[0].Verdict
		return Answer{allowed, v.Remaining, v.RetryAfter}, err
	}
}
