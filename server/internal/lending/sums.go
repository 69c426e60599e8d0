package lending

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
)

// Figures returns the sums of the latest figures of all shards. An instance has a stream to each shard,
// so of instances it is the most that one shard has. Read-only.
func (s *Service) Figures() *Figures {
	if len(s.all) == 1 {
		return s.all[0].figures.Load()
	}
	sum := &Figures{Refused: map[string]uint64{}}
	limits := map[string]LimitFigures{}
	for _, one := range s.all {
		f := one.figures.Load()
		sum.Streams += f.Streams
		sum.Instances = max(sum.Instances, f.Instances)
		sum.Resources += f.Resources
		sum.Unlent += f.Unlent
		sum.Asks += f.Asks
		sum.Reports += f.Reports
		sum.Grants += f.Grants
		sum.Expired += f.Expired
		sum.Broken += f.Broken
		sum.Panics += f.Panics
		sum.StreamsRefused += f.StreamsRefused
		sum.Recovering = sum.Recovering || f.Recovering
		for st, n := range f.Refused {
			sum.Refused[st] += n
		}
		for _, l := range f.Limits {
			limits[l.Limit] = addLimit(limits[l.Limit], l)
		}
	}
	sum.Limits = sorted(limits, func(a, b LimitFigures) int { return strings.Compare(a.Limit, b.Limit) })
	return sum
}

// addLimit returns the sum of two shards of one limit.
func addLimit(a, b LimitFigures) LimitFigures {
	return LimitFigures{
		Limit:    b.Limit,
		Capacity: a.Capacity + b.Capacity, Lent: a.Lent + b.Lent, Wanted: a.Wanted + b.Wanted, Free: a.Free + b.Free,
		Saturated: a.Saturated || b.Saturated, SaturatedSeconds: max(a.SaturatedSeconds, b.SaturatedSeconds),
		Resources: a.Resources + b.Resources, SaturatedResources: a.SaturatedResources + b.SaturatedResources,
		Suppressed: a.Suppressed || b.Suppressed, Reject: max(a.Reject, b.Reject),
	}
}

// ServeHTTP answers GET /v1/leases: who has, wants and gets what of each shared limit, of the shards that this member
// coordinates. It shows keys, so it is for operators. ?limit=NAME shows one limit only.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("limit")
	x := s.all[0].limits.Load()
	if name != "" && x.limit(name) == nil {
		http.Error(w, "there is no limit of that name", http.StatusNotFound)
		return
	}
	page := Page{Resources: []Resource{}}
	for _, one := range s.all {
		if !one.snapshot(r.Context(), func(now limit.Time) { one.show(&page, name, x, now) }) {
			if r.Context().Err() != nil {
				return // nobody reads an answer
			}
			http.Error(w, "the coordinator does not run", http.StatusServiceUnavailable)
			return
		}
	}
	text, err := json.MarshalIndent(&page, "", " ")
	if err != nil {
		http.Error(w, "the leases cannot be written as JSON", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	// A failed write means that the client has gone: nobody reads an error.
	_, _ = w.Write(append(text, '\n'))
}

// show adds the resources of one shard.
func (s *shard) show(page *Page, name string, x *limitIndex, now limit.Time) {
	c := s.loop.coordinator
	page.Epoch, page.Instances = max(page.Epoch, c.Epoch()), max(page.Instances, c.Stats().Instances)
	c.Each(now, func(r *coordinator.ResourceState) bool {
		if name == "" || r.ID.Limit == name {
			page.add(r, x)
		}
		return true
	})
}

// Usage is what instances of other processes have decided since the start, ascending by limit.
func (s *Service) Usage() []lease.Usage {
	sums := map[string]lease.Usage{}
	for _, one := range s.all {
		for _, u := range one.usage() {
			sum := sums[u.Limit]
			sums[u.Limit] = lease.Usage{Limit: u.Limit, Admitted: sum.Admitted + u.Admitted, Refused: sum.Refused + u.Refused}
		}
	}
	return sorted(sums, func(a, b lease.Usage) int { return cmp.Compare(a.Limit, b.Limit) })
}

// Instances returns the figures of all instances, ascending by limit and instance. Of more than 10,000 pairs of both in
// a shard it returns some, and how many others there are. It reports false when a coordinator does not run or ctx ends.
func (s *Service) Instances(ctx context.Context) (figures []InstanceFigures, others int, ok bool) {
	type pair struct{ limit, instance string }
	sums := map[pair]InstanceFigures{}
	for _, one := range s.all {
		part, more, ok := one.allInstances(ctx)
		if !ok {
			return nil, 0, false
		}
		others += more
		for _, f := range part {
			sum, known := sums[pair{f.Limit, f.Instance}]
			if !known {
				sum = InstanceFigures{Limit: f.Limit, Instance: f.Instance}
			}
			sum.Wanted += f.Wanted
			sum.Lent += f.Lent
			sum.Admitted += f.Admitted
			sum.Refused += f.Refused
			sums[pair{f.Limit, f.Instance}] = sum
		}
	}
	return sorted(sums, func(a, b InstanceFigures) int {
		return cmp.Or(cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Instance, b.Instance))
	}), others, true
}

// Standing is what a member of a cluster shows of its elections.
type Standing struct {
	Shards, Led int  // all, and those that this member coordinates
	Known       bool // of each shard it is known which member coordinates
	Terms       uint64

	Replicas       int // the fewest of a shard that this member coordinates
	ReplicaBuckets int // that this member knows of the others
}

// Standing returns how this member stands; ok is false without other members.
func (s *Service) Standing() (st Standing, ok bool) {
	st = Standing{Shards: len(s.all), Known: true}
	for _, one := range s.all {
		terms, _, is := one.terms()
		if !is {
			return Standing{}, false
		}
		_, here, known := one.leader()
		replicas, buckets := one.replicas()
		if here {
			if st.Led++; st.Led == 1 || replicas < st.Replicas {
				st.Replicas = replicas
			}
		} else {
			st.ReplicaBuckets += buckets
		}
		st.Known = st.Known && known
		st.Terms += terms
	}
	return st, true
}

// sorted returns the values of m in the order of compare.
func sorted[K comparable, V any](m map[K]V, compare func(a, b V) int) []V {
	return slices.SortedFunc(maps.Values(m), compare)
}
