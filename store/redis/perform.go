package redis

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stint-io/stint/store"
)

// perform has an operation decided and returns it, or a twin of it; nil when ctx ended first.
func (s *Store) perform(ctx context.Context, o *operation) *operation {
	groups := s.groups(o)
	if groups != nil {
		return s.spread(ctx, o, groups)
	}
	o = s.ask(ctx, o)
	if o != nil && o.err != nil && o.decides() {
		for i := range o.parts {
			o.parts[i].failed = true
		}
		s.fallBack(ctx, o)
	}
	return o
}

// ask has an operation decided by its lane and waits. It returns the operation, or after the
// time-out a twin with an error that wraps store.ErrUnavailable; nil when ctx ended first.
func (s *Store) ask(ctx context.Context, o *operation) *operation {
	l := s.laneOf(o.parts[0].key)
	patience := s.opts.Timeout
	outage := l.breaker.outages.Load()
	if s.client.Load() == nil {
		patience -= s.awaitContact(ctx)
	}
	if err := s.down(l.breaker); err != nil {
		o.err = err
		return o
	}
	if o.local() && l.breaker.rejoining() {
		o.err = errRejoining
		return o
	}
	o.deadline = int64(time.Since(s.begin) + patience)
	l.enqueue(o)
	if cancelled := ctx.Done(); cancelled == nil {
		<-o.done
	} else {
		select {
		case <-o.done:
		case <-cancelled:
			if o.abandon() {
				return nil
			}
			<-o.done
		}
	}
	if o.stage.Load() != stageAbandoned {
		if o.err == nil && o.allowed && l.breaker.outages.Load() != outage && o.takesFromShares() {
			// Shares may have refilled since the server took the tokens.
			o.err = errOutage
		}
		return o
	}
	t := o.twin()
	t.err = fmt.Errorf("redis: %w within %v", store.ErrUnavailable, s.opts.Timeout)
	s.stats.timeouts.Add(1)
	l.breaker.failed(t.err, t.born, t.parts[0].key)
	return t
}

// awaitContact waits for the end of the first attempt to connect, at most for the time-out, so
// that a new process enforces its limits from the first request. It returns how long that took.
func (s *Store) awaitContact(ctx context.Context) time.Duration {
	began := time.Now()
	t := time.NewTimer(s.opts.Timeout)
	defer t.Stop()
	select {
	case <-s.tried:
	case <-t.C:
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
	return time.Since(began)
}

// down returns why Redis cannot be asked, or nil.
func (s *Store) down(b *breaker) error {
	if s.client.Load() == nil || b.open.Load() || s.ctx.Err() != nil {
		return fmt.Errorf("redis: %w: %w", store.ErrUnavailable, s.health.why())
	}
	return nil
}

// groups returns the parts of an operation that are asked for together, or nil when all are: those
// in one slot, and while shares still decide, those that they decide.
func (s *Store) groups(o *operation) map[int][]int {
	if len(o.parts) == 1 {
		return nil
	}
	groups := make(map[int][]int)
	for i := range o.parts {
		p, n := &o.parts[i], 0
		if s.opts.Topology == Cluster {
			n = int(slot(p.key))
		}
		if o.decides() && p.onFailure == store.FailLocal && s.opts.Local != nil && s.laneOf(p.key).breaker.rejoining() {
			n += slots
		}
		groups[n] = append(groups[n], i)
	}
	if len(groups) == 1 {
		return nil
	}
	return groups
}

var errRejoining = fmt.Errorf("redis: %w: other instances may not be back yet", store.ErrUnavailable)

var errOutage = fmt.Errorf("redis: %w: it answered when shares decided already", store.ErrUnavailable)

// takesFromShares reports whether a part of a Take has a share that refills.
func (o *operation) takesFromShares() bool {
	return o.verb == verbTake && slices.ContainsFunc(o.parts, func(p part) bool {
		return p.onFailure == store.FailLocal && p.counters.store.opts.Local != nil && p.rule.kind != kindPermits
	})
}

func (o *operation) decides() bool { return o.verb == verbTake || o.verb == verbPeek }

// local reports whether shares can decide an operation.
func (o *operation) local() bool {
	if !o.decides() {
		return false
	}
	for i := range o.parts {
		if o.parts[i].onFailure != store.FailLocal || o.parts[i].counters.store.opts.Local == nil {
			return false
		}
	}
	return true
}

// spread performs an operation whose parts are in several slots, which no script can decide as
// one: the slots decide their parts concurrently, and when one refuses, what the others took is
// given back. Until then such a bucket is charged for a refused request: while the slowest slot
// answers (at most the time-out) and while the refund waits for its lane and is under way (at
// most twice that). In that time other requests can be refused because of it; none is admitted
// above the limit.
func (s *Store) spread(ctx context.Context, o *operation, groups map[int][]int) *operation {
	type share struct {
		op    *operation
		parts []int
	}
	shares := make([]share, 0, len(groups))
	for _, parts := range groups {
		t := newOperation(o.verb, o.born)
		t.split = true
		for _, i := range parts {
			t.parts = append(t.parts, o.parts[i])
		}
		t.once = o.once && parts[len(parts)-1] == len(o.parts)-1
		shares = append(shares, share{t, parts})
	}
	if i := slices.IndexFunc(shares, func(sh share) bool { return sh.op.once }); i >= 0 {
		// It goes first: where the Take was made before, nothing is charged in the other slots.
		shares[0], shares[i] = shares[i], shares[0]
		first := s.ask(ctx, shares[0].op)
		shares[0].op = first
		for j := range shares[1:] {
			if first == nil || first.err == nil && first.repeated() {
				shares[1+j].op.verb = verbPeek
			}
		}
	}
	var wg sync.WaitGroup
	for i := range shares {
		if i == 0 && o.once {
			continue
		}
		wg.Go(func() { shares[i].op = s.ask(ctx, shares[i].op) })
	}
	wg.Wait()
	gone, refused := false, false
	for _, sh := range shares {
		switch {
		case sh.op == nil:
			gone = true
		case sh.op.err != nil:
			o.err = sh.op.err
			for _, i := range sh.parts {
				o.parts[i].failed = true
			}
		default:
			refused = refused || !sh.op.allowed
			for j, i := range sh.parts {
				o.parts[i].verdict, o.parts[i].stand, o.parts[i].ends = sh.op.parts[j].verdict, sh.op.parts[j].stand, sh.op.parts[j].ends
			}
		}
	}
	o.allowed = !refused
	if o.err != nil && o.decides() {
		s.fallBack(ctx, o)
	}
	for _, sh := range shares {
		if sh.op == nil {
			continue
		}
		if sh.op.verb == verbTake && sh.op.err == nil && sh.op.allowed && (gone || o.err != nil || !o.allowed) {
			s.giveBack(sh.op)
		}
		if sh.op.err == nil && !o.allowed {
			for j, i := range sh.parts {
				// What counts refused requests keeps this one.
				if p := &o.parts[i]; p.verdict.Allowed && p.cost > 0 && !p.terms.counts {
					untouched(&p.verdict, sh.op.parts[j].stand)
				}
			}
		}
		sh.op.release()
	}
	if gone {
		o.release()
		return nil
	}
	return o
}

// giveBack refunds what an operation took, without waiting. Limits that count refused requests
// keep the charge.
func (s *Store) giveBack(o *operation) {
	l := s.laneOf(o.parts[0].key)
	for _, v := range []verb{verbRefund, verbFinish} {
		back := newOperation(v, s.clock())
		for i := range o.parts {
			p := &o.parts[i]
			if !p.verdict.Allowed || p.cost == 0 || p.terms.counts || (p.rule.kind == kindPermits) != (v == verbFinish) {
				continue
			}
			back.parts = append(back.parts, part{counters: p.counters, rule: p.rule, key: p.key, cost: p.cost, permit: p.permit, taken: p.taken})
		}
		if len(back.parts) == 0 {
			back.release()
			continue
		}
		back.unattended = true
		l.enqueue(back)
	}
}

// retryAfterFailure is the RetryAfter of a refusal because the store did not answer: by then the
// breaker has probed several times.
const retryAfterFailure = time.Second
