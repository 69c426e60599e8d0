package memory

import (
	"context"
	"fmt"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// unlimited is the verdict of an unlimited policy.
var unlimited = limit.Verdict{Allowed: true, Remaining: 1<<63 - 1}

// check returns an error for charges for which the arithmetic is not defined, before anything is
// taken.
func (s *Store) check(ctx context.Context, charges []store.Charge) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memory: nothing taken: %w", err)
	}
	for i := range charges {
		if _, err := s.own(charges[i].Counters); err != nil {
			return err
		}
		if err := checkCost(charges[i].Cost); err != nil {
			return err
		}
		if q := charges[i].Quota; charges[i].HasQuota && (q < 0 || q > limit.MaxCount) {
			return fmt.Errorf("memory: quota %d is not within 0 and %d", q, int64(limit.MaxCount))
		}
	}
	return nil
}

// Take decides all charges as one; see [store.Store]. It does not allocate once its scratch
// space has grown, waits only for the locks of this store, and fails only for invalid charges or
// a context that has ended.
func (s *Store) Take(ctx context.Context, charges []store.Charge) (bool, error) {
	if err := s.check(ctx, charges); err != nil {
		return false, err
	}
	if len(charges) == 1 && !charges[0].Once {
		c := &charges[0]
		own := c.Counters.(*Counters)
		c.Verdict = own.take(own.hash(c.Key), askOf(c))
		if s.banning.Load() {
			s.noteBans(charges)
		}
		return c.Verdict.Allowed || c.Shadow, nil
	}
	allowed := s.takeAll(charges)
	if s.banning.Load() {
		s.noteBans(charges)
	}
	return allowed, nil
}

// Peek answers as Take would. It reads one bucket after the other.
func (s *Store) Peek(ctx context.Context, charges []store.Charge) (bool, error) {
	if err := s.check(ctx, charges); err != nil {
		return false, err
	}
	if len(charges) == 1 {
		c := &charges[0]
		own := c.Counters.(*Counters)
		c.Verdict = own.peek(own.hash(c.Key), askOf(c))
		return c.Verdict.Allowed || c.Shadow, nil
	}
	return peekAll(charges), nil
}

// Refund gives back what each charge took.
func (s *Store) Refund(ctx context.Context, charges []store.Charge) error {
	return s.each(ctx, charges, func(c *Counters, h uint64, charge *store.Charge) { c.refund(h, charge.TakenAt, charge.Cost) })
}

// Finish gives back the permits that the charges name.
func (s *Store) Finish(ctx context.Context, charges []store.Charge) error {
	return s.each(ctx, charges, func(c *Counters, h uint64, charge *store.Charge) { c.finish(h, charge.Permit, charge.Keep) })
}

// Reset drops the state of each bucket.
func (s *Store) Reset(ctx context.Context, charges []store.Charge) error {
	return s.each(ctx, charges, func(c *Counters, h uint64, _ *store.Charge) { c.reset(h) })
}

func (s *Store) each(ctx context.Context, charges []store.Charge, f func(*Counters, uint64, *store.Charge)) error {
	if err := s.check(ctx, charges); err != nil {
		return err
	}
	for i := range charges {
		own := charges[i].Counters.(*Counters)
		f(own, own.hash(charges[i].Key), &charges[i])
	}
	return nil
}

func checkCost(cost int64) error {
	if cost < 0 || cost > limit.MaxCount {
		return fmt.Errorf("memory: cost %d is not within 0 and %d", cost, int64(limit.MaxCount))
	}
	return nil
}
