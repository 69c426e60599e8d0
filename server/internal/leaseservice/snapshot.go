package leaseservice

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/leaselimits"
)

// The bounds of one page of leases. Not larger: the loop stands still meanwhile.
const (
	maxShown       = 1000   // resources
	maxShownLeases = 10_000 // in all
)

type leasesPage struct {
	Epoch     uint64          `json:"epoch"`
	Instances int             `json:"instances"`
	Total     int             `json:"resources_total"`
	Truncated bool            `json:"truncated"`
	Resources []leaseResource `json:"resources"`
}

type leaseResource struct {
	Limit        string  `json:"limit"`
	Key          string  `json:"key"`
	Semaphore    bool    `json:"semaphore,omitempty"`
	Sharing      string  `json:"sharing"`
	Allocation   string  `json:"allocation,omitempty"`
	Capacity     float64 `json:"capacity"`
	Burst        float64 `json:"burst"`
	Lent         float64 `json:"lent"`
	Free         float64 `json:"free"`
	Demand       float64 `json:"demand"`
	Reject       float64 `json:"reject,omitempty"`
	Saturated    bool    `json:"saturated"`
	SaturatedFor float64 `json:"saturated_seconds"`
	Recovering   bool    `json:"recovering"`
	Broken       bool    `json:"broken,omitempty"`
	Count        int     `json:"instances"`
	Truncated    bool    `json:"truncated,omitempty"`

	Leases []leaseOfOne `json:"leases"`
}

type leaseOfOne struct {
	Instance  string  `json:"instance"`
	Demand    float64 `json:"demand"`
	Granted   float64 `json:"granted"`
	Attempted float64 `json:"attempted_total,omitempty"`
	Admitted  float64 `json:"admitted_total,omitempty"`
	Burst     float64 `json:"burst"`
	Weight    uint32  `json:"weight"`
	Band      uint8   `json:"band"`
	Silent    bool    `json:"silent,omitempty"`
	Version   uint32  `json:"version"`
	Since     float64 `json:"since_seconds"`
	ExpiresIn float64 `json:"expires_in_seconds"`
}

// ServeHTTP answers GET /v1/leases: who has, wants and gets what of each shared limit.
// It shows keys, so it is for operators. ?limit=NAME shows one limit only.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) { ServePage(w, r, s) }

// ServePage is ServeHTTP of the services of several shards, of which there is at least one.
func ServePage(w http.ResponseWriter, r *http.Request, shards ...*Service) {
	name := r.URL.Query().Get("limit")
	x := shards[0].limits.Load()
	if name != "" && x.Limit(name) == nil {
		http.Error(w, "there is no limit of that name", http.StatusNotFound)
		return
	}
	page := leasesPage{Resources: []leaseResource{}}
	for _, s := range shards {
		if !s.addPage(r.Context(), &page, name, x) {
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

// addPage adds the resources of one shard. It reports false when the coordinator does not run, or
// ctx ends.
func (s *Service) addPage(ctx context.Context, page *leasesPage, name string, x *leaselimits.Index) bool {
	select {
	case s.snapshots <- struct{}{}:
		defer func() { <-s.snapshots }()
	case <-ctx.Done():
		return false
	}
	return s.inLoop(ctx, func(now limit.Time) { s.show(page, name, x, now) })
}

func (s *Service) show(page *leasesPage, name string, x *leaselimits.Index, now limit.Time) {
	c := s.loop.coordinator
	page.Epoch, page.Instances = max(page.Epoch, c.Epoch()), max(page.Instances, c.Stats().Instances)
	leases := 0
	for i := range page.Resources {
		leases += len(page.Resources[i].Leases)
	}
	c.Each(now, func(r *coordinator.ResourceState) bool {
		if name != "" && r.ID.Limit != name {
			return true
		}
		page.Total++
		if len(page.Resources) == maxShown {
			page.Truncated = true
			return true
		}
		capacity, lent, free := parts(r)
		out := leaseResource{
			Limit: r.ID.Limit, Semaphore: r.Terms.Semaphore, Sharing: rules.SharingLeased.String(), Allocation: rules.Allocation(r.Terms.Allocation).String(), Reject: r.Reject,
			Capacity: capacity.Float(), Burst: r.Terms.Burst.Float(), Lent: lent.Float(), Free: free.Float(), Demand: r.Demand.Float(),
			Saturated: r.Saturated, SaturatedFor: r.SaturatedFor.Seconds(), Recovering: r.Recovering, Broken: r.Broken, Count: len(r.Leases), Leases: []leaseOfOne{},
		}
		if l := x.Limit(r.ID.Limit); l != nil {
			out.Sharing = l.Sharing.String()
			out.Key = strings.ToValidUTF8(l.KeyText([]byte(r.ID.Key)), "\uFFFD")
		}
		if r.Terms.Suppress != nil {
			out.Allocation = ""
		}
		for i := range r.Leases {
			if leases == maxShownLeases {
				page.Truncated, out.Truncated = true, true
				break
			}
			leases++
			out.Leases = append(out.Leases, showLease(&r.Leases[i], r.Terms.Semaphore))
		}
		page.Resources = append(page.Resources, out)
		return true
	})
}

func showLease(l *coordinator.LeaseState, gauge bool) leaseOfOne {
	return leaseOfOne{
		Instance: l.Instance, Demand: l.Demand.Float(), Granted: gets(l, gauge).Float(), Burst: l.Capacity.Burst.Float(), Weight: l.Weight, Band: l.Band,
		Attempted: l.Attempted.Float(), Admitted: l.Admitted.Float(), Silent: l.Silent, Version: l.Version, Since: l.HeldFor.Seconds(), ExpiresIn: l.ExpiresIn.Seconds(),
	}
}
