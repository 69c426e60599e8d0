package client

import (
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease/adjust"
	"github.com/stint-io/stint/internal/lease/agent"
)

// Estimator says how the demand is estimated that is reported to the coordinator. The zero value
// is Attempted.
type Estimator = agent.Estimator

// The ways to know the demand.
const (
	Attempted   = agent.Attempted   // what was asked for: admitted, refused and waiting
	Declared    = agent.Declared    // what Demand was called with; nothing until it is called
	Utilisation = agent.Utilisation // what is used of the lease, for consumers that pull
)

// Expiry says what may be spent when a lease has run out, because no coordinator could
// be reached for as long as it lasts. The zero value is Pessimistic.
type Expiry = agent.ExpiryMode

// The modes at expiry. All but Pessimistic may exceed the limit.
const (
	Pessimistic = agent.Pessimistic // nothing
	Optimistic  = agent.Optimistic  // what is wanted
	Safe        = agent.Safe        // the safe capacity that came with every answer
)

// Start says what may be spent before the first answer. The zero value is [Strict].
type Start struct{ amount float64 }

// Strict spends nothing before the first lease: a Take waits one round trip for it.
var Strict = Start{}

// OptimisticStart spends up to amount per second, or that many permits of a semaphore,
// before the first answer. A fleet of N that starts at once may exceed the limit by
// N x amount until then.
func OptimisticStart(amount float64) Start { return Start{amount} }

// LimitOptions are how an instance uses one limit. The zero value measures the demand,
// spends nothing without a lease, and asks before it refuses.
type LimitOptions struct {
	// Weight is how much of the limit falls to this instance, compared with others,
	// when all want more; 0 = 1, so that instances which say nothing get equal parts.
	Weight uint32
	// Band is the priority: a higher band goes first. 0, the lowest, is the default:
	// nobody is served before others by accident.
	Band uint8

	// Silent says that the instance does not report its demand. It keeps an equal
	// part of the limit, used or not, or as much of it as its Band and Weight have.
	// Estimator and Demand mean nothing.
	// It is for those whose share must not follow their load, and for comparing;
	// false is the default, since what a silent instance leaves is nobody's.
	Silent bool

	// Estimator is how the demand is known. The default is Attempted, because what
	// was refused shows that more is needed, and needs no cooperation.
	Estimator Estimator
	// Expiry is what may be spent when the lease has run out. The default is
	// Pessimistic, the only one that keeps the limit whatever happens.
	Expiry Expiry
	// Start is what may be spent before the first answer. The default is Strict, for
	// the same reason: it costs the first Take one round trip.
	Start Start

	// Ask is how long a Take that finds the lease short waits for an answer at most,
	// while capacity may be free elsewhere, before it refuses; 0 = twice the measured
	// round trip, since others may have to give back first, at least 50 ms and at
	// most 500 ms; 500 ms where the lease is too small for it. Negative = never wait.
	//
	// Not shorter than 50 ms: what another instance holds comes by way of the
	// coordinator, which gathers reports for a moment. Not longer than 500 ms: a
	// caller that waits holds a connection of its own.
	Ask time.Duration

	// Adjust slows down when the receiver fails, as counted by Report; nil = not, since
	// nobody else knows what a failure is.
	Adjust *Adjustment
}

// Adjustment is how a Limiter reacts to a receiver that fails. It spends a part of its
// lease: less by steps while some requests fail, the slow rate when most do, a
// heartbeat when that fails too, and back up when they succeed. The slow rate and the heartbeat
// are bounds of what is spent, also while leases end and are taken anew. A request that they refuse
// is refused at once: the coordinator has nothing to do with it. The demand that is
// reported to the coordinator stays what it is. The zero value is what each field says of 0.
type Adjustment struct {
	// Interval is how long outcomes are counted before they change anything; 0 = 5 s.
	// Not shorter: a handful of outcomes shows nothing. Not longer: the receiver is
	// pressed for as long.
	Interval time.Duration
	// Convergence is the part of the way that one step goes; 0 = 0.2. Not more: the
	// rate would swing. Not less: a step is an Interval.
	Convergence float64
	// SpeedUp is the highest part of failures at which the rate rises, 0 = 0.01, and
	// Hold the highest at which it does not fall, 0 = 0.05. Not smaller: some
	// requests fail by themselves. Not larger: one in twenty is a receiver in need.
	SpeedUp, Hold float64
	// SlowRate and HeartbeatRate are in tokens per second; 0 = 1 and 1/60. Not lower:
	// nobody would notice that the receiver is well again. Not higher: they are for
	// one that fails.
	SlowRate, HeartbeatRate float64
}

func (a *Adjustment) adjuster() (*adjust.Adjuster, error) {
	slow, err := fixed.AmountOf(a.SlowRate)
	heartbeat, err2 := fixed.AmountOf(a.HeartbeatRate)
	if err = errors.Join(err, err2); err != nil {
		return nil, err
	}
	return adjust.NewAdjuster(adjust.AdjusterOptions{
		Interval: a.Interval, Convergence: a.Convergence, SpeedUp: a.SpeedUp, Hold: a.Hold, SlowRate: slow, HeartbeatRate: heartbeat,
	})
}

func (o *LimitOptions) lease() (agent.LeaseOptions, error) {
	start, err := fixed.AmountOf(o.Start.amount)
	if err != nil {
		return agent.LeaseOptions{}, fmt.Errorf("start: %w", err)
	}
	if o.Estimator > Utilisation || o.Expiry > Safe {
		return agent.LeaseOptions{}, fmt.Errorf("unknown estimator %d or expiry %d", o.Estimator, o.Expiry)
	}
	return agent.LeaseOptions{Weight: o.Weight, Band: o.Band, Silent: o.Silent, Estimator: o.Estimator, Expiry: o.Expiry, Start: start}, nil
}

// The bounds of LimitOptions.Ask where it is 0.
const (
	shortestAsk = 50 * time.Millisecond
	longestAsk  = 500 * time.Millisecond
)
