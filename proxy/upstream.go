package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxIdle is how many idle connections are kept to one upstream. Not fewer: under load one for
	// each request in progress is opened and closed otherwise. Not more: servers have some ten
	// thousand in all.
	maxIdle = 1024
	// idleTime is how long they are kept. Not longer: servers close theirs after a minute or so, and a
	// request that meets that moment fails if it may not be sent twice.
	idleTime = 30 * time.Second
	// maxAnswerHead bounds the header of an upstream's answer. Not more: it is held in memory for each
	// request. Not less: an answer may set many cookies.
	maxAnswerHead = 64 << 10
	// outAfter is how many examinations in a row must fail. One may meet a pause of the upstream.
	outAfter = 2
)

// errNoUpstream says that none is healthy.
var errNoUpstream = errors.New("no upstream is healthy")

// upstream is one of the servers behind the proxy.
type upstream struct {
	url    *url.URL
	name   string // for logs and metrics
	scheme string // http or https
	plain  http.RoundTripper
	grpc   http.RoundTripper // what carries gRPC

	inFlight atomic.Int64
	out      atomic.Bool // taken out
	failed   int         // examinations in a row; of the goroutine that examines

	refused, broken, slow, cut atomic.Uint64 // failures, by reason
}

// pool is the upstreams. It is safe for concurrent use.
type pool struct {
	all     []*upstream
	stream  time.Duration // between two parts of an answer; 0 = no bound
	tunnels tunnels
	health  Health
	probe   *http.Client
	dial    *net.Dialer
	log     *slog.Logger
	wake    chan struct{} // an upstream was taken out
}

func newPool(o *Options) (*pool, error) {
	p := &pool{health: o.Health, stream: o.Timeouts.Stream, log: o.Decide.Logger, wake: make(chan struct{}, 1), dial: &net.Dialer{Timeout: o.Timeouts.Connect}}
	for _, text := range o.Upstreams {
		u, err := parseUpstream(text)
		if err != nil {
			return nil, err
		}
		up := &upstream{url: u, name: u.Scheme + "://" + u.Host, scheme: u.Scheme}
		up.plain = newTransport(o, p.dial, u.Scheme == "h2c")
		up.grpc = up.plain
		if u.Scheme == "h2c" {
			up.scheme = "http"
		} else if u.Scheme == "http" {
			up.grpc = newTransport(o, p.dial, true)
		}
		p.all = append(p.all, up)
	}
	p.probe = &http.Client{
		Timeout:       o.Timeouts.Connect + o.Health.Interval,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return p, nil
}

// newTransport returns a transport to one upstream. It neither asks for compression nor undoes it, follows
// no proxy of the environment, and remembers no cookie: what it carries is the client's.
func newTransport(o *Options, d *net.Dialer, h2c bool) *http.Transport {
	t := &http.Transport{
		DialContext:            d.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    o.Timeouts.Connect,
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        idleTime,
		ResponseHeaderTimeout:  o.Timeouts.Response,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxAnswerHead,
		DisableCompression:     true,
		WriteBufferSize:        8 << 10,
		ReadBufferSize:         8 << 10,
		Protocols:              new(http.Protocols),
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
	}
	if h2c {
		t.Protocols.SetUnencryptedHTTP2(true)
	} else {
		t.Protocols.SetHTTP1(true)
		t.Protocols.SetHTTP2(true)
	}
	return t
}

// pick returns the healthy upstream with the fewest requests in progress that is not among tried; of equal
// ones a random one. nil = there is none.
func (p *pool) pick(tried []*upstream) *upstream {
	if len(p.all) == 1 && len(tried) == 0 && !p.all[0].out.Load() {
		return p.all[0]
	}
	var best *upstream
	least, first := int64(0), rand.IntN(len(p.all))
search:
	for i := range p.all {
		u := p.all[(first+i)%len(p.all)]
		if u.out.Load() {
			continue
		}
		for _, t := range tried {
			if t == u {
				continue search
			}
		}
		if n := u.inFlight.Load(); best == nil || n < least {
			best, least = u, n
		}
	}
	return best
}

// RoundTrip implements [http.RoundTripper]. An upstream that accepts no connection has seen nothing of the
// request, so another one is asked; in all other cases a request is sent once, as net/http sees to it.
func (p *pool) RoundTrip(r *http.Request) (*http.Response, error) {
	var tried []*upstream
	for {
		u := p.pick(tried)
		if u == nil {
			return nil, errNoUpstream
		}
		r.URL.Scheme, r.URL.Host = u.scheme, u.url.Host
		u.inFlight.Add(1)
		var body *watchedBody
		if r.Body != nil {
			body = &watchedBody{ReadCloser: r.Body}
			r.Body = body
		}
		transport := u.plain
		if r.ProtoMajor == 2 && isGRPC(r.Header) {
			transport = u.grpc
		}
		res, err := transport.RoundTrip(r)
		if err == nil {
			if err = p.receive(res, u); err == nil {
				return res, nil
			}
		}
		u.inFlight.Add(-1)
		if body != nil && body.err() != nil {
			return nil, body.err()
		}
		if r.Context().Err() != nil {
			return nil, err // the client has gone
		}
		if !u.failure(err) {
			return nil, &upstreamError{u, err}
		}
		p.takeOut(u, err)
		if body != nil {
			if body.read.Load() {
				return nil, &upstreamError{u, err}
			}
			r.Body = body.ReadCloser
		}
		if tried = append(tried, u); len(tried) == len(p.all) {
			return nil, &upstreamError{u, err}
		}
	}
}

// receive takes an upstream's answer; from here on the request is in progress until its body is closed.
func (p *pool) receive(res *http.Response, u *upstream) error {
	if res.StatusCode < 100 {
		_ = res.Body.Close() // it cannot be passed on
		return errStatus
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		res.Body = &answered{ReadCloser: res.Body, upstream: u, pause: p.stream}
		return nil
	}
	inner, ok := res.Body.(io.ReadWriteCloser)
	asked := res.Request.Header.Get("Upgrade")
	if !ok || asked == "" || !strings.EqualFold(asked, res.Header.Get("Upgrade")) {
		_ = res.Body.Close() // it is of no use
		return errSwitched
	}
	res.Body = p.tunnels.open(inner, u, p.stream)
	return nil
}

// errSwitched says that an upstream has answered 101 to a request that did not ask for that.
var errSwitched = errors.New("the upstream switched to a protocol that was not asked for")

// errStatus says that an upstream has answered with a status that there is not.
var errStatus = errors.New("the upstream answered with a status below 100")

// errStalled says that an upstream has stopped in the middle of an answer.
var errStalled = errors.New("the upstream stopped in the middle of its answer")

// answered is the body of an upstream's answer, which must not stop coming.
type answered struct {
	io.ReadCloser
	upstream *upstream
	pause    time.Duration // the longest between two parts; 0 = no bound
	timer    *time.Timer
	once     sync.Once
}

// Read implements [io.Reader]. An answer that ends early is an error, so that nobody takes it for whole.
func (b *answered) Read(p []byte) (int, error) {
	if b.pause == 0 {
		n, err := b.ReadCloser.Read(p)
		return n, b.judge(err, false)
	}
	if b.timer == nil {
		b.timer = time.AfterFunc(b.pause, func() { _ = b.ReadCloser.Close() })
	} else {
		b.timer.Reset(b.pause)
	}
	n, err := b.ReadCloser.Read(p)
	return n, b.judge(err, !b.timer.Stop())
}

func (b *answered) judge(err error, stalled bool) error {
	switch {
	case err == nil, err == io.EOF:
		return err
	case stalled:
		err = errStalled
	}
	b.upstream.cut.Add(1)
	return err
}

// Close implements [io.Closer].
func (b *answered) Close() error {
	b.once.Do(func() { b.upstream.inFlight.Add(-1) })
	return b.ReadCloser.Close()
}

// watchedBody knows whether a part of a body was read, and whether the client failed to send it.
type watchedBody struct {
	io.ReadCloser
	read   atomic.Bool
	failed atomic.Pointer[error]
}

// Read implements [io.Reader].
func (b *watchedBody) Read(p []byte) (int, error) {
	b.read.Store(true)
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		b.failed.Store(&err)
	}
	return n, err
}

// Close implements [io.Closer]. The server that reads the client's request closes it.
func (b *watchedBody) Close() error { return nil }

func (b *watchedBody) err() error {
	if e := b.failed.Load(); e != nil {
		return *e
	}
	return nil
}

// upstreamError is a failure of an upstream.
type upstreamError struct {
	upstream *upstream
	err      error
}

func (e *upstreamError) Error() string { return e.upstream.name + ": " + e.err.Error() }

func (e *upstreamError) Unwrap() error { return e.err }

// failure counts an error of u and reports whether it means that u accepts no connection.
func (u *upstream) failure(err error) (refused bool) {
	var op *net.OpError
	var timeout net.Error
	switch {
	case errors.As(err, &op) && op.Op == "dial":
		u.refused.Add(1)
		return true
	case errors.As(err, &timeout) && timeout.Timeout():
		u.slow.Add(1)
	default:
		u.broken.Add(1)
	}
	return false
}

// takeOut takes an upstream out until an examination succeeds.
func (p *pool) takeOut(u *upstream, err error) {
	if u.out.Swap(true) {
		return
	}
	p.log.Warn("an upstream is taken out", "upstream", u.name, "error", err)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// healthy is how many upstreams are not taken out.
func (p *pool) healthy() (n int) {
	for _, u := range p.all {
		if !u.out.Load() {
			n++
		}
	}
	return n
}

// run examines the upstreams until ctx ends.
func (p *pool) run(ctx context.Context) {
	tick := time.NewTicker(p.health.Interval)
	defer tick.Stop()
	for {
		var all sync.WaitGroup
		for _, u := range p.all {
			if p.health.Path != "" || u.out.Load() {
				all.Go(func() { p.examine(ctx, u) })
			}
		}
		all.Wait()
		select {
		case <-ctx.Done():
			for _, u := range p.all {
				u.close()
			}
			return
		case <-tick.C:
		case <-p.wake:
		}
	}
}

// close ends the connections that are not in use.
func (u *upstream) close() {
	for _, t := range []http.RoundTripper{u.plain, u.grpc} {
		if t, ok := t.(*http.Transport); ok {
			t.CloseIdleConnections()
		}
	}
}

func (p *pool) examine(ctx context.Context, u *upstream) {
	err := p.check(ctx, u)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		if u.failed = 0; u.out.Swap(false) {
			p.log.Info("an upstream is back", "upstream", u.name)
		}
	default:
		if u.failed++; u.failed >= outAfter {
			p.takeOut(u, err)
		}
	}
}

// check examines an upstream once.
func (p *pool) check(ctx context.Context, u *upstream) error {
	if p.health.Path == "" {
		port := u.url.Port()
		if port == "" {
			port = map[string]string{"http": "80", "https": "443"}[u.scheme]
		}
		c, err := p.dial.DialContext(ctx, "tcp", net.JoinHostPort(u.url.Hostname(), port))
		if err != nil {
			return err
		}
		return c.Close()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.scheme+"://"+u.url.Host+p.health.Path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "stint-proxy-health")
	client := *p.probe
	client.Transport = u.plain
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10) // so that the connection can be used again
	_ = res.Body.Close()
	if res.StatusCode >= http.StatusBadRequest {
		return errors.New("the health path answers " + res.Status)
	}
	return nil
}
