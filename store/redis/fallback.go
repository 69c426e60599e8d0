package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// localCounters are the counters of one limit that replace Redis' while that does not answer:
// this process's share of the limit, in memory.
type localCounters struct {
	mu        sync.Mutex
	counters  store.Counters
	unbound   bool
	policy    limit.Policy // the whole limit's
	instances int64
}

// get returns the counters, bound to the share of the policy in force.
func (l *localCounters) get(s *Store, c *Counters, r *rule, n int64) (store.Counters, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unbound {
		return nil, errUnbound
	}
	if l.counters != nil && l.policy == r.policy && l.instances == n {
		return l.counters, nil
	}
	counters, err := s.opts.Local.Bind(store.Spec{ID: c.id, Policy: shareOf(r.policy, n)})
	if err != nil {
		return nil, err
	}
	l.counters, l.policy, l.instances = counters, r.policy, n
	return counters, nil
}

// sharers is by how many processes a limit is divided while Redis does not answer.
func (s *Store) sharers() int64 {
	if n := int64(s.opts.Instances); n > 0 {
		return n
	}
	if n := s.instances.Load(); n > 0 {
		return n
	}
	s.assumed.Do(func() {
		s.opts.Logger.Warn("Redis was never reached, so the number of instances that share its limits is not known: those with on_store_failure: local take a part of them; set instances in the store's URL",
			"store", s.opts.String(), "instances", assumedInstances)
	})
	return assumedInstances
}

// assumedInstances is how many processes are assumed to share a limit while that is unknown:
// Redis was never reached, and Options do not say. Not fewer: several processes that start while
// Redis is down would together admit several times the limit. Not more: a process that is alone
// has only that small a share.
const assumedInstances = 16

func (l *localCounters) drop(s *Store) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unbound = true
	if l.counters == nil {
		return nil
	}
	c := l.counters
	l.counters = nil
	return s.opts.Local.Unbind(c)
}

var errUnbound = errors.New("the limit is no more")

// shareOf is one of n equal shares of a policy, so that n of them admit no more than the whole.
// The rate is divided exactly, by making its period n times as long. Amounts are rounded down,
// but not below 1, so that every instance admits something: a limit below n is exceeded by n -
// limit at most.
func shareOf(p limit.Policy, n int64) limit.Policy {
	part := func(v int64) int64 { return partOf(v, n) }
	switch p.Algorithm {
	case limit.TokenBucket, limit.LeakyBucket:
		if p.Algorithm == limit.LeakyBucket {
			// It admits one request more than its queue holds.
			p.Burst = part(p.Burst+1) - 1
		} else {
			p.Burst = part(p.Burst)
		}
		if p.Rate.Period <= limit.Never/time.Duration(n) {
			p.Rate.Period *= time.Duration(n)
		} else {
			p.Rate.Count = part(p.Rate.Count)
		}
	case limit.Concurrency:
		p.MaxInFlight = part(p.MaxInFlight)
	default:
		p.Rate.Count = part(p.Rate.Count)
	}
	return p
}

// partOf is one of n equal parts of a count.
func partOf(count, n int64) int64 {
	if count == 0 {
		return 0
	}
	return max(1, count/n)
}

// fallBack decides the parts of a Take or Peek that failed as their OnFailure says. o.err is why
// they failed; it stays if one of them has FailTake. o.allowed says whether the other parts, if
// any, admit the request.
func (s *Store) fallBack(ctx context.Context, o *operation) {
	others := false
	for i := range o.parts {
		p := &o.parts[i]
		switch {
		case !p.failed:
			others = true
		case p.shadow: // refuses nothing, and so fails nothing
		case p.onFailure == store.FailTake || p.onFailure == store.FailLocal && s.opts.Local == nil:
			return
		}
	}
	why := o.err
	o.err = nil
	o.allowed = o.allowed || !others
	var local []store.Charge
	var at []int
	n := s.sharers()
	for i := range o.parts {
		p := &o.parts[i]
		if !p.failed {
			continue
		}
		p.stand = limit.Verdict{}
		how := p.onFailure
		if how == store.FailTake || how == store.FailLocal && s.opts.Local == nil {
			how = store.FailAllow // it is a shadow
		}
		switch how {
		case store.FailAllow:
			p.verdict = limit.Verdict{Allowed: true, Remaining: p.rule.policy.Quota()}
		case store.FailReject:
			p.verdict = limit.Verdict{Reason: limit.ReasonStoreFailure, RetryAfter: retryAfterFailure}
			o.allowed = o.allowed && p.shadow
		case store.FailLocal:
			c, err := p.counters.local.get(s, p.counters, p.rule, n)
			if errors.Is(err, errUnbound) {
				p.verdict = unlimited
				continue
			} else if err != nil {
				o.err = fmt.Errorf("redis: %w: %w; and the counters that stand in: %w", store.ErrUnavailable, why, err)
				return
			}
			one := store.Charge{
				Counters: c, Key: []byte(p.key), Cost: p.cost, Permit: p.permit, Shadow: p.shadow,
				CountRefused: p.terms.counts, Quota: partOf(p.terms.quota, n), HasQuota: p.terms.own,
			}
			local = append(local, one)
			at = append(at, i)
		}
	}
	s.stats.fallbacks.Add(1)
	if len(local) == 0 {
		return
	}
	ops, err := s.decideLocally(ctx, o, local, at)
	if err != nil {
		o.err = fmt.Errorf("redis: %w: %w; and the counters that stand in: %w", store.ErrUnavailable, why, err)
	}
	s.enqueue(ops)
}

// decideLocally decides charges, of the parts at, by shares, and returns the settlements that are due at once.
// All of it is one step for those that settle.
func (s *Store) decideLocally(ctx context.Context, o *operation, local []store.Charge, at []int) (map[*lane][]*operation, error) {
	l := &s.localCharges
	l.mu.Lock()
	defer l.mu.Unlock()
	outages := make([]int64, len(at))
	for j, i := range at {
		key := o.parts[i].key
		outages[j] = s.laneOf(key).breaker.outage()
		if err := s.open(ctx, key, outages[j], local[j]); err != nil {
			return nil, err
		}
	}
	decide := s.opts.Local.Take
	if o.verb == verbPeek || !o.allowed {
		decide = s.opts.Local.Peek
	}
	allowed, err := decide(ctx, local)
	if err != nil {
		return nil, err
	}
	o.allowed = o.allowed && allowed
	var ops map[*lane][]*operation
	for j, i := range at {
		p := &o.parts[i]
		p.verdict = local[j].Verdict
		if o.verb == verbTake && (p.terms.counts || o.allowed && p.verdict.Allowed) {
			s.charged(p, outages[j])
			if b := s.laneOf(p.key).breaker; !b.open.Load() && s.client.Load() != nil {
				for to, one := range s.collect(b, p.key, outages[j]) {
					if ops == nil {
						ops = make(map[*lane][]*operation)
					}
					ops[to] = append(ops[to], one...)
				}
			}
		}
	}
	return ops, nil
}

// actLocally does a Refund, Finish or Reset at the local counters, for what they admitted.
func (s *Store) actLocally(ctx context.Context, v verb, charges []store.Charge) error {
	if s.opts.Local == nil {
		return nil
	}
	var errs []error
	for i := range charges {
		c := &charges[i]
		if v == verbRefund && (!c.Failed || c.OnFailure != store.FailLocal) {
			continue
		}
		own := c.Counters.(*Counters)
		own.local.mu.Lock()
		counters := own.local.counters
		own.local.mu.Unlock()
		if counters == nil {
			continue
		}
		b := own.bound.Load()
		one := []store.Charge{{
			Counters: counters, Key: appendKey([]byte(b.head), c.Key), Cost: c.Cost, Permit: c.Permit, Keep: c.Keep,
		}}
		switch v {
		case verbRefund:
			s.localCharges.refunded(string(one[0].Key), c.Cost)
			errs = append(errs, s.opts.Local.Refund(ctx, one))
		case verbFinish:
			errs = append(errs, s.opts.Local.Finish(ctx, one))
		case verbReset:
			errs = append(errs, s.opts.Local.Reset(ctx, one))
		}
	}
	return errors.Join(errs...)
}
