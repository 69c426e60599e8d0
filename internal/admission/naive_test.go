package admission

import (
	"cmp"
	"slices"

	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

// naive is the oracle: one slice of what waits, searched from end to end for each question. It
// follows the rules as the package doc and the comment on class say them, for a constant limit
// of running requests and without service times.
type naive struct {
	config     Config
	waiting    []*naiveItem
	running    int
	tokens     float64 // of the bucket at last
	last       int64
	keys       map[[2]uint64]*naiveKey // class and key
	clocks     [Classes]struct{ virtual, fluid, dearest int64 }
	serial     int
	overloaded bool
}

type naiveItem struct {
	*Item
	outcome State
	reason  limit.Reason
	arrival int64
	charge  int64
}

type naiveKey struct {
	start  int64
	served bool
	serial int
	active bool
}

func newNaive(c Config) *naive {
	if c.MaxCost == 0 {
		c.MaxCost = 1 << 60
	}
	if c.MaxWait == 0 {
		c.MaxWait = 1 << 60
	}
	return &naive{config: c, tokens: float64(c.Burst), keys: map[[2]uint64]*naiveKey{}}
}

func (n *naive) advance(now int64) {
	n.tokens = min(float64(n.config.Burst), n.tokens+float64(now-n.last)*n.config.Rate)
	n.last = now
}

func (n *naive) of(class int, key uint64) []*naiveItem {
	var all []*naiveItem
	for _, it := range n.waiting {
		if int(it.Class) == class && it.Key == key {
			all = append(all, it)
		}
	}
	return all
}

func (n *naive) key(it *naiveItem) *naiveKey {
	at := [2]uint64{uint64(it.Class), it.Key}
	if n.keys[at] == nil {
		n.keys[at] = &naiveKey{start: n.clocks[it.Class].virtual - 1}
	}
	return n.keys[at]
}

func (n *naive) newest() bool { return n.config.NewestFirst && n.overloaded }

func (n *naive) top() int {
	top := -1
	for _, it := range n.waiting {
		top = max(top, int(it.Class))
	}
	return top
}

// first returns who is served next.
func (n *naive) first() *naiveItem {
	var best *naiveItem
	for _, it := range n.waiting {
		if int(it.Class) != n.top() {
			continue
		}
		if best == nil {
			best = it
			continue
		}
		a, b := n.key(it), n.key(best)
		switch order := cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.serial, b.serial)); {
		case order < 0:
			best = it
		case order == 0 && n.newest():
			best = it // of one key, later in the slice
		}
	}
	return best
}

// passes returns the cheapest of the oldest requests of keys, if it may pass first.
func (n *naive) passes(first *naiveItem) *naiveItem {
	if n.config.Rate == 0 || n.newest() {
		return nil
	}
	var best *naiveItem
	for _, it := range n.waiting {
		if it.Class != first.Class || n.of(int(it.Class), it.Key)[0] != it {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(it.Cost, best.Cost), cmp.Compare(n.key(it).serial, n.key(best).serial)) < 0 {
			best = it
		}
	}
	if best.Cost >= first.Cost || n.key(best).start >= n.key(first).start+first.Cost {
		return nil
	}
	return best
}

func (n *naive) fits(cost int64) bool {
	if n.config.Concurrency > 0 && n.running >= n.config.Concurrency {
		return false
	}
	return n.config.Rate == 0 || n.tokens >= float64(min(cost, n.config.Burst))
}

func (n *naive) remove(it *naiveItem) {
	n.waiting = slices.DeleteFunc(n.waiting, func(o *naiveItem) bool { return o == it })
	k := n.key(it)
	if len(n.of(int(it.Class), it.Key)) == 0 {
		k.active = false
	}
	n.forget()
}

func (n *naive) forget() {
	for class := range n.clocks {
		if !slices.ContainsFunc(n.waiting, func(o *naiveItem) bool { return int(o.Class) == class }) {
			n.clocks[class].virtual, n.clocks[class].fluid, n.clocks[class].dearest = 0, 0, 0
			for at := range n.keys {
				if at[0] == uint64(class) {
					delete(n.keys, at)
				}
			}
		}
	}
	for at, k := range n.keys {
		if !k.active && k.start <= n.clocks[at[0]].virtual {
			delete(n.keys, at)
		}
	}
	if len(n.waiting) == 0 {
		n.overloaded = false
	}
}

func (n *naive) start(it *naiveItem) {
	n.tokens -= float64(it.Cost)
	n.running++
	it.outcome, it.charge = Running, it.Cost
}

func (n *naive) step(now int64) {
	n.advance(now)
	for _, it := range slices.Clone(n.waiting) {
		switch aged := now-it.arrival >= n.config.MaxWait; {
		case aged:
			it.outcome, it.reason = Expired, limit.ReasonQueueTimeout
		case it.Deadline-1 <= now:
			it.outcome, it.reason = Expired, limit.ReasonDeadline
		default:
			continue
		}
		n.remove(it)
		n.overloaded = len(n.waiting) > 0
	}
	n.serve()
}

func (n *naive) serve() {
	for len(n.waiting) > 0 {
		it := n.first()
		if !n.fits(it.Cost) {
			if it = n.passes(it); it == nil || !n.fits(it.Cost) {
				return
			}
		}
		active := int64(0)
		for at, k := range n.keys {
			if at[0] == uint64(it.Class) && k != nil {
				active++
			}
		}
		c, k := &n.clocks[it.Class], n.key(it)
		c.dearest = max(c.dearest, it.Cost)
		if k.served {
			c.virtual = k.start
			c.fluid = min(c.fluid, k.start+c.dearest)
		}
		k.served = true
		c.fluid = max(c.fluid, c.virtual) + it.Cost/active
		c.virtual = max(c.virtual, c.fluid-c.dearest)
		k.start += it.Cost
		n.remove(it)
		n.start(it)
	}
}

func (n *naive) bounded(cost int64) int64 { return min(cost, n.config.MaxCost) }

func (n *naive) offer(now int64, it *naiveItem) {
	it.arrival = now
	n.step(now)
	if n.top() < int(it.Class) && n.fits(it.Cost) {
		n.start(it)
		return
	}
	if n.late(now, it) {
		it.outcome, it.reason = Refused, limit.ReasonDeadline
		n.overloaded = len(n.waiting) > 0
		return
	}
	if n.flooded(it) {
		it.outcome, it.reason = Refused, limit.ReasonQueueFull
		n.overloaded = len(n.waiting) > 0
		return
	}
	count, cost := len(n.waiting), int64(0)
	var lower []*naiveItem
	for _, o := range n.waiting {
		cost += n.bounded(o.Cost)
		if o.rank() < it.rank() {
			lower = append(lower, o)
		}
	}
	slices.SortStableFunc(lower, func(a, b *naiveItem) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(slices.Index(n.waiting, b), slices.Index(n.waiting, a)))
	})
	var victims []*naiveItem
	for count >= n.config.MaxWaiting || cost+n.bounded(it.Cost) > n.config.MaxCost {
		if len(lower) == 0 {
			it.outcome, it.reason = Refused, limit.ReasonQueueFull
			n.overloaded = len(n.waiting) > 0
			return
		}
		victims = append(victims, lower[0])
		cost -= n.bounded(lower[0].Cost)
		count--
		lower = lower[1:]
	}
	for _, o := range victims {
		n.remove(o)
		o.outcome, o.reason = Evicted, limit.ReasonEvicted
	}
	if len(victims) > 0 {
		n.overloaded = len(n.waiting) > 0
	}
	n.push(it)
	n.serve()
}

func (n *naive) push(it *naiveItem) {
	c := n.clocks[it.Class]
	lowest := int64(waitline.Never)
	for at, k := range n.keys {
		if at[0] == uint64(it.Class) && k.active {
			lowest = min(lowest, k.start)
		}
	}
	k := n.key(it)
	if !k.active {
		n.serial++
		k.active, k.serial = true, n.serial
		k.start = max(k.start, c.virtual-1)
		if n.newest() && k.start <= c.virtual && lowest != waitline.Never {
			k.start = min(k.start, lowest-1)
		}
	}
	it.outcome = Waiting
	n.waiting = append(n.waiting, it)
}

// late says whether it cannot start by its deadline, for what is ahead of it in any case.
func (n *naive) late(now int64, it *naiveItem) bool {
	if it.Deadline == waitline.Never {
		return false
	}
	ahead := min(it.Cost, max(n.config.Burst, 1))
	for _, o := range n.waiting {
		if o.Class > it.Class || o.Class == it.Class && o.Key == it.Key && !n.newest() {
			ahead += o.Cost
		}
	}
	wait := 0.0
	if n.config.Rate > 0 {
		wait = max(0, (float64(ahead)-n.tokens)/n.config.Rate)
	}
	return float64(now)+wait > float64(it.Deadline-1)
}

// flooded says whether the key of it has as much of the queue as is free for its class, and more
// than the square root of the queue.
func (n *naive) flooded(it *naiveItem) bool {
	own, high := n.of(int(it.Class), it.Key), []*naiveItem{}
	if it.Key == 0 || len(own) == 0 {
		return false
	}
	for _, o := range n.waiting {
		if o.Class >= it.Class {
			high = append(high, o)
		}
	}
	parts := 1
	for (parts+1)*(parts+1) <= n.config.MaxWaiting {
		parts++
	}
	sum := func(all []*naiveItem) (s int64) {
		for _, o := range all {
			s += n.bounded(o.Cost)
		}
		return s
	}
	return len(own) >= max(n.config.MaxWaiting/parts, n.config.MaxWaiting-len(high)) ||
		sum(own)+n.bounded(it.Cost) > max(n.config.MaxCost/int64(parts), n.config.MaxCost-sum(high))
}

func (n *naive) leave(now int64, it *naiveItem) {
	n.advance(now)
	n.remove(it)
	it.outcome = Left
	n.step(now)
}

func (n *naive) settle(now int64, it *naiveItem, cost int64) {
	n.advance(now)
	more := cost - it.charge
	it.charge = cost
	n.tokens = min(float64(n.config.Burst), n.tokens-float64(more))
	k := n.keys[[2]uint64{uint64(it.Class), it.Key}]
	competes := slices.ContainsFunc(n.waiting, func(o *naiveItem) bool { return o.Class == it.Class })
	if competes && more != 0 && (k != nil || more > 0) {
		k = n.key(it)
		k.served = true
		k.start = max(k.start+more, n.clocks[it.Class].virtual)
		n.forget()
	}
}

func (n *naive) finish(now int64, it *naiveItem, cost int64) {
	n.settle(now, it, cost)
	it.outcome = Finished
	n.running--
	n.step(now)
}
