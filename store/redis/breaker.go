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

// breaker keeps requests from waiting for a server that does not answer. It opens when a call
// had no answer in time, or a failure as its answer, and no other call had an answer since that
// one was sent; then a probe asks until there is an answer.
type breaker struct {
	store *Store

	// open, outages and ending are changed with localCharges.mu held.
	open    atomic.Bool
	outages atomic.Int64 // the number of the latest outage
	ending  atomic.Bool  // what the shares refilled is being settled for the last time

	settling atomic.Int64 // settlements that have not ended

	last atomic.Int64           // time of the latest answer, on the store's clock
	key  atomic.Pointer[string] // a key of the call that failed

	// rejoin is until when, on the store's clock, limits with store.FailLocal are still decided by
	// their shares.
	rejoin atomic.Int64
}

func newBreaker(s *Store) *breaker {
	b := &breaker{store: s}
	b.last.Store(-1)
	b.outages.Store(1) // until the first contact
	return b
}

func (b *breaker) succeeded(at int64) { b.last.Store(at) }

// failed records that a call for key, sent at asked, failed.
func (b *breaker) failed(err error, asked int64, key string) {
	if b.last.Load() >= asked || b.store.ctx.Err() != nil || !b.trip() {
		return
	}
	b.key.Store(&key)
	b.store.health.opened(b.store, err)
	if !b.store.start(b.probe) {
		b.store.stats.open.Add(-1)
	}
}

// trip opens the breaker, unless it is open.
func (b *breaker) trip() bool {
	l := &b.store.localCharges
	l.mu.Lock()
	defer l.mu.Unlock()
	if b.open.Load() {
		return false
	}
	if !b.rejoining() {
		b.outages.Add(1)
	}
	b.open.Store(true)
	return true
}

// outage is the number of the outage in which shares decide and refill, or 0. After the first contact it ends
// with the grace of the instance.
func (b *breaker) outage() int64 {
	if b.store.client.Load() == nil || b.open.Load() && !b.ending.Load() || b.rejoining() {
		return b.outages.Load()
	}
	return 0
}

// The pauses between probes. The longest is short enough to notice an answer well within a
// second, and long enough that a hundred instances do not load the server.
const (
	shortestPause = 25 * time.Millisecond
	longestPause  = 200 * time.Millisecond
)

// probe asks until there is an answer, then closes the breaker. It asks at once: most failures
// are a pause of the server that has just ended.
func (b *breaker) probe() {
	s := b.store
	pause := shortestPause
	for {
		err := b.try()
		if err == nil {
			err = b.close()
		}
		if err == nil {
			s.health.closed(s)
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

// close ends an outage: what the shares refilled is settled before requests go to the server, so that none
// takes the tokens that were spent meanwhile. A grace begins if other instances share the limits. A
// settlement that the server does not answer is an error, and the outage goes on.
func (b *breaker) close() error {
	s := b.store
	l := &s.localCharges
	for b.settling.Load() > 0 { // of before the outage; what fails is to be settled again
		if !s.wait(s.glance()) {
			return s.ctx.Err()
		}
	}
	l.mu.Lock()
	ops := s.collect(b, "", b.outage())
	l.mu.Unlock()
	if err := s.charge(ops); err != nil {
		return err
	}
	// Again for what shares have decided since; without a grace they do not refill from here on.
	alone := s.sharers() == 1
	l.mu.Lock()
	ops = s.collect(b, "", b.outage())
	b.ending.Store(alone)
	l.mu.Unlock()
	err := s.charge(ops)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		now := s.clock()
		b.last.Store(now)
		if !alone {
			b.rejoin.Store(now + int64(b.grace()))
		}
		b.open.Store(false)
	}
	b.ending.Store(false)
	return err
}

// grace is for how long shares decide after an outage. Had the server been away for all, then all are back
// by then and have charged what their shares refilled. Otherwise the first would take that as well.
func (b *breaker) grace() time.Duration { return 2 * b.longest() }

// rejoining reports whether shares still decide.
func (b *breaker) rejoining() bool { return b.store.clock() < b.rejoin.Load() }

// longest is the longest pause: four times as long in a Cluster, whose failover takes at least a
// second and where each lane of a lost master has a probe.
func (b *breaker) longest() time.Duration {
	if b.store.opts.Topology == Cluster {
		return 4 * longestPause
	}
	return longestPause
}

// probed is what a probe takes from: a bucket that is never empty.
var probed = limit.Policy{Algorithm: limit.TokenBucket, Rate: limit.Rate{Count: 1000, Period: time.Second}, Burst: 1000}

// try asks the server once.
func (b *breaker) try() error {
	s := b.store
	ctx, cancel := context.WithTimeout(s.ctx, s.opts.Timeout)
	defer cancel()
	one, keys, args, err := probing(*b.key.Load())
	if err != nil {
		return err
	}
	return s.runs(ctx, []*batch{one}, keys, args, []int64{0})[0].err
}

// probe runs the script for a key in the slot of another, as requests do: other
// commands may be allowed when it is not. It writes, since a replica and a full
// server answer questions.
func probe(ctx context.Context, c rueidis.Client, key string) error {
	_, keys, args, err := probing(key)
	if err != nil {
		return err
	}
	return runScript(ctx, c, keys, args)[0].Error()
}

// probing is what a probe asks.
func probing(key string) (b *batch, keys, args [][]string, err error) {
	r, err := newRule(probed)
	if err != nil {
		return nil, nil, nil, err
	}
	one := new(batch)
	one.reset()
	one.accept(&operation{verb: verbTake, parts: []part{{rule: r, key: key + ":probe", cost: 1}}})
	one.arrange()
	k, a := one.encode(0, 0, 0, keyGrace, "")
	return one, [][]string{k}, [][]string{a}, nil
}

// wait waits for d; false when the store closed before.
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

// health is the state of the connection as a whole.
type health struct {
	reason atomic.Pointer[error] // nil = all is well
	oddAt  atomic.Int64          // when an oddity was last logged

	mu     sync.Mutex
	logged map[string]bool // the reasons that were logged since all was well
}

// maxLogged bounds the lines of one loss: the nodes of a cluster fail in many ways.
const maxLogged = 8

var errConnecting = fmt.Errorf("redis: %w: connecting", store.ErrUnavailable)

// opened records that a breaker opened.
func (h *health) opened(s *Store, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.stats.open.Add(1)
	h.note(s, err)
}

// closed records that a breaker closed. With the last one all is well: the reason goes first, so that nobody sees
// no open breaker and still a reason, and under the lock, so that no reason of a breaker that opens meanwhile goes.
func (h *health) closed(s *Store) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.stats.open.Load() == 1 {
		h.clear(s)
	}
	s.stats.open.Add(-1)
}

// lost records that the connection cannot be used, and logs it once for each reason.
func (h *health) lost(s *Store, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.note(s, err)
}

// note keeps a reason, and logs it; h.mu is held.
func (h *health) note(s *Store, err error) {
	h.reason.Store(&err)
	if err == errConnecting || s.ctx.Err() != nil || h.logged[err.Error()] || len(h.logged) >= maxLogged {
		return
	}
	if h.logged == nil {
		h.logged = make(map[string]bool)
	}
	h.logged[err.Error()] = true
	s.opts.Logger.Error("the store does not answer, limits decide as their on_store_failure says", "store", s.opts.String(), "error", err)
}

// found records that the connection can be used.
func (h *health) found(s *Store) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clear(s)
}

// clear forgets the reason; h.mu is held.
func (h *health) clear(s *Store) {
	if old := h.reason.Swap(nil); old != nil {
		clear(h.logged)
		s.opts.Logger.Info("the store answers", "store", s.opts.String())
	}
}

// odd logs a failure that concerns single keys, at most once in 10 s.
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

// Ready returns nil if Redis answers, or the reason why it does not.
func (s *Store) Ready() error {
	if err := s.health.reason.Load(); err != nil {
		return *err
	}
	return nil
}
