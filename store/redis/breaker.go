package redis

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// breaker keeps requests from waiting for a server that does not answer. It opens
// when one did not in time, or said that it cannot, and nobody had an answer
// since that was asked; then a probe asks until there is an answer.
type breaker struct {
	store *Store
	open  atomic.Bool
	last  atomic.Int64           // when somebody last had an answer, on the store's clock
	key   atomic.Pointer[string] // what was asked for in vain
}

func newBreaker(s *Store) *breaker {
	b := &breaker{store: s}
	b.last.Store(-1)
	return b
}

func (b *breaker) succeeded(at int64) { b.last.Store(at) }

// failed notes that what was asked of a key at that time failed.
func (b *breaker) failed(err error, asked int64, key string) {
	if b.last.Load() >= asked || b.store.ctx.Err() != nil || !b.open.CompareAndSwap(false, true) {
		return
	}
	b.key.Store(&key)
	b.store.stats.open.Add(1)
	b.store.health.lost(b.store, err)
	if !b.store.start(b.probe) {
		b.store.stats.open.Add(-1)
	}
}

// The pauses between probes. The longest is short enough to come back well within
// a second, and long enough that a hundred instances trouble nobody.
const (
	shortestPause = 25 * time.Millisecond
	longestPause  = 200 * time.Millisecond
)

// probe asks until there is an answer, and closes the breaker then. The first time
// is at once: most failures are a pause of the server that has just ended.
func (b *breaker) probe() {
	s := b.store
	pause := shortestPause
	for {
		err := b.try()
		if err == nil {
			b.last.Store(s.clock())
			b.open.Store(false)
			if s.stats.open.Add(-1) == 0 {
				s.health.found(s)
			}
			s.settle(b)
			return
		}
		s.health.lost(s, describe(err, s.opts))
		if !s.wait(jitter(pause)) {
			s.stats.open.Add(-1)
			return
		}
		pause = min(2*pause, b.longest())
	}
}

// longest is the longest pause: in a Cluster, whose failover takes a second at least
// and where each lane of a master that is gone has a probe, four times as long.
func (b *breaker) longest() time.Duration {
	if b.store.opts.Topology == Cluster {
		return 4 * longestPause
	}
	return longestPause
}

// probed is what a probe takes from: a bucket that is never empty.
var probed = limit.Policy{Algorithm: limit.TokenBucket, Rate: limit.Rate{Count: 1000, Period: time.Second}, Burst: 1000}

// try asks the server that does not answer.
func (b *breaker) try() error {
	s := b.store
	ctx, cancel := context.WithTimeout(s.ctx, s.opts.Timeout)
	defer cancel()
	return probe(ctx, *s.client.Load(), *b.key.Load())
}

// probe runs the script for a key in the slot of another, as requests do: other
// commands may be allowed when it is not. It writes, since a replica and a full
// server answer questions.
func probe(ctx context.Context, c rueidis.Client, key string) error {
	r, err := newRule(probed)
	if err != nil {
		return err
	}
	one := new(batch)
	one.reset()
	one.accept(&operation{verb: verbTake, parts: []part{{rule: r, key: key + ":probe", cost: 1}}})
	one.arrange()
	keys, args := one.encode(0, 0, slack, "")
	return runScript(ctx, c, [][]string{keys}, [][]string{args})[0].Error()
}

// wait waits, and reports false when the store closed meanwhile.
func (s *Store) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// health is what is known of the connection as a whole.
type health struct {
	reason atomic.Pointer[error] // nil = all is well
	oddAt  atomic.Int64          // when an oddity was last logged

	mu   sync.Mutex
	told map[string]bool // the reasons that were logged since all was well
}

// maxTold bounds the lines of one loss: the nodes of a cluster fail in many ways.
const maxTold = 8

var errConnecting = fmt.Errorf("redis: %w: connecting", store.ErrUnavailable)

// lost notes that the connection is of no use, and logs it once for each reason.
func (h *health) lost(s *Store, err error) {
	h.reason.Store(&err)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == errConnecting || s.ctx.Err() != nil || h.told[err.Error()] || len(h.told) >= maxTold {
		return
	}
	if h.told == nil {
		h.told = make(map[string]bool)
	}
	h.told[err.Error()] = true
	s.opts.Logger.Error("the store does not answer, limits decide as their on_store_failure says", "store", s.opts.String(), "error", err)
}

func (h *health) found(s *Store) {
	if old := h.reason.Swap(nil); old != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		clear(h.told)
		s.opts.Logger.Info("the store answers", "store", s.opts.String())
	}
}

// odd logs a failure that concerns single keys, once in a while.
func (h *health) odd(s *Store, err error) {
	const pause = int64(10 * time.Second)
	now := int64(time.Since(s.begin)) + 1
	if last := h.oddAt.Load(); (last == 0 || now-last > pause) && h.oddAt.CompareAndSwap(last, now) {
		s.opts.Logger.Error("the store cannot do all that it is asked; more of this is not logged for 10 s", "store", s.opts.String(), "error", err)
	}
}

// why returns the reason.
func (h *health) why() error {
	if err := h.reason.Load(); err != nil {
		return *err
	}
	return store.ErrUnavailable
}

// Ready says whether Redis answers: nil, or why not.
func (s *Store) Ready() error {
	if err := s.health.reason.Load(); err != nil {
		return *err
	}
	return nil
}
