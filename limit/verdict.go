package limit

import (
	"math"
	"time"
)

// Time is a moment in nanoseconds since the Unix epoch, from a clock of the
// caller's choice. Arithmetic that sees an earlier Time than before treats it as
// the latest it has seen: a clock that steps back never admits more.
//
// Times up to the year 2262 fit. Times before the epoch are not supported.
type Time int64

// Add returns t+d, saturating at the largest Time.
func (t Time) Add(d time.Duration) Time {
	if s := int64(t) + int64(d); d < 0 || s >= int64(t) {
		return Time(s)
	}
	return math.MaxInt64
}

// At converts a [time.Time] by its wall clock reading. Times before 1678 and after 2261 are the first
// and the last that a Time can have.
func At(t time.Time) Time {
	const second = int64(time.Second)
	switch s := t.Unix(); {
	case s < math.MinInt64/second:
		return math.MinInt64
	case s >= math.MaxInt64/second:
		return math.MaxInt64
	}
	return Time(t.UnixNano())
}

// Never is an endless wait: that of a refusal which no time ends, such as a cost above the burst
// or an empty bucket with rate 0.
const Never time.Duration = math.MaxInt64

// Verdict is what one limit's arithmetic says about one cost at one time.
type Verdict struct {
	// Allowed says whether the cost fits.
	Allowed bool

	// Reason says why not; ReasonNone when Allowed.
	Reason Reason

	// Remaining is how much the limit would still admit at this very moment,
	// after this request. Never negative.
	Remaining int64

	// RetryAfter is the shortest wait after which the same cost fits if nobody
	// else takes anything; 0 when Allowed, [Never] when it never fits. It is
	// rounded up to the nanosecond: a caller that waits this long is not early.
	RetryAfter time.Duration

	// ResetAfter is the wait until the bucket is full or the window has ended if nobody takes
	// anything; [Never] for a bucket that does not refill.
	ResetAfter time.Duration

	// Delay is how long an admitted request must be held back by a leaky bucket, for its place
	// in the queue. 0 for all other algorithms.
	Delay time.Duration
}

// Reason says in one word why a limit refused.
type Reason uint8

// The reasons of a refusal.
const (
	ReasonNone         Reason = iota // admitted
	ReasonRate                       // the rate or window is used up; retry later
	ReasonConcurrency                // too many in flight; retry when one ends
	ReasonCost                       // the cost alone is above what the limit can ever admit
	ReasonBanned                     // the key is banned until the ban ends
	ReasonMissing                    // the request has no value for the limit's key, and the limit refuses such requests
	ReasonTableFull                  // the table is full of live keys, and the bucket that new keys share is empty
	ReasonStoreFailure               // the store did not answer, and the limit refuses then
	ReasonSuppressed                 // the demand of all instances is above the limit, and each refuses a random fraction
	ReasonRecovering                 // the coordinator of a shared limit has just begun, and does not know yet what is lent
	ReasonRising                     // more than the window before and the limit's rise; retry in the next window
	ReasonQueueFull                  // the queue of a throttle is full, and nothing less important waits in it
	ReasonEvicted                    // it waited in a full queue and made room for a more important request
	ReasonQueueTimeout               // it waited in the queue of a throttle for as long as it may
	ReasonDeadline                   // it would not be done by the deadline of its context
	ReasonCancelled                  // it ran, cost far more than was predicted, and was cancelled for those that waited
	ReasonShare                      // the tenant has its share of the limit, and what is left is for others that want theirs

	// ReasonCount is one more than the last reason.
	ReasonCount int = iota
)

var reasonNames = [...]string{
	ReasonNone: "", ReasonRate: "rate_exceeded", ReasonConcurrency: "concurrency_exceeded",
	ReasonCost: "cost_exceeds_limit", ReasonBanned: "banned", ReasonMissing: "missing_key",
	ReasonTableFull: "table_full", ReasonStoreFailure: "store_failure", ReasonSuppressed: "suppressed",
	ReasonRecovering: "recovering", ReasonRising: "rising_too_fast", ReasonQueueFull: "queue_full", ReasonEvicted: "evicted",
	ReasonQueueTimeout: "queue_timeout", ReasonDeadline: "deadline", ReasonCancelled: "cancelled",
	ReasonShare: "share_exceeded",
}

// String returns the reason as it stands on the wire, in metrics and in logs,
// such as "rate_exceeded"; the empty string for ReasonNone.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}
