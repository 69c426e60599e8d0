// Package server is stint as a service: Envoy's rate limit protocol over gRPC and
// JSON, stint's own JSON API, decision endpoints for gateways, and an admin port.
//
// [New] checks the options and loads the configuration; [Server.Run] listens and
// returns when everything it started has ended. The package reads no flag and no
// environment variable, and installs no signal handler.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/banlist"
	"github.com/stint-io/stint/internal/derive"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/internal/grpcserver"
	"github.com/stint-io/stint/internal/hits"
	"github.com/stint-io/stint/internal/observe"
	"github.com/stint-io/stint/internal/plans"
	"github.com/stint-io/stint/internal/statsd"
	"github.com/stint-io/stint/internal/tally"
	"github.com/stint-io/stint/internal/watch"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/admin"
	"github.com/stint-io/stint/server/internal/gate"
	"github.com/stint-io/stint/server/internal/rest"
	"github.com/stint-io/stint/server/internal/rlqs"
	"github.com/stint-io/stint/server/internal/rls"
	"github.com/stint-io/stint/server/internal/rpc"
	"github.com/stint-io/stint/server/internal/ui"
)

// Server is one instance of the service. Make it with [New]; it runs once. Its
// methods are safe for concurrent use.
type Server struct {
	opts      Options
	host      *Host // nil = the server has listeners of its own
	config    config
	engine    *engine.Engine
	bans      *banlist.Bans
	watch     *watch.Watch
	tallies   *tally.Table
	dashboard *ui.UI
	rls       *rls.Service
	quotas    *rlqs.Service

	storage  *storage
	met      atomic.Bool // the store answered once
	leases   leases
	budgets  budgets
	security *security
	// connections bound those of the listeners.
	connections connections

	grpc   *grpc.Server
	health struct {
		sync.Mutex
		*health.Server
		serving  bool // what it says
		degraded bool // it serves, and something is amiss
	}
	// endStreams ends the streams that clients keep open for as long as they
	// like, such as those that watch the health.
	endStreams context.CancelFunc
	http       *http.Server
	farewell   farewell // of http
	admin      *http.Server
	resp       respDoor
	pages      pages
	hits       *hits.Table // nil = nobody wants to know
	spoe       spoeDoor

	reloading sync.Mutex // held from reading the files until they are in force

	started atomic.Bool
	serving atomic.Bool   // between listening and draining
	ready   chan struct{} // closed once addrs is set
	addrs   Addrs
}

// Addrs are the addresses that a server listens on.
type Addrs struct {
	HTTP, GRPC, Admin net.Addr
	RESP              net.Addr // nil without Options.RESPAddr
	SPOE              net.Addr // nil without Options.SPOEAddr
}

// New returns a server that is ready to run. Its error says everything that is
// wrong with the options, or with the configuration.
func New(opts Options) (*Server, error) { return newServer(opts, nil) }

// newServer makes a server, or what of it decides for a host.
func newServer(opts Options, host *Host) (_ *Server, err error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	s := &Server{opts: opts, host: host, connections: newConnections(), ready: make(chan struct{})}
	s.config.log, s.config.paths, s.config.rules = opts.Logger, opts.ConfigPaths, opts.rules()
	s.config.empty = opts.AllowEmpty
	s.config.hosted = host != nil
	if err := s.config.open(&s.opts); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.config.remote.close())
		}
	}()
	set, err := s.config.load()
	if err != nil {
		return nil, err
	}
	if s.security, err = openSecurity(&s.opts); err != nil {
		return nil, err
	}
	name, place := opts.Store, "server"
	if s.config.xds != nil && name == "" {
		name = StoreMemory // what comes later cannot say
	}
	if name == "" {
		name, place = set.Store(), "server: store: in the files"
		s.config.store = name
	}
	if s.storage, err = openStorage(name, &opts); err != nil {
		return nil, fmt.Errorf("%s: %w", place, err)
	}
	s.config.inUse = s.storage.name
	if host != nil {
		s.leases, err = openSpending(s.storage, set, &opts, host.Coordinators)
	} else {
		s.leases, err = openLeases(s.storage, set, &opts)
	}
	if err != nil {
		return nil, errors.Join(err, s.storage.Close())
	}
	s.config.identity = derive.New(opts.Logger)
	if err = s.config.identify(set); err == nil {
		s.config.customers = plans.NewDirectory(nil)
		s.config.next, err = s.config.readSettings(set)
	}
	if err != nil {
		return nil, errors.Join(err, s.closeStores(s.leases.untouched()))
	}
	if s.budgets, err = openBudgets(&s.leases, s.storage, &s.opts); err != nil {
		return nil, errors.Join(err, s.closeStores(s.leases.untouched()))
	}
	if s.engine, err = engine.New(s.leases.own, set, engine.Options{
		Quota: opts.RLSQuota, Derive: s.config.deriver, Shares: s.storage.shares(), Raise: s.budgets.grants.Raise, Observers: []observe.Observer{s.budgets.events.observer, s.budgets.usage}, Decisions: s.decisions(), Trace: opts.Instrument.Take(),
	}); err != nil {
		return nil, errors.Join(err, s.closeStores(s.leases.untouched()))
	}
	s.bans = banlist.New(s.engine)
	s.budgets.follow(s.engine, s.config.customers, &s.opts)
	s.config.counted, s.config.aim, s.config.use = s.budgets.watch, s.budgets.events.sender.Aim, s.budgets.customers.Use
	s.config.estimate = s.budgets.estimates.Configure
	s.config.aim(s.config.next.target)
	s.config.use(s.config.next.plans)
	s.config.learn(set)
	s.openCustomers()
	s.config.engine, s.config.leases = s.engine, &s.leases
	s.config.mu.attempts = 1
	s.config.succeededLocked()
	if _, amiss := s.config.remote.status(); amiss != "" {
		s.config.mu.ok, s.config.mu.errors = false, 1
	}
	s.config.logWarnings(set)
	if err := s.build(); err != nil {
		return nil, errors.Join(err, s.closeStores(s.leases.untouched()))
	}
	return s, nil
}

// decisions makes what observes decisions: metrics, what people watch, and Envoy's statistics where they are asked for.
func (s *Server) decisions() []engine.DecisionObserver {
	s.watch = watch.New()
	s.tallies = tally.New(tally.Options{NearLimit: s.opts.RLSNearLimit, Unkeyed: s.unkeyed})
	all := []engine.DecisionObserver{s.tallies, s.watch}
	if s.opts.EnvoyPrometheus != "" || s.opts.StatsD != "" {
		s.hits = hits.New(s.opts.RLSNearLimit)
		all = append(all, s.hits)
	}
	return all
}

// build makes the listeners' handlers.
func (s *Server) build() error {
	draft, err := answer.ParseDraft(s.opts.RateLimitHeaders)
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	trusted, err := forwarded.ParseTrusted(s.opts.TrustedProxies)
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	fields := answer.Options{RateLimitFields: draft, XRateLimit: s.opts.XRateLimit, Dashboard: s.opts.limitPage()}
	s.rls = rls.New(s.engine, rls.Options{
		Headers: s.opts.RLSHeaders, Metadata: s.opts.RLSMetadata, Shadow: s.opts.RLSShadow,
		LimitHeader: s.opts.RLSLimitHeader, RemainingHeader: s.opts.RLSRemainingHeader, ResetHeader: s.opts.RLSResetHeader, Loaded: s.config.loaded,
	})
	if s.opts.RLSShadow {
		s.opts.Logger.Warn("every request over Envoy's protocol is answered OK, whatever the limits say: --rls-shadow is set")
	}
	streams, endStreams := context.WithCancel(context.Background())
	s.endStreams = endStreams
	s.openQuotas(streams.Done())
	taken, watched := watchHTTP(s.opts.Instrument)
	refused := &refusedCalls{log: s.opts.Logger}
	own := grpcserver.Config{Streams: streams, MaxReport: rlqs.MaxMessage, MaxMetadata: int(s.opts.GRPCMetadata), Fault: faultsTo(s.opts.Logger), Refused: refused.note}
	s.grpc, s.health.Server = newGRPC(s.rls, rpc.New(s.engine, s.budgets.reservations), rls.NewKuadrant(s.rls, s.budgets.reservations), s.leases.Service, s.quotas, s.budgets.others.service(), own, append(s.security.options(), watchGRPC(taken, s.opts.Instrument)...)...)

	// The limits cut addresses themselves, as their ipv6_prefix says.
	gates := gate.New(s.engine, gate.Options{Trusted: trusted, Answer: fields})
	api := s.security.guard.onHTTP(route(watched("gateway", gate.Guard(gates)), watched("envoy_json", rest.Guard(s.rls)), http.HandlerFunc(s.healthcheck), s.onAdmin(watched("http", rest.New(s.engine, rest.Options{Answer: fields, Logger: s.opts.Logger, Changed: s.config.nextChange, Done: streams.Done(), Usage: s.budgets.usage.History, Reservations: s.budgets.reservations})))))
	s.http = newHTTP(s.farewell.wrap(ownHosts(s.opts.HTTPHosts, &s.opts, api)), s.opts.Logger)
	s.http.ConnState = s.farewell.track
	secure(s.http, s.security.http)

	if err := s.openRESP(); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	s.openSPOE(fields)
	registry := prometheus.NewPedanticRegistry()
	all := []prometheus.Collector{
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		admin.NewCollector(s.tallies.Tallies, s.figures),
		s.quotas,
		s.connections,
		refused,
	}
	all = append(all, s.budgets.collectors()...)
	if s.host != nil {
		all = append(all, s.host.Collectors...)
	} else {
		all = append(all, taken.Collector())
	}
	if s.resp.Server != nil {
		all = append(all, s.resp.Server)
	}
	if s.spoe.Server != nil {
		all = append(all, s.spoe.Server)
	}
	all = append(all, s.opts.Instrument.Collectors()...)
	for _, c := range all {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("server: cannot register metrics: %w", err)
		}
	}
	s.opts.Instrument.Metrics(registry)
	instances := prometheus.NewPedanticRegistry()
	if err := instances.Register(admin.NewInstanceCollector(s.leases.instances)); err != nil {
		return fmt.Errorf("server: cannot register metrics: %w", err)
	}
	var authorize func(*http.Request) (int, string)
	if s.security.guard.live != nil {
		authorize = s.security.guard.onAdmin
	}
	s.admin = newHTTP(admin.New(admin.Options{
		UI: s.openDashboard(streams.Done()), Bans: admin.BanHandler(s.bans), Keys: admin.KeyHandler(s.budgets.keys, s.budgets.changes, nil), Customers: admin.CustomerHandler(s.budgets.customers, func() ([]admin.Plan, []admin.Assigned) {
			return planNames(s.engine.Set()), assigned(s.engine.Set(), s.budgets.customers.View())
		}, nil), Metrics: registry, Instances: instances, Ready: s.Readiness, Version: s.configVersion, Reload: s.Reload, Leases: http.HandlerFunc(s.leases.serveLeases), RLConfig: http.HandlerFunc(s.rlconfig),
		Token: s.opts.AdminToken, Authorize: authorize, Hosts: s.opts.AdminHosts, Profiles: s.opts.Profiles,
	}), s.opts.Logger)
	secure(s.admin, s.security.admin)
	if s.opts.Profiles {
		s.admin.WriteTimeout = 2 * time.Minute // a profile takes its time
	}
	return nil
}

// Ready is closed once all listeners accept connections.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Addrs returns the addresses listened on; use it after Ready.
func (s *Server) Addrs() Addrs { return s.addrs }

// TLS says which listeners serve TLS.
func (s *Server) TLS() (http, grpc, admin, resp, spoe bool) {
	return s.security.http != nil, s.security.grpc != nil, s.security.admin != nil, s.security.resp != nil, s.security.spoe != nil
}

// Limits returns the configuration in force.
func (s *Server) Limits() *rules.Set { return s.engine.Set() }

// Store says where the counters are: [StoreMemory], or a URL without its password.
func (s *Server) Store() string { return s.storage.name }

// Recovering is for how long yet limits shared by leases lend nothing new, because leases of
// a former coordinator may be in use; 0 = they do, or there are none.
func (s *Server) Recovering() time.Duration { return s.leases.recovering() }

// CounterBytes is what the tables of counters in this process occupy, at most
// Options.MaxBytes.
func (s *Server) CounterBytes() int64 { return s.storage.local.Bytes() }

// Reload loads the configuration and the certificates again. What has a fault stays as it
// was, the configuration with every counter, and the error says what is wrong.
func (s *Server) Reload() error {
	// Without the lock the older of two readings could come into force last.
	s.reloading.Lock()
	defer s.reloading.Unlock()
	return errors.Join(s.config.reload(), s.security.reload(), s.leases.reseal(&s.opts))
}

func (s *Server) figures() admin.Figures {
	c := &s.config
	c.mu.Lock()
	f := admin.Figures{
		ReloadOK: c.mu.ok, ReloadTime: float64(c.mu.loaded.UnixMilli()) / 1e3,
		ReloadErrors: c.mu.errors, ReloadAttempts: c.mu.attempts,
	}
	c.mu.Unlock()
	st, n := s.storage.local.Stats(), s.rls.Counts()
	f.Version, f.Limits = s.opts.Version, len(s.engine.Set().Limits())
	f.StoreKeys, f.StoreBytes, f.StoreMaxBytes, f.StoreOverflows = st.Keys, st.Bytes, st.MaxBytes, st.Overflows
	f.Bans, f.Queues, f.Shares = s.bans.Tallies(), s.engine.QueueTallies(), s.engine.ShareTallies()
	id := s.config.identity.Figures()
	f.Identity = admin.Identity{Tokens: id.Tokens, KeysGood: id.KeysGood, Databases: id.Databases}
	f.Unlimited, f.Repeated, f.Purposes = s.tallies.Unlimited(), s.tallies.Repeated(), map[string]string{}
	for _, l := range s.engine.Set().Limits() {
		if l.Purpose != "" {
			f.Purposes[l.Name] = l.Purpose
		}
	}
	f.Shared, f.CountsFile, f.NotReturned = s.storage.figures(), s.storage.fileFigures(), s.engine.NotReturned()
	f.Leases, f.Security, f.Cluster, f.Config = s.leases.metrics(), s.security.figures(&s.resp, &s.spoe), s.leases.member(), c.remote.metrics()
	f.RLSOK, f.RLSOverLimit, f.RLSErrors, f.RLSShadowed = n.OK.Load(), n.OverLimit.Load(), n.Errors.Load(), n.Shadowed.Load()
	return f
}

// Run listens and serves until ctx ends or a listener fails, then drains: it is
// not ready any more, takes no new connections, answers what comes on those it has
// and ends them, lets requests end within the grace time, and cuts what is left.
// It returns when everything it started has
// ended, with nil if ctx was the reason.
func (s *Server) Run(ctx context.Context) error {
	if !s.started.CompareAndSwap(false, true) {
		return errors.New("server: Run was called before, make a new server")
	}
	if ctx.Err() != nil {
		return s.close(s.leases.untouched())
	}
	doors, err := s.listen(ctx)
	if err != nil {
		return errors.Join(err, s.close(s.leases.untouched()))
	}
	if err = s.pages.listen(ctx, s); err != nil {
		return errors.Join(err, doors.close(), s.close(s.leases.untouched()))
	}
	if err := s.leases.join(ctx, &s.opts, doors.grpc.Addr()); err != nil {
		s.pages.close()
		return errors.Join(err, doors.close(), s.close(s.leases.untouched()))
	}
	s.addrs = doors.addrs()
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	var running sync.WaitGroup
	failed := make(chan error, 6)
	serve := func(name string, f func() error) {
		running.Go(func() {
			err := f()
			closed := errors.Is(err, http.ErrServerClosed) || errors.Is(err, grpc.ErrServerStopped) ||
				errors.Is(err, net.ErrClosed) && !s.serving.Load()
			if err != nil && !closed {
				failed <- fmt.Errorf("server: %s listener: %w", name, err)
			}
		})
	}
	lending, stopLending := context.WithCancel(context.Background())
	defer stopLending()
	nothingLent := false
	running.Go(func() { nothingLent = s.leases.run(lending, &s.opts) })
	running.Go(func() { s.quotas.Run(lending) })
	running.Go(func() { s.budgets.run(watching, lending) })
	if f := s.storage.file; f != nil {
		running.Go(func() { _ = f.Run(lending) }) // Close writes what is left, and says if that fails
	}
	serve("http", func() error { return serveHTTP(s.http, doors.http, s.security.http) })
	serve("grpc", func() error { return s.grpc.Serve(doors.grpc) })
	serve("admin", func() error { return serveHTTP(s.admin, doors.admin, s.security.admin) })
	if s.opts.StatsD != "" {
		running.Go(func() { statsd.New(*s.opts.statsd(s.statistics)).Run(lending) }) // counts what is answered while draining
	}
	running.Go(func() {
		s.pages.serve(func(err error) { failed <- fmt.Errorf("server: page listener: %w", err) })
	})
	if doors.resp != nil {
		serve("resp", func() error { return s.resp.run(s.resp.Serve, doors.resp) })
	}
	if doors.spoe != nil {
		serve("spoe", func() error { return s.spoe.run(s.spoe.Serve, doors.spoe) })
	}
	set := s.engine.Set()
	if t := set.Throttle(); t != nil {
		s.opts.Logger.Warn("the section throttle is for 'stint proxy', which stands in front of a server: the service ignores it", "file", t.File, "line", t.Line)
	}
	running.Go(func() { s.config.watch(watching, set) })
	running.Go(func() { s.config.identity.Run(watching) })
	running.Go(func() { s.dashboard.Run(watching) })
	running.Go(func() { s.security.watch(watching) })
	s.serving.Store(true)
	s.reportHealth()
	running.Go(func() { s.watchReadiness(watching) })
	close(s.ready)

	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	stopWatching()
	s.drain(doors.http)
	stopLending() // not before: requests in progress spend leases
	running.Wait()
	return errors.Join(err, s.close(nothingLent))
}

// close closes what New has opened. nothingLent says that no instance holds a part of
// a limit.
func (s *Server) close(nothingLent bool) error {
	return errors.Join(s.closeStores(nothingLent), s.config.remote.close())
}

func (s *Server) closeStores(nothingLent bool) error {
	return errors.Join(s.budgets.close(), s.leases.close(nothingLent), s.storage.Close())
}

// drain ends all listeners. The admin port goes last, so that it can show what is
// going on.
func (s *Server) drain(httpL net.Listener) {
	s.serving.Store(false)
	s.reportHealth()
	s.leases.drain()
	s.endStreams()
	if s.opts.DrainDelay > 0 {
		<-time.After(s.opts.DrainDelay)
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.Grace)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		stopped := make(chan struct{})
		wg.Go(func() { s.grpc.GracefulStop(); close(stopped) })
		select {
		case <-stopped:
		case <-ctx.Done():
			s.opts.Logger.Warn("some gRPC requests did not end within the grace time and are cut", "grace", s.opts.Grace)
			s.grpc.Stop()
		}
	})
	wg.Go(func() {
		// First the door: a client that an answer sends away comes back at once,
		// and would be reset between the door and the counter. It may be
		// closed already, when it was what failed.
		_ = httpL.Close()
		s.farewell.leaving.Store(true)
		lingering, stop := context.WithTimeout(ctx, linger)
		defer stop()
		select {
		case <-s.farewell.away():
		case <-lingering.Done():
		}
		s.shutdown(ctx, s.http)
	})
	for of, d := range map[string]*door{"clients of Redis": &s.resp.door, "HAProxy": &s.spoe.door} {
		wg.Go(func() {
			if d.shutdown(ctx) {
				s.opts.Logger.Warn("some connections did not end within the grace time and are cut", "of", of, "grace", s.opts.Grace)
			}
		})
	}
	wg.Go(func() { s.quotas.Drain(ctx) }) // what Envoys were assigned is in use for some time yet
	wg.Wait()
	s.shutdown(ctx, s.admin)
	s.pages.close()
}

func (s *Server) shutdown(ctx context.Context, h *http.Server) {
	if err := h.Shutdown(ctx); err != nil {
		s.opts.Logger.Warn("some HTTP requests did not end within the grace time and are cut", "grace", s.opts.Grace)
		// Close can only report what Serve reported already.
		_ = h.Close()
	}
}
