package engine

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/tenants"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
)

// shared is a limit that tenants share.
type shared struct {
	name  string
	terms store.ShareTerms

	// As of the latest decision.
	tenants atomic.Int64
	taken   atomic.Uint64 // bits of a float64
	at      atomic.Int64  // Unix nanoseconds
}

// gate asks whether a tenant has room for a charge.
type gate struct {
	store.Share
	of           *shared
	charge, part int
	held         bool // the cost was taken
	refused      bool
	off          bool // nobody knows: the limit's counters decide alone
}

// sharesOf returns what keeps shares beside a store.
func sharesOf(st store.Store, given store.Shares) store.Shares {
	if given != nil {
		return given
	}
	if s, ok := st.(store.Shares); ok {
		return s
	}
	return tenants.New(tenants.Options{})
}

// sharedOf returns how a limit is shared, nil = by nobody. What was seen of it before stays.
func sharedOf(l *rules.Limit, old *shared) *shared {
	if l.Share == nil {
		return nil
	}
	s := &shared{name: l.Name, terms: store.ShareTerms{ID: l.Base.ID, Policy: l.Base.Policy, Weights: l.Share.Weights}}
	for _, g := range l.Share.Guarantees {
		s.terms.Guaranteed = append(s.terms.Guaranteed, store.Guaranteed{Tenant: g.Tenant, Rate: g.Rate})
	}
	if old != nil {
		s.tenants.Store(old.tenants.Load())
		s.taken.Store(old.taken.Load())
		s.at.Store(old.at.Load())
	}
	return s
}

func (s *shared) note(a *store.Share) {
	s.tenants.Store(int64(a.Tenants))
	s.taken.Store(math.Float64bits(a.Taken))
	s.at.Store(time.Now().UnixNano())
}
