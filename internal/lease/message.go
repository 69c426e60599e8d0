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

// SuppressVersion is the first version whose instances support suppression. Older ones get an
// equal part of such a limit.
const SuppressVersion = 2

// ResourceID names one shared bucket: a limit, and the values of its key. It is comparable.
type ResourceID struct {
	Limit string
	Key   string // injective encoding of the key's values; empty for a limit without key
}

// Capacity is a part of a limit. In messages it is a running total: all that was ever granted
// under a lease, or all that was ever returned. Totals wrap around after months at the largest
// limits, so only their differences are compared.
type Capacity struct {
	Rate   fixed.Amount // tokens per second
	Burst  fixed.Amount // whole tokens: the burst, or the permits of a semaphore
	Tokens fixed.Amount // moved along with rate and burst, or without them
}

// Member is one run of an instance: a process that restarts under the same name is another
// member, and the leases of the former one count until they expire.
type Member struct {
	Instance string // name, chosen by the operator or at random; unique among instances
	Session  uint64 // chosen at random by each run
}

// Report is what an instance sends to its coordinator. One report carries every resource that
// has something to report; a report without any renews all leases.
type Report struct {
	Member
	Version uint32
	Epoch   uint64        // the highest in a grant that arrived; 0 = none
	Number  uint64        // ascends within the session
	Stamp   time.Duration // the instance's clock; echoed in the grant, and not read by the coordinator
	Leaving bool          // the instance has returned everything and leaves
	Site    bool          // the instance is a server that lends on what it is lent
	// Complete says that every lease of the instance is in Demands, so that a new coordinator
	// knows all that this instance was lent by the former one.
	Complete bool
	Demands  []Demand
	Usage    []Usage // for metrics only
}

// Usage is the cost that an instance admitted and refused since the previous report, over all
// keys of a limit.
type Usage struct {
	Limit             string
	Admitted, Refused uint64
}

// Demand is what an instance reports about one resource.
type Demand struct {
	// Handle is the instance's own name for the resource, below 2^31. Resource is
	// empty once the coordinator has answered about the handle.
	Handle   uint32
	Resource ResourceID
	// Attributes are the names of the attributes that the values of the resource's key come
	// from; nil = not compared with the limit's.
	Attributes []string

	// Lease is the lease that Returned belongs to; 0 = none yet. Claim is the token by which
	// a former coordinator proves the lease to the present one.
	Lease uint64
	Claim []byte

	// Silent says that the instance does not report its demand: it is granted an equal
	// share, and Rate and Shortfall mean nothing.
	Silent bool
	// Rate is the demand in tokens per second: admitted, refused and waiting requests.
	// Shortfall is how many tokens are missing now; for a semaphore, the demand in permits;
	// for a limit shared by suppression, the cost of the largest recent request.
	Rate, Shortfall fixed.Amount
	// Within is for how long after its arrival at the coordinator the Shortfall is in force:
	// the last waiter gives up then. 0 = until the next report.
	Within time.Duration
	Weight uint32 // of the instance in allocation; 0 counts as 1
	Band   uint8  // priority; higher is served first

	// Attempted and Admitted are running totals of cost, for limits shared by suppression:
	// of all requests, and of those that were admitted.
	Attempted, Admitted fixed.Amount

	// Closed says that the handle is closed: nothing is held under it, and it will not be
	// used again.
	Closed bool

	Returned   Capacity // running total under Lease
	AckedGrant uint64   // the latest Grant for the handle that arrived

	// Claims are the parts of Rate that a site sums up: by priority, and by demand per weight.
	// nil = one claim of Rate, Weight and Band.
	Claims []Claim
	// Most is a site's own limit: the coordinator lends it no more. Tokens is 0.
	Most Capacity
	// Spare says that the instance cannot report at once when its demand rises, so it is lent in advance what no
	// instance demands, until one does.
	Spare bool
}

// Claim is a part of a site's demand: that of instances which have one priority and about the
// same demand per weight. A site that reported only the sum would get too much where one of
// its instances demands much and many demand little.
type Claim struct {
	Rate   fixed.Amount // per second; of a semaphore, permits
	Weight uint32       // of the instances together; 0 counts as 1
	Band   uint8
}

// MaxClaims bounds the claims of one demand.
const MaxClaims = 32

// InRange says whether the demand's amounts are possible ones.
func (d *Demand) InRange() bool {
	return d.Rate >= 0 && d.Shortfall >= 0 && d.Rate <= fixed.MaxAmount && d.Shortfall <= fixed.MaxAmount
}

// Status is the coordinator's answer to a demand, a claim or an instance.
type Status uint8

// The statuses. With all but StatusOK nothing is lent.
const (
	StatusOK              Status = iota
	StatusUnknownLimit           // the coordinator has no limit of that name
	StatusNotLeased              // the limit is not shared by leases
	StatusBadKey                 // the key does not fit the limit
	StatusBadDemand              // an amount is not one
	StatusBadClaim               // the token is forged, of another instance, or was used
	StatusLeaseGone              // the lease has expired: ask for another
	StatusDuplicate              // another live session has the instance's name
	StatusBroken                 // the coordinator failed, for this resource alone
	StatusTooMany                // the coordinator's table of resources, or of accounts, is full
	StatusWrongAttributes        // the values of the key are of other attributes than the limit's
	StatusForbidden              // the identity of the instance may not be lent the limit
	StatusElsewhere              // the resource belongs to the shard of another coordinator
)

var statusNames = [...]string{
	StatusOK: "ok", StatusUnknownLimit: "unknown_limit", StatusNotLeased: "not_leased", StatusBadKey: "bad_key",
	StatusBadDemand: "bad_demand", StatusBadClaim: "bad_claim", StatusLeaseGone: "lease_gone",
	StatusDuplicate: "duplicate_instance", StatusBroken: "broken", StatusTooMany: "too_many_resources",
	StatusWrongAttributes: "wrong_attributes", StatusForbidden: "forbidden", StatusElsewhere: "elsewhere",
}

// String returns the name of the status on the wire and in metrics.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "unknown"
}

// Grant is what a coordinator sends to an instance. It carries durations and no times of day:
// the clocks of machines need not agree.
type Grant struct {
	To     Member
	Epoch  uint64 // of the coordinator; grants of a lower one than the highest are ignored
	Number uint64 // ascends within the session
	Status Status // StatusDuplicate refuses the whole session

	// Echo is the Stamp of the latest report that has renewed the leases, and Age the time since
	// it arrived. A lease expires when the instance's clock shows Echo + Lease. Refresh is the
	// longest time between reports.
	Echo, Age      time.Duration
	Lease, Refresh time.Duration

	// NotMaster says that the coordinator of these limits is elsewhere: at the address
	// Master, or not known where if that is empty.
	NotMaster bool
	Master    string

	// Path is for sites: the coordinator that sends this and those above it, the nearest first.
	// A site that finds itself there has a cycle of parents.
	Path []string

	// Shards is among how many coordinators all resources are divided; 0 and 1 = this one has them
	// all. At most MaxShards.
	Shards int

	Shares []Share
}

// Share is what a coordinator grants of one resource.
type Share struct {
	Handle      uint32
	Status      Status
	Shard       int    // with StatusElsewhere: where the resource is, from 0
	AckedReport uint64 // the latest Report with a Demand for the handle that arrived

	Lease   uint64   // 0 = no lease
	Granted Capacity // running total under Lease
	// CapRate and CapBurst revoke what the instance holds above them. MaxAmount revokes
	// nothing.
	CapRate, CapBurst fixed.Amount

	// Safe is the rate, or the permits of a semaphore, that an instance in safe mode uses
	// after expiry.
	Safe fixed.Amount
	// Contended says that little or nothing is free: return what overflows the bucket, and
	// do not wait for more.
	Contended bool
	// Saturated says that demand is above the limit and that all is lent.
	Saturated bool
	// Recovering says that the coordinator is new and does not know yet what is lent.
	Recovering bool

	// Suppress is the fraction to refuse, for limits shared by suppression.
	Suppress bucket.Suppression

	Limit Terms  // the whole limit
	Token []byte // proof of the lease for the next coordinator; may be empty
}

// Ask is what a server asks for of a bucket of which it has no lease.
type Ask struct {
	Resource ResourceID
	Cost     fixed.Amount // below 0 gives back what was not used
	Peek     bool         // takes nothing
}

// Answer is the answer to an Ask. The zero value says that the resource has to be had by a lease.
type Answer struct {
	Decided    bool
	Admitted   bool
	Tokens     fixed.Amount  // that are left; below 0 after a limit was reduced
	RetryAfter time.Duration // until the same cost fits, if not admitted; the longest Duration = never
	ResetAfter time.Duration // until the bucket is full, likewise
}
