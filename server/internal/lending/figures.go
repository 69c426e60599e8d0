package lending

// Figures are a sample of the service, a few seconds old at most.
type Figures struct {
	Streams, Instances, Resources int
	Unlent                        int // buckets that are not full and of which nobody has a lease
	Reports, Grants               uint64
	Asks                          uint64 // that were decided without a lease
	Expired, Broken, Panics       uint64
	StreamsRefused                uint64
	Recovering                    bool
	Refused                       map[string]uint64 // demands by status
	Limits                        []LimitFigures    // ascending by name
}

// LimitFigures are the sums over the resources of one limit that somebody uses, in
// tokens per second, or in permits.
type LimitFigures struct {
	Limit                         string
	Capacity, Lent, Wanted, Free  float64
	Saturated                     bool    // at least one key wants more than the limit
	SaturatedSeconds              float64 // since the start
	Resources, SaturatedResources int

	// Of a limit that is shared by suppression: the largest fraction that is refused of
	// a key. What was attempted and admitted in all is known to the instances.
	Suppressed bool
	Reject     float64
}
