package coordinator

import (
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// account is what one instance has of one resource, as its coordinator counts it.
type account struct {
	session  *session
	resource *resource
	handle   uint32
	since    limit.Time   // when the account was opened
	status   lease.Status // of its last demand
	closed   bool         // the instance has ended its lease

	ledger
	delivery
	needs
	attempts
	caps

	own    *pool          // of a limit per instance, what the instance was not lent; else nil
	target lease.Capacity // what the latest round assigned
	gives  bool           // in this round, it has to give up the rate that it holds above its target
	served fixed.Amount   // seconds of rotation that it had, divided by its weight
}

// ledger holds the running totals of a lease. What was granted less what was returned is the
// most that the instance can hold, since the coordinator knows of every grant and learns of
// a return only after it was made.
type ledger struct {
	lease             uint64 // its number; 0 = nothing was ever granted
	born              uint64 // the number of the Grant that announced the lease
	granted, returned lease.Capacity
	refundable        fixed.Amount // the most tokens that the instance can have, spent ones included
	refundableAt      limit.Time   // the time up to which refundable is computed
	returnedAt        limit.Time   // when the instance last returned burst without being asked to
}

// delivery is what of the account was sent to the instance, and what of that arrived.
type delivery struct {
	pending       bool           // the next round or resend has to send the account
	unacked       lease.Capacity // granted, and not known to have arrived
	unsent        lease.Capacity // the part of unacked that is in no Grant yet
	unackedGrants []unackedGrant // the rest of unacked, by Grant
	sentGrant     uint64         // the number of the last Grant with this account
	sentAt        limit.Time     // when that was sent; it is sent again until it is acknowledged
	ackedGrant    uint64         // the number of the last Grant that the instance has acknowledged
	lastReport    uint64         // the number of the last Report with this account
}

// needs is what the instance asked for in its last report.
type needs struct {
	demand     fixed.Amount // per second; of a semaphore, permits
	shortfall  fixed.Amount // tokens or permits that it is missing now
	shortSince limit.Time   // 0 = it is missing nothing
	shortUntil limit.Time   // from when on the missing tokens are of no use
	weight     uint32
	band       uint8
	silent     bool // it reports no demand, and gets an equal part
}

// expireShortfall forgets a shortfall when the missing tokens are of no use any more.
func (n *needs) expireShortfall(now limit.Time) {
	if now >= n.shortUntil {
		n.shortfall, n.shortSince = 0, 0
	}
}

// attempts is what the instance reported of a limit that is shared by suppression.
type attempts struct {
	attempted, admitted fixed.Amount  // running totals, as reported last
	attemptedAt         limit.Time    // when that report came
	attemptedSent       time.Duration // when it was sent, by the instance's clock
	attemptedRate       fixed.Amount  // per second between the last two reports; or what was admitted
	largest             fixed.Amount  // the cost of the largest recent request
	counted             bool          // there was a report with totals
}

// noCaps leaves the instance what it holds.
var noCaps = caps{capRate: fixed.MaxAmount, capBurst: fixed.MaxAmount}

// caps is what the instance has to come down to, as sent last. An amount of
// fixed.MaxAmount is no cap.
type caps struct {
	capRate, capBurst fixed.Amount
	cutting           bool // the account is in its session's list of cuts
}

// held is the most that the instance can hold: what was granted less what it has
// reported as returned.
func (l *ledger) held() lease.Capacity { return l.granted.Sub(l.returned) }

// settle takes what the instance has returned in all back into the pool. landed are the tokens
// that the same report acknowledged. Totals above what was granted, or below what was returned
// before, are refused.
func (a *account) settle(returned lease.Capacity, landed fixed.Amount) bool {
	back := returned.Sub(a.returned)
	left := a.granted.Sub(returned)
	if back.Rate < 0 || back.Burst < 0 || back.Tokens < 0 || left.Rate < 0 || left.Burst < 0 {
		return false
	}
	if back.Burst > 0 && a.capBurst == fixed.MaxAmount {
		a.returnedAt = a.resource.pool.at
	}
	a.growRefundable()
	a.refillOwn()
	a.returned = returned
	// Returned tokens were within burst that is returned as well, or did not fit into the bucket
	// when they arrived; and they were lent, or refilled by the rate. So an instance with false
	// totals can return what it has spent itself, and no more.
	back.Tokens = min(back.Tokens, fixed.SaturatingAdd(back.Burst, landed), a.refundable)
	a.refundable = min(a.refundable-back.Tokens, fixed.SaturatingAdd(a.held().Burst, a.unacked.Tokens))
	a.resource.pool.takeBack(back)
	if a.own != nil {
		a.own.takeBack(back)
	}
	return true
}

// growRefundable adds to refundable what the rate has refilled, by an instance's clock that may
// run fast.
func (a *account) growRefundable() {
	if dt := a.resource.pool.at - a.refundableAt; dt > 0 {
		a.refundable = fixed.SaturatingAdd(a.refundable, a.held().Rate.Scale(fixed.Amount(dt+dt/lease.DriftMargin), fixed.Amount(time.Second)))
		a.refundableAt = a.resource.pool.at
	}
}

// grant lends h to the instance.
func (a *account) grant(h lease.Capacity) {
	if h == (lease.Capacity{}) {
		return
	}
	a.growRefundable()
	a.refundable = fixed.SaturatingAdd(a.refundable, h.Tokens)
	a.granted = a.granted.Add(h)
	p := &a.resource.pool
	p.reserved -= a.unackedTokens()
	a.unacked, a.unsent = a.unacked.Add(h), a.unsent.Add(h)
	p.reserved += a.unackedTokens()
	p.lend(h)
	if a.refillOwn(); a.own != nil {
		a.own.lend(h)
	}
	a.pending = true
}

// refillOwn brings what the instance was not lent of its own limit up to the time of the
// resource's pool.
func (a *account) refillOwn() {
	if a.own != nil {
		a.own.refill(a.resource.pool.at)
	}
}

// unackedTokens is how many unacknowledged tokens have no burst of their own.
func (a *account) unackedTokens() fixed.Amount { return max(0, a.unacked.Tokens-a.unacked.Burst) }

// acknowledge takes note that the Grants up to a number have arrived, and returns the tokens of
// those that were unacknowledged before.
func (a *account) acknowledge(number uint64) (tokens fixed.Amount) {
	a.ackedGrant = max(a.ackedGrant, number)
	p := &a.resource.pool
	p.reserved -= a.unackedTokens()
	landed := 0
	for landed < len(a.unackedGrants) && a.unackedGrants[landed].number <= a.ackedGrant {
		tokens = fixed.SaturatingAdd(tokens, a.unackedGrants[landed].more.Tokens)
		a.unacked = a.unacked.Sub(a.unackedGrants[landed].more)
		landed++
	}
	a.unackedGrants = append(a.unackedGrants[:0], a.unackedGrants[landed:]...)
	p.reserved += a.unackedTokens()
	return tokens
}

// unackedGrant is what an unacknowledged Grant granted.
type unackedGrant struct {
	number uint64
	more   lease.Capacity
}

// end takes back everything that the account holds; tokens that it had are taken to
// be spent.
func (a *account) end() {
	h := a.held()
	h.Tokens = 0
	a.resource.pool.reserved -= a.unackedTokens()
	a.unacked, a.unsent, a.unackedGrants = lease.Capacity{}, lease.Capacity{}, nil
	a.resource.pool.takeBack(h)
	if a.refillOwn(); a.own != nil {
		a.own.takeBack(h)
	}
	a.granted, a.returned, a.lease, a.refundable = lease.Capacity{}, lease.Capacity{}, 0, 0
}
