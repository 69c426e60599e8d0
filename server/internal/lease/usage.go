package lease

import (
	"slices"
	"strings"

	"github.com/stint-io/stint/internal/share"
)

// mostUsage bounds what one report may say of one limit: a second of any instance is far
// below. What is above comes from nobody honest.
const mostUsage = 1 << 40

// count takes note of what an instance of another process has decided. Only limits that
// are lent are counted, so that their number is that of the configuration.
func (s *Service) count(usage []share.Usage) {
	if len(usage) == 0 {
		return
	}
	limits := s.limits.Load()
	s.decided.Lock()
	defer s.decided.Unlock()
	if s.decided.limits == nil {
		s.decided.limits = map[string]share.Usage{}
	}
	for _, u := range usage {
		if l := limits.byName[u.Limit]; l == nil || !l.Sharing.Local() {
			continue
		}
		was := s.decided.limits[u.Limit]
		s.decided.limits[u.Limit] = share.Usage{
			Limit: u.Limit, Admitted: was.Admitted + min(u.Admitted, mostUsage), Refused: was.Refused + min(u.Refused, mostUsage),
		}
	}
}

// Usage is what instances of other processes have decided since the start, by limit,
// ascending by name; limits that are not lent any more are forgotten.
func (s *Service) Usage() []share.Usage {
	limits := s.limits.Load()
	s.decided.Lock()
	defer s.decided.Unlock()
	var out []share.Usage
	for name, u := range s.decided.limits {
		if l := limits.byName[name]; l == nil || !l.Sharing.Local() {
			delete(s.decided.limits, name)
			continue
		}
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b share.Usage) int { return strings.Compare(a.Limit, b.Limit) })
	return out
}
