package limit

import (
	"cmp"
	"context"
	"time"
)

// Attribute is one name/value pair that describes a request: user=u1,
// ip=192.0.2.7, path=/login. Envoy's descriptor entries are attributes.
type Attribute struct {
	Name, Value string
}

// Request is what a [Taker] decides about. The zero value is a request without
// attributes that costs 1.
type Request struct {
	// Attributes describe the request. Their order matters only to limits that
	// were written as Envoy descriptors. Where a name occurs twice the first
	// one counts.
	Attributes []Attribute

	// Cost is how much the request takes, in the limit's units. 0 means the
	// default of 1, so that a forgotten field never turns a limit off; to take
	// nothing, set Peek. Negative costs are an error.
	Cost int64

	// Peek asks how the request would be decided and takes nothing: the Decision
	// says whether it would be admitted, and what remains is what there is now.
	Peek bool

	// CountRefused charges the cost to every limit even if one of them refuses, as
	// [Policy.CountRefused] does for all requests of a limit: for costs that are known
	// only when they have been spent, such as the tokens of a language model's answer.
	// The Decision says whether the cost was within the limits. Not for Concurrency.
	CountRefused bool

	// IdempotencyKey, when it is not empty, names this Take, so that a caller that got no answer can send it
	// again: a Take with the same key, attributes and cost as one that was admitted is admitted and charged
	// nothing, and its Decision is Repeated. Use a random text for each Take, such as a UUID. A Take that was
	// refused is decided anew, unless CountRefused charged it. How long a key is remembered, and whether keys are
	// remembered at all, is up to the [Taker]: the service remembers them for 10 minutes, limiters of this
	// package ignore them. At most [MaxIdempotencyKey] bytes.
	IdempotencyKey string
}

// MaxIdempotencyKey bounds a [Request.IdempotencyKey], in bytes.
const MaxIdempotencyKey = 256

// Get returns the value of the first attribute called name.
func (r Request) Get(name string) (string, bool) {
	for i := range r.Attributes {
		if r.Attributes[i].Name == name {
			return r.Attributes[i].Value, true
		}
	}
	return "", false
}

// Taker is anything that answers Take: an in-process limiter, an engine on a
// store, a leasing client. Middleware and transports cannot tell which.
//
// A refusal is a Decision with Allowed false and a nil error. An error means
// that no decision could be made. Implementations are safe for concurrent use and
// do not keep the request's attributes beyond the call: callers may reuse them.
type Taker interface {
	Take(ctx context.Context, req Request) (Decision, error)
}

// AttributeReader is a [Taker] that says which attributes its limits read, such as "ip" and
// "header:x-api-key", so that a transport gathers those and no others. A name "header:*" or "*"
// means that any may be read. The list may change from call to call; the caller must not change
// it.
type AttributeReader interface {
	Taker
	Attributes() []string
}

// Finisher is a [Taker] that holds concurrency limits. A caller that got a Decision with a
// non-zero Permit calls Finish when the request has ended; otherwise its permit is held until
// the limit's time-out has passed.
type Finisher interface {
	Taker
	// Finish gives back the permits in flight that the Decision of this request holds.
	// Finishing twice, or after the time-out, is harmless.
	Finish(ctx context.Context, req Request, permit uint64) error
}

// Keeper is a [Finisher] whose permits can be kept for longer than a time-out by a holder that lives.
type Keeper interface {
	Finisher
	// Keep has the permits of the Decision of this request expire a whole time-out from now. What has expired stays so.
	Keep(ctx context.Context, req Request, permit uint64) error
}

// PatientTaker is a [Taker] some of whose limits let requests wait for their turn instead of
// refusing them. Its Take waits as long as they allow.
type PatientTaker interface {
	Taker
	// TakeWithin is Take that waits for at most d; with 0 it answers at once.
	TakeWithin(ctx context.Context, req Request, d time.Duration) (Decision, error)
}

// Decision is the answer to a Take: whether the request may go on and, for each
// limit that it met, how that limit stands. The zero value refuses.
type Decision struct {
	// Allowed says whether the request may go on. No limit is charged when it
	// is false, except those that count refused requests.
	Allowed bool

	// Results has one entry for each limit that matched, in the order of the
	// configuration. It is empty when no limit applies. The caller must not
	// keep it beyond the call it got it from unless it copies it.
	Results []Result

	// Permit names the permits that the request holds under concurrency limits; 0 when it holds
	// none. See [Finisher].
	Permit uint64

	// PermitFor is how long the permits are held: the shortest time-out of the limits. Who needs them for longer calls
	// Keep of a [Keeper] in time. 0 = there is no permit, or that is not known.
	PermitFor time.Duration

	// Status is the HTTP status that the refusing limit asks for (429 unless
	// its on_exceed says otherwise); 0 when Allowed.
	Status int

	// Action says what else the answer to a refused request has, as the refusing limit asks
	// for; nil = nothing of its own.
	Action *Action

	// Tags are header fields for whoever serves the admitted request: it is over a limit that
	// lets it through with a mark, so that less is served. Read-only.
	Tags []Attribute

	// Delay is how long an admitted request should be held back before it goes
	// on, as leaky buckets ask for; 0 = go on at once.
	Delay time.Duration

	// Repeated says that a Take with the same [Request.IdempotencyKey] was charged before, and this one was charged
	// nothing. Results say how the limits stand now.
	Repeated bool
}

// Result is how one limit answered.
type Result struct {
	// Limit is the limit's name.
	Limit string

	// Algorithm is how the limit counts.
	Algorithm Algorithm

	// Quota is the most that the limit admits at once or within one Window: the burst of a
	// bucket, the count of a window, the permits of a concurrency limit.
	Quota int64

	// Nominal is what the limit is called by, at most Quota: above it requests are admitted with a
	// warning up to the quota, as with hard: 250% in a limits file. 0 = Quota.
	Nominal int64

	// Window is the time in which Quota is granted: the length of a window, or
	// the time in which an empty bucket fills; 0 for concurrency limits and for
	// limits that never refill.
	Window time.Duration

	// Cost is what the request asked this limit for.
	Cost int64

	Verdict

	// Soft is set when the request was admitted and the limit is used beyond
	// its soft threshold: a warning to slow down.
	Soft bool

	// Shadow is set when the limit is evaluated and counted but not enforced:
	// its Verdict may refuse while the Decision allows.
	Shadow bool

	// Tagged is set, with Shadow, when the request is over a limit that lets it through with a
	// mark: see Decision.Tags.
	Tagged bool

	// StoreFailed is set when the limit's counters could not be reached: its
	// Verdict is what on_store_failure asks for, not how the limit stands.
	StoreFailed bool

	// Detail is a short text for people, such as the override that applied; it
	// never holds a key. It may be empty.
	Detail string

	// Purpose is the limit's label of that name; it may be empty.
	Purpose string
}

// RetryAfter returns how long to wait before the same request can pass: the
// longest wait that an enforced limit asks for. It is 0 when the Decision
// allows, and [Never] when no wait is long enough.
func (d *Decision) RetryAfter() time.Duration {
	var longest time.Duration
	if d.Allowed {
		return 0
	}
	for i := range d.Results {
		if r := &d.Results[i]; !r.Shadow && !r.Allowed && r.RetryAfter > longest {
			longest = r.RetryAfter
		}
	}
	return longest
}

// Refused returns the first enforced limit that refused, or nil.
func (d *Decision) Refused() *Result {
	for i := range d.Results {
		if r := &d.Results[i]; !r.Shadow && !r.Allowed {
			return r
		}
	}
	return nil
}

// Tightest returns the enforced limit with the least remaining, or nil when no
// limit applies. A limit that refused is tighter than any that did not; among
// those that refused it is the one with the longest wait.
func (d *Decision) Tightest() *Result {
	var tightest *Result
	for i := range d.Results {
		if r := &d.Results[i]; !r.Shadow && (tightest == nil || r.tighterThan(tightest)) {
			tightest = r
		}
	}
	return tightest
}

func (r *Result) tighterThan(o *Result) bool {
	switch {
	case r.Allowed != o.Allowed:
		return !r.Allowed
	case !r.Allowed:
		return r.RetryAfter > o.RetryAfter
	default:
		return r.Remaining < o.Remaining
	}
}

// costOf is the cost of a request, 1 by default.
func costOf(req Request) int64 { return cmp.Or(req.Cost, 1) }
