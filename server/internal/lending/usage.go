package lending

import (
	"slices"
	"strings"
	"sync"

	"github.com/stint-io/stint/internal/lease"
)

// mostUsage bounds what one report may say of one limit: a second of any instance is far
// below. What is above comes from nobody honest.
const mostUsage = 1 << 40

// decisions are what instances of other processes have decided, by limit. The zero value has
// none; it is safe for concurrent use.
type decisions struct {
	mu     sync.Mutex
	totals map[string]lease.Usage
}

// add counts what an instance has decided. Only limits that are lent are counted, so that their
// number is that of the configuration.
func (d *decisions) add(limits *limitIndex, usage []lease.Usage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.totals = limits.count(d.totals, usage)
}

// list returns the totals, ascending by name; limits that are not lent any more are forgotten.
func (d *decisions) list(limits *limitIndex) []lease.Usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []lease.Usage
	for name, u := range d.totals {
		if l := limits.byName[name]; l == nil || !l.Sharing.Local() {
			delete(d.totals, name)
			continue
		}
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b lease.Usage) int { return strings.Compare(a.Limit, b.Limit) })
	return out
}

// count adds usage to the totals of limits that are lent, and returns them; nil totals are empty.
func (x *limitIndex) count(totals map[string]lease.Usage, usage []lease.Usage) map[string]lease.Usage {
	for _, u := range usage {
		if l := x.byName[u.Limit]; l == nil || !l.Sharing.Local() {
			continue
		}
		if totals == nil {
			totals = map[string]lease.Usage{}
		}
		was := totals[u.Limit]
		totals[u.Limit] = lease.Usage{
			Limit: u.Limit, Admitted: was.Admitted + min(u.Admitted, mostUsage), Refused: was.Refused + min(u.Refused, mostUsage),
		}
	}
	return totals
}
