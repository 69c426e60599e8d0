package client

import (
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/limit"
)

// usageEvery is how often it is sent. Not more often: every active lease is counted. Not
// less often: metrics are read every few seconds.
const usageEvery = 900 * time.Millisecond

// usage is what was decided and not yet sent to the coordinator, by limit. It is
// guarded by the lane's mu.
type usage struct {
	unsent map[string]lease.Usage
	sentAt limit.Time
	// active are the leases that may have decided something since they were counted: those
	// that hold anything, and those that were found empty in the last seconds. A client may
	// have ten thousand others.
	active map[*leasedLimit]struct{}
}

// watch counts l from now on.
func (u *usage) watch(l *leasedLimit) {
	if u.active == nil {
		u.active = map[*leasedLimit]struct{}{}
	}
	u.active[l] = struct{}{}
}

// quiet says whether l, which was just counted, decides nothing before [usage.watch] is called
// again: it holds nothing, and was not found empty for so long that all who were refused
// after that are counted, since it signals at most once in starveGapFull.
func (l *leasedLimit) quiet(now limit.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rate == 0 && l.burst == 0 && l.line.First() == nil && now > limit.Time(l.starvedAt.Load()).Add(usageEvery)
}

// count adds what was decided on the lease since it was counted last.
func (u *usage) count(now limit.Time, l *leasedLimit) {
	r := l.spender.Observe(now)
	admitted := r.Admitted.Floor()
	refused := (r.Attempted - r.Admitted - r.Waiting).Floor()
	more := lease.Usage{Limit: l.id.Limit, Admitted: uint64(max(0, admitted-l.counted.admitted)), Refused: uint64(max(0, refused-l.counted.refused))}
	l.counted.admitted, l.counted.refused = admitted, max(refused, l.counted.refused)
	if more.Admitted == 0 && more.Refused == 0 {
		return
	}
	was := u.unsent[more.Limit]
	more.Admitted += was.Admitted
	more.Refused += was.Refused
	if u.unsent == nil {
		u.unsent = map[string]lease.Usage{}
	}
	u.unsent[more.Limit] = more
}

// usage returns what is to be sent now.
func (a *lane) usage(now limit.Time, last bool) (out []lease.Usage) {
	u := &a.decided
	if !last && now < u.sentAt.Add(usageEvery) {
		return nil
	}
	u.sentAt = now
	if last {
		for _, l := range a.leases {
			u.watch(l)
		}
	}
	for l := range u.active {
		if u.count(now, l); l.quiet(now) {
			delete(u.active, l)
		}
	}
	for name, one := range u.unsent {
		if len(out) == leasewire.MaxUsage {
			break
		}
		out = append(out, one)
		delete(u.unsent, name)
	}
	return out
}
