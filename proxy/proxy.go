package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/connlimit"
	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/internal/forwarded/identify"
	"github.com/stint-io/stint/internal/listen"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/httplimit"
	"github.com/stint-io/stint/server"
)

const (
	// maxHeader bounds the header of a request. Not more: it is held in memory for each. Not less:
	// gateways in front take 32 KiB.
	maxHeader = 64 << 10
	// maxStreams bounds the requests that one HTTP/2 connection has in progress: with as many again
	// that wait, net/http ends one that cancels requests faster than they are answered.
	maxStreams = 250
)

// Proxy is one proxy. Make it with [New]; it runs once. Its methods are safe for concurrent use.
type Proxy struct {
	opts      Options
	decider   *server.Decider
	service   *service // nil = this process decides
	pool      *pool
	forward   *forwarder
	throttled *throttled
	read      *identify.Live // what limits read of a request
	handler   http.Handler   // of a request that was not refused at the door
	http      *http.Server

	started  atomic.Bool
	draining atomic.Bool
	ready    chan struct{}
	addr     net.Addr
	counts   counts

	connections *connlimit.Conns
}

// New returns a proxy that is ready to run. Its error says everything that is wrong with the options, or
// with the limits.
func New(o Options) (*Proxy, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	p := &Proxy{opts: o, ready: make(chan struct{}), connections: connlimit.New(o.MaxConnections)}
	var err error
	if p.pool, err = newPool(&o); err != nil {
		return nil, err
	}
	trusted, err := parseTrusted(o.Decide.TrustedProxies)
	if err != nil {
		return nil, err
	}
	draft, err := answer.ParseDraft(o.Decide.RateLimitHeaders)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	host := server.Host{Coordinators: o.Coordinators, Ready: p.readiness}
	host.Collectors = append(host.Collectors, &collector{p})
	if p.decider, err = server.NewDecider(o.Decide, host); err != nil {
		return nil, err
	}
	var taker limit.AttributeReader = p.decider
	if o.Service.URL != "" {
		if p.service, err = newService(&o, p.decider); err != nil {
			return nil, errors.Join(err, p.decider.Close())
		}
		taker = p.service
	}
	p.read = identify.NewLive(taker.Attributes)
	p.forward = newForwarder(&o, p.pool, forwarded.TrustPrefixes(trusted))
	choices := []httplimit.Option{
		httplimit.WithTrustedProxies(trusted...),
		httplimit.WithHeaders(draft), httplimit.WithRequestAttributes(o.Service.Attributes...),
	}
	if o.Decide.XRateLimit {
		choices = append(choices, httplimit.WithXRateLimit())
	}
	p.throttled = &throttled{
		next: p.forward, trusted: forwarded.TrustPrefixes(trusted), log: o.Decide.Logger,
	}
	if err := p.throttled.configure(p.decider.Limits()); err != nil {
		return nil, errors.Join(err, p.decider.Close())
	}
	p.handler = httplimit.New(taker, choices...)(p.throttled)
	p.http = p.newHTTP()
	return p, nil
}

func (p *Proxy) newHTTP() *http.Server {
	h := &http.Server{
		Handler:           p,
		ReadHeaderTimeout: p.opts.Timeouts.Header,
		IdleTimeout:       p.opts.Timeouts.Idle,
		MaxHeaderBytes:    maxHeader,
		ConnContext:       withConnection,
		ErrorLog:          slog.NewLogLogger(p.opts.Decide.Logger.Handler(), slog.LevelDebug),
		Protocols:         new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second,
			WriteByteTimeout: p.opts.Timeouts.Body,
		},
	}
	h.Protocols.SetHTTP1(true)
	h.Protocols.SetHTTP2(true)
	h.Protocols.SetUnencryptedHTTP2(true)
	return h
}

// ServeHTTP answers one request: refused at the door, refused by a limit, or as an upstream answers.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := newReply(w, r, p.opts.Timeouts.Body)
	defer p.end(a, r)
	if r.ContentLength != 0 && r.ProtoMajor == 1 {
		p.expectBody(w)
	}
	if refused := screen(r, p.opts.MaxBody); refused != nil {
		p.counts.refuse(refused)
		w.Header().Set("Connection", "close")
		answer.WriteError(a, refused.status, refused.detail)
		return
	}
	if r.Close && r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
	if !p.opts.AllowDuplicates {
		if name := p.read.Plan().Ambiguous(r.Header, r.URL.RawQuery); name != "" {
			p.counts.refuse(refusedTwice)
			answer.WriteError(a, refusedTwice.status, identify.AmbiguousText(name))
			return
		}
	}
	p.handler.ServeHTTP(a, r)
}

// expectBody prepares for a body over HTTP/1. Whatever becomes of the request, the server waits for the rest
// of its body in the end, and not for ever. And it must not read and drop that rest once the answer begins,
// behind the back of who forwards it, nor wait for it before a refusal: hence full duplex.
func (p *Proxy) expectBody(w http.ResponseWriter) {
	control := http.NewResponseController(w)
	// Every server of net/http can do both.
	_ = control.EnableFullDuplex()
	if p.opts.Timeouts.Body > 0 {
		_ = control.SetReadDeadline(time.Now().Add(p.opts.Timeouts.Body))
	}
}

// end counts the answer, and looks at what the connection has done.
func (p *Proxy) end(a *reply, r *http.Request) {
	fault := recover()
	p.counts.answered(a)
	if a.expects && !a.forwarded {
		// The server need not wait for a body that may never come.
		_ = http.NewResponseController(a.ResponseWriter).SetReadDeadline(time.Now())
	}
	c := connectionOf(r)
	switch {
	case c == nil:
	case r.ProtoMajor == 1:
		c.forget()
	case r.Context().Err() == nil:
		c.answeredOne()
	case c.resets.Add(1) > mostResets:
		p.counts.refuse(refusedResets)
		_ = c.Close() // its requests end with it
	}
	if fault != nil && fault != http.ErrAbortHandler {
		p.opts.Decide.Logger.Error("a request met a fault in stint, please report it", "method", r.Method, "panic", fmt.Sprint(fault), "stack", string(debug.Stack()))
		fault = http.ErrAbortHandler
	}
	a.free()
	if fault != nil {
		panic(fault)
	}
}

// readiness says whether requests should be sent here.
func (p *Proxy) readiness() (ready bool, text string) {
	healthy, all := p.pool.healthy(), len(p.pool.all)
	switch {
	case p.draining.Load():
		return false, "draining"
	case healthy == 0:
		return false, "no upstream is healthy"
	case healthy < all:
		text = fmt.Sprintf("%d of %d upstreams are healthy", healthy, all)
	}
	ready, more := p.deciderReadiness()
	return ready, strings.Trim(text+"; "+more, "; ")
}

// deciderReadiness is that of the service or the coordinator that decides.
func (p *Proxy) deciderReadiness() (ready bool, text string) {
	if p.service != nil {
		return p.service.readiness()
	}
	leases, met, problem := p.decider.Coordinator()
	switch {
	case !leases || met && problem == nil:
		return true, ""
	case len(p.opts.Coordinators) == 0:
		return true, "limits with sharing: leased have no coordinator and are decided by on_store_failure: name one with --coordinator"
	case met:
		return true, fmt.Sprintf("no coordinator answers: leases run on until they end, and then on_store_failure decides: %v", problem)
	case problem != nil:
		return false, fmt.Sprintf("no coordinator was reached yet: %v", problem)
	}
	return false, "no coordinator was reached yet"
}

// Ready is closed once the listeners accept connections.
func (p *Proxy) Ready() <-chan struct{} { return p.ready }

// Addr is the address of the HTTP listener, AdminAddr that of the admin port; use them after Ready.
func (p *Proxy) Addr() net.Addr { return p.addr }

// AdminAddr is the address of the admin port; use it after Ready.
func (p *Proxy) AdminAddr() net.Addr { return p.decider.AdminAddr() }

// Decider is what decides in this process.
func (p *Proxy) Decider() *server.Decider { return p.decider }

// Reload loads the limits and the certificates again. What has a fault stays as it was.
func (p *Proxy) Reload() error { return p.decider.Reload() }

// Run listens and forwards until ctx ends or a listener fails, then drains: it is not ready any more,
// waits for DrainDelay, takes no new connections, lets requests and WebSockets end within Grace, and cuts
// what is left. It returns when everything it started has ended, with nil if ctx was the reason.
func (p *Proxy) Run(ctx context.Context) error {
	if !p.started.CompareAndSwap(false, true) {
		return errors.New("proxy: Run was called before, make a new proxy")
	}
	plain, err := listen.Listen(ctx, p.opts.HTTPAddr)
	if err != nil {
		err = fmt.Errorf("proxy: cannot listen for http: %w; choose another address with --http", err)
		return errors.Join(err, p.decider.Close())
	}
	door := newListener(plain, p.connections, p.opts.MaxConnections, p.opts.Timeouts.Body)
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	requests, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	p.forward.cut = requests
	p.http.BaseContext = func(net.Listener) context.Context { return requests }
	var all sync.WaitGroup
	failed := make(chan error, 2)
	deciding := make(chan struct{})
	all.Go(func() {
		defer close(deciding)
		if err := p.decider.Run(running); err != nil {
			failed <- err
		}
	})
	select {
	case <-p.decider.Ready():
	case <-deciding:
		_ = door.Close() // nothing came
		all.Wait()
		return <-failed
	}
	all.Go(func() { p.pool.run(running) })
	if p.service != nil {
		all.Go(func() { p.service.Run(running) })
	}
	all.Go(func() { p.throttled.follow(running, p.decider.Changed, p.decider.Limits) })
	all.Go(func() {
		if err := p.decider.Serve(p.http, door); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("proxy: http listener: %w", err)
		}
	})
	p.addr = plain.Addr()
	close(p.ready)
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	p.drain(cut)
	stop() // not before: requests in progress take and give back
	all.Wait()
	return err
}

// drain lets everything end within the grace time, and cuts the rest.
func (p *Proxy) drain(cut context.CancelFunc) {
	p.draining.Store(true)
	if p.opts.DrainDelay > 0 {
		time.Sleep(p.opts.DrainDelay)
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.opts.Grace)
	defer cancel()
	err := p.http.Shutdown(ctx)
	if err == nil {
		select {
		case <-p.pool.tunnels.away():
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	cut()
	if err != nil {
		p.opts.Decide.Logger.Warn("some requests did not end within the grace time and are cut", "grace", p.opts.Grace, "websockets", p.pool.tunnels.count())
		p.pool.tunnels.end()
		_ = p.http.Close() // it can only report what Serve reported
	}
}
