package lending

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/internal/lease/holding"
	"github.com/stint-io/stint/limit"
)

// This file makes the service one of several members, of which one leads and lends.

// Scope is what the members elect a leader of: one for each shard.
func Scope(shard, shards int) string {
	if shards <= 1 {
		return "leases"
	}
	return fmt.Sprintf("leases-%dof%d", shard, shards)
}

const (
	// findLeader is how long a stream that comes to a follower waits for a leader to be known. Not
	// shorter: an election takes a TTL and a quarter. Not longer: the instance may have
	// another address to try.
	findLeader = 3 * time.Second
	// lookForLeader is how often it checks. An election says nothing when it ends, since what it knows
	// of the leader changes with time alone.
	lookForLeader = 10 * time.Millisecond
	// publishGap is the shortest time between two records of holders. Not longer: the first lease
	// of an instance waits for the record. Not shorter: it bounds what a fleet that starts
	// writes to the backend.
	publishGap = 20 * time.Millisecond
	// renewals is how often this server's own instance renews leases that end with the term.
	renewals = 4
)

// Arrives is how long what was lent last has to arrive before a member hands over, or ends the streams of instances: tokens
// that do not arrive are lost. Nothing new is lent meanwhile.
const Arrives = 50 * time.Millisecond

// membership is what a service knows as one of several members; nil = it is the only one.
type membership struct {
	election *cluster.Election
	self     cluster.Member
	keys     func(ctx context.Context) ([][]byte, error) // nil = that of the State
	forgets  bool                                        // the backend may lose a record
	waits    bool                                        // it takes no part before a limit is shared by leases
	known    atomic.Bool                                 // a leader was known once
	epoch    atomic.Uint64
	terms    atomic.Uint64 // of this member
	inSync   atomic.Int64  // replicas in the latest record
	settled  atomic.Int64  // when leases of the leader before the latest term have ended, as a limit.Time

	records  chan holdersRecord // to the publisher
	follower *follower

	// The rest belongs to the loop.
	holders    holding.Holders // those in the next record
	published  holding.Holders // those that are in the record of this term for certain
	edition    uint64          // of holders: it rises from firstEdition with each that is included
	inRecord   uint64          // the edition that is in the record of this term; 0 = it has none of its own yet
	publishing bool
	term       uint64               // the epoch of the record that this term began with
	shrunk     uint64               // sessions that had ended when holders was made anew
	recovering bool                 // the coordinator was recovering then
	exempted   bool                 // and its own instance was left out
	replicas   *replicaSet          // nil before the first term
	blocked    map[*member]bool     // with grants that wait
	asked      []func(written bool) // answers that wait for the first record of the term
	ownUntil   limit.Time
}

// firstEdition is that of the first record of a term. Before it is written nothing is lent, nothing is taken back and no Ask
// is answered: a term that lapses earlier has changed nothing, and its successor goes on where the term before ended.
const firstEdition = 1

// holdersRecord is what the publisher writes in a term.
type holdersRecord struct {
	coordinator.Record
	edition, term uint64
}

// Cluster is how a service is one of several members.
type Cluster struct {
	// Register is where the members elect the one that coordinates.
	Register cluster.Register
	Self     cluster.Member
	// TTL is how long a term lasts without a renewal; 0 = the default of internal/cluster.
	TTL time.Duration
	// First says that where the register has no record of a leader there never was one. Otherwise one may have
	// lent, and the first leader lends nothing new before those leases have ended.
	First bool
	// WhenLeasing says that this member takes no part before a limit is shared by leases.
	WhenLeasing bool
	// yield says of a scope whether another member than the holder and this one should lead it: see
	// [cluster.Options]. nil = never.
	yield func(scope, holder string) bool
	// Keys returns the secret keys that all members have: the first signs leases, and each of them
	// is believed. It is called when a term begins, and gives the term up by an error. nil = the
	// key of the State, which no other member has.
	Keys func(ctx context.Context) ([][]byte, error)
	// Replicate opens the stream by which this member, as a follower, knows what is left of each bucket of
	// a shard; nil = it does not, and after a kill all buckets count as empty.
	Replicate ConnectReplica
}

// join makes the service one of several members, of which the elected one lends. It is called
// before run. An error says what is wrong with c.
func (s *shard) join(c Cluster) error {
	m := &membership{self: c.Self, keys: c.Keys, forgets: c.Register.Forgets(), waits: c.WhenLeasing, records: make(chan holdersRecord, 1), blocked: map[*member]bool{}}
	m.follower = s.newFollower(c.Replicate)
	m.epoch.Store(s.loop.epoch)
	scope := Scope(s.opts.shard, s.opts.shards)
	var yield func(holder string) bool
	if c.yield != nil {
		yield = func(holder string) bool { return c.yield(scope, holder) }
	}
	e, err := cluster.New(cluster.Options{
		Register: c.Register, Scope: scope, Yield: yield, Self: c.Self, TTL: c.TTL, First: c.First, Known: s.opts.State.former, Logger: s.opts.Logger,
		Epoch: func() uint64 { return max(m.epoch.Load(), epochAbove(0)) },
		Began: s.termBegan, Ended: s.termEnded,
	})
	if err != nil {
		return err
	}
	m.election = e
	s.membership, s.loop.members.shared = m, true
	return nil
}

// termBegan makes the coordinator that of a new term. It lends as soon as the election says that
// this member leads.
func (s *shard) termBegan(ctx context.Context, t cluster.Term) error {
	m := s.membership
	record, err := recordOf(&t, m.forgets, &s.opts.State)
	if err != nil {
		s.opts.Logger.Warn("what the former coordinator has lent is not known: nothing new is lent until its leases have ended", "error", err)
	}
	holders := record.Holders
	var seal *coordinator.Seal
	if m.keys != nil {
		keys, err := m.keys(ctx)
		if err != nil {
			return err
		}
		seal = coordinator.NewSeal(keys[0], keys[1:]...)
	}
	former := cmp.Or(record.Epoch, t.Former)
	known := false
	if !s.inLoop(ctx, func(now limit.Time) {
		m.holders, m.publishing, m.term, m.recovering = holders, false, t.Epoch, true
		m.edition, m.inRecord, m.published = firstEdition, 0, holding.Holders{}
		m.inSync.Store(0)
		_, number := s.loop.coordinator.Levels()
		m.replicas = newReplicaSet(t.Epoch, number)
		for one := range s.loop.members.all() {
			one.waiting = nil
		}
		clear(m.blocked)
		used := record.Used
		if used == nil && m.follower != nil {
			used = m.follower.used(now, t.Former, &record.InSync)
		}
		if used == nil && !t.Lost && !m.forgets && m.terms.Load() > 0 && max(former, t.Unled) == s.loop.coordinator.Epoch() {
			used = s.loop.coordinator.Used(now) // the term before was this member's as well, which did not renew it in time
		}
		known = used != nil
		m.terms.Add(1)
		m.ownUntil = now.Add(s.opts.lease + s.opts.lease/(lease.DriftMargin/2))
		m.settled.Store(int64(m.ownUntil))
		s.step(now, coordinator.Takeover{Epoch: t.Epoch, Former: former, Idle: t.Unled, Holders: holders.Clone(), Used: used, Seal: seal}) // nobody has a stream
		s.noteEpoch()
		s.raise(s.loop.epoch)
	}) {
		return cmp.Or(ctx.Err(), errors.New("the service has ended"))
	}
	s.opts.Logger.Info("this member coordinates the limits that are shared by leases", "shard", s.opts.shard, "epoch", t.Epoch, "former_epoch", former, "holders", holders.Sessions(), "buckets_known", known || t.Former == 0, "recovering", s.recovering() > 0)
	return nil
}

// handOver has this member lead no more: another one takes the term up at once, with what is lent and what
// is left of each bucket, and this one lets others go first for two TTLs. An error says that the term has
// ended, or goes on.
func (s *shard) handOver(ctx context.Context) error {
	m := s.membership
	s.drain(ctx, true)
	select {
	case <-time.After(Arrives):
	case <-ctx.Done():
		s.drain(context.WithoutCancel(ctx), false)
		return ctx.Err()
	}
	var last []byte
	if !s.inLoop(ctx, func(now limit.Time) {
		last = s.lastRecord(now)
	}) {
		return cmp.Or(ctx.Err(), errors.New("the service has ended"))
	}
	err := m.election.Resign(ctx, last)
	if err != nil {
		s.drain(context.WithoutCancel(ctx), false)
	}
	return err
}

// drainPart bounds each part of drain. An instance reports to a new leader within a second; one that is gone never does.
const drainPart = 3 * time.Second

// await waits until the loop finds that ok holds, or for drainPart.
func (s *shard) await(ctx context.Context, ok func(now limit.Time) bool) {
	ctx, cancel := context.WithTimeout(ctx, drainPart)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for done := false; ; {
		if !s.inLoop(ctx, func(now limit.Time) { done = ok(now) }) || done {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// settled reports whether all leases of the leader before this member's latest term have ended.
func (s *shard) settled() bool { return int64(s.now()) >= s.membership.settled.Load() }

// drain has the coordinator lend nothing more, or lend again. It is for a member of a cluster that is about to hand over:
// what comes back meanwhile is the successor's. First it waits until the instances that held leases of the leader before this
// one have claimed them and got new ones, since a coordinator accepts claims to leases of its direct predecessor alone; and in
// the end until no grant waits for a record.
func (s *shard) drain(ctx context.Context, on bool) {
	drain := func(now limit.Time) { s.feed(now, nil, coordinator.Drain{On: on}) }
	if !on || s.membership == nil || !s.lends() {
		s.inLoop(ctx, drain)
		return
	}
	s.await(ctx, func(now limit.Time) bool { return !s.loop.coordinator.Claiming(now) })
	s.inLoop(ctx, drain)
	s.await(ctx, func(limit.Time) bool { return len(s.membership.blocked) == 0 })
}

// lastRecord is what the successor has to know, when nothing is lent any more. It is called by the loop,
// or after it has ended.
func (s *shard) lastRecord(now limit.Time) []byte {
	c := s.loop.coordinator
	r := coordinator.Record{Epoch: s.risenEpoch(), Holders: c.Holders(), Used: c.Used(now)}
	if p := s.membership; p != nil && p.replicas != nil {
		r.InSync = p.replicas.mayBeInRecord()
	}
	return r.Encode()
}

// risenEpoch returns the epoch of the coordinator where it is above that of the term; 0 = it is not.
func (s *shard) risenEpoch() uint64 {
	if epoch := s.loop.coordinator.Epoch(); s.membership != nil && epoch != s.membership.term {
		return epoch
	}
	return 0
}

// reseal replaces the keys that sign leases and are believed, while leases are in use.
func (s *shard) reseal(keys [][]byte) {
	seal := coordinator.NewSeal(keys[0], keys[1:]...)
	s.post(context.Background(), event{snapshot: func(now limit.Time) { s.step(now, coordinator.Reseal{Seal: seal}) }})
}

// recordOf reads what is known when a term begins. A leader publishes a holder before it
// sends the lease, and hands on what its predecessor published: a record without holders says that
// nothing was ever lent, unless the backend may have lost a later one.
//
// What it says of the buckets is of the moment in which the predecessor resigned. A leader that was
// killed has handed on the record of its own predecessor, whose buckets are older. A backend that forgets may show
// a resignation that another term followed, unless this member saw it happen, or knows by its state folder that the
// term was its own and that it led no later one.
func recordOf(t *cluster.Term, forgets bool, own *State) (coordinator.Record, error) {
	switch {
	case t.Lost:
		return coordinator.Record{Holders: holding.Holders{Unknown: true}}, errors.New("the backend has lost its record, or it is the first start")
	case len(t.State) > 0:
		r, err := coordinator.DecodeRecord(t.State)
		mine := own.former != 0 && own.former == cmp.Or(r.Epoch, t.Former)
		switch {
		case !t.Clean || forgets && !t.Watched && !mine:
			r.Used = nil
		case mine && r.Used != nil:
			r.Used.Later(own.down)
		}
		if forgets {
			r.InSync = coordinator.InSync{}
		}
		return r, err
	case t.Former == 0 || !forgets:
		return coordinator.Record{}, nil
	default:
		return coordinator.Record{Holders: holding.Holders{Unknown: true}}, errors.New("it has published nothing")
	}
}

// termEnded ends all streams: another member leads, or none.
func (s *shard) termEnded() {
	s.post(context.Background(), event{snapshot: func(limit.Time) {
		for m := range s.loop.members.all() {
			if m.waiting = nil; m.stream != nil {
				m.stream.end(errNotLeader)
			}
		}
		s.membership.endAsked(false)
		if s.membership.replicas != nil {
			s.membership.replicas.endAll()
		}
	}})
}

var errNotLeader = status.Error(codes.Unavailable, "this member does not coordinate any more: open the stream again, and it is sent on")

// noteEpoch takes note of the coordinator's epoch and of when its recovery ends.
func (s *shard) noteEpoch() {
	c := s.loop.coordinator
	s.loop.epoch = c.Epoch()
	s.recoveredAt.Store(int64(c.RecoveredAt()))
	s.noteRecovered(s.now())
	if s.membership != nil {
		s.membership.epoch.Store(s.loop.epoch)
	}
}

// terms returns in how many terms this member has coordinated, and the epoch of the latest; ok is
// false for a service without other members.
func (s *shard) terms() (terms, epoch uint64, ok bool) {
	if s.membership == nil {
		return 0, 0, false
	}
	return s.membership.terms.Load(), s.membership.epoch.Load(), true
}

// leader returns the member that coordinates, as far as it is known. here says that it is this
// one. A service without other members always coordinates.
func (s *shard) leader() (leader cluster.Member, here, known bool) {
	if s.membership == nil {
		return cluster.Member{}, true, true
	}
	if s.membership.election.Leads(time.Now()) {
		return s.membership.self, true, true
	}
	leader, known = s.membership.election.Leader()
	return leader, false, known && leader.ID != s.membership.self.ID
}

// findLeader waits until it is known which member coordinates, until ctx ends.
func (s *shard) findLeader(ctx context.Context) (leader cluster.Member, here bool, err error) {
	look := time.NewTicker(lookForLeader)
	defer look.Stop()
	for {
		leader, here, known := s.leader()
		if known {
			return leader, here, nil
		}
		select {
		case <-look.C:
		case <-s.ended:
			return cluster.Member{}, false, errGoing
		case <-ctx.Done():
			return cluster.Member{}, false, status.Error(codes.Unavailable, "no member coordinates the limits that are shared by leases: the members cannot agree on one, see their logs")
		}
	}
}

// sendOn answers an instance whose stream has come to a member that may not coordinate. It returns nil
// if this member does.
func (s *shard) sendOn(srv grpc.BidiStreamingServer[leasepb.Report, leasepb.Grant]) error {
	ctx, cancel := context.WithTimeout(srv.Context(), findLeader)
	defer cancel()
	leader, here, err := s.findLeader(ctx)
	if here || err != nil {
		return err
	}
	// Whether it can be sent or not, the status says the same.
	_ = srv.Send(&leasepb.Grant{NotMaster: true, Master: leader.Address})
	if leader.Address == "" {
		return status.Errorf(codes.FailedPrecondition, "member %s coordinates these limits, and does not say where it is reached: start it with --advertise", leader.ID)
	}
	return status.Errorf(codes.FailedPrecondition, "member %s at %q coordinates these limits: open the stream there", leader.ID, leader.Address)
}

// shrink takes what has ended out of the record, so that a successor does not wait for it.
func (s *shard) shrink(now limit.Time) {
	p := s.membership
	if p == nil || !s.lends() {
		return
	}
	c := s.loop.coordinator
	ended, recovering, exempt := c.Stats().Ended, c.Recovering(now), s.ownIsExempt(now)
	if ended == p.shrunk && recovering == p.recovering && exempt == p.exempted || p.inRecord == 0 {
		return
	}
	p.shrunk, p.recovering, p.exempted, p.holders = ended, recovering, exempt, c.Holders()
	for m := range s.loop.members.all() {
		if m.own && exempt {
			p.holders.Remove(m.Session)
		}
	}
	s.publish()
}

// ownIsExempt says whether this server's own instance stands in no record: its leases end with the
// term, so that no successor has to wait for them. Those that it had of a former leader last longer,
// so it is not exempt as long as there may be some.
func (s *shard) ownIsExempt(now limit.Time) bool { return now >= s.membership.ownUntil }

// shorten makes the leases of this server's own instance end with the term. Both go by the clock of
// this process: they end Grant.Lease after the report was stamped, and Grant.Age is since it came,
// which was not before.
func (s *shard) shorten(g *lease.Grant) {
	left := s.membership.election.Left(time.Now())
	g.Lease = max(0, min(g.Lease, left+g.Age))
	g.Refresh = min(g.Refresh, max(lease.MinReportGap, left/renewals))
}

// asking says whether it is not known yet which member may lend.
func (s *shard) asking() bool {
	if s.membership == nil || s.membership.waits && !s.hasLeased() {
		return false
	}
	if _, _, known := s.leader(); known {
		s.membership.known.Store(true)
	}
	// Later a backend that is gone makes all members alike, and a load balancer must not take
	// all of them away.
	return !s.membership.known.Load()
}

// beginElecting takes part in the election until stop, which resigns with who may hold leases in the end.
func (s *shard) beginElecting() (stop func()) {
	p := s.membership
	if p == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if p.waits && s.awaitLeasing(ctx) != nil {
			return
		}
		if err := p.election.Run(ctx); err != nil {
			s.opts.Logger.Error("this member takes no part in the election any more", "error", err)
		}
	})
	if p.follower != nil {
		wg.Go(func() { p.follower.run(ctx) })
	}
	wg.Go(func() {
		for {
			select {
			case r := <-p.records:
				err := p.election.Publish(ctx, r.Encode())
				s.post(ctx, event{snapshot: func(limit.Time) { s.wasPublished(r, err) }})
				select {
				case <-time.After(publishGap):
				case <-ctx.Done():
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		if s.lends() {
			resigning, done := context.WithTimeout(ctx, time.Second)
			if err := p.election.Resign(resigning, s.lastRecord(s.now())); err != nil && s.lends() {
				s.opts.Logger.Warn("the term cannot be given up: the next leader waits for its end", "error", err)
			}
			done()
		}
		cancel()
		wg.Wait()
	}
}
