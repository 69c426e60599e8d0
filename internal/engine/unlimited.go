package engine

// Unlimited says why no limit applied to a request. The zero value is UnlimitedNoMatch.
type Unlimited uint8

// The reasons.
const (
	UnlimitedNoMatch Unlimited = iota // no limit is meant for it
	UnlimitedSkipped                  // limits are meant for it and were skipped: see Tally.Skipped
	UnlimitedDomain                   // its domain is in no file in Envoy's format

	unlimitedCount int = iota
)

// String returns the reason as it stands in metrics.
func (u Unlimited) String() string {
	return [...]string{"no_match", "skipped", "unknown_domain"}[u]
}

// countUnlimited counts a request to which no limit applied. A rule in Envoy's format without a
// rate_limit applies: it says that nothing is to be limited.
//
// Requests that are limited do not come here, so that they pay nothing for it.
func (e *Engine) countUnlimited(s *snapshot, q *Query) {
	switch {
	case len(q.Hits) > 0 || len(q.Descriptors) == 0:
	case len(q.skipped) > 0:
		e.unlimited[UnlimitedSkipped].Add(1)
	case q.Domain != "" && !s.set.HasDomain(q.Domain):
		e.unlimited[UnlimitedDomain].Add(1)
	default:
		e.unlimited[UnlimitedNoMatch].Add(1)
	}
}

// UnlimitedRequests counts by Unlimited the requests to which no limit applied. Peeks are not
// counted.
func (e *Engine) UnlimitedRequests() (n [unlimitedCount]uint64) {
	for i := range n {
		n[i] = e.unlimited[i].Load()
	}
	return n
}
