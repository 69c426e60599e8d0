// Package adjust lowers what is spent of a lease while a receiver fails.
package adjust

import (
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// AdjusterMode is how an Adjuster treats a receiver.
type AdjusterMode uint8

// The modes of an Adjuster. A circuit breaker would call them closed, half open and
// open, but this one is never quite open: a heartbeat goes on.
const (
	AdjusterNormal    AdjusterMode = iota // a part of the lease, more while it goes well
	AdjusterSlow                          // more failures than successes: the slow rate
	AdjusterHeartbeat                     // so in slow mode too: the heartbeat rate
)

var adjusterModeNames = [...]string{AdjusterNormal: "normal", AdjusterSlow: "slow", AdjusterHeartbeat: "heartbeat"}

// String returns the mode as it stands in metrics.
func (m AdjusterMode) String() string {
	if int(m) < len(adjusterModeNames) {
		return adjusterModeNames[m]
	}
	return "unknown"
}

// AdjusterOptions are how an Adjuster reacts. The zero value is what each field says
// of 0.
type AdjusterOptions struct {
	// Interval is how long outcomes are counted before they change anything; 0 is
	// 5 s. Not shorter: at the slow rate few outcomes come in it, and one failure
	// would decide. Not longer: a receiver that fails gets the full rate that long.
	Interval time.Duration
	// Convergence is the part of the way that one step goes, up to the lease or down
	// to nothing; 0 is 0.2. Above 0, at most 1.
	Convergence float64
	// SpeedUp is the highest part of failures at which the rate rises, 0 is 0.01, and
	// Hold the highest at which it does not fall, 0 is 0.05, below 0.5.
	SpeedUp, Hold float64
	// SlowRate and HeartbeatRate are in tokens per second; 0 is 1/s and 1/60s.
	SlowRate, HeartbeatRate fixed.Amount
}

// withDefaults returns the options with what 0 stands for.
func (o AdjusterOptions) withDefaults() AdjusterOptions {
	if o.Interval == 0 {
		o.Interval = 5 * time.Second
	}
	if o.Convergence == 0 {
		o.Convergence = 0.2
	}
	if o.SpeedUp == 0 {
		o.SpeedUp = 0.01
	}
	if o.Hold == 0 {
		o.Hold = 0.05
	}
	if o.SlowRate == 0 {
		o.SlowRate = fixed.Token
	}
	if o.HeartbeatRate == 0 {
		o.HeartbeatRate = fixed.Token / 60
	}
	return o
}

// Validate returns all that is wrong with the options.
func (o AdjusterOptions) Validate() error {
	o = o.withDefaults()
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("agent: adjuster: "+format, args...))
	}
	if o.Interval < 0 {
		bad("the interval is %v, want above 0", o.Interval)
	}
	// Written so that NaN is refused.
	if !(o.Convergence > 0 && o.Convergence <= 1) {
		bad("the convergence is %v, want above 0 and at most 1", o.Convergence)
	}
	if !(o.SpeedUp > 0 && o.SpeedUp <= o.Hold && o.Hold < 0.5) {
		bad("it speeds up to %v failures and holds to %v, want 0 < speed up <= hold < 0.5", o.SpeedUp, o.Hold)
	}
	if !(0 < o.HeartbeatRate && o.HeartbeatRate <= o.SlowRate && o.SlowRate <= fixed.MaxAmount) {
		bad("the heartbeat rate is %v and the slow rate %v, want 0 < heartbeat <= slow <= %v", o.HeartbeatRate, o.SlowRate, fixed.MaxAmount)
	}
	return errors.Join(errs...)
}

// Adjuster is the output-rate adjuster of Hermes: it slows down what goes to a receiver
// that fails, probes it, and comes back. It lowers what is spent of a lease and nothing
// else: it is asked last, after demand was measured and reported, so that an instance
// whose receiver is sick does not look idle and lose its share.
//
// In normal mode it keeps a part of the lease, not a rate: when the lease changes, the
// part stays, and a larger lease does not start the way back anew. It begins with
// the whole lease. At the end of an interval with f the part of failures,
//
//   - in normal mode, f up to SpeedUp brings the part nearer to 1 by Convergence of the
//     way; more failures than successes lead to slow mode; else f above Hold takes
//     Convergence of the part away. The rate is not below the slow rate.
//   - in slow mode, more failures than successes lead to heartbeat mode, and successes
//     alone to normal mode, which then begins at the slow rate.
//   - in heartbeat mode, successes alone lead to slow mode.
//
// An interval without an outcome changes nothing. No rate is ever above the lease.
//
// The zero value is not usable, see [NewAdjuster]. It is not safe for concurrent use.
type Adjuster struct {
	interval            time.Duration
	step, speedUp, hold uint64 // millionths
	slow, heartbeat     fixed.Amount

	mode AdjusterMode
	part uint64 // of the lease, in millionths; for normal mode

	started             bool
	begin               limit.Time // of the interval
	successes, failures int64      // in all, when it began
}

// NewAdjuster returns an adjuster that begins in normal mode with the whole lease, or
// all that is wrong with the options.
func NewAdjuster(o AdjusterOptions) (*Adjuster, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	return &Adjuster{
		interval: o.Interval,
		step:     fixed.Fraction(o.Convergence, 1, 1), speedUp: fixed.Fraction(o.SpeedUp, 1, 1), hold: fixed.Fraction(o.Hold, 1, 1),
		slow: o.SlowRate, heartbeat: o.HeartbeatRate,
		part: uint64(fixed.Token),
	}, nil
}

// Observe takes how many successes and failures there were in all up to now, and
// reports whether the mode or the part of the lease has changed. It may be called at
// any time: the first call begins an interval, and the first at or after [Adjuster.Next]
// judges what came in it and begins another. Totals below those of an earlier call are
// those of a caller that starts again, and begin an interval; one below 0 counts as 0.
func (a *Adjuster) Observe(now limit.Time, successes, failures int64) (changed bool) {
	successes, failures = max(successes, 0), max(failures, 0)
	if !a.started || successes < a.successes || failures < a.failures {
		a.began(now, successes, failures)
		return false
	}
	if now < a.Next() {
		return false
	}
	good, failed := uint64(successes-a.successes), uint64(failures-a.failures)
	a.began(now, successes, failures)
	if good == 0 && failed == 0 {
		return false
	}
	mode, part := a.mode, a.part
	a.judge(good, failed)
	return a.mode != mode || a.part != part
}

func (a *Adjuster) began(now limit.Time, successes, failures int64) {
	a.started, a.begin, a.successes, a.failures = true, now, successes, failures
}

// judge takes the outcomes of an interval, of which there is at least one.
func (a *Adjuster) judge(good, failed uint64) {
	one := uint64(fixed.Token)
	all := good + failed // both fit 63 bits
	switch a.mode {
	case AdjusterNormal:
		switch {
		case fixed.ProductAtMost(failed, one, all, a.speedUp):
			// Rounded up, so that it arrives.
			a.part += fixed.MulDivUp(one-a.part, a.step, one)
		case failed > good:
			a.mode, a.part = AdjusterSlow, 0
		case !fixed.ProductAtMost(failed, one, all, a.hold):
			a.part -= fixed.MulDivUp(a.part, a.step, one)
		}
	case AdjusterSlow:
		switch {
		case failed > good:
			a.mode = AdjusterHeartbeat
		case failed == 0:
			a.mode = AdjusterNormal
		}
	case AdjusterHeartbeat:
		if failed == 0 {
			a.mode = AdjusterSlow
		}
	}
}

// Next is when the interval ends: the time of the next Observe that can change
// something. Before the first Observe it is 0.
func (a *Adjuster) Next() limit.Time {
	if !a.started {
		return 0
	}
	return a.begin.Add(a.interval)
}

// Mode is the present mode.
func (a *Adjuster) Mode() AdjusterMode { return a.mode }

// Rate is how much of a leased rate may be spent, in tokens per second: from 0 to lease.
// A lease below the slow rate or the heartbeat rate is not exceeded to reach it.
func (a *Adjuster) Rate(lease fixed.Amount) fixed.Amount {
	most, slows := a.Most(lease)
	if !slows {
		most = lease
	}
	return max(0, min(lease, most))
}

// Most is the rate above which nothing is to be spent, whatever is leased, in tokens per second; ok is false while
// the whole lease may be spent. In normal mode it is a part of a leased rate, and at least the slow rate.
func (a *Adjuster) Most(lease fixed.Amount) (rate fixed.Amount, ok bool) {
	switch {
	case a.mode == AdjusterSlow:
		return a.slow, true
	case a.mode == AdjusterHeartbeat:
		return a.heartbeat, true
	case a.part == uint64(fixed.Token):
		return 0, false
	}
	return max(a.slow, fixed.Amount(fixed.MulDiv(uint64(max(0, lease)), a.part, uint64(fixed.Token)))), true
}

// Factor is Rate as a part of the lease, from 0 to 1, for graphs; of a lease of 0 it
// is 1.
func (a *Adjuster) Factor(lease fixed.Amount) float64 {
	if lease <= 0 {
		return 1
	}
	return float64(a.Rate(lease)) / float64(lease)
}
