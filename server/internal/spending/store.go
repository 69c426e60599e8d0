// Package spending makes the server spend leases like any instance. A [Store] is a store whose counters of leased limits
// are leases that an instance in this process holds, so that requests decided here and requests decided by clients draw
// on the same buckets. It hands what is not shared by leases to the store behind it. It lends nothing, and does not
// divide limits among instances: package lending does.
//
// The files:
//
//	store.go limits.go bans.go           the Store, what it binds to counters, and the bans of the store behind
//	take.go return.go overage.go         a call: take, peek, refund, finish, reset, and charges that do not fit
//	charge.go                            the parts of a call, and what a lease can do for one
//	keys.go transport.go                 the leases by key, and the stream to the coordinator under other names
//	taker.go rate.go owed.go debt.go     the lease of a rate: what was refunded, what is owed, what the bucket is short of
//	permits.go                           the lease of a concurrency limit
//	ask.go asker.go recent.go            keys without a lease, which their coordinator is asked about
//
// The goroutine of a request takes from leases, and waits where more may come. [Store.Run] runs the client, a
// goroutine that closes idle keys and ends permits, and two for each shard that ask. What requests and these share is
// atomic or has a mutex.
package spending

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/keytable"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"

	"github.com/stint-io/stint/store"
)

// Options configure a [Store]. Store, Limits and Connect are required.
type Options struct {
	// Store keeps the counters of all other limits. It is closed with the Store.
	Store store.BanKeeper
	// Limits are the limits at the start; see [Store.Reload].
	Limits *rules.Set
	// Connect opens a stream to the coordinator that lives until ctx ends.
	// Resources are named by the limit and the key of [rules.Matched].
	Connect func(ctx context.Context) (Stream, error)
	// ShardOf returns the shard of a resource, where several coordinators have a shard each: Connect
	// is asked for the shard that [client.StreamShard] finds in ctx. nil = there is one.
	ShardOf func(id lease.ResourceID) int
	// Ask asks a coordinator for tokens of keys that come seldom; nil = each key has a lease. Shards is how
	// many coordinators there are; 0 = 1.
	Ask    Ask
	Shards int
	// Away says that the coordinator may be in another process: a stream that goes silent is
	// opened again, to the coordinator of then.
	Away bool
	// Instance is how the name of this instance begins; "" = "server". A random
	// number is added: no other process has the name.
	Instance string
	// MaxKeys bounds the keys that have a lease; 0 = defaultMaxKeys.
	MaxKeys int
	// Logger takes what operators should read; nil = [slog.Default]. Keys never
	// are in it.
	Logger *slog.Logger
}

// Store is a [store.Store] over another one. Make it with [New]. Before [Store.Run],
// and after it, leased limits answer as for a store that does not. It is safe for
// concurrent use.
type Store struct {
	store.BanKeeper // all other limits

	client *client.Client
	met    atomic.Bool // a coordinator has answered
	parted func()      // for tests: called before each part is decided
	names  *aliases
	asker  *asker
	table  *keytable.Table[keyLease]
	origin time.Time // of the clock
	pool   sync.Pool // of *work

	// reloading is held while the coordinator and the routes change: in between, a lease may be of
	// a limit that is no more.
	reloading sync.RWMutex

	mu     sync.Mutex        // of what follows
	routes map[string]*route // by the ID of counters that are bound
	lent   map[string]*lent  // by the name of the limit
	owners map[string]*lent  // by the ID of counters of the configuration
	serial uint64            // of the latest lent
}

// New returns a Store. It connects to nothing before Run.
func New(o Options) (*Store, error) {
	s := &Store{
		BanKeeper: o.Store, routes: map[string]*route{}, names: newAliases(),
		table: keytable.New[keyLease](cmp.Or(o.MaxKeys, defaultMaxKeys), idleAfter), origin: time.Now(),
	}
	s.pool.New = func() any { return new(work) }
	s.asker = newAsker(o.Ask, o.Shards, o.ShardOf, s.unused)
	// Connect ignores the addresses: they are for the log.
	address, others := "this process", []string(nil)
	if o.Away {
		address = "the coordinator"
		others = []string{address} // a client with one address alone waits for it
	}
	c, err := client.New(client.Options{
		Transport: &transport{connect: o.Connect, shardOf: o.ShardOf, names: s.names}, Address: address, Others: others,
		Instance: fmt.Sprintf("%s-%08x", cmp.Or(o.Instance, "server"), rand.Uint32()),
		Logger:   o.Logger,
		OnConnection: func(up bool) {
			if up {
				s.met.Store(true)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("spending: %w", err)
	}
	s.client = c
	s.read(o.Limits)
	return s, nil
}

// read makes the leased limits those of a set. Those of before stay the same, unless their kind or
// their key is another: their leases end then.
func (s *Store) read(set *rules.Set) {
	before := s.lent
	s.lent, s.owners = map[string]*lent{}, map[string]*lent{}
	for _, l := range set.Limits() {
		if l.Envoy || !l.Sharing.Local() {
			continue
		}
		gauge := l.Base.Policy.Algorithm == limit.Concurrency
		to := before[l.Name]
		if to == nil || to.semaphore != gauge || !slices.Equal(to.key, l.Key) {
			s.serial++
			to = &lent{name: l.Name, key: l.Key, semaphore: gauge, serial: s.serial}
		}
		most := l.Base.Policy.Quota()
		s.owners[l.Base.ID] = to
		for i := range l.Overrides {
			v := &l.Overrides[i].Variant
			most = max(most, v.Policy.Quota())
			s.owners[v.ID] = to
		}
		to.most.Store(most)
		s.lent[l.Name] = to
	}
}

// Reload makes the limits of set those that are leased, after coordinator has made them those of the
// coordinator; nil = it knows them already. Counters of limits that become leased, or stop being so,
// begin anew.
func (s *Store) Reload(set *rules.Set, coordinator func(*rules.Set)) {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	if coordinator != nil {
		coordinator(set)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.lent
	s.read(set)
	// A key is opened again only when its earlier lease is closed.
	for name, l := range before {
		l.ended.Store(s.lent[name] != l)
	}
	s.table.Drop(func(l keyLease) bool { return l.of.ended.Load() })
	for id, r := range s.routes {
		r.to.Store(s.owners[id])
	}
}

// Run holds the leases until ctx ends. It then gives them back and returns once
// everything it started has ended. The coordinator has to outlast it. It runs once.
func (s *Store) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { s.sweep(own) })
	if s.asker != nil {
		wg.Go(func() { s.asker.run(own) })
	}
	if err := s.client.Run(ctx); err != nil {
		return fmt.Errorf("spending: %w", err)
	}
	return nil
}

// Leases reports whether there are limits that are leased.
func (s *Store) Leases() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.lent) > 0
}

// Coordinator says whether a coordinator has ever answered, and why none does now; nil = one does, or the first try has
// not ended.
func (s *Store) Coordinator() (met bool, problem error) { return s.met.Load(), s.client.Err() }

// Bind implements store.Store. The store behind has the counters too, so that a limit
// can stop being leased.
func (s *Store) Bind(spec store.Spec) (store.Counters, error) {
	exact, err := s.BanKeeper.Bind(spec)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.routes[spec.ID]
	if r == nil {
		r = new(route)
		r.to.Store(s.owners[spec.ID])
		s.routes[spec.ID] = r
	}
	return &counters{exact: exact, route: r, quota: spec.Policy.Quota(), timeout: spec.Policy.Timeout}, nil
}

// Unbind implements store.Store.
func (s *Store) Unbind(c store.Counters) error {
	if own, ok := c.(*counters); ok {
		s.mu.Lock()
		if name := own.Spec().ID; s.routes[name] == own.route {
			delete(s.routes, name)
		}
		s.mu.Unlock()
	}
	return s.BanKeeper.Unbind(exact(c))
}
