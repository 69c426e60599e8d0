package admission

// earliest returns a time before which a request that arrives now hardly starts: those of higher
// classes and of its own key are ahead of it. It is a lower bound, since keys that are served
// before it are not counted: what is refused for its deadline would have been late.
func (m *Machine) earliest(now int64, it *Item) int64 {
	count, cost := 0, min(it.Cost, max(m.bucket.burst, 1))
	for i := int(it.Class) + 1; i < Classes; i++ {
		count += m.classes[i].waiting
		cost += m.classes[i].cost
	}
	if f := m.classes[it.Class].flows[it.Key]; f != nil && !m.newest() {
		count += f.waiting
		cost += f.cost
	}
	return now + m.drain(now, count, cost)
}

// Empty is the time in which all that waits now starts, if nothing else comes.
func (m *Machine) Empty(now int64) int64 {
	cost := int64(0)
	for i := range m.classes {
		cost += m.classes[i].cost
	}
	return max(1, m.drain(now, m.waiting, cost))
}

// drain is the time after which so many requests of that cost have started.
func (m *Machine) drain(now int64, count int, cost int64) int64 {
	wait := int64(0)
	if m.bucket.rate > 0 {
		b := m.bucket
		b.trim(now)
		wait = max(0, b.empty+b.span(cost)-now)
	}
	if limit := m.follower.limit(); m.running >= limit {
		wait = max(wait, int64(float64(count)*m.follower.service/float64(limit)))
	}
	return wait
}
