package memory

import (
	"context"
	"fmt"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// unlimited is the verdict of a limit that does not limit.
var unlimited = limit.Verdict{Allowed: true, Remaining: 1<<63 - 1}

// check refuses charges that arithmetic is not defined for, before anything is
// taken.
func (s *Store) check(ctx context.Context, charges []store.Charge) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memory: nothing taken: %w", err)
	}
	for i := range charges {
		if _, err := s.own(charges[i].Counters); err != nil {
			return err
		}
		if c := charges[i].Cost; c < 0 || c > limit.MaxCount {
			return fmt.Errorf("memory: cost %d is not within 0 and %d", c, int64(limit.MaxCount))
		}
		if q := charges[i].Quota; charges[i].HasQuota && (q < 0 || q > limit.MaxCount) {
			return fmt.Errorf("memory: quota %d is not within 0 and %d", q, int64(limit.MaxCount))
		}
	}
	return nil
}

// Take decides all charges as one; see [store.Store]. It does not allocate once
// its scratch space has grown, waits for nothing but the locks of this store, and
// fails only for charges that are not valid or a context that has ended.
func (s *Store) Take(ctx context.Context, charges []store.Charge) (bool, error) {
	if err := s.check(ctx, charges); err != nil {
		return false, err
	}
	if len(charges) == 1 {
		c := &charges[0]
		own := c.Counters.(*Counters)
		c.Verdict = own.take(own.hash(c.Key), askOf(c))
		return c.Verdict.Allowed || c.Shadow, nil
	}
	return s.takeAll(charges), nil
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
	return s.each(ctx, charges, func(c *Counters, h uint64, charge *store.Charge) { c.refund(h, charge.Cost) })
}

// Finish ends the places in flight that the charges' permits name.
func (s *Store) Finish(ctx context.Context, charges []store.Charge) error {
	return s.each(ctx, charges, func(c *Counters, h uint64, charge *store.Charge) { c.finish(h, charge.Permit) })
}

// Reset makes each bucket as good as new.
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
