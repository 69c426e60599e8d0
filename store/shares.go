package store

import (
	"context"
	"time"

	"github.com/stint-io/stint/limit"
)

// ShareHold is how long a tenant that has asked counts as one that may ask again. Not shorter: the
// requests of a quiet tenant are seconds apart, and between them a tenant that is alone may take the
// whole burst. Not longer: until then a tenant that is alone leaves half of the burst to others.
const ShareHold = 10 * time.Second

// MaxShareTenants bounds the tenants of one bucket that are told apart at a time. More names count as one
// tenant. Not larger: whoever invents names would fill the memory. Not smaller: a limit may have some
// thousand tenants with requests at the same moment.
const MaxShareTenants = 10_000

// ShareTerms say how one limit is divided among tenants. They do not change once they are used.
type ShareTerms struct {
	// ID is that of the limit's counters.
	ID string
	// Policy is the limit's, a TokenBucket that counts no refused requests.
	Policy limit.Policy
	// Weights are those of the tenants that have one, from 1 to 1,000,000, by the Tenant of a [Share];
	// others have 1.
	Weights map[string]int64
	// Guaranteed are the tenants with a guarantee, in the order of their names, at most 64. Together
	// they have at most the rate of the Policy.
	Guaranteed []Guaranteed
}

// Guaranteed is a tenant with a guarantee.
type Guaranteed struct {
	Tenant string
	// Rate is what the tenant has as soon as it wants it, whatever others want.
	Rate limit.Rate
}

// Weight returns the weight of a tenant.
func (t *ShareTerms) Weight(tenant []byte) int64 {
	if w, ok := t.Weights[string(tenant)]; ok {
		return w
	}
	return 1
}

// Share is a tenant's part of a charge on a bucket that tenants share.
type Share struct {
	Terms *ShareTerms
	// Key selects the bucket, as in a [Charge], and Tenant the tenant. Neither is kept beyond the call.
	Key, Tenant []byte
	// Cost is as in a Charge.
	Cost int64
	// CountRefused takes the cost even if the tenant has no room for it.
	CountRefused bool

	// Verdict is the answer: whether the tenant has room. Its Delay and ResetAfter are 0.
	Verdict limit.Verdict
	// Rate is what the tenant has of the limit now, in tokens per second.
	Rate float64
	// Tenants is how many have taken tokens that are not refilled yet, and Taken how many tokens that is.
	Tenants int
	Taken   float64
}

// Shares keeps what each tenant has taken of buckets that tenants share. It says who may take next; how
// much all may take together is counted by the [Store]. Implementations are safe for concurrent use.
//
// An error that wraps [ErrUnavailable] says that the outcome is unknown; after any other error nothing
// was changed.
type Shares interface {
	// TakeShare takes the cost for the tenant if it has room for it.
	TakeShare(ctx context.Context, s *Share) error
	// PeekShare answers as TakeShare would. The tenant does not count as one that has asked.
	PeekShare(ctx context.Context, s *Share) error
	// ReturnShare gives back the cost of a TakeShare that allowed it. It has no Verdict.
	ReturnShare(ctx context.Context, s *Share) error
}
