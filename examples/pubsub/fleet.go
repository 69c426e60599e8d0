package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stint-io/stint/rules"
)

// fleet is the service in processes: the coordinator, and each node. A node that ends without
// being asked is started again at the address that it had.
type fleet struct {
	options     Options
	coordinator *child
	address     string // of the coordinator
	nodes       []*nodeProcess
	ready       chan struct{}
}

// nodeProcess is one node.
type nodeProcess struct {
	name string
	URL  string

	mu     sync.Mutex
	child  *child
	route  string
	starts int
}

// nodeStarted is the first line that a node prints. The second one says that it knows all others.
type nodeStarted struct {
	URL   string `json:"url"`
	Route string `json:"route"` // where other nodes' NATS servers find its own
}

const nodeReady = "ready"

func newFleet(o Options) (*fleet, error) {
	if o.Nodes < 1 || o.Nodes > maxNodes {
		return nil, fmt.Errorf("pubsub: %d nodes, want 1 to %d", o.Nodes, maxNodes)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &fleet{options: o, ready: make(chan struct{})}, nil
}

// run serves until ctx ends, and returns when all processes have ended.
func (f *fleet) run(ctx context.Context) (err error) {
	alive := context.WithoutCancel(ctx) // a process ends with its input
	if f.coordinator, err = startChild(alive, "coordinator", "-limits", f.options.Limits); err != nil {
		return err
	}
	if f.address, err = f.coordinator.hear(); err != nil {
		return errors.Join(err, f.coordinator.end(nil))
	}
	t := newTasks(ctx)
	err = f.startNodes(alive)
	if err == nil {
		t.start(f.watchCoordinator)
		for _, n := range f.nodes {
			t.start(func(ctx context.Context) error { return f.supervise(ctx, alive, n) })
		}
		close(f.ready)
	} else {
		t.cancel()
		for _, n := range f.nodes {
			if n.child != nil {
				_ = n.child.end(nil) // err says why
			}
		}
	}
	return errors.Join(err, t.wait(), f.coordinator.end(nil))
}

func (f *fleet) startNodes(ctx context.Context) error {
	for _, name := range nodeNames(f.options.Nodes) {
		n := &nodeProcess{name: name, URL: "http://127.0.0.1:0"}
		f.nodes = append(f.nodes, n)
		if err := f.start(ctx, n); err != nil {
			return err
		}
	}
	for _, n := range f.nodes {
		if err := n.awaitReady(); err != nil {
			return err
		}
	}
	return nil
}

// watchCoordinator ends the service when the coordinator has ended by itself.
func (f *fleet) watchCoordinator(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- f.coordinator.wait() }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return fmt.Errorf("pubsub: the coordinator has ended: %v", err)
	}
}

// start starts the process of a node, which joins those that run.
func (f *fleet) start(ctx context.Context, n *nodeProcess) error {
	at, err := url.Parse(n.URL)
	if err != nil {
		return err
	}
	var routes []string
	for _, other := range f.nodes {
		if r := other.where(); other != n && r != "" {
			routes = append(routes, r)
		}
	}
	c, err := startChild(ctx, "node", "-name", n.name, "-peers", strings.Join(nodeNames(f.options.Nodes), ","), "-limits", f.options.Limits,
		"-coordinator", f.address, "-routes", strings.Join(routes, ","), "-listen", at.Host)
	if err != nil {
		return err
	}
	var started nodeStarted
	line, err := c.hear()
	if err == nil {
		err = json.Unmarshal([]byte(line), &started)
	}
	if err != nil {
		return errors.Join(err, c.end(nil))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.child, n.URL, n.route = c, started.URL, started.Route
	n.starts++
	return nil
}

// where is where the node's NATS server is; "" = it has not started yet.
func (n *nodeProcess) where() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.route
}

// process returns the process, and how often the node was started.
func (n *nodeProcess) process() (p *os.Process, starts int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.child.cmd.Process, n.starts
}

func (n *nodeProcess) awaitReady() error {
	line, err := n.child.hear()
	if err == nil && line != nodeReady {
		err = fmt.Errorf("pubsub: %s said %q in place of %q", n.name, line, nodeReady)
	}
	return err
}

// restartPause is how long a node that has ended stays down at least: one that cannot start
// would take a processor.
const restartPause = 200 * time.Millisecond

// supervise starts a node again when its process ends, until ctx ends.
func (f *fleet) supervise(ctx, alive context.Context, n *nodeProcess) error {
	for {
		ended := make(chan error, 1)
		go func() { ended <- n.child.wait() }()
		select {
		case <-ctx.Done():
			_ = n.child.in.Close()
			return <-ended
		case err := <-ended:
			f.options.Logger.Warn("a node has ended and is started again", "node", n.name, "error", err)
		}
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(restartPause):
			}
			err := f.start(alive, n)
			if err == nil {
				break
			}
			f.options.Logger.Error("a node cannot be started: it is tried again", "node", n.name, "error", err)
		}
	}
}

func (f *fleet) urls() (list []string) {
	for _, n := range f.nodes {
		list = append(list, n.URL)
	}
	return list
}

// runNode is the command of one node's process, until ctx ends.
func runNode(ctx context.Context, o nodeOptions, limits string, started func(nodeStarted) error, ready func()) (err error) {
	if !slices.Contains(o.nodes, o.name) {
		return fmt.Errorf("pubsub: node %q is not one of %q", o.name, o.nodes)
	}
	if o.set, err = rules.Load(limits); err != nil {
		return err
	}
	n, err := newNode(o)
	if err != nil {
		return err
	}
	t := newTasks(ctx)
	t.start(n.run)
	if err := started(nodeStarted{URL: n.URL(), Route: n.route()}); err != nil {
		t.cancel()
		return errors.Join(err, t.wait())
	}
	if n.awaitOthers(t.ctx) {
		ready()
	}
	return t.wait()
}
