package ledger

import (
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

const (
	second = limit.Time(time.Second)
	start  = 1000 * second
)

var (
	theLimit = lease.ResourceID{Limit: "l"}
	noCaps   = caps{CapRate: fixed.MaxAmount, CapBurst: fixed.MaxAmount}
)

// opened is a new account of r.
func opened(r *Resource) *Account {
	a := new(Account)
	r.Open(a)
	return a
}
