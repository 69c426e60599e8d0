package engine

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

	UnlimitedCount int = iota
)

// String returns the reason as it stands in metrics.
func (u Unlimited) String() string {
	return [...]string{
		"missing_key", "condition_failed", "store_failed", "no_coordinator", "no_service", "no_match", "unknown_domain",
	}[u]
}
