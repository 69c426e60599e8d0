package client

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/limit"
)

// The errors of a Client, for errors.Is.
var (
	// ErrClosed says that the client, or the limiter, has ended.
	ErrClosed = errors.New("client: closed")

	// ErrRefused is wrapped by errors that say why the coordinator lends nothing of
	// a limit: it does not know the limit, the limit is not leased, the key does
	// not fit, or its table is full. It is asked again from time to time.
	ErrRefused = errors.New("client: the coordinator lends nothing")

	// ErrDuplicate says that another process reports under the name of this instance,
	// so that this one is lent nothing. It tries again from time to time.
	ErrDuplicate = errors.New("client: another process has the instance's name")

	// ErrOpen says that the client has the limit open already: use that Limiter or Semaphore.
	ErrOpen = errors.New("client: the limit is open already")

	// ErrKind says that a semaphore was opened as a rate, or a rate as a semaphore.
	ErrKind = errors.New("client: the limit is of the other kind")
)

// DefaultGrace is how long Run takes at most to give the leases back. Not longer: they
// expire by themselves. Not shorter: one message has to get through.
const DefaultGrace = time.Second

// Options configure a [Client]. Address, or Transport, is required.
type Options struct {
	// Address is where the coordinator is, as gRPC takes it, such as
	// "127.0.0.1:8081" or "dns:///stint.internal:8081". Others are tried in turn
	// where it does not answer. A coordinator that is not the one for the limits
	// sends the client on.
	Address string
	Others  []string

	// TLS secures the connection; nil = plain text, as the coordinator listens by
	// default, on loopback. A certificate in it is shown to the coordinator. Without a
	// ServerName that of the address is expected.
	TLS *tls.Config
	// TLSFiles are used where TLS is nil. They are read at each connection, so that they can be
	// replaced while the program runs.
	TLSFiles TLSFiles
	// Token proves who this instance is; TokenFile is a file with it, read at each connection.
	// "" = nothing but a certificate does. A token is sent in plain text to this machine
	// alone: elsewhere it needs TLS.
	Token, TokenFile string
	// DialOptions are passed on to gRPC, after those of the client.
	DialOptions []grpc.DialOption

	// Instance names this process among all that share the limits, in 1 to 256
	// bytes of UTF-8; "" = host, process id and a random number, so that no two
	// processes have one name. Of those that have, one gets leases, and the others
	// [ErrDuplicate] until it has gone.
	Instance string

	// Grace is how long Run takes at most to give back the leases; 0 =
	// [DefaultGrace].
	Grace time.Duration

	// Logger takes what operators should read; nil = [slog.Default]. Keys never
	// are logged.
	Logger *slog.Logger

	// Hooks are called for what the limits do, and OnFault once for each limit of which
	// nothing is lent, as it is logged: the coordinator does not know the name, the key does
	// not fit, or the limit is of the other kind. The zero value calls nobody; see
	// [limit.Hooks] for what a hook must not do.
	Hooks   limit.Hooks
	OnFault func(limit string, err error)

	// OnLease is called when a lease goes over from one state into another, and OnConnection
	// when a connection to a coordinator begins or ends. They are called by the goroutine of
	// Run, one at a time and in order, so they must be quick and must not block. A limit with
	// a key has one lease per key: a gauge per limit and state that was takes one from, and is
	// adds one to, has the number of leases in each state.
	OnLease      func(limit string, was, is LeaseState)
	OnConnection func(connected bool)

	// Transport connects to the coordinator; nil = gRPC. It is for the server of
	// this module, which is a client of its own coordinator.
	Transport Transport
}

// Client is one instance of those that share limits: one connection to a coordinator,
// with all its leases. Until [Client.Run] is called nothing is leased. It is safe for
// concurrent use; use [New].
type Client struct {
	opts      Options
	log       *slog.Logger
	addresses []string
	origin    time.Time // of the clock
	member    lease.Member

	// all are the lanes, one for each shard that the coordinators have; at least one. It grows under mu.
	all atomic.Pointer[[]*lane]

	// mu is taken before a lane's mu, which is taken before a lease's.
	mu      sync.Mutex
	named   map[lease.ResourceID]*leasedLimit
	tables  []*Keyed
	running bool
	ended   bool

	group struct { // of the goroutines that run lanes
		sync.WaitGroup
		ctx context.Context // of Run; nil before
	}

	notifying sync.Mutex
	shownUp   bool // as OnConnection was called last; guarded by notifying

	faults struct {
		sync.Mutex
		known map[fault]knownFault // that were logged
	}
}

// New returns a client. It does not connect: Run does.
func New(o Options) (*Client, error) {
	if o.Address == "" && o.Transport == nil {
		return nil, errors.New("client: no address: set Options.Address to the coordinator's gRPC listener, such as 127.0.0.1:8081")
	}
	if o.Transport == nil {
		for _, address := range append([]string{o.Address}, o.Others...) {
			if err := checkAddress(address); err != nil {
				return nil, err
			}
		}
	}
	if err := o.checkSecurity(); err != nil {
		return nil, err
	}
	if o.Grace < 0 {
		return nil, fmt.Errorf("client: grace is %v, want at least 0", o.Grace)
	}
	if o.Instance == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		o.Instance = fmt.Sprintf("%.200s-%d-%08x", host, os.Getpid(), rand.Uint32())
	}
	if len(o.Instance) > leasewire.MaxInstance || !utf8.ValidString(o.Instance) {
		return nil, fmt.Errorf("client: the instance's name has %d bytes, want at most %d of UTF-8", len(o.Instance), leasewire.MaxInstance)
	}
	o.Grace = cmp.Or(o.Grace, DefaultGrace)
	c := &Client{
		opts: o, log: o.Logger, origin: time.Now(), named: map[lease.ResourceID]*leasedLimit{},
		addresses: append([]string{o.Address}, o.Others...),
		member:    lease.Member{Instance: o.Instance, Session: newSession()},
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	if c.opts.Transport == nil {
		c.opts.Transport = NewTransport(o)
	}
	c.all.Store(&[]*lane{newLane(c, 0)})
	return c, nil
}

// checkAddress returns what is wrong with the address of a coordinator. Resolvers of gRPC have schemes of their own, such as
// dns:///host:port.
func checkAddress(address string) error {
	scheme, rest, isURL := strings.Cut(address, "://")
	switch {
	case isURL && strings.HasPrefix(scheme, "http"):
		host := strings.TrimRight(rest, "/")
		return fmt.Errorf("client: the address %q is a URL: leave out %s://, and give the port of the coordinator's gRPC listener, which is not that of HTTP, as in %s", address, scheme, net.JoinHostPort(hostOf(host), "8081"))
	case isURL || strings.HasPrefix(address, "unix:") || strings.Contains(address, ":/"):
		return nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("client: the address %q has no port: write it as %s", address, net.JoinHostPort(hostOf(address), "8081"))
	}
	return nil
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return strings.Trim(address, "[]")
	}
	return host
}

// newSession draws a number: the coordinator distinguishes runs of one name by it.
func newSession() uint64 {
	var b [8]byte
	crand.Read(b[:]) // never fails
	return max(1, binary.LittleEndian.Uint64(b[:]))
}

// Instance returns the name of this instance.
func (c *Client) Instance() string { return c.member.Instance }

// Connected says whether there is a connection at this moment: to the coordinator, or to each of
// those among which a cluster divides the keys.
func (c *Client) Connected() bool {
	for _, a := range c.lanes() {
		if !a.connected() {
			return false
		}
	}
	return true
}

// Err returns why there is no coordinator that answers at this moment: what the latest
// try met with. It is nil while one does, and before the first try has ended. Leases run
// on meanwhile, for as long as they last.
func (c *Client) Err() error {
	for _, a := range c.lanes() {
		if err := a.err(); err != nil {
			return err
		}
	}
	return nil
}

// now is the time of the client's clock, which is monotonic and begins at one second.
func (c *Client) now() limit.Time { return limit.Time(time.Second + time.Since(c.origin)) }

// at converts a time of the caller's. What is in the future counts as the present:
// the lease of a time to come is not there yet.
func (c *Client) at(t time.Time) limit.Time {
	return max(1, min(c.on(t), c.now()))
}

// on is t by the client's clock.
func (c *Client) on(t time.Time) limit.Time {
	return max(0, limit.Time(time.Second).Add(t.Sub(c.origin)))
}

// Limit opens a rate that has no key. A limit is opened once and its Limiter shared:
// while it is open, opening it again is [ErrOpen].
func (c *Client) Limit(name string, o LimitOptions) (*Limiter, error) {
	return c.open(name, "", nil, o)
}

// Semaphore opens a limit of what is in flight that has no key.
func (c *Client) Semaphore(name string, o LimitOptions) (*Semaphore, error) {
	return c.openSemaphore(name, "", nil, o)
}

func (c *Client) open(name, key string, attributes []string, o LimitOptions) (*Limiter, error) {
	l := &Limiter{bucket: bucket.NewBucket(nil)}
	l.lease.spender = l.bucket
	if err := l.lease.open(c, name, key, attributes, o); err != nil {
		return nil, err
	}
	return l, nil
}

func (c *Client) openSemaphore(name, key string, attributes []string, o LimitOptions) (*Semaphore, error) {
	g := &Semaphore{semaphore: bucket.NewSemaphore(nil), permits: map[uint64]int64{}}
	g.lease.spender, g.lease.semaphore = g.semaphore, true
	if err := g.lease.open(c, name, key, attributes, o); err != nil {
		return nil, err
	}
	return g, nil
}

// open registers the lease with the agent.
func (l *leasedLimit) open(c *Client, name, key string, attributes []string, o LimitOptions) error {
	if name == "" || len(name) > leasewire.MaxLimitName || !utf8.ValidString(name) {
		return fmt.Errorf("client: the limit's name has %d bytes, want 1 to %d of UTF-8", len(name), leasewire.MaxLimitName)
	}
	options, err := o.lease()
	if err != nil {
		return fmt.Errorf("client: limit %q: %w", name, err)
	}
	options.Attributes = attributes
	if o.Adjust != nil {
		if l.semaphore {
			return fmt.Errorf("client: limit %q: a semaphore has no rate to adjust", name)
		}
		a, err := o.Adjust.adjuster()
		if err != nil {
			return fmt.Errorf("client: limit %q: %w", name, err)
		}
		l.paced = &paced{Bucket: l.spender.(*bucket.Bucket), adjuster: a}
		l.spender = l.paced
	}
	l.client, l.opts = c, o
	l.id = lease.ResourceID{Limit: name, Key: key}
	l.state.Store(&agent.State{})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return ErrClosed
	}
	if c.named[l.id] != nil {
		return fmt.Errorf("%w: %q", ErrOpen, name)
	}
	a := c.laneOf(l.id)
	a.open(l, options)
	c.named[l.id] = l
	a.nudge()
	return nil
}
