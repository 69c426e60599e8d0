package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/clusterurl"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/server/internal/admin"
	"github.com/stint-io/stint/server/internal/lending"
	"github.com/stint-io/stint/server/internal/spending"
)

// Cluster says how this server and others coordinate the limits that are shared by leases: one of
// them lends, and another takes its place when it stops. The zero value is a server without others.
type Cluster struct {
	// URL is the backend in which the members elect the one that lends, such as
	// etcd://127.0.0.1:2379/stint; "" = there are no other members.
	URL string
	// Node names this member; "" = the host with a random number. No two members have one name.
	Node string
	// Advertise is where instances and other members reach the gRPC port, host:port; "" =
	// the address that it listens on.
	Advertise string
	// LeaseKeyFile has the keys that sign leases, in base64, a line each: the first signs, all
	// are believed. All members have the same. "" = the members keep one in the backend.
	LeaseKeyFile string
	// TTL is how long a leader goes on without its backend, and how long nobody leads after it was
	// killed; 0 = one second.
	TTL time.Duration
	// Shards is among how many coordinators the limits are divided, by limit and key, so that members
	// lend side by side; 0 = 1. All members have the same number.
	Shards int
}

// given are the flags of what is set beside the URL.
func (c *Cluster) given() string {
	var flags []string
	for _, one := range []struct {
		set  bool
		flag string
	}{
		{c.Node != "", "--node"},
		{c.Advertise != "", "--advertise"},
		{c.LeaseKeyFile != "", "--lease-key-file"},
		{c.TTL != 0, "--cluster-ttl"},
		{c.Shards != 0, "--cluster-shards"},
	} {
		if one.set {
			flags = append(flags, one.flag)
		}
	}
	return strings.Join(flags, ", ")
}

// leaseKeyRecord is the key of the record about the keys that sign leases.
const leaseKeyRecord = "lease-key"

// minLeaseKey is how many bytes a key has at least.
const minLeaseKey = 16

// askBackend is how long a start waits for the backend to say which lease key the members have.
const askBackend = 2 * time.Second

// askName is how long a start waits until it is known whether the process that had its name lives.
const askName = askBackend + 3*cluster.DefaultPresence

// complete returns what is wrong. parent says that the server is one of a site,
// peersNeeded that members cannot reach each other as they are told.
func (c *Cluster) complete(grpcAddr string, parent, peersNeeded bool) error {
	if c.URL == "" {
		if *c != (Cluster{}) {
			return fmt.Errorf("server: %s is for a member of a cluster: say of which with --cluster, such as etcd://127.0.0.1:2379, or leave it out", c.given())
		}
		return nil
	}
	if c.Node == "" {
		c.Node = randomNode()
	}
	if c.Shards == 0 {
		c.Shards = 1
	}
	if c.Shards < 0 || c.Shards > lease.MaxShards {
		return fmt.Errorf("server: %d shards, want 1 to %d", c.Shards, lease.MaxShards)
	}
	host, _, err := net.SplitHostPort(cmp.Or(c.Advertise, grpcAddr))
	if ip := net.ParseIP(host); err != nil || c.Advertise == "" && (host == "" || ip != nil && ip.IsUnspecified()) {
		return fmt.Errorf("server: where other members and instances reach the gRPC port cannot be told from %q: give it with --advertise, such as 10.0.0.7:8081", cmp.Or(c.Advertise, grpcAddr))
	}
	if c.Shards > 1 && parent {
		return errors.New("server: a site has its capacity from one coordinator: leave out --cluster-shards, or --parent")
	}
	if peersNeeded {
		return errors.New("server: members reach each other on the gRPC port, which has TLS: say how with --peer-ca, and --peer-cert and --peer-key or --peer-token-file where the port asks who comes")
	}
	if c.TTL < 0 {
		return fmt.Errorf("server: the TTL of a term is %v, want at least 20ms, or nothing for %v", c.TTL, cluster.DefaultTTL)
	}
	if c.LeaseKeyFile != "" {
		if _, err := readLeaseKeys(c.LeaseKeyFile); err != nil {
			return err
		}
	} else if strings.HasPrefix(c.URL, "kubernetes") {
		return errors.New("server: whoever may read Leases in Kubernetes would read the lease key: give it with --lease-key-file, from a Secret")
	}
	return nil
}

// readLeaseKeys reads the keys of a file.
func readLeaseKeys(file string) (keys [][]byte, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("server: cannot read the lease keys: %w", err)
	}
	for i, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(line)
		if err != nil || len(key) < minLeaseKey {
			return nil, fmt.Errorf("server: %s:%d: not a lease key: want at least %d bytes in base64, as 'openssl rand -base64 32' prints", file, i+1, minLeaseKey)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("server: %s has no lease key: put in what 'openssl rand -base64 32' prints", file)
	}
	return keys, nil
}

// leaseKey is the record about the keys: the key itself, or the fingerprint of the one that signs,
// where members have them in files.
type leaseKey struct {
	Key         []byte `json:"key,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
}

// errOtherKey says that a member has other keys than the rest.
var errOtherKey = errors.New("server: this member has another lease key than the cluster: give all members the same --lease-key-file, or none; to replace a key, first add the new one as the last line everywhere, then make it the first line, then take the old one out")

func fingerprint(key []byte) string {
	sum := sha256.Sum256(append([]byte("stint lease key "), key...))
	return hex.EncodeToString(sum[:8])
}

// leaseKeys returns the keys by which members sign leases, as the register and the file say. Former are those that
// it returned before: a register that has lost its records is given the first of them again.
func leaseKeys(ctx context.Context, register cluster.Register, file string, former [][]byte) ([][]byte, error) {
	var own [][]byte
	if file != "" {
		var err error
		if own, err = readLeaseKeys(file); err != nil {
			return nil, err
		}
	}
	for {
		record, err := register.Read(ctx, leaseKeyRecord)
		if err != nil {
			return nil, fmt.Errorf("server: which lease key the members have cannot be read: %w", err)
		}
		var known leaseKey
		if record.Revision != 0 {
			if err := json.Unmarshal(record.Value, &known); err != nil {
				return nil, fmt.Errorf("server: the record %s of the cluster is damaged: %w; delete it while no member runs", leaseKeyRecord, err)
			}
		}
		next := known
		switch {
		case own != nil && record.Revision != 0 && !slices.ContainsFunc(own, func(k []byte) bool { return fingerprint(k) == known.Fingerprint }),
			own == nil && record.Revision != 0 && len(known.Key) < minLeaseKey:
			return nil, errOtherKey
		case own != nil:
			next.Fingerprint = fingerprint(own[0])
		case record.Revision == 0 && len(former) > 0:
			next.Key = former[0]
		case record.Revision == 0:
			next.Key = make([]byte, 32)
			rand.Read(next.Key) // never fails
		}
		if next.Fingerprint != known.Fingerprint || record.Revision == 0 {
			text, err := json.Marshal(next)
			if err == nil {
				_, err = register.Swap(ctx, leaseKeyRecord, record.Revision, text)
			}
			if errors.Is(err, cluster.ErrChanged) {
				continue // another member was faster
			}
			if err != nil {
				return nil, fmt.Errorf("server: the lease key cannot be agreed on: %w", err)
			}
		}
		if own != nil {
			return own, nil
		}
		if i := slices.IndexFunc(former, func(k []byte) bool { return bytes.Equal(k, next.Key) }); i >= 0 {
			former = slices.Delete(slices.Clone(former), i, i+1)
		}
		return append([][]byte{next.Key}, former...), nil
	}
}

// errOtherShards says that a member divides the limits among another number of coordinators.
var errOtherShards = errors.New("server: the members of a cluster have the same number of shards")

// agreeOnShards has the record say that there are n shards, or returns that it says otherwise: members
// that divide the keys in two ways would lend some of them twice. Nobody lends before they agree.
func agreeOnShards(ctx context.Context, register cluster.Register, n int) error {
	for {
		record, err := register.Read(ctx, cluster.ShardsRecord)
		if err != nil {
			return fmt.Errorf("server: how many shards the members have cannot be read: %w", err)
		}
		if record.Revision != 0 {
			if said, err := strconv.Atoi(string(record.Value)); err != nil || said != n {
				return fmt.Errorf("%w: this one has %d, and the others %.20q: give it --cluster-shards with that number, or stop all members, delete the record %s and start them with the new one", errOtherShards, n, record.Value, cluster.ShardsRecord)
			}
			return nil
		}
		_, err = register.Swap(ctx, cluster.ShardsRecord, 0, strconv.AppendInt(nil, int64(n), 10))
		if !errors.Is(err, cluster.ErrChanged) {
			if err != nil {
				return fmt.Errorf("server: the number of shards cannot be agreed on: %w", err)
			}
			return nil
		}
	}
}

// openCluster opens the backend; nil = there is none.
func openCluster(url string) (*cluster.Witness, error) {
	if url == "" {
		return nil, nil
	}
	register, err := clusterurl.Open(url)
	if err != nil {
		return nil, fmt.Errorf("server: --cluster: %w", err)
	}
	return cluster.NewWitness(register), nil
}

// join makes the coordinator one of the members, now that it is known where it listens.
func (l *leases) join(ctx context.Context, o *Options, grpcAddr net.Addr) error {
	if l.register == nil {
		return nil
	}
	c := &l.cluster
	l.node = c.Node
	self := cluster.Member{ID: c.Node, Address: cmp.Or(c.Advertise, grpcAddr.String())}
	if a, ok := grpcAddr.(*net.TCPAddr); ok && c.Advertise == "" && a.IP.IsUnspecified() {
		self.Address = "" // of services that share a store; others have said it
	}
	presence := cluster.PresenceOptions{Register: l.register, Self: self, Logger: o.Logger}
	member := lending.Cluster{Register: l.register, Self: self, TTL: c.TTL, Replicate: o.replicate, First: o.FirstStart, WhenLeasing: l.implied}
	var known struct {
		sync.Mutex
		keys [][]byte
	}
	if l.implied {
		known.keys = [][]byte{l.state.Key} // of a former start, where the store has lost its own
	}
	member.Keys = func(ctx context.Context) ([][]byte, error) {
		if err := agreeOnShards(ctx, l.register, c.Shards); err != nil {
			return nil, err
		}
		known.Lock()
		defer known.Unlock()
		keys, err := leaseKeys(ctx, l.register, c.LeaseKeyFile, known.keys)
		if err == nil && c.LeaseKeyFile == "" {
			known.keys = keys
		}
		return keys, err
	}
	if !l.implied {
		if err := l.introduce(ctx, o, member.Keys, presence); err != nil {
			return err
		}
	}
	if err := l.Join(member, presence); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	return nil
}

// introduce says to the other members that this one is there, and returns an error where it may not be one.
func (l *leases) introduce(ctx context.Context, o *Options, keys func(context.Context) ([][]byte, error), presence cluster.PresenceOptions) error {
	asking, cancel := context.WithTimeout(ctx, askBackend)
	defer cancel()
	_, err := keys(asking)
	if err == nil {
		err = awaitName(ctx, presence)
	}
	switch {
	case errors.Is(err, errOtherKey), errors.Is(err, errOtherShards), errors.Is(err, cluster.ErrNameTaken):
		return err
	case err != nil && ctx.Err() == nil:
		o.Logger.Warn("the backend of the cluster does not answer yet: no limit is lent before it does", "error", err, "hint", "stint doctor --cluster URL looks at it")
	}
	if l.cluster.Shards == 1 {
		l.presence = cluster.NewPresence(presence) // of several shards the Set has one
	}
	return nil
}

// replicate opens the stream by which this member knows what the leader of a shard has lent.
func (o *Options) replicate(ctx context.Context, address string, shard int) (grpc.BidiStreamingClient[leasepb.Confirmation, leasepb.Levels], func(), error) {
	conn, err := client.Dial(address, o.peers())
	if err != nil {
		return nil, nil, err
	}
	end := func() { _ = conn.Close() } // nothing is left to be sent
	stream, err := leasepb.NewLeasesClient(conn).Replicate(metadata.AppendToOutgoingContext(ctx, client.ShardHeader, strconv.Itoa(shard)))
	if err != nil {
		end()
		return nil, nil, err
	}
	return stream, end, nil
}

// awaitName returns when no other process is the member of this name, or says that one is.
func awaitName(ctx context.Context, o cluster.PresenceOptions) error {
	ctx, cancel := context.WithTimeout(ctx, askName)
	defer cancel()
	err := cluster.AwaitName(ctx, o)
	if errors.Is(err, cluster.ErrNameTaken) {
		return fmt.Errorf("server: %w: it goes on undisturbed, and this process ends: give each member a --node of its own", err)
	}
	return err
}

// reseal reads the lease keys again.
func (l *leases) reseal(o *Options) error {
	if l.register == nil || o.Cluster.LeaseKeyFile == "" {
		return nil
	}
	keys, err := readLeaseKeys(o.Cluster.LeaseKeyFile)
	if err != nil {
		return err
	}
	l.Reseal(keys)
	return nil
}

// member returns what metrics show of a member of a cluster; nil = there is none.
func (l *leases) member() *admin.Cluster {
	st, ok := l.Standing()
	if !ok || l.implied && !l.Leasing() {
		return nil
	}
	return &admin.Cluster{Leads: st.Led > 0, LeaderKnown: st.Known, Epoch: l.epochSeen(), Terms: st.Terms, Shards: st.Shards, Led: st.Led, Replicas: st.Replicas, ReplicaBuckets: st.ReplicaBuckets}
}

// errNoAddress says that this member cannot reach the one that leads.
func errNoAddress(leader cluster.Member) error {
	return fmt.Errorf("%s lends the limits that are shared by leases, and does not say where it is reached: start each service that shares the store with --advertise, such as 10.0.0.7:8081, and --cluster with the URL of the store", leader.ID)
}

// connect opens the stream of this server's own instance: to the coordinator in this process, or
// to the member that leads.
func (l *leases) connect(ctx context.Context, away client.Transport) (spending.Stream, error) {
	shard := client.StreamShard(ctx)
	leader, here, err := l.FindLeader(ctx, shard)
	if err != nil {
		return nil, err
	}
	if here {
		return l.Pipe(ctx, shard)
	}
	if leader.Address == "" {
		return nil, errNoAddress(leader)
	}
	stream, err := away.Connect(ctx, leader.Address)
	if err != nil {
		return nil, fmt.Errorf("%s at %s leads: %w", leader.ID, leader.Address, err)
	}
	return spending.Away(stream), nil
}
