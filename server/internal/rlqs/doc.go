// Package rlqs speaks Envoy's rate limit quota service (envoy.service.rate_limit_quota.v3): Envoys
// report what they use of their buckets, and are assigned token buckets that expire.
//
// It divides nothing. Each bucket of each Envoy is an instance of a leased limit, so the coordinator of
// leases divides the limit among Envoys, programs with package client and servers alike. This package
// translates: usage reports to demand, leases to token buckets, and the time-outs of the one to those of
// the other. A [Session] does that for one stream; it is a deterministic state machine without
// goroutine, clock or network. [Service] drives the sessions.
//
// # Why Envoys spend no more than their leases
//
// An Envoy uses an assignment from when it arrives until another arrives or until its time to live is
// over. So a lease is given back only when it is certain that no assignment of it is used any more: when
// a smaller one was sent at least [Delivery] ago on a stream that has not ended, or when the time to
// live has passed since. The time to live is shorter than the lease, so a coordinator that is lost is no
// exception. What is left is that Envoy fills a token bucket when its size or rate changes:
// docs/reference/rlqs.md derives the bound.
package rlqs

import "time"

const (
	// Delivery is within which time a message that was sent has arrived, or its stream has ended. Not
	// longer: capacity that moves between Envoys is unused for that long. Not shorter: a message waits
	// for a busy Envoy, or is sent a second time by TCP.
	Delivery = 500 * time.Millisecond
	// TTL is the time to live of an assignment, in whole seconds since Envoy ignores the rest. Not
	// longer: it has to end before the lease does, which lasts 5 s and was renewed up to one before.
	TTL = 3 * time.Second
	// silentAfter is without how long a report an assignment is not sent again. Envoy reports all its
	// buckets each 5 s, so two reports are missing then.
	silentAfter = 12 * time.Second
	// AbandonAfter is after how long without a request a bucket is abandoned. Not longer: it is sent an
	// assignment every other second. Not shorter: the next request after that meets the behavior that
	// Envoy is configured with for buckets without assignment.
	AbandonAfter = 30 * time.Second
	// crowdedAfter is the same where half of the room for buckets is taken. Two reports show that it is idle.
	crowdedAfter = 10 * time.Second
	// missedRequests is how many requests a silence is short of, by the rate before, when it shows that the load of a
	// bucket has gone. A bucket that has less than half of its limit is abandoned then, since Envoy reports at
	// once only for a bucket that it does not know.
	missedRequests = 10
	// answerWithin is how long a bucket of which nothing is lent has no assignment, before it gets one
	// that denies all: what others have to give back needs that long.
	answerWithin = 2*Delivery + 500*time.Millisecond
	// unlimitedTTL is the time to live where no limit applies: what Envoy knows then does not have to
	// follow anything soon.
	unlimitedTTL = time.Minute
	// changeGap is between two changes of the assignment of a bucket. Not shorter: a change fills
	// Envoy's bucket with a token at least.
	changeGap = 500 * time.Millisecond
	// housekeeping is between two looks at all buckets of a session.
	housekeeping = 250 * time.Millisecond
)
