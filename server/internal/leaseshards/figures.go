package leaseshards

import (
	"strings"

	"github.com/stint-io/stint/server/internal/leaseservice"
)

// Figures returns the sums of the latest figures of all shards. An instance has a stream to each shard,
// so of instances it is the most that one shard has. Read-only.
func (s *Set) Figures() *leaseservice.Figures {
	if len(s.all) == 1 {
		return s.all[0].Figures()
	}
	sum := &leaseservice.Figures{Refused: map[string]uint64{}}
	limits := map[string]leaseservice.LimitFigures{}
	for _, one := range s.all {
		f := one.Figures()
		sum.Streams += f.Streams
		sum.Instances = max(sum.Instances, f.Instances)
		sum.Resources += f.Resources
		sum.Unlent += f.Unlent
		sum.Asks += f.Asks
		sum.Reports += f.Reports
		sum.Grants += f.Grants
		sum.Rounds += f.Rounds
		sum.Expired += f.Expired
		sum.Broken += f.Broken
		sum.Panics += f.Panics
		sum.StreamsRefused += f.StreamsRefused
		sum.Recovering = sum.Recovering || f.Recovering
		for st, n := range f.Refused {
			sum.Refused[st] += n
		}
		for _, l := range f.Limits {
			limits[l.Limit] = add(limits[l.Limit], l)
		}
	}
	sum.Limits = sorted(limits, func(a, b leaseservice.LimitFigures) int { return strings.Compare(a.Limit, b.Limit) })
	return sum
}

// add returns the sum of two shards of one limit.
func add(a, b leaseservice.LimitFigures) leaseservice.LimitFigures {
	return leaseservice.LimitFigures{
		Limit:    b.Limit,
		Capacity: a.Capacity + b.Capacity, Lent: a.Lent + b.Lent, Wanted: a.Wanted + b.Wanted, Free: a.Free + b.Free,
		Saturated: a.Saturated || b.Saturated, SaturatedSeconds: max(a.SaturatedSeconds, b.SaturatedSeconds),
		Resources: a.Resources + b.Resources, SaturatedResources: a.SaturatedResources + b.SaturatedResources,
		Suppressed: a.Suppressed || b.Suppressed, Reject: max(a.Reject, b.Reject),
	}
}
