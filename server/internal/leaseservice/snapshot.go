package leaseservice

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// The bounds of one look at the leases. Not larger: the loop stands still meanwhile.
const (
	maxShown       = 1000   // resources
	maxShownLeases = 10_000 // in all
)

// Figures are what the service looked like within the last seconds.
type Figures struct {
	Streams, Instances, Resources int
	Reports, Grants, Rounds       uint64
	Expired, Broken, Panics       uint64
	StreamsRefused                uint64
	Recovering                    bool
	Refused                       map[string]uint64 // demands by status
	Limits                        []LimitFigures    // ascending by name
}

// LimitFigures are the sums over the resources of one limit that somebody uses, in
// tokens per second, or in places.
type LimitFigures struct {
	Limit                         string
	Capacity, Lent, Wanted, Free  float64
	Saturated                     bool    // at least one key wants more than the limit
	SaturatedSeconds              float64 // since the start
	Resources, SaturatedResources int

	// Of a limit that is shared by suppression: the largest fraction that is refused of
	// a key. What was attempted and admitted in all is known to the instances.
	Suppressed bool
	Reject     float64
}

// Figures returns the latest figures. Read-only.
func (s *Service) Figures() *Figures { return s.figures.Load() }

// sample takes the figures and returns when to do so again.
func (s *Service) sample(now limit.Time) time.Duration {
	s.sweep(now)
	c := s.loop.coordinator
	byLimit := map[string]*LimitFigures{}
	c.Each(now, func(r *coordinator.ResourceState) bool {
		l := byLimit[r.ID.Limit]
		if l == nil {
			l = &LimitFigures{Limit: r.ID.Limit}
			byLimit[r.ID.Limit] = l
		}
		capacity, lent, free := parts(r)
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
		Instances: st.Instances, Resources: st.Resources, Reports: st.Reports, Grants: st.Grants, Rounds: st.Rounds,
		Expired: st.Expired, Broken: st.Broken, Panics: s.loop.panics, Recovering: st.Recovering, Refused: map[string]uint64{},
	}
	s.admission.Lock()
	f.Streams, f.StreamsRefused = s.admission.streams, s.admission.refused
	s.admission.Unlock()
	for i, n := range s.loop.refused {
		if n > 0 {
			f.Refused[lease.Status(i).String()] += n
		}
	}
	passed := time.Duration(now - s.loop.sampled).Seconds()
	for name := range s.loop.saturated {
		if s.limits.Load().byName[name] == nil {
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
	// Looking must not take more than a fiftieth of the loop's time.
	return max(time.Second, 50*time.Duration(s.now()-now))
}

// parts are what a resource divides: the rate, or the places of a gauge.
func parts(r *coordinator.ResourceState) (capacity, lent, free fixed.Amount) {
	if r.Terms.Semaphore {
		return r.Terms.Burst, r.Lent.Burst, r.Free.Burst
	}
	return r.Terms.Rate, r.Lent.Rate, r.Free.Rate
}

type leasesPage struct {
	Epoch     uint64          `json:"epoch"`
	Instances int             `json:"instances"`
	Total     int             `json:"resources_total"`
	Truncated bool            `json:"truncated"`
	Resources []leaseResource `json:"resources"`
}

type leaseResource struct {
	Limit      string  `json:"limit"`
	Key        string  `json:"key"`
	Semaphore  bool    `json:"gauge,omitempty"`
	Sharing    string  `json:"sharing"`
	Allocation string  `json:"allocation,omitempty"`
	Capacity   float64 `json:"capacity"`
	Burst      float64 `json:"burst"`
	Lent       float64 `json:"lent"`
	Free       float64 `json:"free"`
	Wanted     float64 `json:"wanted"`
	Reject     float64 `json:"reject,omitempty"`
	Full       bool    `json:"full"`
	FullFor    float64 `json:"full_seconds"`
	Recovering bool    `json:"recovering"`
	Broken     bool    `json:"broken,omitempty"`
	Count      int     `json:"instances"`
	Truncated  bool    `json:"truncated,omitempty"`

	Leases []leaseOfOne `json:"leases"`
}

type leaseOfOne struct {
	Instance  string  `json:"instance"`
	Wants     float64 `json:"wants"`
	Gets      float64 `json:"gets"`
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
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("limit")
	x := s.limits.Load()
	if name != "" && x.byName[name] == nil {
		http.Error(w, "there is no limit of that name", http.StatusNotFound)
		return
	}
	select {
	case s.snapshots <- struct{}{}:
		defer func() { <-s.snapshots }()
	case <-r.Context().Done():
		return
	}
	page := leasesPage{Resources: []leaseResource{}}
	if !s.inLoop(r.Context(), func(now limit.Time) { s.show(&page, name, x, now) }) {
		http.Error(w, "the coordinator does not run", http.StatusServiceUnavailable)
		return
	}
	text, err := json.MarshalIndent(&page, "", " ")
	if err != nil {
		http.Error(w, "the leases cannot be written as JSON", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	// A failed write means that the client has gone: nobody is left to tell.
	_, _ = w.Write(append(text, '\n'))
}

// inLoop runs f in the loop and waits for it. It reports false when it did not run.
func (s *Service) inLoop(ctx context.Context, f func(now limit.Time)) bool {
	done := make(chan struct{})
	if !s.post(ctx, event{snapshot: func(now limit.Time) { defer close(done); f(now) }}) {
		return false
	}
	select {
	case <-done:
		return true
	case <-s.ended:
		return false
	}
}

func (s *Service) show(page *leasesPage, name string, x *index, now limit.Time) {
	c := s.loop.coordinator
	page.Epoch, page.Instances = c.Epoch(), c.Stats().Instances
	leases := 0
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
			Limit: r.ID.Limit, Semaphore: r.Terms.Semaphore, Sharing: rules.SharingLeased.String(), Allocation: allocation(r.Terms.Allocation), Reject: r.Reject,
			Capacity: capacity.Float(), Burst: r.Terms.Burst.Float(), Lent: lent.Float(), Free: free.Float(), Wanted: r.Demand.Float(),
			Full: r.Saturated, FullFor: r.SaturatedFor.Seconds(), Recovering: r.Recovering, Broken: r.Broken, Count: len(r.Leases), Leases: []leaseOfOne{},
		}
		if l := x.byName[r.ID.Limit]; l != nil {
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
		Instance: l.Instance, Wants: l.Demand.Float(), Gets: gets(l, gauge).Float(), Burst: l.Capacity.Burst.Float(), Weight: l.Weight, Band: l.Band,
		Attempted: l.Attempted.Float(), Admitted: l.Admitted.Float(), Silent: l.Silent, Version: l.Version, Since: l.HeldFor.Seconds(), ExpiresIn: l.ExpiresIn.Seconds(),
	}
}
