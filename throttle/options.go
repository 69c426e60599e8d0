package throttle

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/stint-io/stint/limit"
)

// Options says how much a server does at once and how much waits. At least one of Rate and
// Concurrency is above 0.
type Options struct {
	// Name stands in Decisions and hooks; "" = "throttle".
	Name string

	// Rate is the CPU time of work that is started, in CPU-seconds per second: 1.6 is 80 % of
	// two cores. 0 = not bounded.
	Rate float64

	// Burst is the CPU time that may start at once after a pause; 0 = what Rate is in 10 ms.
	// Not shorter: Go's timers are late by a millisecond or so, and what is late is made up
	// from the burst. Not longer: Go preempts after 10 ms, so that shorter bursts are not
	// told from one long request.
	Burst time.Duration

	// Concurrency is how many requests run at most; 0 = not bounded.
	Concurrency int

	// Adaptive makes the bound of running requests follow the server, between Adaptive.Min and
	// Concurrency, which is then above 0; nil = it is constant.
	Adaptive *Adaptive

	// MaxWaiting is how many requests wait at most; 0 = 1024. Not smaller: bursts of web
	// servers have hundreds. Not larger: each waiter costs some 2 KB of goroutine, and MaxWait
	// ends its wait anyway.
	MaxWaiting int

	// MaxWaitingCost bounds the predicted cost of waiting requests together; 0 = not bounded.
	// A request that is dearer than that may wait alone.
	MaxWaitingCost time.Duration

	// MaxWait is how long a request waits at most; 0 = 1 s. Not longer: callers try again
	// about then. Not shorter: pauses of a server, as for a deployment, are of that order.
	MaxWait time.Duration

	// NewestFirst serves the newest request of a key first while the queue is overloaded, which
	// is from a refusal, eviction or time-out until the queue is empty. Then some are served
	// in time where otherwise all would wait for long.
	NewestFirst bool

	// Predict tells what a request will cost and learns what it has cost; nil = an Estimator
	// with its defaults.
	Predict Predictor

	// Meter measures what running requests cost for which nobody says it; nil = a ProcessMeter.
	Meter Meter

	// Capacity is what the server has of each resource in a second, for SetUsage; nil = CPU
	// alone counts.
	Capacity Capacity

	// Culprits are running requests that cost far more than was predicted.
	Culprits Culprits

	// Hooks are called with what happens.
	Hooks Hooks
}

// Adaptive says how the bound of running requests follows the server. The zero value is
// ready for use.
type Adaptive struct {
	Min int // it is never below; 0 = 1
}

// Hooks let a program count what a Throttle does. A nil field is not called. They are called by
// many goroutines at a time, must be quick and must not use the Throttle.
type Hooks struct {
	// OnStart is called when a request starts that has waited so long.
	OnStart func(c Criticality, predicted, waited time.Duration)

	// OnRefuse is called when a request is refused, evicted or has waited too long.
	OnRefuse func(c Criticality, reason limit.Reason, waited time.Duration)

	// OnLeave is called when a caller stops waiting because its context has ended.
	OnLeave func(c Criticality, waited time.Duration)

	// OnCulprit is called when a running request is named as a culprit: see Culprits.
	OnCulprit func(Running)

	// OnDone is called when a request has run.
	OnDone func(c Criticality, predicted, actual, service time.Duration)
}

const (
	defaultName       = "throttle"
	defaultMaxWaiting = 1024
	defaultMaxWait    = time.Second
	defaultBurst      = 10 * time.Millisecond // of the rate
	maxRate           = 1e6
	maxDuration       = 365 * 24 * time.Hour // of any option

	// Bounds so that no sum overflows: as many as may wait, each as dear as may be predicted.
	maxMaxWaiting = 1 << 20
	maxPredicted  = time.Hour
	maxActual     = 24 * time.Hour
)

// check returns all that is wrong with o.
func (o *Options) check() error {
	var errs []error
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf("throttle: "+format, args...))
		}
	}
	fault(math.IsNaN(o.Rate) || o.Rate < 0 || o.Rate > maxRate, "Rate %v is not from 0 to %v CPU-seconds per second", o.Rate, float64(maxRate))
	fault(o.Concurrency < 0, "Concurrency %d is below 0", o.Concurrency)
	fault(o.Rate == 0 && o.Concurrency == 0, "neither Rate nor Concurrency is set: nothing would ever wait")
	fault(o.Adaptive != nil && o.Concurrency == 0, "Adaptive needs Concurrency, the most that it may rise to")
	fault(o.Adaptive != nil && o.Concurrency > 0 && (o.min() < 0 || o.min() > o.Concurrency), "Adaptive.Min %d is not from 0 to Concurrency %d", o.min(), o.Concurrency)
	fault(o.MaxWaiting < 0 || o.MaxWaiting > maxMaxWaiting, "MaxWaiting %d is not from 0 to %d", o.MaxWaiting, maxMaxWaiting)
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"Burst", o.Burst}, {"MaxWaitingCost", o.MaxWaitingCost}, {"MaxWait", o.MaxWait}} {
		fault(d.value < 0 || d.value > maxDuration, "%s %v is not from 0 to %v", d.name, d.value, maxDuration)
	}
	errs = append(errs, o.Culprits.check(), o.Capacity.Validate())
	return errors.Join(errs...)
}

// setDefaults fills in what is not set.
func (o *Options) setDefaults() {
	if o.Name == "" {
		o.Name = defaultName
	}
	if o.Burst == 0 {
		o.Burst = max(1, time.Duration(o.Rate*float64(defaultBurst)))
	}
	if o.MaxWaiting == 0 {
		o.MaxWaiting = defaultMaxWaiting
	}
	if o.MaxWait == 0 {
		o.MaxWait = defaultMaxWait
	}
	if o.Predict == nil {
		o.Predict, _ = NewEstimator(EstimatorOptions{}) // the defaults are valid
	}
	if o.Meter == nil {
		o.Meter = ProcessMeter()
	}
	o.Culprits.setDefaults()
}

// min is Adaptive.Min, as it is set.
func (o *Options) min() int {
	if o.Adaptive == nil {
		return 0
	}
	return o.Adaptive.Min
}
