package redistest

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// Proxy forwards TCP connections and injects faults into them. [StartProxy] makes
// it; the zero value is of no use. Its methods may be called on any goroutine,
// while connections are in use, except that Refuse and Rewrite may fail the test.
type Proxy struct {
	t      testing.TB
	addr   string
	target string
	work   sync.WaitGroup // every goroutine

	mu struct {
		sync.Mutex
		listener net.Listener // nil = refusing
		closed   bool
		links    map[*link]struct{}
		delay    time.Duration
		thawed   chan struct{} // closed unless frozen
		rules    []rule        // never changed in place
	}
}

// StartProxy forwards a free loopback port to target (host:port), which need not
// be there yet, until the test ends. A connection that target refuses is accepted
// and closed.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{t: t, addr: loopback(ReservePort(t)), target: target}
	p.mu.links = map[*link]struct{}{}
	p.mu.thawed = make(chan struct{})
	close(p.mu.thawed)
	t.Cleanup(p.finish)
	p.Refuse(false)
	return p
}

// Addr returns the address that clients connect to, as 127.0.0.1:port.
func (p *Proxy) Addr() string { return p.addr }

// Delay has everything that clients send arrive d later from here on; 0 is the
// default. A command's round trip grows by d, and commands in a pipeline keep their
// order and distance: their delays do not add up. Replies are not delayed.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.delay = d
}

// Cut resets every connection, in both directions. What is on its way is lost. New
// connections are accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	links := make([]*link, 0, len(p.mu.links))
	for l := range p.mu.links {
		links = append(links, l)
	}
	p.mu.Unlock()
	for _, l := range links {
		l.reset()
	}
}

// Refuse stops listening while on, so that new connections are refused as by a host
// without a server. Those that are open stay; see Cut.
func (p *Proxy) Refuse(on bool) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if on == (p.mu.listener == nil) || p.mu.closed {
		return
	}
	if on {
		_ = p.mu.listener.Close()
		p.mu.listener = nil
		return
	}
	listener, err := net.Listen("tcp4", p.addr)
	if err != nil {
		p.t.Fatalf("redistest: the proxy cannot listen: %v", err)
	}
	p.mu.listener = listener
	p.work.Go(func() { p.accept(listener) })
}

// Freeze forwards nothing in either direction from here on. Connections stay open
// and new ones are accepted, as behind a host that hangs; what is sent meanwhile
// waits for Thaw, in order.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.mu.thawed:
		p.mu.thawed = make(chan struct{})
	default:
	}
}

// Thaw ends Freeze. It changes nothing where nothing is frozen.
func (p *Proxy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thaw()
}

func (p *Proxy) thaw() {
	select {
	case <-p.mu.thawed:
	default:
		close(p.mu.thawed)
	}
}

// Rewrite replaces the bytes old, wherever the server sends them from here on, by
// new, which must be as long because replies state lengths: "7.0.15" by "5.0.14".
// Several rewrites apply side by side; another for the same old takes its place, so
// Rewrite(old, old) ends it. Neither may hold a line break: a reply ends in one,
// and would have to wait for what follows it.
func (p *Proxy) Rewrite(old, new string) {
	p.t.Helper()
	switch {
	case old == "" || len(old) != len(new):
		p.t.Fatalf("redistest: Rewrite(%q, %q): %d and %d bytes, want as many and at least one", old, new, len(old), len(new))
	case strings.ContainsAny(old+new, "\r\n"):
		p.t.Fatalf("redistest: Rewrite(%q, %q): a line break, rewrite within a line", old, new)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	rules := []rule{{old, new}}
	for _, r := range p.mu.rules {
		if r.old != old {
			rules = append(rules, r)
		}
	}
	p.mu.rules = rules
}

// accept serves one listener until it is closed.
func (p *Proxy) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			p.t.Errorf("redistest: the proxy has stopped accepting: %v", err)
			return
		}
		p.work.Go(func() { p.serve(conn) })
	}
}

// serve forwards one connection until both its directions have ended.
func (p *Proxy) serve(client net.Conn) {
	l := newLink(client)
	defer l.reset()
	if !p.register(l) {
		return
	}
	defer p.forget(l)
	if !l.wait(time.Time{}, p.gate) {
		return
	}
	dialer := net.Dialer{Timeout: patience}
	server, err := dialer.DialContext(l.ctx, "tcp", p.target)
	if err != nil {
		l.close()
		return
	}
	if !l.join(server) {
		return
	}
	var directions sync.WaitGroup
	directions.Go(func() { l.carry(server, client, p.delayNow, p.gate, nil) })
	directions.Go(func() { l.carry(client, server, none, p.gate, p.rulesNow) })
	directions.Wait()
	l.close()
}

// register has Cut find a link. It reports false when the test ends.
func (p *Proxy) register(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return false
	}
	p.mu.links[l] = struct{}{}
	return true
}

func (p *Proxy) forget(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.links, l)
}

func none() time.Duration { return 0 }

func (p *Proxy) delayNow() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.delay
}

func (p *Proxy) rulesNow() []rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.rules
}

// gate returns a channel that is closed unless the proxy is frozen.
func (p *Proxy) gate() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.thawed
}

// finish ends everything at the end of the test.
func (p *Proxy) finish() {
	p.mu.Lock()
	p.mu.closed = true
	if p.mu.listener != nil {
		_ = p.mu.listener.Close()
		p.mu.listener = nil
	}
	p.mu.Unlock()
	p.Cut()
	p.work.Wait()
}
