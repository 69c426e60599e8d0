package engine

import (
	"context"

	"github.com/stint-io/stint/internal/observe"
	"github.com/stint-io/stint/store"
)

// Nothing else changes the counts of the store, so that observers miss no change: not for a decision, not for a
// reservation, and not for a change by hand. Permits are no counts: Finish is not observed.

func (e *Engine) takeCharges(ctx context.Context, charges []store.Charge) (allowed bool, err error) {
	var answered func([]store.Charge, bool, error)
	if e.trace != nil {
		answered = e.trace(ctx)
	}
	if e.raise != nil {
		e.raise(charges)
	}
	allowed, err = e.store.Take(ctx, charges)
	last := &charges[len(charges)-1]
	repeated := last.Once && !last.Verdict.Allowed
	charges = counted(charges)
	if answered != nil {
		answered(charges, allowed, err)
	}
	if err == nil && !repeated {
		e.emit(observe.Event{Kind: observe.Taken, Allowed: allowed, Charges: charges})
	}
	return allowed, err
}

// Peek says how counters stand, as [store.Store] has it.
func (e *Engine) Peek(ctx context.Context, charges []store.Charge) (allowed bool, err error) {
	if e.raise != nil {
		e.raise(charges)
	}
	return e.store.Peek(ctx, charges)
}

// Refund gives back the costs of charges, as [store.Store] has it.
func (e *Engine) Refund(ctx context.Context, charges []store.Charge) error {
	err := e.store.Refund(ctx, charges)
	if err == nil {
		e.emit(observe.Event{Kind: observe.Returned, Charges: counted(charges)})
	}
	return err
}

// Reset drops the state of the bucket of each charge, as [store.Store] has it.
func (e *Engine) Reset(ctx context.Context, charges []store.Charge) error {
	err := e.store.Reset(ctx, charges)
	if err == nil {
		e.emit(observe.Event{Kind: observe.Reset, Charges: charges})
	}
	return err
}

// Granted tells observers that [Options.Raise] raises the quota of a key by the cost of the charge from now on.
func (e *Engine) Granted(c store.Charge) {
	e.emit(observe.Event{Kind: observe.Granted, Charges: []store.Charge{c}})
}

func (e *Engine) emit(ev observe.Event) {
	for _, o := range e.observers {
		o.Observe(ev)
	}
}
