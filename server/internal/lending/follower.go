package lending

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
)

// lookAgain is how long a follower waits before it looks for a leader again. Not longer: a leader without a
// replica has a successor that knows nothing. Not shorter: a leader that recovers refuses it.
const lookAgain = 200 * time.Millisecond

// ConnectReplica opens a stream to the leader of a shard at an address. close ends what the stream stands on.
type ConnectReplica func(ctx context.Context, address string, shard int) (stream grpc.BidiStreamingClient[leasepb.Confirmation, leasepb.Levels], close func(), err error)

// follower keeps a replica of what the leader knows. leader, connect and now are required. Its methods are
// safe for concurrent use.
type follower struct {
	// leader returns where the leader is; ok is false while it is not known, or is this member.
	leader  func() (address string, ok bool)
	connect ConnectReplica
	shard   int
	now     func() limit.Time

	mu    sync.Mutex
	known replica
}

// replica is what came on one stream.
type replica struct {
	id, epoch uint64
	levels    *coordinator.Replica // nil = nothing has come
	complete  bool
}

// run follows whoever leads until ctx ends.
func (f *follower) run(ctx context.Context) {
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for {
		if address, ok := f.leader(); ok {
			// An error is the leader's end, or this connection's: the next look tells. What is known
			// stays, since the record may name it.
			_ = f.follow(ctx, address)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// watch calls another when a member at another address leads. The stream to a leader whose host hangs does not
// end before its connection is probed, and meanwhile the next leader had no replica.
func (f *follower) watch(ctx context.Context, address string, another func()) {
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
		if now, ok := f.leader(); ok && now != address {
			another()
		}
	}
}

// follow keeps a new replica by one stream, until that ends or another member leads.
func (f *follower) follow(ctx context.Context, address string) error {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { f.watch(ctx, address, cancel) })
	stream, end, err := f.connect(ctx, address, f.shard)
	if err != nil {
		return err
	}
	defer end()
	own := replica{id: rand.Uint64()}
	if err := stream.Send(&leasepb.Confirmation{Replica: own.id}); err != nil {
		return err
	}
	var levels []coordinator.Level
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if levels, err = fromLevels(levels[:0], m); err != nil {
			return err
		}
		if !f.update(&own, m, levels) {
			continue
		}
		if err := stream.Send(&leasepb.Confirmation{Replica: own.id, Number: m.Number}); err != nil {
			return err
		}
	}
}

// update takes a message, and reports whether the replica knows all up to it.
func (f *follower) update(own *replica, m *leasepb.Levels, levels []coordinator.Level) (complete bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if own.levels == nil {
		own.levels, own.epoch = coordinator.NewReplica(now, time.Duration(m.Others)), m.Epoch
	}
	own.levels.Update(now, levels)
	if own.complete = own.complete || m.Complete; own.complete {
		f.known = *own // not before: the one of the former stream may be in the record
	}
	return own.complete
}

// used returns what is known of the buckets when a term begins, if the record of the former leader, which had
// that epoch, names the replica of this member; else nil.
func (f *follower) used(now limit.Time, former uint64, s *coordinator.InSync) *coordinator.Used {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k := &f.known; k.complete && k.epoch == former && s.Has(former, k.id) {
		return k.levels.Used(now)
	}
	return nil
}

// buckets is how many buckets are known that are not full.
func (f *follower) buckets() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known.levels == nil {
		return 0
	}
	return f.known.levels.Buckets()
}
