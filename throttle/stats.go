package throttle

import (
	"time"

	"github.com/stint-io/stint/internal/costs"
)

// Stats is how a Throttle stands.
type Stats struct {
	Waiting     int
	WaitingCost time.Duration // predicted, of all that wait
	Running     int
	Limit       int // of running requests now; 0 = not bounded
	Classes     map[Criticality]ClassStats

	// Predicted and Actual are the cost of all finished requests together, and Error is the
	// sum of the absolute differences: Error/Actual is the relative error of predictions.
	Predicted, Actual, Error time.Duration

	// Of the Predictor, if it tells: finished requests that cost more than was predicted, routes
	// with statistics of their own, predictions for unknown and for stale routes, and requests
	// of routes for which there was no room.
	Underestimated, Unknown, Stale, Overflow uint64
	Routes                                   int

	// Running requests that were named as culprits, and that were cancelled by Cancel or by
	// the policy of Options.Culprits.
	Culprits, Cancelled uint64
}

// ClassStats counts the requests of a class since New. Each Start that returned is in one of
// Admitted, Refused, Evicted, Expired and Left.
type ClassStats struct {
	Admitted uint64
	Refused  uint64 // at the door: the queue was full, or the deadline too near
	Evicted  uint64 // made room for a more important request
	Expired  uint64 // waited too long
	Left     uint64 // their context ended
	Done     uint64 // of those admitted
}

// estimate adds up how good predictions are.
type estimate struct{ predicted, actual, off time.Duration }

func (e *estimate) observe(predicted, actual time.Duration) {
	e.predicted += predicted
	e.actual += actual
	e.off += max(predicted-actual, actual-predicted)
}

// Stats returns how t stands.
func (t *Throttle) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Stats{
		Waiting: t.machine.Waiting(), WaitingCost: time.Duration(t.machine.WaitingCost()),
		Running: t.machine.Running(), Classes: map[Criticality]ClassStats{},
		Predicted: t.errors.predicted, Actual: t.errors.actual, Error: t.errors.off,
	}
	if t.options.Concurrency > 0 {
		s.Limit = t.machine.Limit()
	}
	s.Culprits, s.Cancelled = t.watch.named, t.watch.cancelled
	if p, ok := t.options.Predict.(interface{ Stats() costs.Stats }); ok {
		of := p.Stats()
		s.Underestimated, s.Unknown, s.Stale, s.Overflow, s.Routes = of.Underestimated, of.Unknown, of.Stale, of.Overflow, of.Signatures
	}
	for c := Sheddable; c <= CriticalPlus; c++ {
		s.Classes[c] = t.classes[c]
	}
	return s
}
