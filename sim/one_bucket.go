package sim

import (
	"time"

	"github.com/stint-io/stint/limit"
)

// OneBucket is no system but what systems are held against: one token bucket of the
// whole limit that every instance reaches at once, without a network. It admits all that
// can be admitted in order of arrival; no fleet that is never over refuses less.
type OneBucket struct{}

// Name returns "one-bucket".
func (OneBucket) Name() string { return "one-bucket" }

// Coordinator returns nil: there is none.
func (OneBucket) Coordinator(Env, Setup, Address, int) Node { return nil }

// Instance makes an instance on the bucket that all instances of a run have together.
func (OneBucket) Instance(env Env, setup Setup, _, _ int) Enforcer {
	common := setup.common
	if common == nil { // not in a run: it is alone
		common = &commonBucket{}
	}
	common.set(env.Now(), setup.Limit)
	return &oneBucketInstance{common: common, timers: newModelTimers(env), equal: modelEqual(setup), setup: setup}
}

// commonBucket is a bucket that computes when each request is due: waiters
// take their tokens beforehand, so that the level goes below zero.
type commonBucket struct {
	modelBucket
	limit Limit
	full  bool // it was filled for the first time
}

func (c *commonBucket) set(now limit.Time, l Limit) {
	if c.full && c.limit == l {
		return
	}
	c.limit = l
	if !c.full {
		c.full, c.at, c.level = true, now, float64(l.Burst)
	}
	c.modelBucket.set(now, l.PerSecond(), float64(l.Burst))
}

// takeWithin takes cost if it is due within wait, and returns when it is due.
func (c *commonBucket) takeWithin(now limit.Time, cost float64, wait time.Duration) (at limit.Time, ok bool) {
	at = c.ready(now, cost)
	if cost > c.burst || at > now.Add(wait) {
		return at, false
	}
	c.level -= cost
	return at, true
}

type oneBucketInstance struct {
	common  *commonBucket
	timers  *modelTimers
	equal   float64
	setup   Setup
	waiting []oneBucketWaiter // in order of at
}

type oneBucketWaiter struct {
	at      limit.Time
	decided func(bool)
}

func (o *oneBucketInstance) Receive(Address, any) {}

func (o *oneBucketInstance) Wake() {
	o.timers.woken()
	now := o.timers.env.Now()
	for len(o.waiting) > 0 && o.waiting[0].at <= now {
		decided := o.waiting[0].decided
		o.waiting = o.waiting[1:]
		decided(true)
	}
	o.timers.set(modelQueue, o.next())
}

func (o *oneBucketInstance) next() limit.Time {
	if len(o.waiting) == 0 {
		return modelNever
	}
	return o.waiting[0].at
}

// Take implements Enforcer.
func (o *oneBucketInstance) Take(cost int64) bool {
	_, ok := o.common.takeWithin(o.timers.env.Now(), float64(cost), 0)
	return ok
}

// TakeWithin implements Waiter.
func (o *oneBucketInstance) TakeWithin(cost int64, wait time.Duration, decided func(bool)) {
	now := o.timers.env.Now()
	at, ok := o.common.takeWithin(now, float64(cost), wait)
	if !ok || at <= now {
		decided(ok)
		return
	}
	o.waiting = append(o.waiting, oneBucketWaiter{at, decided})
	o.timers.set(modelQueue, o.next())
}

// Share is an equal part: the bucket is not divided.
func (o *oneBucketInstance) Share() float64 { return o.equal }

// SetLimit implements LimitSetter.
func (o *oneBucketInstance) SetLimit(l Limit) {
	o.setup.Limit = l
	o.equal = modelEqual(o.setup)
	o.common.set(o.timers.env.Now(), l)
}
