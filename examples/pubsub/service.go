package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server"
)

// Options configure a [Service].
type Options struct {
	Nodes  int          // at least 1
	Limits string       // the limits file
	Logger *slog.Logger // of the coordinator and the leases
}

// Service is several nodes in one process, with the coordinator of the limits that they
// share. What belongs to one node no other touches: they meet in NATS and by leases only.
type Service struct {
	options Options
	nodes   []*Node
	ready   chan struct{}
}

// maxNodes is a sanity bound: each has a NATS server of its own.
const maxNodes = 16

// NewService checks the options. Run starts everything.
func NewService(o Options) (*Service, error) {
	if o.Nodes < 1 || o.Nodes > maxNodes {
		return nil, fmt.Errorf("pubsub: %d nodes, want 1 to %d", o.Nodes, maxNodes)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Service{options: o, ready: make(chan struct{})}, nil
}

// Ready is closed when all nodes serve and know each other.
func (s *Service) Ready() <-chan struct{} { return s.ready }

// Nodes are the nodes, once it is ready.
func (s *Service) Nodes() []*Node { return s.nodes }

// Run serves until ctx ends, and returns when all that it started has ended.
func (s *Service) Run(ctx context.Context) error {
	set, err := rules.Load(s.options.Limits)
	if err != nil {
		return err
	}
	// It remembers which leases were out, so that the next start need not wait for their
	// end. This example begins anew each time, and says so.
	state, err := os.MkdirTemp("", "pubsub-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(state) }()
	const free = "127.0.0.1:0"
	coordinator, err := server.New(server.Options{
		HTTPAddr: free, GRPCAddr: free, AdminAddr: free, ConfigPaths: []string{s.options.Limits}, StateDir: state, FirstStart: true,
		Logger: s.options.Logger, Grace: grace,
	})
	if err != nil {
		return err
	}
	// It outlives the nodes, who give back their leases.
	outer := newTasks(context.WithoutCancel(ctx))
	outer.start(coordinator.Run)
	inner := newTasks(ctx)
	context.AfterFunc(outer.ctx, inner.cancel)
	select {
	case <-coordinator.Ready():
		err = s.startNodes(inner, coordinator.Addrs().GRPC.String(), set)
	case <-inner.ctx.Done():
	}
	if err != nil {
		inner.cancel()
	}
	ended := inner.wait()
	outer.cancel()
	for _, other := range []error{ended, outer.wait()} {
		if err == nil {
			err = other
		}
	}
	return err
}

func (s *Service) startNodes(t *tasks, coordinator string, set *rules.Set) error {
	var names, routes []string
	for i := range s.options.Nodes {
		names = append(names, "node-"+strconv.Itoa(i+1))
	}
	for _, name := range names {
		n, err := newNode(name, names, slices.Clone(routes), coordinator, set, s.options.Logger)
		if err != nil {
			return err
		}
		routes = append(routes, n.route())
		s.nodes = append(s.nodes, n)
		t.start(n.run)
	}
	return s.awaitMesh(t.ctx)
}

// awaitMesh waits until each node has heard of all others.
func (s *Service) awaitMesh(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if !slices.ContainsFunc(s.nodes, func(n *Node) bool { return n.presence.others() < len(s.nodes)-1 }) {
			close(s.ready)
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
