package leased

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

const (
	// DefaultMaxKeys is how many keys have a lease at a time. Not more: the
	// coordinator takes 10,000 from one instance, those among them that are being
	// closed. Not fewer: keys beyond it are refused while all others are in use.
	DefaultMaxKeys = 9000
	// idleAfter is how long a key that nobody asks for keeps its lease. Not
	// longer: the table fills with those who came once. Not shorter: a new lease
	// costs its first request a wait for the coordinator.
	idleAfter = time.Minute
	// leastIdle is how long a key must not have been asked for to make room for
	// another in a full table. Not longer: strangers choose keys. Not shorter: a
	// key in use would lose its lease over and over.
	leastIdle = time.Second
	// sweepEvery is how often places are looked for whose time is over. Not
	// shorter: it visits every key.
	sweepEvery = time.Second
	// fewLooked is among how many keys one is chosen to make room. Not more: the
	// table is locked meanwhile. Not fewer: one that is idle should be among them.
	fewLooked = 64
)

// id names the bucket of a key.
type id struct {
	limit *lent
	key   string
}

// entry is the lease of one key.
type entry struct {
	charger charger
	alias   string
	used    atomic.Int64 // Unix nanoseconds
	busy    atomic.Int64 // calls under way; rises only under the table's lock
}

// charger is what one key has: a rate or places.
type charger interface {
	// take decides about p by the lease; one that is short asks for more and
	// waits for it.
	take(ctx context.Context, p *part) error
	// hold is take that can be undone; without wait it does not ask either.
	hold(ctx context.Context, p *part, wait bool) error
	// undo gives back what hold took.
	undo(p *part)
	// peek makes the verdict of p say how the lease stands, cost apart.
	peek(p *part) error
	// drain takes n, or what there is of it, at once.
	drain(n int64)
	// refund puts back n that was taken earlier.
	refund(n int64)
	// finish ends the places of a permit, and says whether there were any.
	finish(permit uint64) bool
	// reset makes what the lease has as good as new.
	reset()
	// expire ends places whose time is over at now, and says whether any are in use.
	expire(now time.Time) (inUse bool)
	close()
}

// table has the leases by key.
type table struct {
	client *client.Client
	names  *aliases
	most   int

	mu     sync.RWMutex
	keys   map[id]*entry
	limits map[string]*lent // whose keys there may be, by name
}

var (
	errFull  = errors.New("leased: the table of keys is full")
	errMoved = errors.New("leased: the limits have changed")
)

// get returns the lease of a key, busy, and opens it if need be.
func (t *table) get(l *lent, key []byte) (*entry, error) {
	if e := t.known(l, key); e != nil {
		return e, nil
	}
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.limits[l.name] != l {
		return nil, errMoved
	}
	e := t.keys[id{l, string(key)}]
	if e == nil {
		if len(t.keys) >= t.most && !t.makeRoom(now) {
			return nil, errFull
		}
		var err error
		if e, err = t.open(l, string(key)); err != nil {
			return nil, err
		}
		t.keys[id{l, string(key)}] = e
	}
	e.busy.Add(1)
	e.used.Store(now.UnixNano())
	return e, nil
}

// known returns the lease of a key, busy, or nil.
func (t *table) known(l *lent, key []byte) *entry {
	t.mu.RLock()
	e := t.keys[id{l, string(key)}]
	if e != nil {
		e.busy.Add(1)
	}
	t.mu.RUnlock()
	if e != nil {
		e.touch()
	}
	return e
}

// touch notes the use. It writes at most ten times a second: the number is shared by
// all processors.
func (e *entry) touch() {
	if now := time.Now().UnixNano(); now-e.used.Load() > int64(leastIdle/10) {
		e.used.Store(now)
	}
}

func (e *entry) done() { e.busy.Add(-1) }

// open opens a lease. A limit whose kind the coordinator sees otherwise, as within a
// reload, says so when it is taken from.
func (t *table) open(l *lent, key string) (*entry, error) {
	alias := t.names.add(lease.ResourceID{Limit: l.name, Key: key})
	if l.semaphore {
		g, err := t.client.Semaphore(alias, client.LimitOptions{})
		return &entry{charger: &permits{semaphore: g, held: map[uint64]place{}}, alias: alias}, err
	}
	r, err := t.client.Limit(alias, client.LimitOptions{})
	return &entry{charger: &rate{limiter: r}, alias: alias}, err
}

// makeRoom closes a key that was not in use of late, among some.
func (t *table) makeRoom(now time.Time) bool {
	var oldest id
	var found *entry
	looked := 0
	for k, e := range t.keys {
		if (found == nil || e.used.Load() < found.used.Load()) && e.idle(now) {
			oldest, found = k, e
		}
		if looked++; looked == fewLooked {
			break
		}
	}
	if found == nil || now.UnixNano()-found.used.Load() < int64(leastIdle) {
		return false
	}
	t.drop(now, oldest, found)
	return true
}

// idle says whether nobody takes from it and nothing is in use, under the table's lock.
func (e *entry) idle(now time.Time) bool { return e.busy.Load() == 0 && !e.charger.expire(now) }

// drop gives a lease back.
func (t *table) drop(now time.Time, k id, e *entry) {
	delete(t.keys, k)
	e.charger.close()
	t.names.retire(now, e.alias)
}

// run closes the keys that nobody asks for, until ctx ends.
func (t *table) run(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			t.sweep(now)
		}
	}
}

func (t *table) sweep(now time.Time) {
	var old []id
	t.mu.RLock()
	for k, e := range t.keys {
		if inUse := e.charger.expire(now); !inUse && now.UnixNano()-e.used.Load() >= int64(idleAfter) {
			old = append(old, k)
		}
	}
	t.mu.RUnlock()
	t.mu.Lock()
	for _, k := range old {
		if e := t.keys[k]; e != nil && e.idle(now) && now.UnixNano()-e.used.Load() >= int64(idleAfter) {
			t.drop(now, k, e)
		}
	}
	t.mu.Unlock()
	t.names.sweep(now)
}

// keep drops the keys of limits that are not among those.
func (t *table) keep(limits map[string]*lent) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limits = limits
	for k, e := range t.keys {
		if limits[k.limit.name] != k.limit {
			t.drop(now, k, e)
		}
	}
}

func (t *table) size() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.keys)
}

// verdict puts what the client said into p.
func (p *part) verdict(d limit.Decision) {
	r := &d.Results[0]
	p.charge.Verdict, p.unknown = r.Verdict, r.StoreFailed
}
