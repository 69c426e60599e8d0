package client

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/limit"
)

// room is a small coordinator behind gRPC. The server's own stands above this package.
type room struct {
	leasepb.UnimplementedLeasesServer

	mu      sync.Mutex
	coord   *coordinator.Coordinator
	origin  time.Time
	streams map[lease.Member]chan *leasepb.Grant
}

func (r *room) Hold(stream leasepb.Leases_HoldServer) error {
	out := make(chan *leasepb.Grant, 100)
	go func() {
		for {
			select {
			case g := <-out:
				if stream.Send(g) != nil {
					return
				}
			case <-stream.Context().Done():
				return
			}
		}
	}()
	for {
		in, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // it hung up
		}
		var report lease.Report
		if _, err := leasewire.FromReport(&report, in); err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		r.mu.Lock()
		r.streams[report.Member] = out
		r.step(&report)
		r.mu.Unlock()
	}
}

func (r *room) step(e lease.Event) {
	for _, g := range r.coord.Step(limit.Time(time.Since(r.origin)+1), e) {
		m := new(leasepb.Grant)
		leasewire.ToGrant(m, &g)
		select {
		case r.streams[g.To] <- m:
		default:
		}
	}
}

// listen serves r until stop.
func (r *room) listen(t *testing.T, address string, o ...grpc.ServerOption) (bound string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(o...)
	leasepb.RegisterLeasesServer(s, r)
	var wg sync.WaitGroup
	wg.Go(func() { s.Serve(l) })
	done := make(chan struct{})
	wg.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				r.mu.Lock()
				r.step(lease.Tick{})
				r.mu.Unlock()
			case <-done:
				return
			}
		}
	})
	return l.Addr().String(), sync.OnceFunc(func() {
		close(done)
		s.Stop()
		wg.Wait()
	})
}

func newRoom(epoch uint64) *room {
	return &room{origin: time.Now(), streams: map[lease.Member]chan *leasepb.Grant{}, coord: coordinator.New(coordinator.Options{
		Epoch: epoch, Resolve: func(lease.ResourceID) (lease.Terms, lease.Status) { return rateOf(1000, 100), lease.StatusOK },
	}, 1)}
}

// TestGRPC: the same over a real connection, which breaks and comes back.
func TestGRPC(t *testing.T) {
	address, stop := newRoom(1).listen(t, "127.0.0.1:0")
	c, err := New(Options{Address: "127.0.0.1:1", Others: []string{address}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	run, end := context.WithCancel(ctx)
	go func() { ended <- c.Run(run) }()
	k, err := c.Keyed("m", []string{"account"}, KeyedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	req := limit.Request{Attributes: []limit.Attribute{{Name: "account", Value: "a\x00b"}}}
	take := func() {
		t.Helper()
		for ctx.Err() == nil {
			if d, err := k.Take(ctx, req); err == nil && d.Allowed {
				return
			}
		}
		t.Fatalf("nothing was admitted; connected: %v", c.Connected())
	}
	take()
	if !c.Connected() {
		t.Error("not connected")
	}
	stop()
	next := newRoom(2)
	_, stop = next.listen(t, address)
	known := func() bool {
		next.mu.Lock()
		defer next.mu.Unlock()
		return len(next.streams) > 0
	}
	for !known() && ctx.Err() == nil { // meanwhile the lease runs on
		take()
	}
	take()
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	stop()
	if d, _ := k.Take(ctx, req); d.Allowed {
		t.Error("admitted after the end")
	}
}
