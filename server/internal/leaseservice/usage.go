package leaseservice

import (
	"slices"
	"strings"

	"github.com/stint-io/stint/internal/lease"
)

// mostUsage bounds what one report may say of one limit: a second of any instance is far
// below. What is above comes from nobody honest.
const mostUsage = 1 << 40

// count takes note of what an instance of another process has decided. Only limits that
// are lent are counted, so that their number is that of the configuration.
func (s *Service) count(usage []lease.Usage) {
	s.decided.Lock()
	defer s.decided.Unlock()
	s.decided.limits = s.limits.Load().count(s.decided.limits, usage)
}

// count adds usage to the totals of limits that are lent, and returns them.
func (x *index) count(totals map[string]lease.Usage, usage []lease.Usage) map[string]lease.Usage {
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

// Usage is what instances of other processes have decided since the start, by limit,
// ascending by name; limits that are not lent any more are forgotten.
func (s *Service) Usage() []lease.Usage {
	limits := s.limits.Load()
	s.decided.Lock()
	defer s.decided.Unlock()
	var out []lease.Usage
	for name, u := range s.decided.limits {
		if l := limits.byName[name]; l == nil || !l.Sharing.Local() {
			delete(s.decided.limits, name)
			continue
		}
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b lease.Usage) int { return strings.Compare(a.Limit, b.Limit) })
	return out
}
