package durable

import (
	"context"
	"errors"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// retryAfterFailure is what a refusal for want of the file says: a disk that is late, or full, is seldom better at once.
const retryAfterFailure = time.Second

// unwritten decides charges that were admitted and counted in memory, and that the file does not take: as their
// OnFailure says. Those with FailAllow and FailLocal stay admitted, and counted for when the file takes them. What
// is not admitted after all was not taken, unless it has an idempotency key: it stays counted, since the same request may
// be waiting for the disk at this moment to be answered as repeated. why is the error, returned if a charge with FailTake
// is among them.
func (s *Store) unwritten(charges []store.Charge, why error) (allowed bool, err error) {
	allowed = true
	for i := range charges {
		c := &charges[i]
		if !admitted(charges, c) || s.of(c.Counters) == nil {
			continue
		}
		if c.Shadow && c.OnFailure == store.FailTake {
			continue // it is counted, and refuses nothing
		}
		c.Failed = true
		if c.Shadow {
			continue
		}
		switch c.OnFailure {
		case store.FailTake:
			err = why
		case store.FailReject:
			allowed = false
		case store.FailAllow, store.FailLocal:
		}
	}
	if allowed && err == nil {
		return true, nil
	}
	var back, ended []store.Charge
	for i := range charges {
		switch c := &charges[i]; {
		case charges[len(charges)-1].Once, c.Cost == 0 || !c.Verdict.Allowed:
		case c.Permit != 0:
			ended = append(ended, *c)
		default:
			back = append(back, *c)
		}
	}
	failed := errors.Join(s.Store.Refund(context.Background(), back), s.Store.Finish(context.Background(), ended))
	if failed != nil || err != nil {
		return false, errors.Join(err, failed)
	}
	for i := range charges {
		if c := &charges[i]; c.Failed && !c.Shadow && c.OnFailure == store.FailReject {
			c.Verdict = limit.Verdict{Reason: limit.ReasonStoreFailure, RetryAfter: retryAfterFailure}
		}
	}
	return false, nil
}
