package sim

import (
	"math"
	"time"

	"github.com/stint-io/stint/limit"
)

// modelBucket is the local token bucket of a baseline. The descriptions give rates
// and leave the burst open. The choice that favours them: an instance has the part of
// the burst that it has of the rate, so that the sum of the bursts is the burst. A
// bucket that may be used at all holds at least one token, because it would admit
// nothing otherwise; it begins with its part of the burst, be that less than one.
type modelBucket struct {
	rate, burst, level float64
	at                 limit.Time
}

// modelBurst is the burst that goes with a rate under a limit, in tokens.
func modelBurst(l Limit, rate float64) float64 {
	whole := l.PerSecond()
	switch {
	case rate <= 0:
		return 0
	case whole <= 0:
		return max(1, rate) // a second's worth: a limit of zero has no burst to divide
	}
	return max(1, float64(l.Burst)*rate/whole)
}

func (b *modelBucket) fill(now limit.Time) {
	if now > b.at {
		b.level = min(b.burst, b.level+b.rate*modelSeconds(b.at, now))
		b.at = now
	}
}

// set changes the rate. Tokens stay as far as they fit.
func (b *modelBucket) set(now limit.Time, rate, burst float64) {
	b.fill(now)
	b.rate, b.burst, b.level = rate, burst, min(b.level, burst)
}

// modelGrain is below any error that matters and above the rounding of a sum.
const modelGrain = 1e-9

func (b *modelBucket) take(now limit.Time, cost float64) bool {
	b.fill(now)
	if b.level+modelGrain < cost {
		return false
	}
	b.level -= cost
	return true
}

// ready is when there will be cost tokens; modelNever when there will not.
func (b *modelBucket) ready(now limit.Time, cost float64) limit.Time {
	b.fill(now)
	switch {
	case b.level+modelGrain >= cost:
		return now
	case b.rate <= 0 || cost > b.burst:
		return modelNever
	}
	wait := math.Ceil((cost - b.level) / b.rate * 1e9)
	if wait >= math.MaxInt64/2 {
		return modelNever
	}
	return now + limit.Time(max(1, wait))
}

// modelQueue is the timer that modelLimiter has of its node's timers.
const modelQueue = 0

// modelLimiter is the local half of the baselines that divide the limit: a bucket,
// and a queue in order of arrival for requests that may wait. A request waits until its
// time is over, because the share may grow while it waits.
type modelLimiter struct {
	timers              *modelTimers
	bucket              modelBucket
	limit               Limit
	rate                float64
	attempted, admitted int64         // running totals of cost
	latest              [2]modelCount // before the latest admissions, the newest last
	waiting             []modelWaiter
	first               int // of waiting
}

type modelWaiter struct {
	cost     int64
	deadline limit.Time
	decided  func(bool)
}

func newModelLimiter(env Env, l Limit, rate float64) modelLimiter {
	m := modelLimiter{timers: newModelTimers(env), limit: l}
	m.bucket.at = env.Now()
	m.setRate(rate)
	m.bucket.level = m.part(rate)
	return m
}

// part is the part of the burst that goes with a rate.
func (m *modelLimiter) part(rate float64) float64 {
	if whole := m.limit.PerSecond(); whole > 0 {
		return min(m.bucket.burst, float64(m.limit.Burst)*rate/whole)
	}
	return m.bucket.burst
}

// Share is the rate of the local bucket, in tokens per second.
func (m *modelLimiter) Share() float64 { return m.rate }

// Take admits a request when no other waits and its tokens are there.
func (m *modelLimiter) Take(cost int64) bool {
	m.attempted += cost
	if m.first < len(m.waiting) || !m.bucket.take(m.timers.env.Now(), float64(cost)) {
		return false
	}
	m.admit(cost)
	return true
}

// TakeWithin admits a request when it is served within wait.
func (m *modelLimiter) TakeWithin(cost int64, wait time.Duration, decided func(bool)) {
	if wait <= 0 {
		decided(m.Take(cost))
		return
	}
	m.attempted += cost
	m.waiting = append(m.waiting, modelWaiter{cost, m.timers.env.Now().Add(wait), decided})
	m.serve()
}

func (m *modelLimiter) admit(cost int64) {
	m.latest[0] = m.latest[1]
	m.latest[1] = modelCount{m.timers.env.Now(), m.admitted}
	m.admitted += cost
}

// recentRate is the rate of the latest two admissions, which may be far between, or whole
// when there were too few.
func (m *modelLimiter) recentRate(whole float64) float64 {
	earlier := m.latest[0]
	if earlier == (modelCount{}) {
		return whole
	}
	seconds := max(modelRecent.Seconds(), modelSeconds(earlier.at, m.timers.env.Now()))
	return float64(m.admitted-earlier.total) / seconds
}

// setRate puts a rate in force, in tokens per second; below 0 counts as 0.
func (m *modelLimiter) setRate(rate float64) {
	m.rate = max(0, rate)
	m.bucket.set(m.timers.env.Now(), m.rate, modelBurst(m.limit, m.rate))
	m.serve()
}

// setLimit changes the limit that the burst is a part of.
func (m *modelLimiter) setLimit(l Limit) {
	m.limit = l
	m.setRate(m.rate)
}

// serve admits the waiters that are due and refuses those whose deadline has passed.
func (m *modelLimiter) serve() {
	now := m.timers.env.Now()
	for m.first < len(m.waiting) {
		w := m.waiting[m.first]
		admitted := m.bucket.take(now, float64(w.cost))
		if !admitted && w.deadline > now {
			m.timers.set(modelQueue, min(w.deadline, m.bucket.ready(now, float64(w.cost))))
			if m.first > len(m.waiting)/2 {
				m.waiting = m.waiting[:copy(m.waiting, m.waiting[m.first:])]
				m.first = 0
			}
			return
		}
		m.waiting[m.first] = modelWaiter{}
		m.first++
		if admitted {
			m.admit(w.cost)
		}
		w.decided(admitted)
	}
	m.waiting, m.first = m.waiting[:0], 0
	m.timers.set(modelQueue, modelNever)
}

// modelRecent is the time over which a baseline measures a rate of this moment, when
// that makes modelEnough requests: fewer say little.
const (
	modelRecent = time.Second
	modelEnough = 10
)

// modelCount is a running total of cost at a moment.
type modelCount struct {
	at    limit.Time
	total int64
}

// rate is the cost per second since a moment.
func (c modelCount) rate(since modelCount) float64 {
	if c.at <= since.at {
		return 0
	}
	return float64(c.total-since.total) / modelSeconds(since.at, c.at)
}

// recent is the rate since mark, and whether there are enough requests for a measure, there
// or in the mean of a longer time.
func (c modelCount) recent(mark modelCount, mean float64) (rate float64, enough bool) {
	rate = c.rate(mark)
	return rate, max(mean, rate)*modelRecent.Seconds() >= modelEnough
}
