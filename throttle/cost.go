package throttle

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/costs"
)

// Predictor predicts and learns the CPU time of requests. It is safe for concurrent use.
// [NewEstimator] makes the usual one.
type Predictor interface {
	Predict(route string) time.Duration
	Observe(route string, predicted, actual time.Duration)
}

// EstimatorOptions set up an [Estimator]: which quantile is predicted, how fast old requests are
// forgotten, what unknown and stale routes get, and how many routes there are. The zero value
// has the defaults.
type EstimatorOptions = costs.Options

// Estimator is the Predictor that is used when Options names none: for each route, a running
// quantile of the requests that finished.
type Estimator = costs.Estimator

// NewEstimator returns an Estimator. An error says which option is out of its range.
func NewEstimator(o EstimatorOptions) (*Estimator, error) { return costs.New(o) }

// Meter measures the CPU time of running requests. It is safe for concurrent use, is called under
// the lock of a Throttle and must not call it. If it has a method SoFar(mark time.Duration)
// time.Duration, that tells what a request that runs has cost; else its age does.
type Meter interface {
	// Begin notes that a request begins to run and returns a mark.
	Begin() (mark time.Duration)
	// End notes that a request with that mark has ended after service, and returns its cost.
	End(mark, service time.Duration) time.Duration
}

// ProcessMeter returns the Meter that is used when Options names none. It divides the CPU time of
// the process between the requests that run: a request costs its service time x its share of the
// process's CPU. Use one for all Throttles of a process.
//
// What is right is the sum: all requests together cost what the process used. Requests that run
// at the same time are taken for alike, so where one computes and the other waits, call
// [SetCost]. Where the system does not tell the CPU time of a process, it is [ServiceTime].
func ProcessMeter() Meter {
	return costs.NewMeter(nil, nil, min(runtime.NumCPU(), runtime.GOMAXPROCS(0)))
}

// ServiceTime returns a Meter by which a request costs the time that it runs, whether it computes
// or waits. It suits a server that mostly computes one request on each core, and tests in
// virtual time, in which no CPU time passes.
func ServiceTime() Meter { return serviceTime{time.Now()} }

type serviceTime struct{ origin time.Time }

func (m serviceTime) Begin() time.Duration                   { return time.Since(m.origin) }
func (m serviceTime) SoFar(mark time.Duration) time.Duration { return time.Since(m.origin) - mark }
func (serviceTime) End(_, service time.Duration) time.Duration {
	return service
}

// Usage is what a request used of each resource, by name: "cpu" in CPU-milliseconds, others in the
// units of [Capacity].
type Usage = costs.Usage

// Capacity is what the server has of each resource in a second: "cpu" in CPU-milliseconds, 1,000
// for each core; others in units of one's own, such as bytes of network, disk operations, or
// byte-seconds of memory.
type Capacity = costs.Capacity

// SetUsage says what the request that ctx belongs to has used so far of several resources. Its
// cost is its dominant share: that of the resource of which it used the largest part of a second's
// Options.Capacity, as CPU time. It reports whether there is such a request and something counts.
func SetUsage(ctx context.Context, u Usage) bool {
	w := FromContext(ctx)
	return w != nil && w.SetUsage(u)
}

// SetUsage is [Work.SetCost] for several resources: see the function SetUsage. It reports whether
// something counts.
func (w *Work) SetUsage(u Usage) bool {
	cost, ok := w.throttle.options.Capacity.Cost(u)
	if ok {
		w.SetCost(cost)
	}
	return ok
}

// Pin has the CPU time of the request measured by the clock of a thread, to which it binds the
// calling goroutine until unpin is called there. The request's cost is that of this goroutine, and
// its part of what else the process uses. It makes culprits certain where cheap requests run
// beside them, for some microseconds each time that the goroutine waits for the network.
//
// It does nothing where the system has no clocks of threads (it needs Linux), where Options.Meter
// is not a ProcessMeter, and when it is called for a second time.
func (w *Work) Pin() (unpin func()) {
	meter, ok := w.throttle.options.Meter.(*costs.Meter)
	if !ok {
		return func() {}
	}
	pin := meter.Pin()
	if pin == nil {
		return func() {}
	}
	w.throttle.mu.Lock()
	defer w.throttle.mu.Unlock()
	if w.pin == nil {
		w.pin = pin
	}
	return sync.OnceFunc(pin.Unpin)
}

// costSoFar is what w, which runs, has cost: what was said, else what is measured. Under the lock.
func (t *Throttle) costSoFar(w *Work) time.Duration {
	if w.hasCost {
		return w.soFar
	}
	cost := t.service(w)
	if m, ok := t.options.Meter.(interface {
		SoFar(mark time.Duration) time.Duration
	}); ok {
		cost = m.SoFar(w.mark)
	}
	return min(cost+w.pinned(), maxActual)
}

// pinned is what the clock of a thread says. Under the lock.
func (w *Work) pinned() time.Duration {
	if w.pin == nil {
		return 0
	}
	return w.pin.Used()
}
