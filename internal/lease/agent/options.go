package agent

import (
	"github.com/stint-io/stint/internal/fixed"
)

// Estimator is how an instance knows its demand. The zero value is Attempted.
type Estimator uint8

// The estimators.
const (
	Attempted   Estimator = iota // arrivals are counted, refused and waiting ones included
	Declared                     // the application declares it
	Utilisation                  // only what was admitted is known, as for consumers that pull
)

// ExpiryMode is what an instance spends after the expiry of its lease, when no coordinator
// could be reached. The zero value is Pessimistic.
type ExpiryMode uint8

// The modes at expiry.
const (
	Pessimistic ExpiryMode = iota // nothing
	Optimistic                    // its demand, up to the whole limit
	Safe                          // the safe capacity that the coordinator sends with every grant
)

// LeaseOptions are how an instance uses one resource. With the zero value it measures its
// demand, spends nothing before its first lease and nothing after expiry.
type LeaseOptions struct {
	Weight    uint32 // of the instance in allocation, such as its number of clients; 0 counts as 1
	Band      uint8  // priority; higher is served first
	Silent    bool   // the instance does not report demand and is granted an equal share
	Estimator Estimator
	Expiry    ExpiryMode
	// Start is what to spend before the first grant, in tokens per second, or in permits
	// of a semaphore; 0 = nothing.
	Start fixed.Amount
	// Attributes are the names of the attributes that the values of the resource's key come
	// from. The coordinator compares them with the limit's; nil = not compared.
	Attributes []string
}
