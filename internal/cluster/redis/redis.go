// Package redis keeps the records of a cluster in Redis or Valkey, for those who have nothing else.
//
// Redis can lose what it has acknowledged: a server that restarts without its files, or a replica
// that takes over and had not received the last writes. Where replicas are configured
// ([Options.Replicas]), a call counts only when as many of them have confirmed a write made with it
// (WAIT); reads write a mark for that purpose. Otherwise its outcome is unknown, as after a timeout.
// So a leader that is left with an isolated master loses its term within a TTL.
//
// That is no consensus, and this is its bound. A leader that the present master does not know of
// notices it with its next renewal, at most TTL/4 and the time of a call later, if it reaches that
// master. A candidate waits for a TTL and the drift margin from when it first saw the record that
// this master has, also if there is none. So two members lead at the same time only if a failover
// loses records which the configured replicas had confirmed, and a candidate has seen the older
// record for a TTL, or if Replicas is 0 and the former leader goes on reaching the former master. Then
// both lead until that connection ends, and at most TTL beyond: up to twice the limit for that time
// and a lease.
//
// A revision is the server's time in microseconds, or one above the last revision if that is more: a
// server that has lost everything begins above what it used, as long as its clock is right.
package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint/internal/cluster"
)

const (
	// DefaultPrefix begins every key and channel, as in store/redis.
	DefaultPrefix = "stint:"

	// connectTime bounds the making of a connection, and how long a silent one counts as alive. Not
	// longer: a dead master is left that much later.
	connectTime = 500 * time.Millisecond

	// refreshTime is how often the addresses of masters are asked for.
	refreshTime = time.Second

	// watchPause is how long after the loss of a subscription it is made anew.
	watchPause = 250 * time.Millisecond

	clientName = "stint-cluster"
)

// Topology says what the addresses lead to. The zero value is Standalone.
type Topology uint8

// The topologies.
const (
	Standalone Topology = iota // one server
	Sentinel                   // the addresses are sentinels, which know the master
	Cluster                    // any nodes of a Redis Cluster
)

// Options are the options of a Register. Addrs are required.
type Options struct {
	Topology Topology
	Addrs    []string // host:port
	Master   string   // the name that the sentinels know the master by
	DB       int

	Username, Password                 string // of Redis' ACL; "" = none
	SentinelUsername, SentinelPassword string
	TLS                                *tls.Config // nil = plaintext

	Prefix string // "" = DefaultPrefix

	// Replicas is how many replicas must confirm a call; 0 = none. With n replicas n/2, rounded up,
	// make a majority together with the master.
	Replicas int
}

// Register is a [cluster.Register] in Redis. [New] makes it.
type Register struct {
	opts Options
	tag  string // begins each key, and has all of them in one slot of a cluster

	mu struct {
		sync.Mutex
		client     rueidis.Client // nil = there was no connection yet
		connecting chan struct{}  // closed when an attempt has ended; nil = none
		err        error          // of the last attempt
		closed     bool
	}
}

var _ cluster.Register = (*Register)(nil)

// New returns a Register, which connects when it is used.
func New(o Options) (*Register, error) {
	if len(o.Addrs) == 0 {
		return nil, errors.New("redis: no address")
	}
	if o.Replicas < 0 {
		return nil, fmt.Errorf("redis: %d replicas", o.Replicas)
	}
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	return &Register{opts: o, tag: o.Prefix + "{cluster}"}, nil
}

// The scripts' keys are the record, the latest revision, the list of all keys and the mark of
// reads. Only the values of records are not text.
const (
	luaRead = `
if ARGV[2] ~= '0' then redis.call('SET', KEYS[4], ARGV[1]) end
return redis.call('HMGET', KEYS[1], 'revision', 'value')`

	luaSwap = `
local held = redis.call('HGET', KEYS[1], 'revision') or '0'
if held ~= ARGV[2] then return 'changed' end
redis.call('PUBLISH', KEYS[3], ARGV[1])
if ARGV[3] == 'delete' then
  redis.call('DEL', KEYS[1])
  redis.call('SREM', KEYS[3], ARGV[1])
  redis.call('SET', KEYS[4], ARGV[1])
  return '0'
end
local t = redis.call('TIME')
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
local revision = string.format('%.0f', math.max(t[1] * 1000000 + t[2], last + 1))
redis.call('SET', KEYS[2], revision)
redis.call('HSET', KEYS[1], 'revision', revision, 'value', ARGV[4])
redis.call('SADD', KEYS[3], ARGV[1])
return revision`

	luaList = `
if ARGV[2] ~= '0' then redis.call('SET', KEYS[4], ARGV[1]) end
local all = {}
for _, key in ipairs(redis.call('SMEMBERS', KEYS[3])) do
  if string.sub(key, 1, #ARGV[1]) == ARGV[1] then
    local r = redis.call('HMGET', KEYS[3] .. ':' .. key, 'revision', 'value')
    if r[1] then
      all[#all + 1] = key
      all[#all + 1] = r[1]
      all[#all + 1] = r[2]
    end
  end
end
return all`
)

// Read implements [cluster.Register].
func (r *Register) Read(ctx context.Context, key string) (cluster.Record, error) {
	reply, err := r.call(ctx, luaRead, key, r.mark())
	if err != nil {
		return cluster.Record{}, err
	}
	fields, err := reply.ToArray()
	if err != nil || len(fields) != 2 {
		return cluster.Record{}, fmt.Errorf("redis: a record was read in a way that is not known: %w", err)
	}
	if fields[0].IsNil() {
		return cluster.Record{}, nil
	}
	return record(&fields[0], &fields[1])
}

// Swap implements [cluster.Register].
func (r *Register) Swap(ctx context.Context, key string, revision uint64, value []byte) (uint64, error) {
	what := "write"
	if value == nil {
		what = "delete"
	}
	reply, err := r.call(ctx, luaSwap, key, strconv.FormatUint(revision, 10), what, rueidis.BinaryString(value))
	if err != nil {
		return 0, err
	}
	text, err := reply.ToString()
	if err != nil {
		return 0, fmt.Errorf("redis: %w", err)
	}
	if text == "changed" {
		return 0, cluster.ErrChanged
	}
	return strconv.ParseUint(text, 10, 64)
}

// List implements [cluster.Register].
func (r *Register) List(ctx context.Context, prefix string) (map[string]cluster.Record, error) {
	reply, err := r.call(ctx, luaList, prefix, r.mark())
	if err != nil {
		return nil, err
	}
	fields, err := reply.ToArray()
	if err != nil || len(fields)%3 != 0 {
		return nil, fmt.Errorf("redis: records were listed in a way that is not known: %w", err)
	}
	list := map[string]cluster.Record{}
	for i := 0; i < len(fields); i += 3 {
		key, err := fields[i].ToString()
		if err != nil {
			return nil, fmt.Errorf("redis: %w", err)
		}
		if list[key], err = record(&fields[i+1], &fields[i+2]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func record(revision, value *rueidis.RedisMessage) (cluster.Record, error) {
	number, err := revision.ToString()
	if err != nil {
		return cluster.Record{}, fmt.Errorf("redis: %w", err)
	}
	var record cluster.Record
	if record.Revision, err = strconv.ParseUint(number, 10, 64); err != nil {
		return cluster.Record{}, fmt.Errorf("redis: a revision is no number: %w", err)
	}
	if record.Value, err = value.AsBytes(); err != nil {
		return cluster.Record{}, fmt.Errorf("redis: %w", err)
	}
	return record, nil
}

// mark says whether a read has to write, so that replicas can confirm it.
func (r *Register) mark() string { return strconv.Itoa(r.opts.Replicas) }

// call runs a script of one key, and has the replicas confirm it.
func (r *Register) call(ctx context.Context, script, key string, args ...string) (rueidis.RedisMessage, error) {
	var none rueidis.RedisMessage
	client, err := r.connected(ctx)
	if err != nil {
		return none, err
	}
	// WAIT is about the writes of its own connection.
	conn, release := client.Dedicate()
	defer release()
	reply, err := conn.Do(ctx, conn.B().Eval().Script(script).Numkeys(4).
		Key(r.tag+":"+key, r.tag+"#revision", r.tag, r.tag+"#mark").
		Arg(append([]string{key}, args...)...).Build()).ToMessage()
	if err != nil {
		return none, fmt.Errorf("redis: %w", err)
	}
	if r.opts.Replicas == 0 {
		return reply, nil
	}
	confirmed, err := conn.Do(ctx, conn.B().Wait().Numreplicas(int64(r.opts.Replicas)).Timeout(r.timeout(ctx)).Build()).AsInt64()
	if err != nil {
		return none, fmt.Errorf("redis: %w", err)
	}
	if confirmed < int64(r.opts.Replicas) {
		return none, fmt.Errorf("redis: %d of %d replicas have confirmed a call", confirmed, r.opts.Replicas)
	}
	return reply, nil
}

// timeout returns that of WAIT, in milliseconds. 0 would be for ever.
func (r *Register) timeout(ctx context.Context) int64 {
	left := connectTime
	if deadline, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(deadline))
	}
	return max(left.Milliseconds(), 1)
}

// connected returns the client, and makes it if there is none yet. Only one attempt is under way.
func (r *Register) connected(ctx context.Context) (rueidis.Client, error) {
	r.mu.Lock()
	if r.mu.closed {
		r.mu.Unlock()
		return nil, errors.New("redis: the register is closed")
	}
	if client := r.mu.client; client != nil {
		r.mu.Unlock()
		return client, ctx.Err()
	}
	attempt := r.mu.connecting
	if attempt == nil {
		attempt = make(chan struct{})
		r.mu.connecting = attempt
		go r.connect(attempt)
	}
	r.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-attempt:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.client == nil {
		return nil, fmt.Errorf("redis: %w", r.mu.err)
	}
	return r.mu.client, nil
}

// connect makes the client. Close waits for it.
func (r *Register) connect(attempt chan struct{}) {
	client, err := newClient(r.opts)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.client, r.mu.err, r.mu.connecting = client, err, nil
	close(attempt)
}

func newClient(o Options) (rueidis.Client, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: o.Addrs, Username: o.Username, Password: o.Password, SelectDB: o.DB, TLSConfig: o.TLS,
		ClientName: clientName, ClientSetInfo: rueidis.DisableClientSetInfo,
		Sentinel: rueidis.SentinelOption{
			MasterSet: o.Master, Username: o.SentinelUsername, Password: o.SentinelPassword,
			ClientName: clientName, TLSConfig: o.TLS, TopologyRefreshInterval: refreshTime,
		},
		ClusterOption:     rueidis.ClusterOption{ShardsRefreshInterval: refreshTime},
		ForceSingleClient: o.Topology == Standalone,
		ConnWriteTimeout:  connectTime,
		DisableRetry:      true, // a script that timed out may have run
		DisableCache:      true,
	})
	if err != nil && client != nil {
		client.Close()
		client = nil
	}
	return client, err
}

// Watch implements [cluster.Register]. A subscription that ends is made anew.
func (r *Register) Watch(ctx context.Context, prefix string) <-chan struct{} {
	hints := make(chan struct{}, 1)
	hint := func() {
		select {
		case hints <- struct{}{}:
		default: // one is waiting to be received
		}
	}
	go func() {
		defer close(hints)
		for ctx.Err() == nil {
			if client, err := r.connected(ctx); err == nil {
				_ = client.Receive(ctx, client.B().Subscribe().Channel(r.tag).Build(), func(m rueidis.PubSubMessage) {
					if strings.HasPrefix(m.Message, prefix) {
						hint()
					}
				})
				hint() // something may have changed since
			}
			select {
			case <-ctx.Done():
			case <-time.After(watchPause):
			}
		}
	}()
	return hints
}

// Forgets implements [cluster.Register].
func (r *Register) Forgets() bool { return true }

// Close implements [cluster.Register].
func (r *Register) Close() error {
	r.mu.Lock()
	r.mu.closed = true
	attempt := r.mu.connecting
	r.mu.Unlock()
	if attempt != nil {
		<-attempt
	}
	r.mu.Lock()
	client := r.mu.client
	r.mu.Unlock()
	if client != nil {
		client.Close()
	}
	return nil
}
