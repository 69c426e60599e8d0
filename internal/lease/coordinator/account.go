package coordinator

import (
	"slices"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/ledger"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/limit"
)

// account is an account of the ledger, with its session and what of it was sent.
type account struct {
	ledger.Account
	session  *session
	resource *resource
	handle   uint32
	cutting  bool       // the account is in its session's list of cuts
	cut      cut        // if so
	since    limit.Time // when the account was opened

	lastReport uint64     // the number of the last Report with this account
	sentGrant  uint64     // the number of the last Grant with this account
	sentAt     limit.Time // when that was sent; it is sent again until it is acknowledged
}

// cut is a cap that an instance has to come down to.
type cut struct {
	since limit.Time     // when it was given
	grant uint64         // the number of the first Grant with it
	most  lease.Capacity // the largest cap since: an instance may know that one alone
}

// cutTo begins to wait until the instance has come down to its cap.
func (a *account) cutTo(now limit.Time) {
	a.cut = cut{now, a.session.number + 1, lease.Capacity{Rate: a.CapRate, Burst: a.CapBurst}}
}

// obeys says whether the instance has come down to a cap since it was cut. What it was granted and has
// not acknowledged does not count, once it has acknowledged a cap.
func (a *account) obeys() bool {
	h := a.Held()
	if a.AckedGrant >= a.cut.grant {
		h = h.Sub(a.InTransit())
	}
	return h.Rate <= a.cut.most.Rate && h.Burst <= a.cut.most.Burst
}

// resource is a resource of the ledger, and when its next round is due.
type resource struct {
	*ledger.Resource
	accounts []*account // one for each account of the ledger
	dirty    bool       // a round is due
	due      limit.Time // when, if dirty
	shrinks  bool       // accounts of it are about to be removed
	queued   bool       // it is in the coordinator's list of rounds to run
	told     told       // what replicas know of it
	moves    bool       // its capacity is to come from elsewhere: it is made anew when nothing is held
}

// told is what replicas know of the bucket of a resource.
type told struct {
	as     toldAs
	tokens fixed.Amount // if held
	at     limit.Time
	must   uint64 // the number of the Level that they have to know before more of it is lent
}

type toldAs uint8

const (
	toldFull   toldAs = iota
	toldIdle          // nobody holds a part of it
	toldLeased        // the same, and there are leases of nothing
	toldHeld          // instances hold a part of it
	toldOther         // it has other terms by now
)

// delay is how long a round waits for reports that come at about the same time.
func (r *resource) delay() time.Duration {
	// One part for what arrives together, one for the work of a large round: at
	// 10,000 instances a round takes some milliseconds, and rounds must not
	// follow each other without a pause.
	return time.Millisecond + time.Duration(len(r.accounts))*2*time.Microsecond
}

// scheduleRound plans a round of r.
func (c *Coordinator) scheduleRound(r *resource, now limit.Time) {
	due := now.Add(r.delay())
	if r.Broken {
		due = now // it has no rounds, so its instances are answered at once
	}
	if !r.dirty || due < r.due {
		r.due = due
	}
	r.dirty = true
	if !r.queued {
		r.queued = true
		c.dirty = append(c.dirty, r)
	}
}

// remove takes back what accounts hold for which gone is true, and forgets them.
func (c *Coordinator) remove(r *resource, gone func(*ledger.Account) bool) {
	r.Remove(gone)
	c.accounts -= len(r.accounts)
	r.accounts = slices.DeleteFunc(r.accounts, func(a *account) bool {
		if !gone(&a.Account) {
			return false
		}
		if a.Closed && a.Own != nil {
			a.session.closed.Close(pool.IDOf(r.ID), a.Own)
		}
		delete(a.session.accounts, a.handle)
		delete(a.session.of, r)
		return true
	})
	c.accounts += len(r.accounts)
	if r.Supply != nil {
		c.opts.Parent.Divided(r.Resource)
	}
}
