package lending

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/rules"
)

// Service lends all shards, as far as this member leads them. Make it with [New], register it with gRPC, and
// [Service.Run] it. Its methods are safe for concurrent use.
type Service struct {
	leasepb.UnimplementedLeasesServer
	all    []*shard
	spread *spread // nil = there is one shard, or one member
}

// New returns a service with n shards; less than 1 counts as 1. It lends nothing before Run.
func New(o Options, n int) *Service {
	s := &Service{}
	for shard := range max(1, n) {
		own := o
		if own.shard, own.shards = shard, max(1, n); n > 1 {
			scope := Scope(shard, n)
			if own.State = o.State.of(scope); o.RaiseOf != nil {
				own.Raise = func(epoch uint64) error { return o.RaiseOf(scope, epoch) }
			}
		}
		s.all = append(s.all, newShard(own))
	}
	return s
}

// Hold implements the service of the protocol: the stream says which shard it is for.
func (s *Service) Hold(srv grpc.BidiStreamingServer[leasepb.Report, leasepb.Grant]) error {
	one, err := s.addressed(srv.Context())
	if err != nil {
		return err
	}
	return one.hold(srv)
}

// Replicate implements the service of the protocol: the stream says which shard it is for.
func (s *Service) Replicate(srv grpc.BidiStreamingServer[leasepb.Confirmation, leasepb.Levels]) error {
	one, err := s.addressed(srv.Context())
	if err != nil {
		return err
	}
	return one.replicate(srv)
}

// Ask implements the service of the protocol: the call says which shard it is for.
func (s *Service) Ask(ctx context.Context, m *leasepb.Asks) (*leasepb.Answers, error) {
	one, err := s.addressed(ctx)
	if err != nil {
		return nil, err
	}
	return one.ask(ctx, m)
}

// Answer takes what this server asks for from buckets of which nobody has a lease, and returns when a successor knows
// what was taken. After an error it is not known whether something was.
func (s *Service) Answer(ctx context.Context, shard int, asks []lease.Ask) ([]lease.Answer, error) {
	return s.all[shard].answer(ctx, asks)
}

// Leader returns the member that coordinates a shard, as far as it is known; here says that it is this one.
func (s *Service) Leader(shard int) (leader cluster.Member, here, known bool) {
	return s.all[shard].leader()
}

// addressed returns the shard that a stream is for.
func (s *Service) addressed(ctx context.Context) (*shard, error) {
	shard := 0
	md, _ := metadata.FromIncomingContext(ctx)
	if said := md.Get(client.ShardHeader); len(said) > 0 {
		var err error
		if shard, err = strconv.Atoi(said[0]); err != nil || len(said) > 1 {
			return nil, status.Errorf(codes.InvalidArgument, "the metadata %s is %q, want one decimal number", client.ShardHeader, said)
		}
	}
	if shard < 0 || shard >= len(s.all) {
		return nil, status.Errorf(codes.FailedPrecondition, "there is no shard %d: the limits are divided among %d coordinators; where the number was changed, start this instance again", shard, len(s.all))
	}
	return s.all[shard], nil
}

// Pipe opens a stream to the coordinator of a shard, which lives until ctx ends. Keys in its reports are those of
// [rules.Matched], as the engine has them.
func (s *Service) Pipe(ctx context.Context, shard int) (*Pipe, error) {
	return s.all[shard].pipe(ctx, true)
}

// LastingPipe is Pipe for an instance whose leases outlast a term of this member, as those of instances in
// other processes do: somebody else uses them, who cannot be told that the term has ended.
func (s *Service) LastingPipe(ctx context.Context, shard int) (*Pipe, error) {
	one := s.all[shard]
	return one.pipe(ctx, one.membership == nil)
}

// FindLeader waits until it is known which member coordinates a shard.
func (s *Service) FindLeader(ctx context.Context, shard int) (leader cluster.Member, here bool, err error) {
	return s.all[shard].findLeader(ctx)
}

// ShardOf returns the shard of a resource, by its bucket's key.
func (s *Service) ShardOf(id lease.ResourceID) int { return s.all[0].shardOf(id) }

// Shards is how many there are.
func (s *Service) Shards() int { return len(s.all) }

// Run lends until ctx ends, and returns once everything it started has ended. It reports whether
// nothing was lent at the end, in no shard. It runs once.
func (s *Service) Run(ctx context.Context) (nothingLent bool) {
	defer s.beginSpreading()() // those who go on see this member until it has resigned
	var wg sync.WaitGroup
	nothing := make([]bool, len(s.all))
	for i, one := range s.all {
		wg.Go(func() { nothing[i] = one.run(ctx) })
	}
	wg.Wait()
	return !slices.Contains(nothing, false)
}

// Last returns what a later start of a server that is alone, on the same host, has to know of what is left. It is called
// when Run has reported that nothing is lent.
func (s *Service) Last() []byte { return s.all[0].lastRecord(s.all[0].now()) }

// Drain has all lend nothing more, before this server gives back its own leases: its successors lend
// what comes back. Without other members it does nothing, and reports so.
func (s *Service) Drain(ctx context.Context) (members bool) {
	var draining sync.WaitGroup
	for _, one := range s.all {
		if _, _, ok := one.terms(); ok {
			members = true
			draining.Go(func() { one.drain(ctx, true) })
		}
	}
	draining.Wait()
	return members
}

// Reseal replaces the keys that sign leases and are believed.
func (s *Service) Reseal(keys [][]byte) {
	for _, one := range s.all {
		one.reseal(keys)
	}
}

// Reload makes all lend by the limits of set from here on.
func (s *Service) Reload(set *rules.Set) {
	for _, one := range s.all {
		one.reconfigure(set)
	}
}

// AwaitLeasing waits until a limit is shared by leases.
func (s *Service) AwaitLeasing(ctx context.Context) error { return s.all[0].awaitLeasing(ctx) }

// Leasing says whether a limit of those in force is shared by leases.
func (s *Service) Leasing() bool { return s.all[0].hasLeased() }

// Recovering is for how long yet some shard does not know what a former coordinator has lent; 0 = all
// know.
func (s *Service) Recovering() (longest time.Duration) {
	for _, one := range s.all {
		longest = max(longest, one.recovering())
	}
	return longest
}

// Asking says whether it is not known yet of some shard which member may lend.
func (s *Service) Asking() bool {
	return slices.ContainsFunc(s.all, (*shard).asking)
}

// ParentProblem returns what is wrong with the parent; nil = nothing, or there is none.
func (s *Service) ParentProblem() error { return s.all[0].parentProblem() }

// Supplied says whether a site has capacity from its parent.
func (s *Service) Supplied() bool { return s.all[0].supplied() }
