package tally

import "sync/atomic"

// Unlimited is a reason why a request was admitted without a limit.
type Unlimited uint8

// The reasons. Those up to NoCoordinator concern one limit, the others no limit in particular.
const (
	MissingKey      Unlimited = iota // the request lacks an attribute of the key, and missing is skip
	ConditionFailed                  // when could not be evaluated, and on_condition_error is skip
	StoreFailed                      // the store did not answer, and on_store_failure is allow or local
	NoCoordinator                    // there was no lease, and on_store_failure is allow or local
	NoService                        // a proxy's service did not decide
	NoMatch                          // no limit matches
	UnknownDomain                    // no file in Envoy's format has the domain

	unlimitedReasons int = iota
)

// String returns the reason as it stands in metrics.
func (u Unlimited) String() string {
	return [...]string{
		"missing_key", "condition_failed", "store_failed", "no_coordinator", "no_service", "no_match", "unknown_domain",
	}[u]
}

// UnlimitedCounter counts requests by [Unlimited]. It is safe for concurrent use; its zero value has counted none.
type UnlimitedCounter [unlimitedReasons]atomic.Uint64

// Count counts one request, and returns how many were counted for the same reason.
func (t *UnlimitedCounter) Count(why Unlimited) uint64 { return t[why].Add(1) }

// Read returns the counts by [Unlimited].
func (t *UnlimitedCounter) Read() (n [unlimitedReasons]uint64) {
	for i := range n {
		n[i] = t[i].Load()
	}
	return n
}
