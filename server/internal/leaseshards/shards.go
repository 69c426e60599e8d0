// Package leaseshards divides the limits that are shared by leases among coordinators: each has a shard
// of all resources, by limit and key, and an election of its own, so that the members of a cluster lend
// side by side. A server has one service for each shard; those that it does not lead stand by.
package leaseshards

import (
	"cmp"
	"context"
	"maps"
	"net/http"
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
	"github.com/stint-io/stint/server/internal/leaseservice"
)

// Set is the services of all shards in one process. Make it with [New]. Its methods are safe for
// concurrent use.
type Set struct {
	leasepb.UnimplementedLeasesServer
	all    []*leaseservice.Service
	spread *spread // nil = there is one shard, or one member
}

// New returns a service for each of n shards; less than 1 counts as 1. Options.Shard and Shards are
// not read.
func New(o leaseservice.Options, n int) *Set {
	s := &Set{}
	for shard := range max(1, n) {
		own := o
		if own.Shard, own.Shards = shard, max(1, n); n > 1 {
			scope := leaseservice.Scope(shard, n)
			if own.State = o.State.Of(scope); o.RaiseOf != nil {
				own.Raise = func(epoch uint64) error { return o.RaiseOf(scope, epoch) }
			}
		}
		s.all = append(s.all, leaseservice.New(own))
	}
	return s
}

// Hold implements the service of the protocol: the stream says which shard it is for.
func (s *Set) Hold(srv grpc.BidiStreamingServer[leasepb.Report, leasepb.Grant]) error {
	one, err := s.addressed(srv.Context())
	if err != nil {
		return err
	}
	return one.Hold(srv)
}

// Replicate implements the service of the protocol: the stream says which shard it is for.
func (s *Set) Replicate(srv grpc.BidiStreamingServer[leasepb.Confirmation, leasepb.Levels]) error {
	one, err := s.addressed(srv.Context())
	if err != nil {
		return err
	}
	return one.Replicate(srv)
}

// Ask implements the service of the protocol: the call says which shard it is for.
func (s *Set) Ask(ctx context.Context, m *leasepb.Asks) (*leasepb.Answers, error) {
	one, err := s.addressed(ctx)
	if err != nil {
		return nil, err
	}
	return one.Ask(ctx, m)
}

// Answer answers what this server asks itself for: see [leaseservice.Service.Answer].
func (s *Set) Answer(ctx context.Context, shard int, asks []lease.Ask) ([]lease.Answer, error) {
	return s.all[shard].Answer(ctx, asks)
}

// Leader returns the member that coordinates a shard: see [leaseservice.Service.Leader].
func (s *Set) Leader(shard int) (leader cluster.Member, here, known bool) {
	return s.all[shard].Leader()
}

// addressed returns the service of the shard that a stream is for.
func (s *Set) addressed(ctx context.Context) (*leaseservice.Service, error) {
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

// Pipe opens the stream of an instance in this process to the coordinator of a shard: see
// [leaseservice.Service.Pipe].
func (s *Set) Pipe(ctx context.Context, shard int) (*leaseservice.Pipe, error) {
	return s.all[shard].Pipe(ctx)
}

// LastingPipe is Pipe for an instance whose leases outlast a term: see [leaseservice.Service.LastingPipe].
func (s *Set) LastingPipe(ctx context.Context, shard int) (*leaseservice.Pipe, error) {
	return s.all[shard].LastingPipe(ctx)
}

// FindLeader waits until it is known which member coordinates a shard.
func (s *Set) FindLeader(ctx context.Context, shard int) (leader cluster.Member, here bool, err error) {
	return s.all[shard].FindLeader(ctx)
}

// ShardOf returns the shard of a resource, by its bucket's key.
func (s *Set) ShardOf(id lease.ResourceID) int { return s.all[0].ShardOf(id) }

// Shards is how many there are.
func (s *Set) Shards() int { return len(s.all) }

// Run lends until ctx ends, and returns once everything it started has ended. It reports whether
// nothing was lent at the end, in no shard. It runs once.
func (s *Set) Run(ctx context.Context) (nothingLent bool) {
	defer s.beginSpreading()() // those who go on see this member until it has resigned
	var wg sync.WaitGroup
	nothing := make([]bool, len(s.all))
	for i, one := range s.all {
		wg.Go(func() { nothing[i] = one.Run(ctx) })
	}
	wg.Wait()
	return !slices.Contains(nothing, false)
}

// Last returns what a later start of a server that is alone has to know: see [leaseservice.Service.Last].
func (s *Set) Last() []byte { return s.all[0].Last() }

// Drain has all lend nothing more, before this server gives back its own leases: its successors lend
// what comes back. Without other members it does nothing, and reports so.
func (s *Set) Drain(ctx context.Context) (members bool) {
	var draining sync.WaitGroup
	for _, one := range s.all {
		if _, _, ok := one.Terms(); ok {
			members = true
			draining.Go(func() { one.Drain(ctx, true) })
		}
	}
	draining.Wait()
	return members
}

// Reseal replaces the keys that sign leases and are believed.
func (s *Set) Reseal(keys [][]byte) {
	for _, one := range s.all {
		one.Reseal(keys)
	}
}

// Reload makes all lend by the limits of set from here on.
func (s *Set) Reload(set *rules.Set) {
	for _, one := range s.all {
		one.Reload(set)
	}
}

// AwaitLeasing waits until a limit is shared by leases.
func (s *Set) AwaitLeasing(ctx context.Context) error { return s.all[0].AwaitLeasing(ctx) }

// Leasing says whether a limit of those in force is shared by leases.
func (s *Set) Leasing() bool { return s.all[0].Leasing() }

// Recovering is for how long yet some shard does not know what a former coordinator has lent; 0 = all
// know.
func (s *Set) Recovering() (longest time.Duration) {
	for _, one := range s.all {
		longest = max(longest, one.Recovering())
	}
	return longest
}

// Asking says whether it is not known yet of some shard which member may lend.
func (s *Set) Asking() bool {
	return slices.ContainsFunc(s.all, (*leaseservice.Service).Asking)
}

// ParentProblem returns what is wrong with the parent; nil = nothing, or there is none.
func (s *Set) ParentProblem() error { return s.all[0].ParentProblem() }

// Supplied says whether a site has capacity from its parent.
func (s *Set) Supplied() bool { return s.all[0].Supplied() }

// Standing is what a member of a cluster shows of its elections.
type Standing struct {
	Shards, Led int  // all, and those that this member coordinates
	Known       bool // of each shard it is known which member coordinates
	Terms       uint64
	Epoch       uint64 // the highest of this member's terms

	Replicas       int // the fewest of a shard that this member coordinates
	ReplicaBuckets int // that this member knows of the others
}

// Standing returns how this member stands; ok is false without other members.
func (s *Set) Standing() (st Standing, ok bool) {
	st = Standing{Shards: len(s.all), Known: true}
	for _, one := range s.all {
		terms, epoch, is := one.Terms()
		if !is {
			return Standing{}, false
		}
		_, here, known := one.Leader()
		replicas, buckets := one.Replicas()
		if here {
			if st.Led++; st.Led == 1 || replicas < st.Replicas {
				st.Replicas = replicas
			}
		} else {
			st.ReplicaBuckets += buckets
		}
		st.Known = st.Known && known
		st.Terms += terms
		st.Epoch = max(st.Epoch, epoch)
	}
	return st, true
}

// ServeHTTP answers GET /v1/leases with the resources of all shards that this member coordinates.
func (s *Set) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	leaseservice.ServePage(w, r, s.all...)
}

// Usage is what instances of other processes have decided since the start, ascending by limit.
func (s *Set) Usage() []lease.Usage {
	sums := map[string]lease.Usage{}
	for _, one := range s.all {
		for _, u := range one.Usage() {
			sum := sums[u.Limit]
			sums[u.Limit] = lease.Usage{Limit: u.Limit, Admitted: sum.Admitted + u.Admitted, Refused: sum.Refused + u.Refused}
		}
	}
	return sorted(sums, func(a, b lease.Usage) int { return cmp.Compare(a.Limit, b.Limit) })
}

// Instances returns the figures of all instances, each limit's sums over the shards; see
// [leaseservice.Service.Instances].
func (s *Set) Instances(ctx context.Context) (figures []leaseservice.InstanceFigures, others int, ok bool) {
	type pair struct{ limit, instance string }
	sums := map[pair]leaseservice.InstanceFigures{}
	for _, one := range s.all {
		part, more, ok := one.Instances(ctx)
		if !ok {
			return nil, 0, false
		}
		others += more
		for _, f := range part {
			sum, known := sums[pair{f.Limit, f.Instance}]
			if !known {
				sum = leaseservice.InstanceFigures{Limit: f.Limit, Instance: f.Instance}
			}
			sum.Wanted += f.Wanted
			sum.Lent += f.Lent
			sum.Admitted += f.Admitted
			sum.Refused += f.Refused
			sums[pair{f.Limit, f.Instance}] = sum
		}
	}
	return sorted(sums, func(a, b leaseservice.InstanceFigures) int {
		return cmp.Or(cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Instance, b.Instance))
	}), others, true
}

func sorted[K comparable, V any](m map[K]V, compare func(a, b V) int) []V {
	return slices.SortedFunc(maps.Values(m), compare)
}
