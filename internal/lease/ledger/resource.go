package ledger

import (
	"slices"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/limit"
)

// Pool is the bucket of what is not lent.
type Pool = pool.Pool

// Resource is one limit under one key, with the accounts of all instances that have a part
// of it.
type Resource struct {
	ID       lease.ResourceID
	Terms    *lease.Terms // shared with other resources
	Status   lease.Status // other than StatusOK while its limit is gone
	Broken   bool         // a round panicked; nothing is lent until the terms change
	Pool     Pool
	Supply   *pool.Supply // of a site's resource: where its capacity comes from; else nil
	accounts []*Account

	caps         map[string]*pool.Cap // by the name of the site
	restarted    bool                 // a former coordinator may have lent of it: what was used is not known
	divider      divider
	Rotation     Rotation
	tokenByToken bool // tokens are lent one by one
	trip         roundTrip

	pool.Load
	recovery
	*Scratch
}

// Scratch is what resources share: the memory of a round, and terms, which all keys of a limit have alike.
type Scratch struct {
	terms         *lease.Terms
	alloc         fairshare.Allocator
	claims        []fairshare.Claimant
	parts, shares []fixed.Amount // what each claim, and what each account, was allocated
	order         []*Account
}

// divider is how one kind of limit is divided: rates, permits, perInstance or *suppression.
// It is chosen when terms are put in force.
type divider interface {
	// demanded returns what a demand asks for, per second and at once; ok is false if the demand
	// contradicts an earlier one.
	demanded(a *Account, d *lease.Demand, at Arrival) (demand, shortfall fixed.Amount, ok bool)
	// targets sets the target of each account, and how the demand stands to the limit.
	targets(r *Resource, now limit.Time)
	// lend moves capacity from the pool to accounts below their target. It returns when the
	// next round is due if no report comes before, or lease.Never.
	lend(r *Resource, now limit.Time) (next limit.Time)
	// short returns for how much accounts above their target have to come down. It is given what
	// the others are short of their targets. whole says that burst is lent by targets alone, and
	// never as single tokens.
	short(r *Resource, of lease.Capacity) (short lease.Capacity, whole bool)
	// suppression returns what an instance has to refuse of its requests.
	suppression(a *Account) bucket.Suppression
}

// Arrival is how the report with a demand came.
type Arrival struct {
	Now        limit.Time
	Sent       time.Duration // when, by the instance's clock
	Late       time.Duration // how much longer it was in transit than the instance's fastest report
	Suppresses bool          // the instance can refuse a fraction of its requests
}

// Rotation is which instances hold a bucket that has fewer tokens than there are instances. A
// token cannot be divided, and a rate without a whole token of burst admits nothing. So as many
// instances as there are tokens hold the rate and the burst for some time, then others.
type Rotation struct {
	Until   limit.Time // when other instances follow; 0 = there is no rotation
	Members []*Account
}

// Open makes a the account of an instance that has nothing of the resource yet. It is not to be
// copied from here on.
func (r *Resource) Open(a *Account) {
	*a = Account{resource: r, needs: needs{Weight: 1}, caps: caps{CapRate: fixed.MaxAmount, CapBurst: fixed.MaxAmount}}
	a.setOwn(lease.Terms{}, *r.Terms)
	r.accounts = append(r.accounts, a)
}

// Remove takes back what accounts hold for which gone is true, and forgets them.
func (r *Resource) Remove(gone func(*Account) bool) {
	r.accounts = slices.DeleteFunc(r.accounts, func(a *Account) bool {
		if !gone(a) {
			return false
		}
		a.End()
		r.Rotation.Members = slices.DeleteFunc(r.Rotation.Members, func(o *Account) bool { return o == a })
		return true
	})
}

// Idle says whether the resource may be forgotten: it has no accounts, and its pool and its caps are as full as
// those of a new one, or its limit is gone.
func (r *Resource) Idle(now limit.Time) bool {
	r.Pool.Refill(now)
	if r.Supply != nil {
		return len(r.accounts) == 0 && r.capsFull(now) // what it holds goes back to the parent
	}
	return len(r.accounts) == 0 && !r.Recovering && r.capsFull(now) && (r.Pool.Level >= r.Terms.Burst || r.Terms.Semaphore || r.Terms.PerInstance() || r.Status != lease.StatusOK)
}

// Suppression returns what the instance of a has to refuse of its requests.
func (r *Resource) Suppression(a *Account) bucket.Suppression { return r.divider.suppression(a) }

// equalPart is the share of an instance that does not report its demand.
func (r *Resource) equalPart() fixed.Amount {
	n := fixed.Amount(max(1, len(r.accounts)))
	if r.Terms.Semaphore {
		return r.Terms.Amount() / n / fixed.Token * fixed.Token
	}
	return r.Terms.Amount() / n
}

// Safe is what each instance may use when it cannot reach the coordinator.
func (r *Resource) Safe() fixed.Amount {
	if s := r.Supply; s != nil {
		n := fixed.Amount(max(1, len(r.accounts)))
		if s.Own.Semaphore {
			return s.Answer.Safe / n / fixed.Token * fixed.Token
		}
		return s.Answer.Safe / n
	}
	if r.Terms.Safe > 0 {
		return r.Terms.Safe
	}
	return r.equalPart()
}

// Whole is the limit as instances are told it: of a site's resource the smaller of its own and
// the parent's.
func (r *Resource) Whole() lease.Terms {
	if r.Supply == nil {
		return *r.Terms
	}
	return r.Supply.Whole()
}

// Unknown says that it is not known yet what can be lent: of this coordinator or of its parent.
func (r *Resource) Unknown() bool { return r.Recovering || r.Supply != nil && r.Supply.Unknown() }

// capsFull says whether no cap has a bucket that is not full.
func (r *Resource) capsFull(now limit.Time) bool {
	for _, c := range r.caps {
		if c.Refill(now); c.Level < c.Full.Burst {
			return false
		}
	}
	return true
}
