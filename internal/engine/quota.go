package engine

import (
	"fmt"

	"github.com/stint-io/stint/store"
)

// quotas are the quota rules that a request meets. They refuse it only if all of
// them refuse.
type quotas struct {
	enforced int
	// room says that one of them never refuses: a shadow, or a descriptor without a rule where
	// every descriptor is a quota.
	room bool
}

// together reports whether the decision depends on the answers of all quotas. A single one is
// like any other rule, and the store decides it.
func (n quotas) together() bool { return n.enforced > 1 || n.enforced == 1 && n.room }

// unknownQuota returns an error when an enforced quota rule could not be read. Several of them
// are shadows to the store, so their failure is no error of the Take, but together they decide.
func (q *Query) unknownQuota(n quotas) error {
	if !n.together() {
		return nil
	}
	for i := range q.parts {
		p := &q.parts[i]
		if p.quota && !p.shadow && p.charge >= 0 && q.charges[p.charge].Failed {
			return fmt.Errorf("engine: the quota of %q: %w", q.Decision.Results[i].Limit, store.ErrUnavailable)
		}
	}
	return nil
}

// quotasOver reports whether every quota rule refused. With one or none the store's
// answer has it already.
func (q *Query) quotasOver(n quotas) bool {
	if n.room || !n.together() {
		return false
	}
	for i := range q.parts {
		p := &q.parts[i]
		if p.quota && !p.shadow && (p.charge < 0 || q.charges[p.charge].Verdict.Allowed) {
			return false
		}
	}
	return true
}
