package estimate

import "maps"

// Stats say how good the estimates were. All but Keys, Models and Open are totals.
type Stats struct {
	// Estimates that were reserved, by what they were from.
	Estimates map[From]uint64
	// Whole counts those of them whose declared most was reserved, because a budget was near its end.
	Whole uint64
	// Settled estimates, those of them that were too low, and the sums of what they were too low and too high by, of what
	// was estimated and of what was used.
	Settled, Low                     uint64
	Under, Over, Estimated, Consumed float64
	// Shared counts what was settled and is learned by the model alone, because there is no room for more.
	Shared uint64
	// Keys and Models have an estimate of their own. Open reservations are likely to owe something.
	Keys, Models, Open int
}

func (s *Stats) observe(estimated, actual int64) {
	s.Settled++
	s.Estimated += float64(estimated)
	s.Consumed += float64(actual)
	if actual > estimated {
		s.Low++
		s.Under += float64(actual - estimated)
	} else {
		s.Over += float64(estimated - actual)
	}
}

// Reserved counts an estimate that was reserved; whole says that what is declared was, instead.
func (e *Estimator) Reserved(est *Estimate, whole bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stats.Estimates[est.From]++
	if whole {
		e.stats.Whole++
	}
}

// Stats returns the figures of now.
func (e *Estimator) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats
	s.Estimates = maps.Clone(s.Estimates)
	s.Keys, s.Models, s.Open = len(e.table.own.entries), len(e.table.model.entries), len(e.open.byID)
	return s
}
