package spending

import (
	"context"
	"errors"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

const (
	// defaultMaxKeys is how many keys have a lease at a time. Not more: the coordinator takes
	// 131,072 from one server, those among them that are being closed. Not fewer: keys
	// beyond it are refused while all others are in use.
	defaultMaxKeys = 100_000
	// idleAfter is how long a key that nobody asks for keeps its lease. Not
	// longer: the table fills with keys that came once. Not shorter: a new lease
	// costs its first request a wait for the coordinator.
	idleAfter = time.Minute
	// sweepEvery is how often permits are ended whose time is over. Not shorter: it
	// visits every key.
	sweepEvery = time.Second
)

// errMoved says that a limit is not leased any more, or is of another kind.
var errMoved = errors.New("spending: the limits have changed")

// now is the time of the store's clock, which is monotonic.
func (s *Store) now() limit.Time { return limit.Time(time.Since(s.origin)) }

// usualKey is how long a key may be before it takes memory of its own.
const usualKey = 128

// get returns the lease of a key, and opens it if need be. It stays open until Done.
func (s *Store) get(l *lent, key []byte) (*entry, error) {
	var room [usualKey]byte
	return s.table.Get(s.now(), l.tableKey(room[:0], key), func(string) (keyLease, error) { return s.open(l, string(key)) })
}

// known returns the lease of a key, or nil.
func (s *Store) known(l *lent, key []byte) *entry {
	var room [usualKey]byte
	e := s.table.Find(l.tableKey(room[:0], key))
	if e != nil {
		s.table.Use(s.now(), e)
	}
	return e
}

// open opens a lease, under the table's lock. A limit whose kind is another one to the
// coordinator, as within a reload, says so when it is taken from.
func (s *Store) open(of *lent, key string) (keyLease, error) {
	if of.ended.Load() {
		return keyLease{}, errMoved
	}
	id := lease.ResourceID{Limit: of.name, Key: key}
	l := keyLease{of: of, alias: s.names.add(id), names: s.names}
	if of.semaphore {
		g, err := s.client.Semaphore(l.alias, client.LimitOptions{})
		l.charger = &permits{taker: taker{lease: g}, semaphore: g, held: map[uint64]held{}, now: s.now}
		return l, err
	}
	r, err := s.client.Limit(l.alias, client.LimitOptions{})
	opened := &rate{taker: taker{lease: r}, limiter: r, of: of, key: key, asker: s.asker}
	_, short := s.asker.returning(id)
	opened.debt.raise(short) // so that what is on its way back can be kept here; see unused
	l.charger = opened
	return l, err
}

// sweep closes the keys that nobody asks for, until ctx ends.
func (s *Store) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case at := <-tick.C:
			now := s.now()
			s.table.Each(func(l keyLease) { l.expire(now) })
			s.table.Sweep(now)
			s.names.sweep(at)
		}
	}
}
