package coordinator

import (
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/ledger"
	"github.com/stint-io/stint/limit"
)

// Parent is where the coordinator of a site has capacity from. It is called during a Step.
type Parent interface {
	// Lends says whether the capacity of a limit with these terms comes from the parent.
	Lends(t *lease.Terms) bool
	// Opened says that the resource was made, Closed that it is forgotten: what it holds goes
	// back. Divided says that a round has run, or that accounts were removed.
	Opened(now limit.Time, r *ledger.Resource)
	Closed(now limit.Time, r *ledger.Resource)
	Divided(r *ledger.Resource)
	// Until is when the lease of the parent ends; 0 = there is none.
	Until() limit.Time
	// Path is the parent and those above it, the nearest first.
	Path() []string
	// Restarted says that the coordinator begins anew: it knows no resource any more.
	Restarted(now limit.Time)
}

// Supplied says that the parent has changed what resources hold.
type Supplied struct{ Resources []*ledger.Resource }

func (Supplied) Event() {}
