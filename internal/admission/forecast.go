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
		wait = max(wait, int64(float64(count)*m.times.mean/float64(limit)))
	}
	return wait
}

// times has how long requests run: the mean of all and of each route.
type times struct {
	mean   float64 // in nanoseconds
	count  float64
	routes map[uint64]*routeTime

	newest, oldest *routeTime // by the last request that has run
}

// routeTime is what requests of a route take. calm is for the follower.
type routeTime struct {
	mean, count float64
	calm        calmTime
	round       uint64
	inRound     float64

	route        uint64
	newer, older *routeTime
}

const (
	// maxRoutes is of how many routes the times are known; the one that is unused for longest makes
	// room. Not larger: routes may be named by strangers, and each takes 200 bytes.
	maxRoutes = 1024

	// recent is how many requests a mean is about. Not fewer: a tenth of error is enough, for
	// times that vary as much as their mean. Not more: a server that changes is noticed late.
	recent = 100
)

// observe learns from a request that has run, and returns what is known of its route.
func (t *times) observe(it *Item, service int64) *routeTime {
	x := float64(service)
	t.count = min(t.count+1, recent)
	t.mean += (x - t.mean) / t.count
	r := t.use(it.Route)
	r.count = min(r.count+1, recent)
	r.mean += (x - r.mean) / r.count
	return r
}

// use returns a route, which is the newest then. If it were not learnt where there is no room, a
// stranger who names many would have the limit follow nothing from then on.
func (t *times) use(route uint64) *routeTime {
	r := t.routes[route]
	switch {
	case r != nil:
		t.unlink(r)
	case len(t.routes) >= maxRoutes:
		r = t.oldest
		t.unlink(r)
		delete(t.routes, r.route)
		*r = routeTime{route: route}
	default:
		r = &routeTime{route: route}
	}
	t.routes[route] = r
	if r.older = t.newest; t.newest != nil {
		t.newest.newer = r
	} else {
		t.oldest = r
	}
	t.newest = r
	return r
}

func (t *times) unlink(r *routeTime) {
	if r.newer != nil {
		r.newer.older = r.older
	} else {
		t.newest = r.older
	}
	if r.older != nil {
		r.older.newer = r.newer
	} else {
		t.oldest = r.newer
	}
	r.newer, r.older = nil, nil
}

// least is the time that a request will take at least: its CPU time, or less where its route is
// known to take less, as one does that uses several cores. A route that has not been seen may
// take no time, but for a nanosecond: nobody is refused for a guess.
func (t *times) least(it *Item) int64 {
	r := t.routes[it.Route]
	if r == nil {
		return 1
	}
	return max(1, min(it.Cost, int64(r.mean)))
}
