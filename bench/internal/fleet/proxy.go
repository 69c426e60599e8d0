package fleet

import (
	"bytes"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Proxy forwards TCP connections from a free loopback port to a target. What it
// forwards arrives later by a delay, in both directions, and in its order and distance:
// the delays of what follows each other do not add up. It counts what passes. Use
// [StartProxy]; its methods are safe for concurrent use.
type Proxy struct {
	listener net.Listener
	target   string
	delay    time.Duration
	up, down atomic.Int64 // bytes to the target and from it
	work     sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// StartProxy begins to forward to target. The delay is one way.
func StartProxy(target string, delay time.Duration) (*Proxy, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("fleet: the proxy cannot listen: %w", err)
	}
	p := &Proxy{listener: l, target: target, delay: delay, conns: map[net.Conn]struct{}{}}
	p.work.Go(p.accept)
	return p, nil
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Bytes returns how much has been sent to the target and how much came from it, without
// the headers of TCP.
func (p *Proxy) Bytes() (up, down int64) { return p.up.Load(), p.down.Load() }

// Close ends all connections and returns once everything has ended.
func (p *Proxy) Close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.work.Wait()
}

// keep has Close find a connection. It reports false after Close.
func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) forget(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return // closed; clients find out about anything else
		}
		p.work.Go(func() { p.serve(c) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	if !p.keep(client) {
		return
	}
	defer p.forget(client)
	server, err := net.DialTimeout("tcp4", p.target, 5*time.Second)
	if err != nil || !p.keep(server) {
		return
	}
	defer p.forget(server)
	var ways sync.WaitGroup
	ways.Go(func() { p.carry(server, client, &p.up) })
	ways.Go(func() { p.carry(client, server, &p.down) })
	ways.Wait()
}

// parcel is what was read at once, and when it may arrive.
type parcel struct {
	bytes []byte
	due   time.Time
}

// onTheWay is how many parcels are read ahead. More than a fleet's messages ever are
// within the delay; beyond it the sender waits, as on a full line.
const onTheWay = 1024

// carry moves what from sends to the other, until either ends; then both do.
func (p *Proxy) carry(to, from net.Conn, count *atomic.Int64) {
	way := make(chan parcel, onTheWay)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(way)
		buffer := make([]byte, 32<<10)
		for {
			n, err := from.Read(buffer)
			if n > 0 {
				way <- parcel{bytes.Clone(buffer[:n]), time.Now().Add(p.delay)}
			}
			if err != nil {
				return
			}
		}
	})
	broken := false
	for c := range way { // to the end, or the reader would wait for ever
		if broken {
			continue
		}
		if d := time.Until(c.due); d > 0 {
			time.Sleep(d)
		}
		// Before they go: who has read them must find them counted.
		count.Add(int64(len(c.bytes)))
		if _, err := to.Write(c.bytes); err != nil {
			broken = true
			_ = from.Close() // its reader ends
		}
	}
	_ = to.Close()
	reading.Wait()
}
