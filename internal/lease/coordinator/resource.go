package coordinator

import (
	"slices"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// resource is one limit under one key, with the accounts of all instances that have a part
// of it.
type resource struct {
	id       lease.ResourceID
	terms    lease.Terms
	status   lease.Status // other than StatusOK while its limit is gone
	broken   bool         // a round panicked; nothing is lent until the terms change
	pool     pool
	accounts []*account
	alloc    fairshare.Allocator

	divider      divider
	rotation     rotation
	tokenByToken bool // tokens are lent one by one

	load
	recovery
	schedule
	scratch
}

// schedule is when the next round of a resource is due.
type schedule struct {
	dirty  bool       // there is one
	due    limit.Time // when, if dirty
	queued bool       // the resource is in the coordinator's list of rounds to run
}

// scratch is memory that a round uses again. Nothing in it outlives the round.
type scratch struct {
	claims []fairshare.Claimant
	parts  []fixed.Amount // what each claim was allocated
	shares []fixed.Amount // what each account was allocated
	order  []*account
}

// divider is how one kind of limit is divided: rates, permits, perInstance or *suppression.
// It is chosen when terms are put in force.
type divider interface {
	// demanded returns what a demand asks for, per second and at once; ok is false if the demand
	// contradicts an earlier one.
	demanded(a *account, d *lease.Demand, now limit.Time) (demand, shortfall fixed.Amount, ok bool)
	// targets sets the target of each account, and how the demand stands to the limit.
	targets(r *resource, now limit.Time)
	// lend moves capacity from the pool to accounts below their target. It returns when the
	// next round is due if no report comes before, or lease.Never.
	lend(r *resource, now limit.Time) (next limit.Time)
	// short returns for how much accounts above their target have to come down. It is given what
	// the others are short of their targets. whole says that burst is lent by targets alone, and
	// never as single tokens.
	short(r *resource, of lease.Capacity) (short lease.Capacity, whole bool)
	// suppression returns what an instance has to refuse of its requests.
	suppression(a *account) bucket.Suppression
}

// rotation is which instances hold a bucket that has fewer tokens than there are instances. A
// token cannot be divided, and a rate without a whole token of burst admits nothing. So as many
// instances as there are tokens hold the rate and the burst for some time, then others.
type rotation struct {
	until   limit.Time // when other instances follow; 0 = there is no rotation
	members []*account
}

// leave takes an account out of the rotation.
func (t *rotation) leave(a *account) {
	t.members = slices.DeleteFunc(t.members, func(o *account) bool { return o == a })
}

// capacity is what is divided: the rate, or the permits of a semaphore.
func (r *resource) capacity() fixed.Amount {
	if r.terms.Semaphore {
		return r.terms.Burst
	}
	return r.terms.Rate
}

// equalPart is the share of an instance that does not report its demand.
func (r *resource) equalPart() fixed.Amount {
	n := fixed.Amount(max(1, len(r.accounts)))
	if r.terms.Semaphore {
		return r.capacity() / n / fixed.Token * fixed.Token
	}
	return r.capacity() / n
}

// safe is what each instance may use when it cannot reach the coordinator.
func (r *resource) safe() fixed.Amount {
	if r.terms.Safe > 0 {
		return r.terms.Safe
	}
	return r.equalPart()
}

// delay is how long a round waits for reports that come at about the same time.
func (r *resource) delay() time.Duration {
	// One part for what arrives together, one for the work of a large round: at
	// 10,000 instances a round takes some milliseconds, and rounds must not
	// follow each other without a pause.
	return time.Millisecond + time.Duration(len(r.accounts))*2*time.Microsecond
}

// reached is the part of its target that the account has of rate.
func (a *account) reached() float64 { return float64(a.held().Rate) / max(float64(a.target.Rate), 1) }

// shortOf returns what an account is short of its target, or nothing where that is too little to
// be worth a message.
func (r *resource) shortOf(a *account) lease.Capacity {
	h := a.held()
	s := lease.Capacity{Rate: max(0, a.target.Rate-h.Rate), Burst: max(0, a.target.Burst-h.Burst)}
	least := a.target.Rate / lease.Hysteresis
	if h.Rate < a.demand-a.demand/lease.Hysteresis {
		least /= lease.Hysteresis // it uses all that it gets
	}
	if a.shortfall > 0 {
		least = min(least, a.target.Rate/lease.Hysteresis/4)
		if !r.saturated {
			least /= lease.Hysteresis // its bucket runs dry in the end, however little is missing
		}
	}
	if !r.contended && a.shortfall == 0 && h.Rate >= a.demand && h.Burst >= 2*fixed.Token {
		return lease.Capacity{} // it has what it demands, and gets more when it asks
	}
	if s.Rate < least {
		s.Rate = 0
	}
	// An instance that has just returned burst unasked has no use for it.
	if h.Burst >= 2*fixed.Token && (s.Burst < a.target.Burst/(lease.Hysteresis/8) || !r.saturated && a.shortfall == 0 && r.pool.at < a.returnedAt.Add(lease.IdleGrace)) {
		s.Burst = 0
	}
	return s
}

// recovery is what leases of a former coordinator may still hold.
type recovery struct {
	recovering bool
	frozen     lease.Capacity      // the most that leases nobody has claimed yet may hold
	claimed    map[uint64]struct{} // the numbers of leases that were claimed
}

// inRange says whether the amounts of a demand are possible ones.
func inRange(d *lease.Demand) bool {
	return d.Rate >= 0 && d.Shortfall >= 0 && d.Rate <= fixed.MaxAmount && d.Shortfall <= fixed.MaxAmount
}
