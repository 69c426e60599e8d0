package coordinator

import (
	"time"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// account is what one instance has of one resource, as its coordinator counts it.
type account struct {
	session  *session
	resource *resource
	handle   uint32

	lease             uint64 // 0 = nothing was ever granted
	born              uint64 // the number of the Grant that told of the lease first
	granted, returned lease.Capacity
	refundable        fixed.Amount   // the tokens that it can have at most, spent ones included
	refundableAt      limit.Time     // of the purse
	returnedAt        limit.Time     // when it last gave depth back unasked
	unacked           lease.Capacity // of granted, what is not known to have been heard
	unsent            lease.Capacity // of aloft, what was not told yet
	own               *pool          // of a limit per instance, what it was not lent; else nil
	unackedGrants     []unackedGrant // of aloft, the rest

	demand, shortfall fixed.Amount
	shortSince        limit.Time // 0 = it lacks nothing
	shortUntil        limit.Time // when it is of no use any more
	weight            uint32
	band              uint8
	silent            bool
	since             limit.Time
	served            fixed.Amount // what it was given in its turns, by weight; see turns.go

	// For a limit that is shared by suppression.
	attempted, admitted fixed.Amount  // totals, as reported last
	attemptedAt         limit.Time    // when
	attemptedSent       time.Duration // the same by the instance's clock
	attemptedRate       fixed.Amount  // between the last two reports, per second; or admitted
	largest             fixed.Amount  // cost of the largest request of late
	counted             bool          // there were some

	target lease.Capacity // of the round; Tokens is what it gets at once
	gives  bool           // in the round, of the rate that it holds above its target

	capRate, capBurst fixed.Amount // as told last
	sentGrant         uint64       // the number of the last Grant that said something
	sentAt            limit.Time   // when; it is said again until it is heard
	ackedGrant        uint64
	lastReport        uint64       // the number of the last Report that said something
	pending           bool         // has to be told
	closed            bool         // the instance has done with it
	cutting           bool         // in the session's list of cuts
	status            lease.Status // of its last demand
}

// held is what the instance may hold at most: all that was granted but what it
// said that it gave back.
func (a *account) held() lease.Capacity { return a.granted.Sub(a.returned) }

// settle takes note of what the instance gave back in all; landed are the tokens of
// which it said at the same time that it has them. It refuses totals that were never
// granted, or that go back.
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
	// Tokens were in a depth that is given back as well, or did not fit when they
	// landed; and they were lent, or came with the rate. So one that lies can lie
	// about what it spent itself, and no more.
	back.Tokens = min(back.Tokens, fixed.SaturatingAdd(back.Burst, landed), a.refundable)
	a.refundable = min(a.refundable-back.Tokens, fixed.SaturatingAdd(a.held().Burst, a.unacked.Tokens))
	a.resource.pool.takeBack(back)
	if a.own != nil {
		a.own.takeBack(back)
	}
	return true
}

// growRefundable puts in the purse what came with the rate, by a clock that may run fast.
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

// fullOwn says that the instance wants more than a limit of its own, and has all of that.
func (a *account) fullOwn() bool {
	return a.own != nil && a.demand > a.target.Rate && a.target.Rate > 0 && a.held().Rate >= a.target.Rate
}

// refillOwn brings what the instance was not lent of its own limit up to the time of the
// resource's pool.
func (a *account) refillOwn() {
	if a.own != nil {
		a.own.refill(a.resource.pool.at)
	}
}

// setOwn puts terms in force for the account: a limit per instance is a bucket for each, of
// which it is lent a part. What was used of it stays used, as in the resource's pool.
func (a *account) setOwn(former, t lease.Terms) {
	switch {
	case t.Allocation != fairshare.Static || t.Semaphore:
		a.own = nil
	case a.own == nil:
		h := a.held()
		a.own = &pool{rate: t.Rate - h.Rate, burst: t.Burst - h.Burst, at: a.resource.pool.at}
		if a.lease == 0 {
			a.own.level = max(0, a.own.burst) // nothing was taken of it
		}
	default:
		a.refillOwn()
		a.own.resize(t.Rate-former.Rate, t.Burst-former.Burst)
		a.own.clip()
	}
}

// reserved is how many tokens are under way without depth of their own.
func (a *account) unackedTokens() fixed.Amount { return max(0, a.unacked.Tokens-a.unacked.Burst) }

// acknowledge takes note that the instance heard what it was told up to a number, and
// returns the tokens that it heard of by this.
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

// unackedGrant is what a Grant brought that the instance is not known to have heard.
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

// session is one run of one instance, as its coordinator knows it.
type session struct {
	lease.Member
	version  uint32
	number   uint64 // of the last Grant
	accounts map[uint32]*account
	of       map[*resource]*account

	stamp   time.Duration // of the latest report
	heardAt limit.Time    // when that came
	expires limit.Time
	latest  uint64        // its number
	late    time.Duration // by how much more than usual it was under way
	offset  time.Duration // between the clocks, and what reports are under way at least
	timed   bool          // there is an offset
	sent    time.Duration // the stamp of the report being taken

	cuts   []*account    // that were asked to come down, and have not said that they did
	shares []lease.Share // of the Grant being made
	queued bool          // in the coordinator's list of grants being made
}

// cut notes that a was asked to come down. Until it says that it did, every Grant to
// its session asks again: a Grant renews all leases, and one that is renewed without
// hearing of the cut would outlive it.
func (s *session) cut(a *account) {
	if !a.cutting {
		a.cutting = true
		s.cuts = append(s.cuts, a)
	}
}

// uncut forgets the cuts that were made.
func (s *session) uncut() {
	left := s.cuts[:0]
	for _, a := range s.cuts {
		h := a.held()
		if a.cutting = !a.closed && a.lease != 0 && (h.Rate > a.capRate || h.Burst > a.capBurst); a.cutting {
			left = append(left, a)
		}
	}
	clear(s.cuts[len(left):])
	s.cuts = left
}
