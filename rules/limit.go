package rules

import (
	"time"

	"github.com/stint-io/stint/limit"
)

// Missing says what a limit does with a request that lacks an attribute of its
// key. The zero value is MissingSkip.
type Missing uint8

// The ways to treat a missing key attribute.
const (
	MissingSkip   Missing = iota // the limit does not apply
	MissingAll                   // requests without it share one bucket
	MissingReject                // the request is refused
)

var missingNames = [...]string{MissingSkip: "skip", MissingAll: "all", MissingReject: "reject"}

// String returns the word used in limit files.
func (m Missing) String() string { return wordOf(missingNames[:], m) }

// ConditionError says what a limit does with a request for which its condition cannot be evaluated. The zero value is
// ConditionErrorDefault.
type ConditionError uint8

// The choices.
const (
	// ConditionErrorDefault skips the limit where an attribute is missing, and where it is a shadow; otherwise, as when
	// the evaluation costs too much, the limit applies: a client must not choose that it does not.
	ConditionErrorDefault ConditionError = iota
	ConditionErrorMatch                  // the limit applies
	ConditionErrorSkip                   // the limit is skipped
)

// conditionErrorNames are the words of the choices that a file can name.
var conditionErrorNames = [...]string{"match", "skip"}

// String returns the word used in limits files; "" for the default.
func (c ConditionError) String() string {
	if c == ConditionErrorDefault {
		return ""
	}
	return wordOf(conditionErrorNames[:], c-1)
}

// fault is why a condition could not be evaluated.
type fault uint8

const (
	noFault          fault = iota
	missingAttribute       // the request lacks an attribute, or a header field
	failedEvaluation       // it costs too much, or the attributes that it reads are not all known
)

// matchesDespite reports whether the limit applies to a request for which its condition could not be evaluated.
func (l *Limit) matchesDespite(f fault) bool {
	switch l.OnConditionError {
	case ConditionErrorMatch:
		return f != noFault
	case ConditionErrorSkip:
		return false
	}
	return f == failedEvaluation && !l.Shadow
}

// StoreFailure says how a limit answers while its store does not. The zero value
// is FailureAllow.
type StoreFailure uint8

// The answers during a store failure.
const (
	FailureAllow  StoreFailure = iota // admit
	FailureReject                     // refuse
	FailureLocal                      // enforce this process's share of the limit
)

var failureNames = [...]string{FailureAllow: "allow", FailureReject: "reject", FailureLocal: "local"}

// String returns the word used in limit files.
func (f StoreFailure) String() string { return wordOf(failureNames[:], f) }

// Ban says that a key with too many attempts is refused for a time.
type Ban struct {
	// For is how long the ban lasts.
	For time.Duration
	// After is the rate of attempts, refused ones included, above which the ban
	// begins. The zero value means the rate of the limit itself.
	After limit.Rate
	// FromNow makes it end For after the attempt that began it. Otherwise it ends For after
	// the end of the period of After in which it began.
	FromNow bool
}

// Limit is one limit as configured, compiled. It is read-only once loaded, and
// belongs to its [Set]. The zero value is of no use.
type Limit struct {
	// Name is unique among limits in stint's format. A limit in Envoy's format
	// is called after its domain and descriptors, as in
	// "edge.remote_address.path_/login". Names are printable ASCII.
	Name string

	// Domain is empty for stint's format, Envoy's domain for Envoy's.
	Domain string

	// Plan is that whose limit it is; "" = none.
	Plan string

	// Within is the limit whose count this one hands out, as it is written; "" = none. See [Set.Divisions].
	Within string

	// Envoy is set for a limit from a file in Envoy's format, which follows the
	// semantics of Envoy's rate limit service.
	Envoy bool

	// Key names the attributes that select a bucket; nil = one bucket for all.
	// For Envoy limits it holds the keys of the descriptor's entries.
	Key []string

	// Values holds, for Envoy limits, the values of those entries as they are
	// written; "" = any.
	Values []string

	// Missing says what happens when an attribute of Key is missing.
	Missing Missing

	// SoftPercent is the share of the nominal quota, 1 to 100, or to HardPercent if there is one,
	// above which a request is admitted with a warning; 0 = none.
	SoftPercent int

	// HardPercent is the share of the nominal quota, 100 to 100000, above which requests are
	// refused; 0 = the quota itself. The policies of the Variants have the count that it comes to.
	HardPercent int

	// Events are the crossing events that are noted: soft, hard, under, saturated. Read-only.
	Events []string

	// ChargeAfter limits are charged what a request has cost, whether it fits or not: a request of cost 0
	// asks beforehand, and is refused when nothing is left.
	ChargeAfter bool

	// Shadow limits are evaluated and counted, not enforced.
	Shadow bool

	// EnforcePermyriad is the share of keys, 0 to 10000, for which the limit is
	// enforced; it is a shadow for the rest. See [Matched.Shadow].
	EnforcePermyriad int

	// Status is the HTTP status of a refusal, 300 to 599.
	Status int

	// OnExceed says what else becomes of a request over the limit.
	OnExceed OnExceed

	// Usage says whether the file asks for a history of what keys have used; nil = it does not say.
	// See [Limit.CountsUsage].
	Usage *bool

	// Purpose says what the limit is for, such as provisioning, isolation or plan: a label for
	// people and metrics; "" = none.
	Purpose string

	// Ban is nil when the limit bans nobody. Each Variant has the ban's counter.
	Ban *Ban

	// OnStoreFailure says how the limit answers while its store does not. It is
	// not for limits in Envoy's format: the proxy decides about those.
	OnStoreFailure StoreFailure
	// OnConditionError says what becomes of a request for which the condition cannot be evaluated.
	OnConditionError ConditionError

	// Sharing says how instances share the limit.
	Sharing Sharing

	// Lease says how it is divided when Sharing is SharingLeased, Split which part of
	// it is divided when it is SharingSplit, and Suppress what is refused when it is
	// SharingSuppressed.
	Lease    Lease
	Split    Split
	Suppress Suppress

	// Share says how a bucket is divided among tenants; nil = who asks first takes.
	Share *Share

	// Base is the policy where no override applies.
	Base Variant

	// Overrides are tried in order; the first that holds replaces Base.
	Overrides []Override

	// Condition is match and when as text, such as `method=POST path=/login`;
	// empty when the limit applies to everything.
	Condition string

	// The rest is for Envoy limits only.

	// Alias is rate_limit.name: what current_limit.name echoes and Replaces
	// refers to.
	Alias string
	// Replaces names (by Alias) the limits that this one switches off when both
	// are matched by one request.
	Replaces []string
	// QuotaMode limits refuse a request only when all of them that it matched
	// are over.
	QuotaMode bool
	// Whitelist is a rule without rate_limit: it matches, and limits nothing.
	// Its policy is Unlimited.
	Whitelist bool
	// Metadata is passed on in dynamic metadata. Read-only.
	Metadata map[string]any

	// File and Line say where the limit is written.
	File string
	Line int

	order     int      // in the Set
	cut       bool     // a value counts by its first 128 bytes, not by its hash
	users     []string // attributes of header fields that name the client behind a proxy
	salt      uint64
	clause    clause
	ipv6      int
	overrides *index
	detailed  bool     // Envoy's detailed_metric
	metric    []bool   // Envoy's value_to_metric, per entry
	share     []string // Envoy's share_threshold: per entry, the pattern that stands for its values, or ""

	statVaries bool // as StatVaries
}

// Override is a policy for some of a limit's requests.
type Override struct {
	// When is the condition as text, such as `user=acme`.
	When string
	Variant

	clause clause
}

// Variant is one policy of a limit, with the identity of its counters.
type Variant struct {
	// ID identifies the counters. It is the same after a reload as long as the
	// limit's name and the override's condition are.
	ID string

	// Pool is the name that limits of several plans have in common, whose counters are the same ones: a request
	// brings its count along. "" = the counters are the variant's own.
	Pool string

	// Policy is how they count. It is valid.
	Policy limit.Policy

	// Nominal is the count that the file says, of which Policy admits Limit.HardPercent.
	Nominal int64

	// BanID and BanPolicy are those of the counter of attempts behind a ban;
	// BanID is empty when there is no ban.
	BanID     string
	BanPolicy limit.Policy

	// Index is the variant's place in [Set.Variants].
	Index int

	// Detail says which override this is, as in "override when user=acme"; it
	// is empty for the base policy.
	Detail string
}

// SharedValue returns the pattern under which a rule in Envoy's format counts all
// values of its i-th entry together; "" when it counts each by itself.
func (l *Limit) SharedValue(i int) string {
	if i >= len(l.share) {
		return ""
	}
	return l.share[i]
}
