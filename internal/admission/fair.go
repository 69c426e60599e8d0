package admission

import "github.com/stint-io/stint/internal/waitline"

// class is what waits in one class, shared between its keys by start-time fair queueing: each
// key's next request has a virtual start, the lowest goes first, and what it costs is added to
// its key's. A key that comes new starts a nanosecond before the virtual time, which is the start
// of the request that was served last, so that it is next but for others that are new as well.
//
// Pure start-time fair queueing starves a key that has been served while ever new keys come, since
// the virtual time stands still for them. Therefore the virtual time also follows a fluid one, in
// which all keys are served at once, with a lag of the dearest request: each cost moves it by
// cost/keys, where those count that wait and those that are ahead. That sum drifts, so the fluid
// time is set right by each request of a key that was served before: its start is the lowest of
// all, and no fluid time is further ahead than the dearest request.
//
// A request for whose cost the bucket has to save lets cheaper ones of other keys pass that fit
// into what is saved already, or they would all wait for the time that its cost takes to come in.
// It lets pass those that start, in virtual time, less than its cost after it, which is what a key
// with less than its share needs while the bucket saves. Each key is ahead by that much at most,
// so that the shares stay what they are.
type class struct {
	flows   map[uint64]*flow
	active  waitline.Alarms // keys with waiting requests, by virtual start
	prices  waitline.Alarms // the same keys, by the cost of their oldest request
	idle    waitline.Alarms // keys without, whose virtual start is still ahead of the virtual time
	virtual int64
	fluid   int64
	dearest int64 // served since the class was last empty
	waiting int
	cost    int64
	bounded int64 // cost, of which each request is at most the bound of the queue
	free    *flow // those that were dropped, by next: as many as there were at once
}

// flow is a key that has waiting requests, or has had more than its share.
type flow struct {
	key         uint64
	served      bool  // since it came
	start       int64 // virtual start of its next request
	first, last *Item
	waiting     int
	cost        int64
	bounded     int64
	place       waitline.Alarm // in active or idle
	price       waitline.Alarm // in prices
	next        *flow          // in free
}

// flowOf returns the flow of a key.
func (c *class) flowOf(key uint64) *flow {
	f := c.flows[key]
	if f != nil {
		return f
	}
	if f = c.free; f != nil {
		c.free = f.next
		*f = flow{key: key, start: c.virtual - 1}
	} else {
		f = &flow{key: key, start: c.virtual - 1}
	}
	c.flows[key] = f
	return f
}

// push puts it at the end of its key. newest says that the newest go first: a new key then
// starts a nanosecond before all others. bounded is its cost, at most the bound of the queue.
func (c *class) push(it *Item, bounded int64, newest bool) {
	f := c.flowOf(it.Key)
	if f.first == nil {
		f.start = max(f.start, c.virtual-1)
		if at, _ := c.active.First(); newest && f.start <= c.virtual && at != waitline.Never {
			f.start = min(f.start, at-1)
		}
		f.place.Unset()
		c.active.Set(&f.place, f, f.start)
		f.first = it
		c.prices.Set(&f.price, f, it.Cost)
	} else {
		f.last.inFlow.next = it
	}
	it.flow, it.inFlow = f, links{prev: f.last}
	f.last = it
	f.waiting++
	f.cost += it.Cost
	f.bounded += bounded
	c.waiting++
	c.cost += it.Cost
	c.bounded += bounded
}

// next returns the request that is served next.
func (c *class) next(newest bool) *Item {
	at, of := c.active.First()
	if at == waitline.Never {
		return nil
	}
	if newest {
		return of.(*flow).last
	}
	return of.(*flow).first
}

// passes returns the request that may pass first, which is served next but does not fit yet: the
// cheapest of the others, or nil.
func (c *class) passes(first *Item) *Item {
	cost, of := c.prices.First()
	f := of.(*flow)
	if cost >= first.Cost || f.start-first.flow.start >= first.Cost {
		return nil
	}
	return f.first
}

// serve moves virtual time as the start of it, which waits, does. remove follows.
func (c *class) serve(it *Item) {
	f := it.flow
	c.dearest = max(c.dearest, it.Cost)
	if f.served {
		c.virtual = f.start
		c.fluid = min(c.fluid, f.start+c.dearest)
	}
	c.fluid = max(c.fluid, c.virtual) + it.Cost/int64(c.active.Len()+c.idle.Len())
	c.virtual = max(c.virtual, c.fluid-c.dearest)
	f.start += it.Cost
	f.served = true
}

// remove takes it out of its key. At most spare keys are remembered that have no request.
func (c *class) remove(it *Item, bounded int64, spare int) {
	f := it.flow
	prev, next := it.inFlow.prev, it.inFlow.next
	if prev == nil {
		f.first = next
	} else {
		prev.inFlow.next = next
	}
	if next == nil {
		f.last = prev
	} else {
		next.inFlow.prev = prev
	}
	it.flow, it.inFlow = nil, links{}
	f.waiting--
	f.cost -= it.Cost
	f.bounded -= bounded
	c.waiting--
	c.cost -= it.Cost
	c.bounded -= bounded
	if f.first != nil {
		c.active.Set(&f.place, f, f.start)
		c.prices.Set(&f.price, f, f.first.Cost)
	} else {
		f.place.Unset()
		f.price.Unset()
		if f.start <= c.virtual || c.waiting == 0 {
			c.drop(f)
		} else {
			c.idle.Set(&f.place, f, f.start)
		}
	}
	c.forget(spare)
}

// settle adds to a key's start what a request has cost beyond its prediction, or takes from it.
func (c *class) settle(key uint64, more int64, spare int) {
	if c.waiting == 0 || more == 0 || more < 0 && c.flows[key] == nil {
		return // nobody competes, or nothing is owed
	}
	f := c.flowOf(key)
	f.served = true
	f.start = max(f.start+more, c.virtual)
	if f.first != nil {
		c.active.Set(&f.place, f, f.start)
	} else {
		c.idle.Set(&f.place, f, f.start)
		c.forget(spare)
	}
}

// forget drops keys that have had no more than their share, and those that are nearest to it
// where there are too many. When nothing waits there is no competition, and all begin anew.
func (c *class) forget(spare int) {
	if c.waiting == 0 {
		c.virtual, c.fluid, c.dearest = 0, 0, 0
		spare = 0
	}
	for {
		at, of := c.idle.First()
		if at == waitline.Never || at > c.virtual && c.idle.Len() <= spare {
			return
		}
		f := of.(*flow)
		f.place.Unset()
		c.drop(f)
	}
}

func (c *class) drop(f *flow) {
	delete(c.flows, f.key)
	f.next, c.free = c.free, f
}
