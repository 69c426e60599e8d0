package lease

import (
	"slices"
	"strings"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
)

// PerInstance says whether the limit holds for each instance alone, not for their sum.
func (t *Terms) PerInstance() bool {
	return t.Allocation == fairshare.Static || t.Allocation == fairshare.None || t.Suppress != nil
}

// Amount is what is divided: the rate, or the permits of a semaphore.
func (t *Terms) Amount() fixed.Amount {
	if t.Semaphore {
		return t.Burst
	}
	return t.Rate
}

// Equal says whether both are the same limit. No terms are equal to nothing.
func (t *Terms) Equal(o *Terms) bool {
	if t == nil || o == nil || t.Suppress == nil != (o.Suppress == nil) || t.Suppress != nil && *t.Suppress != *o.Suppress {
		return false
	}
	return t.Rate == o.Rate && t.Burst == o.Burst && t.Semaphore == o.Semaphore && t.Allocation == o.Allocation && t.Safe == o.Safe &&
		slices.Equal(t.Guarantees, o.Guarantees) && slices.Equal(t.Sites, o.Sites)
}

// Unlimited is the lendable rate and burst of a limit whose sum over instances is not bounded:
// the largest amount of whole tokens.
const Unlimited = fixed.MaxAmount / fixed.Token * fixed.Token

// Lendable is the capacity that all instances together may hold.
func (t *Terms) Lendable() Capacity {
	if t.PerInstance() && (t.Rate > 0 || t.Burst > 0) {
		return Capacity{Rate: Unlimited, Burst: Unlimited}
	}
	return Capacity{Rate: t.Rate, Burst: t.Burst}
}

// Terms are the limit as configured.
type Terms struct {
	Rate      fixed.Amount // tokens per second; 0 for a semaphore
	Burst     fixed.Amount // whole tokens; the permits of a semaphore
	Semaphore bool         // the limit is of requests in flight, not of requests per second

	Allocation fairshare.Allocation
	Safe       fixed.Amount          // per instance; 0 = the limit divided by the instances
	Guarantees []fairshare.Guarantee // read-only

	// Sites are caps on what single sites or instances may have. Read-only.
	Sites []SiteCap

	// Shard says, with StatusElsewhere, where the resource is. It is not told as a part of the limit.
	Shard int

	// Suppress shares the limit by suppression instead of by leases of its parts: each
	// instance has a lease of the whole limit; nil = by leases. Read-only. Not for
	// semaphores.
	Suppress *Suppress
}

// SiteCap is the most that one site may have of a limit.
type SiteCap struct {
	Name        string // of the site; EverySite = each site that has no cap of its own
	Rate, Burst fixed.Amount
}

// EverySite is the name of the cap of sites that have none of their own.
const EverySite = "*"

// NoCap is the cap of a site that has none.
func NoCap() Capacity { return Capacity{Rate: fixed.MaxAmount, Burst: fixed.MaxAmount} }

// Caps says whether there is a cap for an instance of that name.
func (t *Terms) Caps(name string) bool { return t.CapOf(name, false) != NoCap() }

// CapName returns the name by which caps know an instance. One whose identity was asked for is called
// IDENTITY/NAME: the cap of its identity goes before that of its own name, which it chooses itself.
func (t *Terms) CapName(instance string) string {
	identity, own, known := strings.Cut(instance, "/")
	switch {
	case !known:
		return instance
	case t.Caps(identity):
		return identity
	}
	return own
}

// CapOf returns the most that an instance of that name may have. site says that it is a site, for
// which the cap of every site holds too.
func (t *Terms) CapOf(name string, site bool) Capacity {
	every := NoCap()
	for _, c := range t.Sites {
		switch {
		case c.Name == name:
			return Capacity{Rate: c.Rate, Burst: c.Burst}
		case c.Name == EverySite && site:
			every = Capacity{Rate: c.Rate, Burst: c.Burst}
		}
	}
	return every
}
