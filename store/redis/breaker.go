package redis

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

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
	b.store.health.lost(b.store, err)
	b.store.stats.open.Add(1)
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
	defer s.stats.open.Add(-1)
	pause := shortestPause
	for {
		err := b.try()
		if err == nil {
			b.last.Store(s.clock())
			b.open.Store(false)
			if s.stats.open.Load() == 1 {
				s.health.found(s)
			}
			return
		}
		if s.ctx.Err() != nil {
			return
		}
		s.health.lost(s, describe(err, s.opts))
		if !s.wait(jitter(pause)) {
			return
		}
		pause = min(2*pause, longestPause)
	}
}

// try writes, since a replica and a full server answer questions.
func (b *breaker) try() error {
	s := b.store
	key := *b.key.Load() + ":probe" // of the same slot
	ctx, cancel := context.WithTimeout(s.ctx, s.opts.Timeout)
	defer cancel()
	c := *s.client.Load()
	return c.Do(ctx, c.B().Set().Key(key).Value("").Px(time.Second).Build()).Error()
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
}

var errConnecting = fmt.Errorf("redis: %w: connecting", store.ErrUnavailable)

// lost notes that the connection is of no use, and logs it once for each reason.
func (h *health) lost(s *Store, err error) {
	old := h.reason.Swap(&err)
	if err == errConnecting || old != nil && (*old).Error() == err.Error() {
		return
	}
	s.opts.Logger.Error("the store does not answer, limits decide as their on_store_failure says", "store", s.opts.String(), "error", err)
}

func (h *health) found(s *Store) {
	if old := h.reason.Swap(nil); old != nil {
		s.opts.Logger.Info("the store answers", "store", s.opts.String())
	}
}

// odd logs a failure that concerns single keys, once in a while.
func (h *health) odd(s *Store, err error) {
	const pause = int64(10 * time.Second)
	now := int64(time.Since(s.begin)) + 1
	if last := h.oddAt.Load(); (last == 0 || now-last > pause) && h.oddAt.CompareAndSwap(last, now) {
		s.opts.Logger.Error("the store cannot decide about a key; others like it are not logged for 10 s", "store", s.opts.String(), "error", err)
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
