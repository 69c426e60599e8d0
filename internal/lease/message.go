package lease

import (
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
)

// ProtocolVersion is the version that this package speaks. A coordinator serves
// instances of an older version by what they know: one that does not report its
// demand keeps an equal share.
const ProtocolVersion = 2

// SuppressVersion is the first version whose instances know of suppression. Older ones
// get an equal part of such a limit.
const SuppressVersion = 2

// ResourceID names one bucket that is shared: a limit, and the values that select
// the key, in the order of the limit's key. It is comparable.
type ResourceID struct {
	Limit string
	Key   string // injective encoding of the key's values; empty for a limit without key
}

// Holding is a part of a bucket. In messages it is a running total: all that was ever
// granted under a lease, or all that was ever given back. Totals wrap around after
// months at the largest limits, and are only compared by their differences.
type Capacity struct {
	Rate   fixed.Amount // tokens per second
	Burst  fixed.Amount // whole tokens: the burst, or the places of a gauge
	Tokens fixed.Amount // moved along with, or apart from, rate and depth
}

// Member is one run of one instance: a process that restarts under the same name is
// another member, and what the former held counts until it expires.
type Member struct {
	Instance string // chosen by the operator or at random; unique among instances
	Session  uint64 // chosen at random by each run
}

// Report is what an instance tells its coordinator. One report carries every resource
// that has something to tell; a report without any renews all leases.
type Report struct {
	Member
	Version uint32
	Epoch   uint64        // of the coordinator that the instance heard last; 0 = none
	Number  uint64        // ascends within the session
	Stamp   time.Duration // the instance's clock; echoed, read by nobody else
	Leaving bool          // the instance holds nothing any more and goes
	Demands []Demand
	Usage   []Usage // for metrics only; the coordinator's machine does not read it
}

// Usage is what an instance decided about all keys of a limit since the report before,
// as sums of costs.
type Usage struct {
	Limit             string
	Admitted, Refused uint64
}

// Demand is what an instance tells about one resource.
type Demand struct {
	// Handle is the instance's own name for the resource, below 2^31. Resource is
	// empty once the coordinator has answered about the handle.
	Handle   uint32
	Resource ResourceID
	// Attributes are those that the values of the resource's key come from; nil = the
	// instance does not say.
	Attributes []string

	// Lease is the lease that Returned belongs to; 0 = none yet. Claim is the
	// token that a former coordinator gave with the lease, sent to the next one.
	Lease uint64
	Claim []byte

	// Silent says that the instance does not report its demand: it keeps an equal
	// share, and Rate and Burst mean nothing.
	Silent bool
	// Rate is the demand in tokens per second, refused and waiting ones included.
	// Need is how many tokens it lacks at this moment; for a gauge the places it
	// wants in all; for a limit that is shared by suppression the cost of the largest
	// request of late.
	Rate, Need fixed.Amount
	// Within is how long after its arrival at the coordinator the Burst is of
	// use, since those who wait for it go away then; 0 = until told otherwise.
	Within time.Duration
	Weight uint32 // 0 counts as 1
	Band   uint8  // higher goes first

	// Attempted and Admitted are running totals, for limits that are shared by
	// suppression: what was asked for, refused and waiting ones at the cost they would
	// have had, and of it what was admitted. Only Admitted was used.
	Attempted, Admitted fixed.Amount

	// Closed says that the instance has done with the handle: nothing is held
	// under it, and it will not be used again.
	Closed bool

	Returned   Capacity // given back under Lease, in all
	AckedGrant uint64   // the number of the latest Grant that told about the handle
}

// Status says how a coordinator takes a demand, a claim or an instance.
type Status uint8

// The states of a demand. All but StatusOK lend nothing.
const (
	StatusOK              Status = iota
	StatusUnknownLimit           // the coordinator has no limit of that name
	StatusNotLeased              // the limit is not shared by leases
	StatusBadKey                 // the key does not fit the limit
	StatusBadDemand              // an amount is not one
	StatusBadClaim               // the token is forged, of another instance, or was used
	StatusLeaseGone              // the lease has expired: ask for another
	StatusDuplicate              // another live session has the instance's name
	StatusBroken                 // the coordinator failed at this resource alone
	StatusTooMany                // the coordinator's table of resources is full
	StatusWrongAttributes        // the key's values are of other attributes than the limit's
)

var statusNames = [...]string{
	StatusOK: "ok", StatusUnknownLimit: "unknown_limit", StatusNotLeased: "not_leased", StatusBadKey: "bad_key",
	StatusBadDemand: "bad_demand", StatusBadClaim: "bad_claim", StatusLeaseGone: "lease_gone",
	StatusDuplicate: "duplicate_instance", StatusBroken: "broken", StatusTooMany: "too_many_resources",
	StatusWrongAttributes: "wrong_attributes",
}

// String returns the status as it stands on the wire and in metrics.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "unknown"
}

// Grant is what a coordinator tells an instance. Durations, never times of day, are
// on the wire: clocks of machines do not matter.
type Grant struct {
	To     Member
	Epoch  uint64 // of the coordinator; a higher one deposes a lower one
	Number uint64 // ascends within the session
	Status Status // StatusDuplicate refuses the whole session

	// Echo is the Stamp of the latest report, and Age how long ago it came. A
	// lease ends Lease after the instance's clock showed Echo. Refresh is how
	// often the instance should report at least.
	Echo, Age      time.Duration
	Lease, Refresh time.Duration

	// Master is where the coordinator of these limits is, when it is not here;
	// NotMaster says so. An empty Master is not known.
	NotMaster bool
	Master    string

	Shares []Share
}

// Share is what a coordinator tells about one resource.
type Share struct {
	Handle      uint32
	Status      Status
	AckedReport uint64 // the number of the report whose Demand was the latest

	Lease   uint64   // 0 = no lease
	Granted Capacity // under Lease, in all
	// Keep asks the instance to come down: to hold at most this rate and depth.
	// MaxAmount asks for nothing.
	CapRate, CapBurst fixed.Amount

	// Safe is the rate, or the places of a gauge, to use when the coordinator
	// cannot be reached and the instance is in safe mode.
	Safe fixed.Amount
	// Contended says that little or nothing is free: give back what overflows, and
	// do not wait for what is not there.
	Contended bool
	// Saturated says that demand exceeds the limit and that all is lent, so that it is
	// no use to wait for more.
	Saturated bool
	// Recovering says that a new coordinator does not know yet what is held.
	Recovering bool

	// Suppress is what to refuse, for limits that are shared by suppression.
	Suppress bucket.Suppression

	Limit Terms  // the whole limit
	Token []byte // proof of the lease for the next coordinator; may be empty
}
