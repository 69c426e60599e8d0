package ledger

import (
	"time"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/limit"
)

// Account is what one instance has of one resource, as its coordinator counts it. [Resource.Open]
// makes one.
type Account struct {
	resource *Resource
	Status   lease.Status // of its last demand
	Closed   bool         // the instance has ended its lease
	Gone     bool         // the instance is gone, and the account is about to be removed

	Pending bool // the instance has to be sent the account; the caller resets it
	gives   bool // in this round, it has to give up the rate that it holds above its target

	totals
	transit
	needs
	attempts
	caps

	site   *siteAccount   // nil = an instance that lends nothing on, and that has no cap of its own
	cap    *pool.Cap      // of a site with a cap; else nil
	Own    *Pool          // of a limit per instance, what the instance was not lent; else nil
	target lease.Capacity // what the latest round assigned
	served fixed.Amount   // turns in a rotation that it had, each divided by its weight
}

// totals holds the running totals of a lease. What was granted less what was returned is the
// most that the instance can hold, since the coordinator knows of every grant and learns of
// a return only after it was made.
type totals struct {
	Lease             uint64 // its number; 0 = nothing was ever granted
	Born              uint64 // the number of the Grant that announced the lease
	Granted, Returned lease.Capacity
	refundable        fixed.Amount // the most tokens that the instance can have, spent ones included
	refundableAt      limit.Time   // the time up to which refundable is computed
	returnedAt        limit.Time   // when the instance last returned burst without being asked to
}

// transit is what was granted and is not known to have arrived.
type transit struct {
	unacked       lease.Capacity // all of it
	unsent        lease.Capacity // the part of unacked that is in no Grant yet
	unackedGrants []unackedGrant // the rest of unacked, by Grant
	AckedGrant    uint64         // the number of the last Grant that the instance has acknowledged
}

// needs is what the instance asked for in its last report.
type needs struct {
	Demand     fixed.Amount // per second; of a semaphore, permits
	Shortfall  fixed.Amount // tokens or permits that it is missing now
	shortSince limit.Time   // 0 = it is missing nothing
	shortUntil limit.Time   // from when on the missing tokens are of no use
	Weight     uint32
	Band       uint8
	Silent     bool // it reports no demand, and gets an equal part as far as its band has it
	Spare      bool // it is lent what nobody demands, in advance
}

// expireShortfall forgets a shortfall when the missing tokens are of no use any more.
func (n *needs) expireShortfall(now limit.Time) {
	if now >= n.shortUntil {
		n.Shortfall, n.shortSince = 0, 0
	}
}

// attempts is what the instance reported of a limit that is shared by suppression.
type attempts struct {
	Attempted, Admitted fixed.Amount  // running totals, as reported last
	attemptedAt         limit.Time    // when that report came
	attemptedSent       time.Duration // when it was sent, by the instance's clock
	attemptedRate       fixed.Amount  // per second between the last two reports; or what was admitted
	largest             fixed.Amount  // the cost of the largest recent request
	counted             bool          // there was a report with totals
}

// caps is what the instance has to come down to, as sent last. An amount of
// fixed.MaxAmount is no cap.
type caps struct {
	CapRate, CapBurst fixed.Amount
	cappedAt          limit.Time // when they changed last
}

// AboveCap says whether the instance holds more than a cap that it was given.
func (a *Account) AboveCap() bool {
	h := a.Held()
	return h.Rate > a.CapRate || h.Burst > a.CapBurst
}

// InTransit is the capacity that was granted and is not known to have arrived.
func (a *Account) InTransit() lease.Capacity { return a.unacked }

// Sent takes note that what was granted up to now is in the Grant of that number.
func (a *Account) Sent(number uint64) {
	a.Pending = false
	if a.unsent != (lease.Capacity{}) {
		a.unackedGrants = append(a.unackedGrants, unackedGrant{number, a.resource.Pool.At, a.unsent})
		a.unsent = lease.Capacity{}
	}
}

// Held is the most that the instance can hold: what was granted less what it has
// reported as returned.
func (l *totals) Held() lease.Capacity { return l.Granted.Sub(l.Returned) }

// Settle takes what the instance has returned in all back into the pool. landed are the tokens
// that the same report acknowledged. Totals above what was granted, or below what was returned
// before, are refused.
func (a *Account) Settle(returned lease.Capacity, landed fixed.Amount) bool {
	back := returned.Sub(a.Returned)
	left := a.Granted.Sub(returned)
	if back.Rate < 0 || back.Burst < 0 || back.Tokens < 0 || left.Rate < 0 || left.Burst < 0 {
		return false
	}
	if back.Burst > 0 && a.CapBurst == fixed.MaxAmount {
		a.returnedAt = a.resource.Pool.At
	}
	a.growRefundable()
	a.refillOwn()
	above := a.AboveCap()
	if a.Returned = returned; above && !a.AboveCap() {
		a.resource.trip.observe(time.Duration(a.resource.Pool.At - a.cappedAt))
	}
	// Returned tokens were within burst that is returned as well, or did not fit into the bucket
	// when they arrived; and they were lent, or refilled by the rate. So an instance with false
	// totals can return what it has spent itself, and no more.
	back.Tokens = min(back.Tokens, fixed.SaturatingAdd(back.Burst, landed), a.refundable)
	a.refundable = min(a.refundable-back.Tokens, fixed.SaturatingAdd(a.Held().Burst, a.unacked.Tokens))
	a.resource.Pool.TakeBack(back)
	if a.Own != nil {
		a.Own.TakeBack(back)
	}
	if a.cap != nil {
		a.cap.Refill(a.resource.Pool.At)
		a.cap.TakeBack(back)
	}
	return true
}

// setOwn puts terms in force for the account: a limit per instance is a bucket for each, of
// which the instance is lent a part. What was used of it stays used, as in the resource's pool.
func (a *Account) setOwn(former, t lease.Terms) {
	switch {
	case t.Allocation != fairshare.Static || t.Semaphore:
		a.Own = nil
	case a.Own == nil:
		h := a.Held()
		a.Own = &Pool{Rate: t.Rate - h.Rate, Burst: t.Burst - h.Burst, At: a.resource.Pool.At}
		if a.Lease == 0 {
			a.Own.Level = max(0, a.Own.Burst) // nothing was taken of it
		}
	default:
		a.refillOwn()
		a.Own.Resize(t.Rate-former.Rate, t.Burst-former.Burst)
		a.Own.Clip()
	}
}

// growRefundable adds to refundable what the rate has refilled, by an instance's clock that may
// run fast.
func (a *Account) growRefundable() {
	if dt := a.resource.Pool.At - a.refundableAt; dt > 0 {
		a.refundable = fixed.SaturatingAdd(a.refundable, a.Held().Rate.In(time.Duration(dt+dt/lease.DriftMargin)))
		a.refundableAt = a.resource.Pool.At
	}
}

// grant lends h to the instance.
func (a *Account) grant(h lease.Capacity) {
	if h == (lease.Capacity{}) {
		return
	}
	a.growRefundable()
	a.refundable = fixed.SaturatingAdd(a.refundable, h.Tokens)
	a.Granted = a.Granted.Add(h)
	p := &a.resource.Pool
	p.Reserved -= a.unackedTokens()
	a.unacked, a.unsent = a.unacked.Add(h), a.unsent.Add(h)
	p.Reserved += a.unackedTokens()
	p.Lend(h)
	if a.refillOwn(); a.Own != nil {
		a.Own.Lend(h)
	}
	if a.cap != nil {
		a.cap.Refill(p.At)
		a.cap.Lend(h)
	}
	a.Pending = true
}

// refillOwn brings what the instance was not lent of its own limit up to the time of the
// resource's pool.
func (a *Account) refillOwn() {
	if a.Own != nil {
		a.Own.Refill(a.resource.Pool.At)
	}
}

// unackedTokens is how many unacknowledged tokens have no burst of their own.
func (a *Account) unackedTokens() fixed.Amount { return max(0, a.unacked.Tokens-a.unacked.Burst) }

// Acknowledge takes note that the Grants up to a number have arrived, and returns the tokens of
// those that were unacknowledged before.
func (a *Account) Acknowledge(number uint64) (tokens fixed.Amount) {
	a.AckedGrant = max(a.AckedGrant, number)
	p := &a.resource.Pool
	p.Reserved -= a.unackedTokens()
	for ; len(a.unackedGrants) > 0 && a.unackedGrants[0].number <= a.AckedGrant; a.unackedGrants = a.unackedGrants[1:] {
		tokens = fixed.SaturatingAdd(tokens, a.unackedGrants[0].more.Tokens)
		if !a.resource.Terms.Semaphore {
			a.resource.trip.observe(time.Duration(p.At - a.unackedGrants[0].at))
		}
		a.unacked = a.unacked.Sub(a.unackedGrants[0].more)
	}
	if len(a.unackedGrants) == 0 {
		a.unackedGrants = nil // most accounts are quiet most of the time
	}
	p.Reserved += a.unackedTokens()
	return tokens
}

// unackedGrant is what an unacknowledged Grant granted.
type unackedGrant struct {
	number uint64
	at     limit.Time // when it was sent
	more   lease.Capacity
}

// End takes back everything that the account holds; tokens that it had are taken to
// be spent.
func (a *Account) End() {
	h := a.Held()
	h.Tokens = 0
	a.resource.Pool.Reserved -= a.unackedTokens()
	a.unacked, a.unsent, a.unackedGrants = lease.Capacity{}, lease.Capacity{}, nil
	a.resource.Pool.TakeBack(h)
	if a.refillOwn(); a.Own != nil {
		a.Own.TakeBack(h)
	}
	if a.cap != nil {
		a.cap.Refill(a.resource.Pool.At)
		a.cap.TakeBack(h)
	}
	a.Granted, a.Returned, a.Lease, a.refundable = lease.Capacity{}, lease.Capacity{}, 0, 0
}

// siteAccount is what an account has besides where its instance is a server that lends on what
// it is lent, or where the limit has a cap for it.
type siteAccount struct {
	name    string         // of the instance, as caps name it
	lends   bool           // it lends on what it is lent
	claims  []lease.Claim  // of which its demand consists
	most    lease.Capacity // its own limit, as it reports; zero = not reported
	ceiling lease.Capacity // the most that it may have; MaxAmount = no cap
}

// SaturatedFor says whether a share announces the limit as saturated. Where tokens are lent one by
// one it does not. A limit per instance is saturated for each instance by its own demand.
func (r *Resource) SaturatedFor(a *Account) bool {
	return r.Saturated && !r.tokenByToken || a.saturatesOwn()
}

// saturatesOwn says whether the instance has all of a limit per instance and demands more.
func (a *Account) saturatesOwn() bool {
	return a.Own != nil && a.Demand > a.target.Rate && a.target.Rate > 0 && a.Held().Rate >= a.target.Rate
}
