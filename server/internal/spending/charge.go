package spending

import (
	"context"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/keytable"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"

	"github.com/stint-io/stint/store"
)

// charger is what one key has: a rate or a semaphore.
type charger interface {
	// prepare takes the cost of p tentatively, so that one commit or rollback follows, and
	// makes its verdict. With wait a lease that is short asks the coordinator for more and
	// waits for it; without, p.more says whether that might help.
	prepare(ctx context.Context, p *part, wait bool) error
	commit(p *part)
	rollback(p *part)
	// peek makes the verdict of p say how the lease stands, cost apart.
	peek(p *part) error
	// owe takes n, at once or as soon as it comes, before anything else is admitted.
	owe(n int64)
	// refund puts back n that was taken earlier.
	refund(n int64)
	// finish releases what a permit holds, or keeps it for another time-out, and says whether it held anything.
	finish(permit uint64, keep bool) bool
	// reset makes what the lease has as good as new.
	reset()
	// expire releases permits whose time is over at now, and says whether any are in use.
	expire(now limit.Time) (inUse bool)
	close()
}

// keyLease is the lease of one key.
type keyLease struct {
	charger
	of    *lent
	alias string
	names *aliases
}

type entry = keytable.Entry[keyLease]

// Idle implements keytable.Value.
func (l keyLease) Idle(now limit.Time) bool { return !l.expire(now) }

// Close implements keytable.Value.
func (l keyLease) Close() {
	l.charger.close()
	l.names.retire(time.Now(), l.alias)
}

// work is one call on several charges.
type work struct {
	leased []part
	exact  []store.Charge // those for the store behind, with its counters
	index  []int          // exact[i] is the charge of that number
	some   []store.Charge // of exact, for a call on a part of them
	origin []int
}

// part is a charge on a lease.
type part struct {
	charge *store.Charge
	own    *counters
	to     *lent
	entry  *entry // in use until Done; nil until it is looked up
	// unknown says that the lease could not be had, so that on_store_failure decides.
	unknown bool

	held     bool           // prepared; a commit or rollback follows
	more     bool           // not held, but waiting may bring it
	doubtful bool           // for the reason of a doubt
	stale    bool           // rolled back, and the verdict is from before
	prepared limit.Prepared // from the lease
	result   limit.Result   // of the lease; here it takes no memory of its own
	loose    int64          // besides, of what was refunded

	asked *asker    // it is held without a lease, of these; nil = it is not
	short shortfall // of the bucket, when it was asked
	noAsk bool      // it has to have a lease
	dry   bool      // it is rolled back in any case
}

// always says whether the part is charged whether it fits or not, and whatever the others say.
func (p *part) always() bool { return p.charge.CountRefused && p.charge.Cost > 0 }

// id is the resource of the part.
func (p *part) id() lease.ResourceID {
	return lease.ResourceID{Limit: p.to.name, Key: string(p.charge.Key)}
}

func (p *part) commit() {
	if p.held {
		if p.held = false; p.asked == nil {
			p.entry.Value.commit(p)
		}
	}
}

func (p *part) rollback() {
	switch {
	case !p.held:
	case p.asked != nil:
		p.asked.giveBack(p.id(), p.charge.Cost, p.short)
		p.held, p.asked = false, nil
		p.charge.Verdict.Remaining += p.charge.Cost
	default:
		p.held, p.stale = false, true
		p.entry.Value.rollback(p)
	}
}

// stands makes the verdict of what was given back say how the lease stands.
func (p *part) stands() {
	v := p.charge.Verdict
	if p.entry.Value.peek(p) == nil {
		v.Remaining, v.ResetAfter = p.charge.Verdict.Remaining, p.charge.Verdict.ResetAfter
	}
	p.charge.Verdict = v
}

// commit makes final what is held.
func (w *work) commit() {
	for i := range w.leased {
		w.leased[i].commit()
	}
}

// rollback gives back what is held, the latest first: where two charges have one lease, each finds
// it as it left it. Their verdicts then say how the leases stand.
func (w *work) rollback() {
	for i := range slices.Backward(w.leased) {
		w.leased[i].rollback()
	}
	for i := range w.leased {
		if p := &w.leased[i]; p.stale {
			p.stale = false
			p.stands()
		}
	}
}

// answers copies what the store behind said to the charges.
func (w *work) answers(charges []store.Charge) {
	for i, n := range w.index {
		charges[n].Verdict, charges[n].Failed = w.exact[i].Verdict, w.exact[i].Failed
	}
}

// allow makes the result one that admits.
func (p *part) allow() {
	r := &p.result
	r.Allowed, r.Reason, r.RetryAfter, r.StoreFailed = true, limit.ReasonNone, 0, false
}

// verdict makes the verdict of the charge that of the result.
func (p *part) verdict() { p.charge.Verdict, p.unknown = p.result.Verdict, p.result.StoreFailed }
