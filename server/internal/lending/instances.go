package lending

import (
	"cmp"
	"context"
	"slices"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
)

// InstanceFigures are what one instance has of one limit: sums over the keys, in tokens per
// second or permits, and running totals of what it decided, as sums of costs. An instance
// that starts again begins at 0. What a server decides itself is not among the totals.
type InstanceFigures struct {
	Instance, Limit   string
	Wanted, Lent      float64
	Admitted, Refused uint64
}

// allInstances returns the figures of all instances whose leases are counted, ascending by limit
// and instance; of more than 10,000 pairs of both it returns the first that it meets, and how
// many others there are. It reports false when the coordinator does not run or ctx ends.
func (s *shard) allInstances(ctx context.Context) (figures []InstanceFigures, others int, ok bool) {
	ok = s.snapshot(ctx, func(now limit.Time) { figures, others = s.instances(now) })
	slices.SortFunc(figures, func(a, b InstanceFigures) int {
		return cmp.Or(cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Instance, b.Instance))
	})
	return figures, others, ok
}

func (s *shard) instances(now limit.Time) (figures []InstanceFigures, others int) {
	type pair struct{ limit, instance string }
	places := map[pair]int{}
	of := func(name, instance string) *InstanceFigures {
		at, known := places[pair{name, instance}]
		if !known {
			at = len(figures)
			if at == maxPageLeases {
				at, others = -1, others+1
			} else {
				figures = append(figures, InstanceFigures{Instance: instance, Limit: name})
			}
			places[pair{name, instance}] = at
		}
		if at < 0 {
			return nil
		}
		return &figures[at]
	}
	s.loop.coordinator.Each(now, func(r *coordinator.ResourceState) bool {
		for i := range r.Leases {
			l := &r.Leases[i]
			if f := of(r.ID.Limit, l.Instance); f != nil {
				f.Wanted += l.Demand.Float()
				f.Lent += l.Gets(r.Terms.Semaphore).Float()
			}
		}
		return true
	})
	limits := s.limits.Load()
	for m := range s.loop.members.all() {
		for _, u := range m.decided {
			if limits.limit(u.Limit) == nil {
				continue // a former configuration had it
			}
			if f := of(u.Limit, m.Instance); f != nil {
				f.Admitted, f.Refused = u.Admitted, u.Refused
			}
		}
	}
	return figures, others
}

// usage is what instances of other processes have decided since the start, by limit,
// ascending by name; limits that are not lent any more are forgotten.
func (s *shard) usage() []lease.Usage { return s.decided.list(s.limits.Load()) }
