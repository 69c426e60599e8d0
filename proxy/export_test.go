package proxy

// Totals are how many requests the metrics have, and how many of them are in progress: at an upstream, or
// in the throttle.
func (p *Proxy) Totals() (all, inFlight int) {
	for i := range p.counts.own {
		all += int(p.counts.own[i].Load() + p.counts.upstream[i].Load())
	}
	all += int(p.counts.cut.Load())
	for _, u := range p.pool.all {
		inFlight += int(u.inFlight.Load())
	}
	if s, ok := p.throttled.standing(); ok {
		inFlight += s.Running + s.Waiting
	}
	return all, inFlight
}
