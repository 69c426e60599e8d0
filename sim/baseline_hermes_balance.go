package sim

// hermesShare is what the balancer knows of one consumer.
type hermesShare struct {
	max    float64 // max-rate, tokens per second
	hasMax bool
	used   []float64 // the used part of max as last reported; empty = silent
}

// balance puts the max-rates of one subscription anew. It is the published rule with
// its floor: a consumer that has less than hermesMinMaxRate is raised to it, whatever the limit.
// It reports whether it changed anything.
func hermesBalance(limit float64, shares []hermesShare) bool {
	if len(shares) == 0 {
		return false
	}
	if reset := max(hermesMinMaxRate, limit/float64(len(shares))); mustReset(limit, shares) {
		for i := range shares {
			shares[i].max, shares[i].hasMax = reset, true
		}
		return true
	}
	var busy, idle []*hermesShare
	for i := range shares {
		switch s := &shares[i]; {
		case average(s.used) > 1-hermesBusyTolerance:
			busy = append(busy, s)
		case len(s.used) > 0:
			idle = append(idle, s)
		}
	}
	if len(busy) == 0 {
		return false
	}
	least := hermesMinAllowedChange * limit
	freed := takeFromIdle(idle, least)
	balanceBusy(busy, freed, least)
	return true
}

// mustReset reports whether all go back to an equal share: when a consumer has no
// max-rate yet, when a share is 1 or less, when the shares do not add up.
func mustReset(limit float64, shares []hermesShare) bool {
	sum := 0.0
	for _, s := range shares {
		if !s.hasMax {
			return true
		}
		sum += s.max
	}
	const tolerance = 1.0 // tokens per second, in the published code
	off := sum - limit
	return limit/float64(len(shares)) <= 1 || off > tolerance || off < -tolerance
}

// takeFromIdle lowers idle consumers and returns what that frees. It may be
// negative: a share below the floor is raised.
func takeFromIdle(idle []*hermesShare, least float64) float64 {
	freed := 0.0
	for _, s := range idle {
		used := s.used[0]
		taken := (2/(used+1) - 1) * s.max
		if taken <= least {
			taken = 0
		}
		if s.max-taken <= hermesMinMaxRate {
			taken = s.max - hermesMinMaxRate
		}
		s.max -= taken
		freed += taken
	}
	return freed
}

// balanceBusy takes from the busy that have more than an equal part of what the busy
// have, and gives that and what was freed to the other busy ones.
func balanceBusy(busy []*hermesShare, freed, least float64) {
	if len(busy) == 1 {
		busy[0].max += freed
		return
	}
	sum := 0.0
	for _, s := range busy {
		sum += s.max
	}
	equal := sum / float64(len(busy))
	var others []*hermesShare
	have := 0.0
	for _, s := range busy {
		if s.max <= equal+least {
			others = append(others, s)
			have += s.max
			continue
		}
		taken := max(s.max/2*(2/(s.max/sum+1)-1), least)
		if s.max-taken <= equal {
			taken = s.max - equal
		}
		s.max -= taken
		freed += taken
	}
	for _, s := range others {
		s.max += freed * s.max / have
	}
}

func average(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}
