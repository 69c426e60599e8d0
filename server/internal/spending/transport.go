package spending

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
)

// transport connects the client to the coordinator in this process.
type transport struct {
	connect func(ctx context.Context) (Stream, error)
	shardOf func(id lease.ResourceID) int
	names   *aliases
}

// Shard implements client.Sharder: the keys are the bucket's own, so no coordinator sends one on.
func (t *transport) Shard(alias, _ string, shards int) int {
	if t.shardOf == nil {
		return 0
	}
	return min(t.shardOf(t.names.id(alias)), shards-1)
}

// Connect implements client.Transport.
func (t *transport) Connect(ctx context.Context, _ string) (client.Stream, error) {
	s, err := t.connect(ctx)
	if err != nil {
		return nil, err
	}
	return &stream{s, t.names}, nil
}

type stream struct {
	Stream
	names *aliases
}

// Send implements client.Stream. The client opens limits by an alias for the limit and
// its key, which is replaced by the two here.
func (s *stream) Send(r *lease.Report) error {
	s.names.resolve(r.Demands)
	return s.Stream.Send(r)
}

// Close implements client.Stream. The stream ends with the context it was opened with.
func (s *stream) Close() {
	if c, ok := s.Stream.(interface{ Close() }); ok {
		c.Close()
		return
	}
	_ = s.CloseSend() // it is over, however it went
}

// Away makes a stream to a coordinator in another server one of this package: that server names
// resources by the same keys, but has to be sent them as such.
func Away(s client.Stream) Stream { return away{s} }

type away struct{ client.Stream }

// Send implements Stream.
func (a away) Send(r *lease.Report) error {
	for i := range r.Demands {
		if id := &r.Demands[i].Resource; id.Limit != "" && id.Key != "" {
			id.Key = leasewire.MemberKey(id.Key)
		}
	}
	return a.Stream.Send(r)
}

// forgetAfter is how long an alias outlives its lease. Not shorter: what the client
// reports of the lease after it was closed must find it. Not longer: keys that come once
// would pile up.
const forgetAfter = 30 * time.Second

// aliases are names for resources whose key is the engine's. Keys of clients are
// encoded in another way, and bounded; the engine's come as they are.
type aliases struct {
	mu      sync.Mutex
	serial  uint64
	known   map[string]lease.ResourceID
	retired map[lease.ResourceID]retired // those that are closed
	closed  []retired                    // in the order of closing
}

func newAliases() *aliases {
	return &aliases{known: map[string]lease.ResourceID{}, retired: map[lease.ResourceID]retired{}}
}

type retired struct {
	alias string
	at    time.Time
}

// add returns a name for a resource: the one it had if that is not forgotten yet. The client then has
// the lease that was closed acknowledged before it reports the new one; the coordinator refuses a
// second lease of one resource.
func (a *aliases) add(id lease.ResourceID) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r, ok := a.retired[id]; ok {
		delete(a.retired, id)
		return r.alias
	}
	a.serial++
	alias := strconv.FormatUint(a.serial, 36)
	a.known[alias] = id
	return alias
}

// id returns the resource of a name.
func (a *aliases) id(alias string) lease.ResourceID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.known[alias]
}

// retire forgets a name some time after now.
func (a *aliases) retire(now time.Time, alias string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := retired{alias, now}
	a.retired[a.known[alias]] = r
	a.closed = append(a.closed, r)
}

// sweep forgets names that were retired long before now.
func (a *aliases) sweep(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for n < len(a.closed) && now.Sub(a.closed[n].at) >= forgetAfter {
		r := a.closed[n]
		if id := a.known[r.alias]; a.retired[id] == r { // it is not in use again
			delete(a.retired, id)
			delete(a.known, r.alias)
		}
		n++
	}
	a.closed = append(a.closed[:0], a.closed[n:]...)
}

// resolve replaces names by their resources.
func (a *aliases) resolve(demands []lease.Demand) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range demands {
		if r := &demands[i].Resource; r.Limit != "" {
			*r = a.known[r.Limit] // a forgotten one was closed, and the coordinator takes it so
		}
	}
}

// Stream is a stream to the coordinator in this process. It is used as
// [client.Stream] says.
type Stream interface {
	Send(r *lease.Report) error
	CloseSend() error
	Receive() (*lease.Grant, error)
}
