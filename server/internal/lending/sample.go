package lending

import (
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
)

// sample takes the figures and returns when to do so again.
func (s *shard) sample(now limit.Time) time.Duration {
	s.loop.members.sweep(now, s.patience.stalled)
	s.shrink(now)
	c := s.loop.coordinator
	byLimit := map[string]*LimitFigures{}
	c.Each(now, func(r *coordinator.ResourceState) bool {
		l := byLimit[r.ID.Limit]
		if l == nil {
			l = &LimitFigures{Limit: r.ID.Limit}
			byLimit[r.ID.Limit] = l
		}
		capacity, lent, free := r.Parts()
		l.Capacity += capacity.Float()
		l.Lent += lent.Float()
		l.Free += free.Float()
		l.Wanted += r.Demand.Float()
		l.Resources++
		l.Suppressed = l.Suppressed || r.Terms.Suppress != nil
		l.Reject = max(l.Reject, r.Reject)
		if r.Saturated {
			l.Saturated = true
			l.SaturatedResources++
		}
		return true
	})
	st := c.Stats()
	f := &Figures{
		Instances: st.Instances, Resources: st.Resources, Reports: st.Reports, Grants: st.Grants,
		Asks: st.Asks, Unlent: st.Unlent,
		Expired: st.Expired, Broken: st.Broken, Panics: s.loop.panics, Recovering: st.Recovering, Refused: map[string]uint64{},
	}
	f.Streams, f.StreamsRefused = s.admission.counts()
	for i, n := range s.loop.refused {
		if n > 0 {
			f.Refused[lease.Status(i).String()] += n
		}
	}
	passed := time.Duration(now - s.loop.sampled).Seconds()
	for name := range s.loop.saturated {
		if s.limits.Load().limit(name) == nil {
			delete(s.loop.saturated, name)
		}
	}
	for name, l := range byLimit {
		if l.Saturated {
			s.loop.saturated[name] += passed
		}
		l.SaturatedSeconds = s.loop.saturated[name]
		f.Limits = append(f.Limits, *l)
	}
	slices.SortFunc(f.Limits, func(a, b LimitFigures) int { return strings.Compare(a.Limit, b.Limit) })
	s.loop.sampled = now
	s.figures.Store(f)
	// Sampling must not take more than a fiftieth of the loop's time.
	return max(time.Second, 50*time.Duration(s.now()-now))
}
