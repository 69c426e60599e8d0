package lending

import (
	"strings"

	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/rules"
)

// The bounds of one page. Not larger: the coordinator stands still meanwhile.
const (
	maxPageResources = 1000   // resources
	maxPageLeases    = 10_000 // in all
)

// Page is what GET /v1/leases answers: who has, wants and gets what of each shared limit. The zero value has nothing.
type Page struct {
	Epoch     uint64     `json:"epoch"`
	Instances int        `json:"instances"`
	Total     int        `json:"resources_total"`
	Truncated bool       `json:"truncated"`
	Resources []Resource `json:"resources"`

	leases int
}

// Resource is one that is open.
type Resource struct {
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

	Leases []Lease `json:"leases"`
}

// Lease is that of one instance.
type Lease struct {
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

// add adds a resource, as far as there is room. x has the limits in force.
func (page *Page) add(r *coordinator.ResourceState, x *limitIndex) {
	page.Total++
	if len(page.Resources) == maxPageResources {
		page.Truncated = true
		return
	}
	capacity, lent, free := r.Parts()
	out := Resource{
		Limit: r.ID.Limit, Semaphore: r.Terms.Semaphore, Sharing: rules.SharingLeased.String(), Allocation: rules.Allocation(r.Terms.Allocation).String(), Reject: r.Reject,
		Capacity: capacity.Float(), Burst: r.Terms.Burst.Float(), Lent: lent.Float(), Free: free.Float(), Demand: r.Demand.Float(),
		Saturated: r.Saturated, SaturatedFor: r.SaturatedFor.Seconds(), Recovering: r.Recovering, Broken: r.Broken, Count: len(r.Leases), Leases: []Lease{},
	}
	if l := x.limit(r.ID.Limit); l != nil {
		out.Sharing = l.Sharing.String()
		out.Key = strings.ToValidUTF8(l.KeyText([]byte(r.ID.Key)), "\uFFFD")
	}
	if r.Terms.Suppress != nil {
		out.Allocation = ""
	}
	for i := range r.Leases {
		if page.leases == maxPageLeases {
			page.Truncated, out.Truncated = true, true
			break
		}
		page.leases++
		out.Leases = append(out.Leases, leaseOf(&r.Leases[i], r.Terms.Semaphore))
	}
	page.Resources = append(page.Resources, out)
}

func leaseOf(l *coordinator.LeaseState, gauge bool) Lease {
	return Lease{
		Instance: l.Instance, Demand: l.Demand.Float(), Granted: l.Gets(gauge).Float(), Burst: l.Capacity.Burst.Float(), Weight: l.Weight, Band: l.Band,
		Attempted: l.Attempted.Float(), Admitted: l.Admitted.Float(), Silent: l.Silent, Version: l.Version, Since: l.HeldFor.Seconds(), ExpiresIn: l.ExpiresIn.Seconds(),
	}
}
