// Package xds gets rules from a server of Envoy's discovery protocol: state of the world, over one aggregated
// stream, resources of the type RateLimitConfig. It turns each into a document in the format of a file of
// Envoy's rate limit service.
//
// It does not read documents, and does not know what is in force: who takes them says whether they are good, and
// the server is told so (ACK), or why not (NACK).
package xds

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	// nackPause is how long the second of several answers in a row waits that refuse, or acknowledge what is in force
	// already, and the others twice as long as the one before: servers send a version again as soon as it is refused.
	nackPause = 100 * time.Millisecond
	// nackPauseMax is the longest of these waits, and so how late a correction can be.
	nackPauseMax = 2 * time.Second
	// maxReason bounds what the server is told.
	maxReason = 2000
)

// Status is what is known of the configuration.
type Status struct {
	Version string // the version in force; "" = none, or the server has none
	Loaded  bool   // a configuration is in force
	Refused string // the version that is kept out; see Problem
	Problem string // why the latest version is not in force; "" = it is
	Away    string // why the server does not answer; "" = it does
}

// Client follows one server. Make it with [New], and run it once.
type Client struct {
	o    Options
	log  *slog.Logger
	take func(version string, list []Document) error

	mu struct {
		sync.Mutex
		Status
	}
	// Of the loop alone.
	tried  [sha256.Size]byte // what take was asked last
	answer error             // what it said
	asked  bool
	same   bool // the latest response was in force already
}

// New returns a client that gives every change to take. take returns an error for what cannot be put in force; it must have
// left in force what was before. It is called by one goroutine, the one of Run.
func New(o Options, log *slog.Logger, take func(version string, list []Document) error) *Client {
	return &Client{o: o, log: log, take: take}
}

// Place is the address of the server, for people.
func (c *Client) Place() string { return c.o.Address }

// Status returns what is known now. It is safe for concurrent use.
func (c *Client) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.Status
}

// Run follows the server until ctx ends. A stream that ends is opened again, after a wait that doubles up to
// Options.BackoffMax; half of it is random.
func (c *Client) Run(ctx context.Context) {
	wait := c.o.Backoff
	for ctx.Err() == nil {
		answered, err := c.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if answered {
			wait = c.o.Backoff
		}
		c.away(err)
		pause(ctx, wait/2+rand.N(wait/2+1))
		wait = min(2*wait, c.o.BackoffMax)
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// away notes why the server does not answer; nil = it does.
func (c *Client) away(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.mu.Away
	c.mu.Away = ""
	if err != nil {
		c.mu.Away = fmt.Sprintf("%.500s", err.Error())
	}
	switch {
	case before == "" && err != nil:
		c.log.Warn("the server of the configuration does not answer, what is in force stays", "server", c.o.Address, "error", c.mu.Away)
	case before != "" && err == nil:
		c.log.Info("the server of the configuration answers again", "server", c.o.Address)
	}
}

// follow opens one stream and answers what comes, until it ends. It reports whether anything came.
func (c *Client) follow(ctx context.Context) (answered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := c.dial()
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }()
	if len(c.o.Header) > 0 {
		ctx = metadata.NewOutgoingContext(ctx, metadata.New(c.o.Header))
	}
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return false, err
	}
	node, err := c.node()
	if err != nil {
		return false, err
	}
	// No version: numbers of a server that was started anew may begin again, with other resources.
	if err := stream.Send(&discovery.DiscoveryRequest{Node: node, TypeUrl: TypeURL}); err != nil && !errors.Is(err, io.EOF) {
		return false, err // after EOF Recv says what it is
	}
	idle, accepted := 0, ""
	for {
		got, err := stream.Recv()
		if err != nil {
			return answered, err
		}
		answered = true
		c.away(nil)
		reply := &discovery.DiscoveryRequest{Node: node, TypeUrl: got.TypeUrl, ResponseNonce: got.Nonce}
		err = c.receive(got)
		if idle++; err == nil && !c.same {
			idle = 0
		}
		if idle > 1 {
			pause(ctx, min(nackPause<<min(idle-2, 20), nackPauseMax))
		}
		if err != nil {
			reply.VersionInfo = accepted
			reply.ErrorDetail = &spb.Status{Code: int32(codes.InvalidArgument), Message: fmt.Sprintf("%.*s", maxReason, err.Error())}
		} else {
			accepted = got.VersionInfo
			reply.VersionInfo = accepted
		}
		if err := stream.Send(reply); err != nil && !errors.Is(err, io.EOF) {
			return answered, err
		}
	}
}

func (c *Client) dial() (*grpc.ClientConn, error) {
	safe := insecure.NewCredentials()
	if c.o.Secure {
		files, err := c.o.tls()
		if err != nil {
			return nil, err
		}
		safe = credentials.NewTLS(files)
	}
	return grpc.NewClient("dns:///"+c.o.Address, grpc.WithTransportCredentials(safe),
		// A server that is cut off without a word is noticed.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(c.o.MaxBytes)))
}

func (c *Client) node() (*corev3.Node, error) {
	n := &corev3.Node{Id: c.o.Node, UserAgentName: "stint"}
	if len(c.o.Metadata) == 0 {
		return n, nil
	}
	fields := make(map[string]any, len(c.o.Metadata))
	for name, value := range c.o.Metadata {
		fields[name] = value
	}
	var err error
	if n.Metadata, err = structpb.NewStruct(fields); err != nil {
		return nil, fmt.Errorf("xds: the metadata cannot be sent: %w", err)
	}
	return n, nil
}

// receive has a response put in force. What was tried already, and is sent again, is not tried again.
func (c *Client) receive(got *discovery.DiscoveryResponse) error {
	list, sum, err := read(got)
	c.same = err == nil && c.asked && c.tried == sum
	switch {
	case err != nil:
		c.asked = false
	case c.same:
		err = c.answer
	default:
		err = c.take(got.VersionInfo, list)
		c.asked, c.tried, c.answer = true, sum, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.mu.Version, c.mu.Loaded, c.mu.Refused, c.mu.Problem = got.VersionInfo, true, "", ""
		return nil
	}
	if text := err.Error(); c.mu.Refused != got.VersionInfo || c.mu.Problem != text {
		c.log.Warn("a version of the configuration is refused, what is in force stays", "server", c.o.Address, "version", fmt.Sprintf("%.100s", got.VersionInfo), "error", fmt.Sprintf("%.*s", maxReason, text))
		c.mu.Refused, c.mu.Problem = got.VersionInfo, text
	}
	return err
}

// read returns the documents of a response, and a sum over them.
func read(got *discovery.DiscoveryResponse) (list []Document, sum [sha256.Size]byte, err error) {
	if got.TypeUrl != TypeURL {
		return nil, sum, fmt.Errorf("xds: the response has the type %.200q, want %s", got.TypeUrl, TypeURL)
	}
	h := sha256.New()
	var errs []error
	for i, r := range got.Resources {
		d, err := document(i, r)
		if err != nil {
			errs = append(errs, err)
			if len(errs) == 10 {
				break
			}
			continue
		}
		list = append(list, d)
		fmt.Fprintf(h, "%d %s %d ", len(d.Name), d.Name, len(d.Text))
		h.Write(d.Text)
	}
	return list, [sha256.Size]byte(h.Sum(nil)), errors.Join(errs...)
}
