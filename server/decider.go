package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/listen"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/lending"
	"github.com/stint-io/stint/server/internal/spending"
)

// Decider is what of a [Server] decides: configuration, store, leases, metrics and the admin port. A
// program that serves HTTP itself, such as a proxy, takes from it. It lends no limit. Make it with
// [NewDecider]; it runs once. Its methods are safe for concurrent use.
type Decider struct {
	s       *Server
	started atomic.Bool
}

var (
	_ limit.Keeper          = (*Decider)(nil)
	_ limit.AttributeReader = (*Decider)(nil)
)

// Host is what the program of a [Decider] adds to the admin port. The zero value adds nothing.
type Host struct {
	// Coordinators are the gRPC addresses of services that lend the limits that are shared by
	// leases: the first that answers does. None = there are no leases, and such limits answer as
	// their on_store_failure says.
	Coordinators []string
	// Ready says for /readyz whether the program should be sent requests, and why not, or what is
	// amiss all the same; nil = it should.
	Ready func() (ready bool, text string)
	// Collectors are metrics of the program's own.
	Collectors []prometheus.Collector
}

// NewDecider returns a decider that is ready to run. Of the options it reads those of the
// configuration, of the store, of TLS and of the admin port; HTTPAddr and GRPCAddr are not listened
// on, and it is no member of a cluster and no site. Its error says everything that is wrong.
func NewDecider(o Options, h Host) (*Decider, error) {
	if o.Cluster.URL != "" || len(o.Parent.Addresses) > 0 || o.StateDir != "" {
		return nil, errors.New("server: a decider lends nothing: it has no cluster, no parent and no state directory")
	}
	o.HTTPAddr, o.GRPCAddr, o.RESPAddr, o.SPOEAddr = "", "", "", ""
	s, err := newServer(o, &h)
	if err != nil {
		return nil, err
	}
	return &Decider{s: s}, nil
}

// Take decides one request.
func (d *Decider) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	return d.s.engine.Take(ctx, req)
}

// Finish gives back the permits in flight that a Decision's Permit names.
func (d *Decider) Finish(ctx context.Context, req limit.Request, permit uint64) error {
	return d.s.engine.Finish(ctx, req, permit)
}

// Keep implements [limit.Keeper].
func (d *Decider) Keep(ctx context.Context, req limit.Request, permit uint64) error {
	return d.s.engine.Keep(ctx, req, permit)
}

// CountNoService counts a request that the program admitted because the service that was to decide did not answer.
func (d *Decider) CountNoService() { d.s.tallies.CountUnlimited(engine.NoService) }

// Attributes returns the names of the attributes that some limit reads.
func (d *Decider) Attributes() []string { return d.s.engine.Attributes() }

// Coordinator says how the coordinator of leased limits stands: whether there are such limits, whether one has ever
// answered, and why none does now; nil = one does, or the first try has not ended.
func (d *Decider) Coordinator() (leases, met bool, problem error) {
	l := &d.s.leases
	if !l.own.Leases() {
		return false, false, nil
	}
	if l.alone {
		return true, false, errors.New("none is named, as --coordinator does")
	}
	met, problem = l.own.Coordinator()
	return true, met, problem
}

// Limits returns the configuration in force.
func (d *Decider) Limits() *rules.Set { return d.s.Limits() }

// Changed returns a channel that is closed when another configuration is in force.
func (d *Decider) Changed() <-chan struct{} { return d.s.config.nextChange() }

// Store says where the counters are: [StoreMemory], or a URL without its password.
func (d *Decider) Store() string { return d.s.Store() }

// CounterBytes is what the tables of counters in this process occupy.
func (d *Decider) CounterBytes() int64 { return d.s.CounterBytes() }

// Reload loads the configuration and the certificates again, as [Server.Reload] does.
func (d *Decider) Reload() error { return d.s.Reload() }

// Ready is closed once the admin port accepts connections.
func (d *Decider) Ready() <-chan struct{} { return d.s.ready }

// AdminAddr is the address of the admin port; use it after Ready.
func (d *Decider) AdminAddr() net.Addr { return d.s.addrs.Admin }

// TLS says whether the HTTP listener of the program and the admin port have certificates.
func (d *Decider) TLS() (http, admin bool) {
	return d.s.security.http != nil, d.s.security.admin != nil
}

// Serve serves the program's HTTP listener, by the certificates of the options where there are any.
func (d *Decider) Serve(h *http.Server, l net.Listener) error {
	secure(h, d.s.security.http)
	return serveHTTP(h, l, d.s.security.http)
}

// Run serves the admin port, follows the configuration and holds leases until ctx ends. It then gives
// them back, closes the store and returns once everything it started has ended: end ctx when no
// request is in progress any more. The error is nil if ctx was the reason.
func (d *Decider) Run(ctx context.Context) error {
	s := d.s
	if !d.started.CompareAndSwap(false, true) {
		return errors.New("server: Run was called before, make a new decider")
	}
	l, err := listen.Listen(ctx, s.opts.AdminAddr)
	if err != nil {
		err = fmt.Errorf("server: cannot listen for admin: %w; choose another address with --admin", err)
		return errors.Join(err, s.close(s.leases.untouched()))
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	nothingLent := false
	failed := make(chan error, 1)
	all.Go(func() { nothingLent = s.leases.run(running, &s.opts) })
	set := s.engine.Set()
	all.Go(func() { s.budgets.run(running, running) })
	all.Go(func() { s.config.watch(running, set) })
	all.Go(func() { s.config.identity.Run(running) })
	all.Go(func() { s.dashboard.Run(running) })
	all.Go(func() { s.security.watch(running) })
	all.Go(func() {
		if err := serveHTTP(s.admin, s.connections.bound("admin", l), s.security.admin); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("server: admin listener: %w", err)
		}
	})
	s.addrs.Admin = l.Addr()
	s.serving.Store(true)
	close(s.ready)
	select {
	case <-running.Done():
	case err = <-failed:
	}
	stop()
	d.quit()
	_ = s.admin.Close() // what is asked of it now may be cut: the process ends
	all.Wait()
	return errors.Join(err, s.close(nothingLent))
}

// Close closes a decider that was not run.
func (d *Decider) Close() error {
	if !d.started.CompareAndSwap(false, true) {
		return nil
	}
	d.quit()
	return d.s.close(d.s.leases.untouched())
}

// quit ends what the listeners would have served.
func (d *Decider) quit() {
	d.s.endStreams()
	d.s.grpc.Stop()
}

// openSpending makes leases of limits that services elsewhere lend.
func openSpending(behind *storage, set *rules.Set, o *Options, coordinators []string) (leases, error) {
	state := lending.FreshState(0)
	state.Recovery, state.Why = 0, ""
	l := leases{
		// It lends nothing: it has no limits.
		Service: lending.New(lending.Options{Limits: new(rules.Set), State: state, Raise: state.Raise, Logger: o.Logger}, 1),
		state:   &state, peers: &askPeers{options: o.peers()}, spendsOnly: true, alone: len(coordinators) == 0,
	}
	away := client.NewTransport(o.peers())
	var turn atomic.Uint32
	var err error
	l.own, err = spending.New(spending.Options{
		Store: behind, Limits: set, Logger: o.Logger, Away: true, Instance: "proxy",
		Connect: func(ctx context.Context) (spending.Stream, error) {
			address := coordinators[int(turn.Add(1)-1)%len(coordinators)]
			stream, err := away.Connect(ctx, address)
			if err != nil {
				return nil, fmt.Errorf("coordinator %s: %w", address, err)
			}
			return spending.Away(stream), nil
		},
	})
	if err != nil {
		return leases{}, errors.Join(fmt.Errorf("server: %w", err), state.Close(false, nil))
	}
	return l, nil
}
