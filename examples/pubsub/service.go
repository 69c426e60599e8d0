package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/stint-io/stint/rules"
)

// Options configure a [Service].
type Options struct {
	Nodes  int          // at least 1
	Limits string       // the limits file
	Logger *slog.Logger // of the coordinator and the leases
}

// Service is several nodes in one process, with the coordinator of the limits that they
// share, for tests and for the crowd. What belongs to one node no other touches: they meet in
// NATS and by leases only. The command serve runs each in a process of its own: see fleet.
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
	// The coordinator outlives the nodes, who give back their leases.
	outer := newTasks(context.WithoutCancel(ctx))
	address := make(chan string, 1)
	outer.start(func(ctx context.Context) error {
		return runCoordinator(ctx, s.options.Limits, s.options.Logger, func(a string) { address <- a })
	})
	inner := newTasks(ctx)
	context.AfterFunc(outer.ctx, inner.cancel)
	select {
	case a := <-address:
		err = s.startNodes(inner, a, set)
	case <-inner.ctx.Done():
	}
	if err != nil {
		inner.cancel()
	}
	return errors.Join(err, inner.wait(), func() error { outer.cancel(); return outer.wait() }())
}

func (s *Service) startNodes(t *tasks, coordinator string, set *rules.Set) error {
	names := nodeNames(s.options.Nodes)
	var routes []string
	for _, name := range names {
		n, err := newNode(nodeOptions{
			name: name, nodes: names, routes: routes, coordinator: coordinator, listen: "127.0.0.1:0", set: set, logger: s.options.Logger,
		})
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
	for _, n := range s.nodes {
		if !n.awaitOthers(ctx) {
			return nil
		}
	}
	close(s.ready)
	return nil
}

// nodeNames are the names of so many nodes.
func nodeNames(count int) (names []string) {
	for i := range count {
		names = append(names, "node-"+strconv.Itoa(i+1))
	}
	return names
}
