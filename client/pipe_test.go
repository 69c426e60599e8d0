package client

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
)

// hub is a real coordinator at the end of pipes that take a while.
type hub struct {
	t     *testing.T
	delay time.Duration // one way

	mu      sync.Mutex
	origin  time.Time
	coord   *coordinator.Coordinator
	terms   map[string]lease.Terms
	streams map[lease.Member]*pipe
	timer   *time.Timer
	down    bool
	mute    bool              // takes reports and answers nothing
	parted  map[string]bool   // instances that nothing comes from or gets to
	loses   func() bool       // says of each message whether it gets lost; nil = never
	masters map[string]string // who redirects where; nil = nobody does
	opened  int
	left    int  // reports that leave
	old     bool // the coordinator is of a version that does not heed epochs
}

func newHub(t *testing.T, delay time.Duration) *hub {
	h := &hub{t: t, delay: delay, origin: time.Now(), terms: map[string]lease.Terms{}, streams: map[lease.Member]*pipe{}}
	h.start(1, 0)
	return h
}

// start makes a coordinator that may have had a predecessor.
func (h *hub) start(epoch uint64, learn time.Duration) {
	h.coord = coordinator.New(coordinator.Options{
		Epoch: epoch, Recovery: learn,
		Resolve: func(id lease.ResourceID) (lease.Terms, lease.Status) {
			t, ok := h.terms[id.Limit]
			if !ok {
				return lease.Terms{}, lease.StatusUnknownLimit
			}
			return t, lease.StatusOK
		},
	}, h.now())
}

func (h *hub) now() limit.Time { return limit.Time(time.Since(h.origin)) + 1 }

func rateOf(perSecond, burst int64) lease.Terms {
	return lease.Terms{Rate: fixed.Whole(perSecond), Burst: fixed.Whole(burst)}
}

func placesOf(n int64) lease.Terms { return lease.Terms{Burst: fixed.Whole(n), Semaphore: true} }

// Connect implements Transport.
func (h *hub) Connect(ctx context.Context, address string) (Stream, error) {
	select {
	case <-time.After(h.delay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down {
		return nil, errors.New("refused")
	}
	h.opened++
	p := &pipe{hub: h, in: make(chan *lease.Grant, 1000), ended: make(chan struct{})}
	context.AfterFunc(ctx, p.end)
	if master, elsewhere := h.masters[address]; elsewhere {
		p.in <- &lease.Grant{NotMaster: true, Master: master}
	}
	return p, nil
}

type pipe struct {
	hub   *hub
	in    chan *lease.Grant
	once  sync.Once
	ended chan struct{}
}

func (p *pipe) end() { p.once.Do(func() { close(p.ended) }) }

// Send implements Stream.
func (p *pipe) Send(r *lease.Report) error {
	select {
	case <-p.ended:
		return io.EOF
	default:
	}
	time.AfterFunc(p.hub.delay, func() { p.hub.take(p, r) })
	return nil
}

// CloseSend implements Stream.
func (p *pipe) CloseSend() error {
	time.AfterFunc(2*p.hub.delay, p.end)
	return nil
}

// Receive implements Stream.
func (p *pipe) Receive() (*lease.Grant, error) {
	select {
	case g := <-p.in:
		return g, nil
	case <-p.ended:
		return nil, io.EOF
	}
}

// Close implements Stream.
func (p *pipe) Close() { p.end() }

func (h *hub) take(p *pipe, r *lease.Report) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down || h.mute || h.lost(r.Instance) {
		return
	}
	if r.Leaving {
		h.left++
	}
	h.streams[r.Member] = p
	h.step(r)
}

func (h *hub) step(e lease.Event) {
	if r, ok := e.(*lease.Report); ok && h.old {
		own := *r
		own.Epoch = 0
		e = &own
	}
	for _, g := range h.coord.Step(h.now(), e) {
		own := g
		own.Shares = slices.Clone(g.Shares)
		if p := h.streams[g.To]; p != nil && !h.lost(g.To.Instance) {
			time.AfterFunc(h.delay, func() {
				select {
				case <-p.ended:
				case p.in <- &own:
				}
			})
		}
	}
	if next := h.coord.Next(); next != math.MaxInt64 {
		wait := max(0, time.Duration(next-h.now()))
		if h.timer == nil {
			h.timer = time.AfterFunc(wait, h.ring)
		} else {
			h.timer.Reset(wait)
		}
	}
}

// lost says whether a message to or from an instance gets lost.
func (h *hub) lost(instance string) bool { return h.parted[instance] || h.loses != nil && h.loses() }

func (h *hub) ring() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.down {
		h.step(lease.Tick{})
	}
}

// set changes the hub.
func (h *hub) set(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// crash ends all streams and forgets everything.
func (h *hub) crash() {
	h.set(func() {
		h.down = true
		for _, p := range h.streams {
			p.end()
		}
		clear(h.streams)
	})
}

// run starts a client of h, which ends with the test.
func (h *hub) run(t *testing.T, name string) *Client {
	c, stop := h.begin(t, name)
	t.Cleanup(stop)
	return c
}

func (h *hub) begin(t *testing.T, name string) (c *Client, stop func()) {
	t.Helper()
	c, err := New(Options{Transport: h, Address: "a", Others: []string{"b"}, Instance: name, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	return c, sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		h.set(func() {
			if h.timer != nil {
				h.timer.Stop()
			}
		})
	})
}

func openLimit(t *testing.T, c *Client, name string, o LimitOptions) *Limiter {
	t.Helper()
	l, err := c.Limit(name, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
