// Package leased makes the server spend leases like any instance: it is a store whose
// counters of leased limits are leases that an instance in this process holds, so that
// requests decided here and requests decided by clients draw on the same buckets.
//
// It lends nothing, and divides nothing: the coordinator does. What is not shared by
// leases it hands to the store behind it.
package leased

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
)

// Stream is a stream to the coordinator in this process. It is used as
// [client.Stream] says.
type Stream interface {
	Send(r *lease.Report) error
	CloseSend() error
	Receive() (*lease.Grant, error)
}

// Options configure a [Store]. Store, Limits and Connect are required.
type Options struct {
	// Store keeps the counters of all other limits. It is closed with the Store.
	Store store.Store
	// Limits are the limits at the start; see [Store.Reload].
	Limits *rules.Set
	// Connect opens a stream to the coordinator that lives until ctx ends.
	// Resources are named by the limit and the key of [rules.Matched].
	Connect func(ctx context.Context) (Stream, error)
	// Elsewhere says who else lends the limits, "" = nobody is known; nil = nobody can.
	// Where somebody does, every request for a leased limit is refused, whatever its
	// OnFailure: there would be more of the limit than there is.
	Elsewhere func() string
	// Instance is how the name of this instance begins; "" = "server". A random
	// number is added: nobody else has the name, whoever wants it.
	Instance string
	// MaxKeys bounds the keys that have a lease; 0 = DefaultMaxKeys.
	MaxKeys int
	// Logger takes what operators should read; nil = [slog.Default]. Keys never
	// are in it.
	Logger *slog.Logger
}

// Store is a [store.Store] over another one. Make it with [New]. Before [Store.Run],
// and after it, leased limits answer as for a store that does not. It is safe for
// concurrent use.
type Store struct {
	exact  store.Store
	client *client.Client
	other  func() string // lends the limits
	table  table
	pool   sync.Pool // of *work

	mu     sync.Mutex        // of what follows
	routes map[string]*route // by the ID of counters that are bound
	lent   map[string]*lent  // by the name of the limit
	owners map[string]*lent  // by the ID of counters of the configuration
}

// lent is a leased limit.
type lent struct {
	name      string
	semaphore bool
	most      atomic.Int64 // no request that costs more fits, whatever the key
}

// route says whose charges go where; nil = to the store behind.
type route struct{ to atomic.Pointer[lent] }

// counters are those that Bind returns.
type counters struct {
	exact   store.Counters
	route   *route
	quota   int64
	timeout time.Duration // of places
}

// Spec implements store.Counters.
func (c *counters) Spec() store.Spec { return c.exact.Spec() }

// New returns a Store. It connects to nothing before Run.
func New(o Options) (*Store, error) {
	s := &Store{exact: o.Store, other: o.Elsewhere, routes: map[string]*route{}}
	s.pool.New = func() any { return new(work) }
	names := &aliases{known: map[string]lease.ResourceID{}}
	c, err := client.New(client.Options{
		Transport: &transport{connect: o.Connect, names: names},
		Instance:  fmt.Sprintf("%s-%08x", cmp.Or(o.Instance, "server"), rand.Uint32()),
		Logger:    o.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("leased: %w", err)
	}
	s.client = c
	s.lent, s.owners = read(o.Limits, nil)
	s.table = table{client: c, names: names, most: cmp.Or(o.MaxKeys, DefaultMaxKeys), keys: map[id]*entry{}, limits: s.lent}
	return s, nil
}

// read returns the leased limits of a set; those of before stay the same.
func read(set *rules.Set, before map[string]*lent) (byName, byID map[string]*lent) {
	byName, byID = map[string]*lent{}, map[string]*lent{}
	for _, l := range set.Limits() {
		if l.Envoy || !l.Sharing.Local() {
			continue
		}
		gauge := l.Base.Policy.Algorithm == limit.Concurrency
		to := before[l.Name]
		if to == nil || to.semaphore != gauge {
			to = &lent{name: l.Name, semaphore: gauge}
		}
		most := l.Base.Policy.Quota()
		byID[l.Base.ID] = to
		for i := range l.Overrides {
			v := &l.Overrides[i].Variant
			most = max(most, v.Policy.Quota())
			byID[v.ID] = to
		}
		to.most.Store(most)
		byName[l.Name] = to
	}
	return byName, byID
}

// Reload makes the limits of set those that are leased. The coordinator has to know
// them already. Counters of limits that become leased, or stop being so, begin anew.
func (s *Store) Reload(set *rules.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.lent
	s.lent, s.owners = read(set, before)
	for id, r := range s.routes {
		r.to.Store(s.owners[id])
	}
	s.table.keep(s.lent)
}

// Run holds the leases until ctx ends. It then gives them back and returns once
// everything it started has ended. The coordinator has to outlast it. It runs once.
func (s *Store) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { s.table.run(own) })
	if err := s.client.Run(ctx); err != nil {
		return fmt.Errorf("leased: %w", err)
	}
	return nil
}

// Keys is how many keys have a lease, or ask for one.
func (s *Store) Keys() int { return s.table.size() }

// Bind implements store.Store. The store behind has the counters too, so that a limit
// can stop being leased.
func (s *Store) Bind(spec store.Spec) (store.Counters, error) {
	exact, err := s.exact.Bind(spec)
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
	own, err := ours(c)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if name := own.Spec().ID; s.routes[name] == own.route {
		delete(s.routes, name)
	}
	s.mu.Unlock()
	return s.exact.Unbind(own.exact)
}

// Close implements store.Store.
func (s *Store) Close() error { return s.exact.Close() }

func ours(c store.Counters) (*counters, error) {
	own, ok := c.(*counters)
	if !ok {
		return nil, errors.New("leased: these counters are of another store")
	}
	return own, nil
}
