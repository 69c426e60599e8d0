package client

import (
	"time"

	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/internal/share"
	"github.com/stint-io/stint/limit"
)

// usageEvery is how often it is sent. Not more often: every
// lease is looked at. Not less often: metrics are read every few seconds.
const usageEvery = 900 * time.Millisecond

// usage is what was decided and not yet sent to the coordinator, by limit. It is
// guarded by the client's mu.
type usage struct {
	unsent map[string]share.Usage
	sentAt limit.Time
}

// count adds what was decided on the lease since it was counted last.
func (u *usage) count(now limit.Time, l *lease) {
	r := l.purse.Observe(now)
	admitted := r.Admitted.Floor()
	refused := (r.Attempted - r.Admitted - r.Waiting).Floor()
	more := share.Usage{Limit: l.id.Limit, Admitted: uint64(max(0, admitted-l.counted.admitted)), Refused: uint64(max(0, refused-l.counted.refused))}
	l.counted.admitted, l.counted.refused = admitted, max(refused, l.counted.refused)
	if more.Admitted == 0 && more.Refused == 0 {
		return
	}
	was := u.unsent[more.Limit]
	more.Admitted += was.Admitted
	more.Refused += was.Refused
	if u.unsent == nil {
		u.unsent = map[string]share.Usage{}
	}
	u.unsent[more.Limit] = more
}

// usage returns what is to be sent now.
func (c *Client) usage(now limit.Time, last bool) (out []share.Usage) {
	u := &c.decided
	if !last && now < u.sentAt.Add(usageEvery) {
		return nil
	}
	u.sentAt = now
	for _, l := range c.leases {
		u.count(now, l)
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
