package gate

import (
	"context"
	"hash/maphash"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/stint-io/stint/limit"
)

const (
	// maxID bounds a request id in bytes. A UUID has 36.
	maxID = 256
	// repeatFor is how long a decision is kept for repeats. Gateways repeat
	// within milliseconds, or when their time-out of a second or so is over.
	repeatFor = 10 * time.Second
	// maxRepeats is how often one decision is given again. A gateway that asks
	// twice or four times is served; one that lets its clients choose the id, by
	// mistake, still has a limit.
	maxRepeats = 8
	// maxRemembered bounds the decisions kept. When there are more, the oldest
	// go, and their repeats are charged: that errs on the safe side.
	maxRemembered = 64 << 10
	// shards keeps the gateways' calls from waiting for one lock.
	shards = 64
)

// requestID identifies a client's request: a seeded hash of 128 bits, which
// no client can make collide.
type requestID [2]uint64

// repeats remembers decisions by request.
type repeats struct {
	seeds  [2]maphash.Seed
	shards [shards]shard
}

type shard struct {
	mu      sync.Mutex
	entries map[requestID]*decided
	// order holds the keys of entries, oldest at next once it is full.
	order []requestID
	next  int
}

// decided is one decision. Its result is set before done is closed.
type decided struct {
	done  chan struct{}
	since time.Time
	uses  int // guarded by the shard's mutex
	d     limit.Decision
	err   error
}

func (s *repeats) init() {
	s.seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
}

// id returns the identity of a request. The client is part of it, so that none
// can use another's id; so are method, host and URI, so that one id never serves
// two different requests, and the path with its options, as these may differ in cost.
func (s *repeats) id(client netip.Addr, parts ...string) requestID {
	var id requestID
	address := client.As16()
	for i := range id {
		var h maphash.Hash
		h.SetSeed(s.seeds[i])
		h.Write(address[:])
		for _, part := range parts {
			maphash.WriteComparable(&h, len(part))
			h.WriteString(part)
		}
		id[i] = h.Sum64()
	}
	return id
}

// take returns the decision that first made for id, or makes it. While one call
// decides, repeats wait for it. An error is not remembered.
func (s *repeats) take(ctx context.Context, id requestID, first func() (limit.Decision, error)) (limit.Decision, error) {
	sh := &s.shards[id[0]%shards]
	now := time.Now()
	sh.mu.Lock()
	if e := sh.entries[id]; e != nil && now.Sub(e.since) < repeatFor && e.uses < maxRepeats {
		e.uses++
		sh.mu.Unlock()
		select {
		case <-e.done:
		case <-ctx.Done():
			return limit.Decision{}, ctx.Err()
		}
		if e.err != nil {
			return first()
		}
		return e.d, nil
	}
	e := &decided{done: make(chan struct{}), since: now}
	sh.put(id, e)
	sh.mu.Unlock()

	defer close(e.done)
	d, err := first()
	e.d, e.err = d, err
	// The results are the caller's only during its call.
	e.d.Results = slices.Clone(d.Results)
	if err != nil {
		sh.mu.Lock()
		if sh.entries[id] == e {
			delete(sh.entries, id)
		}
		sh.mu.Unlock()
	}
	return d, err
}

func (sh *shard) put(id requestID, e *decided) {
	if sh.entries == nil {
		sh.entries = make(map[requestID]*decided)
	}
	if len(sh.order) < maxRemembered/shards {
		sh.order = append(sh.order, id)
	} else {
		delete(sh.entries, sh.order[sh.next])
		sh.order[sh.next] = id
		sh.next = (sh.next + 1) % len(sh.order)
	}
	sh.entries[id] = e
}
