package redis

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

const (
	// connectTime bounds the making of a connection, and how long a silent one counts as alive,
	// unless calls may take longer. Not longer: the client leaves a dead master that much
	// later. Not shorter: a TLS handshake with a busy host takes a while, and each new attempt
	// loads that host.
	connectTime = 500 * time.Millisecond

	// refreshTime is how often the addresses of masters are asked for. Events and redirections
	// announce most changes sooner.
	refreshTime = time.Second

	// buffer is that of each connection for each way, in bytes. Calls are short:
	// more would only be memory of every node of a cluster.
	buffer = 64 << 10

	clientName = "stint"
)

// The server at the address is not of the kind that the URL says.
var (
	errNoCluster = &trouble{"this is no cluster", "write redis:// for redis+cluster://"}
	errCluster   = &trouble{"this is a node of a cluster", "write redis+cluster:// for redis://"}
	errSentinel  = &trouble{"this is a sentinel", "write redis+sentinel://host:26379/mymaster"}
	errReplica   = &trouble{"this is a replica, which is read-only", "give the address of its master, or of sentinels that know it"}
)

// mortal is a connection that is closed when a context ends, whatever is under way on it.
type mortal struct {
	net.Conn
	stop func() bool
}

func (m mortal) Close() error {
	m.stop()
	return m.Conn.Close()
}

// mortals returns a dial function whose connections end with ctx. Without it, closing the client
// would wait for a silent server, a second or more for each connection.
func mortals(ctx context.Context) func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
	return func(dialing context.Context, address string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
		dialing, cancel := context.WithCancel(dialing)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		dial := d.DialContext
		if config != nil {
			dial = (&tls.Dialer{NetDialer: d, Config: config}).DialContext
		}
		conn, err := dial(dialing, "tcp", address)
		if err != nil {
			return nil, err
		}
		return mortal{conn, context.AfterFunc(ctx, func() { _ = conn.Close() })}, nil
	}
}

// newClient connects as the Options say. It returns when one connection is made,
// after connectTime for each address, or soon after ctx has ended, with which the
// client's connections end too. [describe] makes its error readable.
func newClient(ctx context.Context, o Options) (rueidis.Client, error) {
	dialer := net.Dialer{Timeout: connectTime}
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: o.Addrs,
		Username:    o.Username,
		Password:    o.Password,
		SelectDB:    o.DB,
		TLSConfig:   o.TLS,
		ClientName:  clientName,
		// An ACL may forbid its commands and older servers do not know them: every connection
		// would log a line.
		ClientSetInfo: rueidis.DisableClientSetInfo,
		Sentinel: rueidis.SentinelOption{
			MasterSet:               o.Master,
			Username:                o.SentinelUsername,
			Password:                o.SentinelPassword,
			ClientName:              clientName,
			TLSConfig:               o.TLS,
			Dialer:                  dialer,
			TopologyRefreshInterval: refreshTime,
		},
		ClusterOption:     rueidis.ClusterOption{ShardsRefreshInterval: refreshTime},
		ForceSingleClient: o.Topology == Standalone,
		Dialer:            dialer,
		DialCtxFn:         mortals(ctx),
		// It bounds every call, whatever the call's own deadline.
		ConnWriteTimeout: max(connectTime, o.Timeout),
		// A Take has a deadline; what it asked may have been done.
		DisableRetry: true,
		DisableCache: true,
		// 0 is one connection to each node of a cluster, and otherwise as many as
		// the logarithm of the processors says: 1, 2 or 4.
		PipelineMultiplex:   0,
		ReadBufferEachConn:  buffer,
		WriteBufferEachConn: buffer,
	})
	if err != nil {
		if c != nil {
			c.Close()
		}
		return nil, err
	}
	if o.Topology == Cluster && c.Mode() != rueidis.ClientModeCluster {
		// rueidis falls back to one server when it cannot get the slots.
		ctx, cancel := context.WithTimeout(ctx, connectTime)
		defer cancel()
		err := c.Do(ctx, c.B().ClusterSlots().Build()).Error()
		c.Close()
		if err == nil {
			err = errNoCluster
		}
		return nil, err
	}
	return c, nil
}

// serverInfo is what a server says of itself.
type serverInfo struct {
	Name    string // redis or valkey
	Version string
	Mode    string // standalone, cluster or sentinel
	Role    string // master or replica
}

// The oldest version that is taken: its ACL knows channels.
const oldestMajor, oldestMinor = 6, 2

// inspect asks a server what it is. Its error says that the server does not answer, is too old,
// is a replica, or is not of the kind that the client expects. In a cluster it asks any node,
// replicas included.
func inspect(ctx context.Context, c rueidis.Client) (serverInfo, error) {
	info, err := hello(ctx, c)
	if err == nil {
		err = info.fits(c.Mode())
	}
	return info, err
}

// hello asks a server what it is.
func hello(ctx context.Context, c rueidis.Client) (serverInfo, error) {
	reply, err := c.Do(ctx, c.B().Arbitrary("HELLO").Build()).AsMap()
	if refused, ok := rueidis.IsRedisErr(err); ok && strings.Contains(refused.Error(), "unknown command") {
		return serverInfo{}, tooOld("it does not know HELLO")
	}
	if err != nil {
		return serverInfo{}, err
	}
	field := func(name string) string {
		m := reply[name]
		// What is not there, or no text, is "".
		text, _ := m.ToString()
		return text
	}
	return serverInfo{field("server"), field("version"), field("mode"), field("role")}, nil
}

// fits returns an error when a client of that mode cannot keep counters there.
func (i serverInfo) fits(mode rueidis.ClientMode) error {
	switch {
	case i.Mode == "sentinel":
		return errSentinel
	case i.old():
		return tooOld(i.Name + " " + i.Version + " is too old")
	case mode != rueidis.ClientModeCluster && i.Mode == "cluster":
		return errCluster
	case mode == rueidis.ClientModeCluster && i.Mode == "standalone":
		return errNoCluster
	case mode != rueidis.ClientModeCluster && i.Role != "master":
		return errReplica
	}
	return nil
}

// old reports whether the version is below the oldest. One that is not understood
// is not.
func (i serverInfo) old() bool {
	first, rest, _ := strings.Cut(i.Version, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, err1 := strconv.Atoi(first)
	minor, err2 := strconv.Atoi(second)
	return err1 == nil && err2 == nil && (major < oldestMajor || major == oldestMajor && minor < oldestMinor)
}

func tooOld(what string) error {
	return &trouble{what, fmt.Sprintf("use Redis %d.%d or newer, or Valkey", oldestMajor, oldestMinor)}
}
