// Package store defines what keeps the state of limits: the counters of every key, and one
// operation that takes from several of them as a whole.
//
// The stores are in the folders below it: memory keeps state in this process.
// storetest holds what each of them must do. A store does no matching and knows
// no protocol; its arithmetic is that of package limit.
package store

import (
	"context"
	"errors"

	"github.com/stint-io/stint/limit"
)

// Spec names the counters of one limit and says how they count.
type Spec struct {
	// ID identifies the counters. Binding the same ID again, with the same or
	// another Policy, keeps the state of its keys.
	ID string

	// Policy is how they count. It must be valid.
	Policy limit.Policy

	// Durable keeps the counters wherever others are kept, although their window is short.
	Durable bool
}

// Counters are the counters of one limit, one for each key. They belong to the
// store that bound them and are used in its charges only.
type Counters interface {
	Spec() Spec
}

// ErrUnavailable is wrapped by the errors of a store that could not be reached in
// time. What was asked of it was most likely not taken, but may have been.
var ErrUnavailable = errors.New("the store did not answer")

// OnFailure says how a charge is decided when the store cannot reach its counters.
// The zero value is FailTake.
type OnFailure uint8

// The ways to decide without the counters.
const (
	FailTake   OnFailure = iota // the whole Take fails with an error that wraps ErrUnavailable
	FailAllow                   // the charge fits
	FailReject                  // the charge does not fit; the reason is limit.ReasonStoreFailure
	FailLocal                   // counters in this process decide, by this process's share of the limit
)

// Charge is one limit's part of a Take.
type Charge struct {
	// Counters and Key select one bucket.
	Counters Counters
	// Key is the bucket's key, in an injective encoding. The store does not
	// keep it beyond the call.
	Key []byte

	// Cost is how much to take, from 0 (which changes nothing) to
	// limit.MaxCount.
	Cost int64

	// Permit is the number of the permits that a concurrency limit grants; Finish gives them
	// back by the same number. Other algorithms ignore it.
	Permit uint64

	// Keep has a Finish not give the permits back, but have them expire a whole time-out from now: their holder lives.
	Keep bool

	// CountRefused takes the cost even if it does not fit here, or the request is refused by
	// another charge, as limit.Policy.CountRefused does for all charges of a limit. Concurrency
	// limits ignore it.
	CountRefused bool

	// TakenAt is, for a Refund, when the cost was taken, so that nothing is given back to a later window than
	// the one it was taken from: that would admit more than its quota. It is by the wall clock; 0 = a moment ago.
	TakenAt limit.Time

	// Quota, when HasQuota is set, replaces the count of a fixed window without a ban: the
	// request brings its own limit. Requests with different Quotas share the bucket. Of a token or leaky
	// bucket it replaces the burst, in the store in memory alone. Other policies ignore it.
	Quota    int64
	HasQuota bool

	// Granted is the part of Quota that the key has on top of what its limit says, for now. Stores ignore it.
	Granted int64

	// Shadow charges are evaluated, and charged when they fit and the request
	// is admitted, but their refusal refuses nothing.
	Shadow bool

	// OnFailure says how to decide when the store cannot reach the counters. A
	// store that cannot fail ignores it.
	OnFailure OnFailure

	// Verdict is the answer.
	Verdict limit.Verdict

	// Once marks the charges behind the others whose buckets remember an idempotency key: token buckets of 1, of which
	// 1 is taken. Where the last of them does not fit, the Take was made before, and nothing is taken at all, also not
	// by charges that count refused requests. One before it is a Shadow, which remembers whether the Take was admitted.
	// Such a bucket is never shared with other keys: a store that has no room for it refuses the charge with
	// limit.ReasonTableFull.
	Once bool

	// Failed says that the counters were not reached and that Verdict is what
	// OnFailure asks for. Take and Peek set it.
	Failed bool
}

// Store keeps the counters of limits. Implementations are safe for concurrent use.
type Store interface {
	// Bind returns the counters called spec.ID, new or known. A known ID with
	// another policy of the same algorithm keeps what each key has used: the
	// change neither refills nor forgets. Another algorithm starts afresh.
	Bind(spec Spec) (Counters, error)

	// Unbind says that this process needs the counters no more. A store of one
	// process drops their state; one that others share leaves it to them, and to
	// its expiry.
	Unbind(c Counters) error

	// Take decides all charges as one: when every charge that is not Shadow
	// fits, all that fit are taken and it reports true; otherwise none is taken,
	// except those that count refused requests. It fills in every charge's Verdict,
	// which says how the bucket stands afterwards. Two charges on one bucket add up;
	// they count refused requests if one of them does, and the smaller of their
	// quotas holds.
	//
	// An error means that nothing was decided, and nothing was taken unless it
	// wraps ErrUnavailable. Counters that cannot be reached are no error where
	// the charge's OnFailure says how to decide without them.
	Take(ctx context.Context, charges []Charge) (allowed bool, err error)

	// Peek answers as Take would and takes nothing.
	Peek(ctx context.Context, charges []Charge) (allowed bool, err error)

	// Refund gives back the Cost of each charge, taken earlier by a Take that allowed it, as
	// far as the bucket has room for it.
	Refund(ctx context.Context, charges []Charge) error

	// Finish gives back the permits that each charge's Permit names. Charges of other
	// algorithms, and permits that have ended, are ignored.
	Finish(ctx context.Context, charges []Charge) error

	// Reset drops the state of each charge's bucket, bans included.
	Reset(ctx context.Context, charges []Charge) error

	// Close releases what the store holds. The store is not used afterwards.
	Close() error
}
