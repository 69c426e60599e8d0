package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/rules"
)

// Node is one node of the service: an HTTP server, a NATS server joined with those of the
// other nodes, and leases of the limits that all share.
type Node struct {
	name     string
	nodes    []string // all of the service
	takers   *takers
	leases   *client.Client
	nats     *natsserver.Server
	conn     *nats.Conn
	presence *presence
	homes    *homes
	hubs     *hubs
	ledger   *ledger
	listener net.Listener
}

// URL is where the node's API is.
func (n *Node) URL() string { return "http://" + n.listener.Addr().String() }

// natsWait is how long a NATS server has to come up.
const natsWait = 10 * time.Second

// nodeOptions are what a node is started with.
type nodeOptions struct {
	name        string
	nodes       []string // the names of all of the service
	routes      []string // NATS servers of nodes that run
	coordinator string   // address of its gRPC port
	listen      string   // address of the API; port 0 = a free one
	set         *rules.Set
	logger      *slog.Logger
}

// newNode starts a NATS server that joins those at routes, and listens.
func newNode(o nodeOptions) (*Node, error) {
	name := o.name
	n := &Node{name: name, nodes: o.nodes, homes: newHomes(), ledger: newLedger()}
	var err error
	if n.leases, err = client.New(client.Options{Address: o.coordinator, Instance: "pubsub-" + name, Logger: o.logger}); err != nil {
		return nil, err
	}
	if n.takers, err = newTakers(o.set, n.leases); err != nil {
		return nil, err
	}
	n.nats, err = natsserver.NewServer(&natsserver.Options{
		ServerName: name, Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, NoSigs: true, NoLog: true,
		Cluster: natsserver.ClusterOpts{Name: "pubsub", Host: "127.0.0.1", Port: natsserver.RANDOM_PORT},
		Routes:  natsserver.RoutesFromStr(strings.Join(o.routes, ",")),
	})
	if err != nil {
		return nil, fmt.Errorf("pubsub: NATS server of node %s: %w", name, err)
	}
	n.nats.Start()
	if !n.nats.ReadyForConnections(natsWait) {
		n.nats.Shutdown()
		return nil, fmt.Errorf("pubsub: NATS server of node %s was not ready after %v", name, natsWait)
	}
	if n.conn, err = nats.Connect("", nats.InProcessServer(n.nats), nats.Name(name), nats.MaxReconnects(-1)); err != nil {
		n.nats.Shutdown()
		return nil, err
	}
	n.presence = newPresence(name, n.conn)
	n.hubs = newHubs(n.conn, n.presence)
	if n.listener, err = net.Listen("tcp", o.listen); err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

// route is where other nodes' NATS servers find this one's.
func (n *Node) route() string { return "nats://" + n.nats.ClusterAddr().String() }

func (n *Node) close() {
	n.conn.Close()
	n.nats.Shutdown()
	n.nats.WaitForShutdown()
}

// run serves until ctx ends.
func (n *Node) run(ctx context.Context) error {
	defer n.close()
	for subject, f := range map[string]nats.MsgHandler{"home." + n.name: n.serveHome, liveSubject: n.answerLive} {
		if _, err := n.conn.Subscribe(subject, f); err != nil {
			return err
		}
	}
	t := newTasks(ctx)
	t.start(n.leases.Run)
	t.start(n.presence.run)
	t.start(n.serve)
	return t.wait()
}

// grace is how long requests have to end.
const grace = 2 * time.Second

func (n *Node) serve(ctx context.Context) error {
	s := &http.Server{
		Handler: n.handler(), ConnContext: numbered(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx }, // streams end with it
		ErrorLog:    slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		end, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		if s.Shutdown(end) != nil {
			_ = s.Close()
		}
	})
	err := s.Serve(n.listener)
	if stop() {
		return err // it ended by itself
	}
	<-stopped
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}

// What a channel's home is asked for.
const (
	opPublish = "publish"
	opHead    = "head"
	opHistory = "history"
)

type homeRequest struct {
	Op      string      `json:"op"`
	Channel channelName `json:"channel"`
	Message message     `json:"message,omitzero"`
	From    uint64      `json:"from,omitempty"`
	To      uint64      `json:"to,omitempty"`
}

type homeAnswer struct {
	Position uint64 `json:"position,omitempty"`
	Page     *page  `json:"page,omitempty"`
	Error    string `json:"error,omitempty"`
}

// askHome asks the node that is home to the channel.
func (n *Node) askHome(ctx context.Context, req homeRequest) (homeAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, publishWait)
	defer cancel()
	text, err := json.Marshal(req)
	if err != nil {
		return homeAnswer{}, err
	}
	m, err := n.conn.RequestWithContext(ctx, "home."+home(req.Channel, n.nodes), text)
	if err != nil {
		return homeAnswer{}, err
	}
	var answer homeAnswer
	err = json.Unmarshal(m.Data, &answer)
	return answer, err
}

// serveHome answers for the channels that this node is home to.
func (n *Node) serveHome(m *nats.Msg) {
	var req homeRequest
	if json.Unmarshal(m.Data, &req) != nil {
		return
	}
	var answer homeAnswer
	switch req.Op {
	case opHead:
		answer.Position = n.homes.head(req.Channel)
	case opHistory:
		p := n.homes.read(req.Channel, req.From, req.To)
		answer.Page = &p
	case opPublish:
		position, ok, err := n.homes.append(req.Channel, req.Message, func(m message) error {
			text, err := json.Marshal(m)
			if err != nil {
				return err
			}
			return n.conn.Publish(req.Channel.subject(), text)
		})
		answer.Position = position
		switch {
		case !ok:
			answer.Error = fmt.Sprintf("%d channels are in use, which is all that a node keeps", maxChannels)
		case err != nil:
			answer.Error = err.Error()
		}
	}
	if text, err := json.Marshal(answer); err == nil {
		_ = m.Respond(text) // who asked has a time-out
	}
}
