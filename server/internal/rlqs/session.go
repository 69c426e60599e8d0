package rlqs

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/limit"
)

// BucketName is the name of a bucket as its Envoy has it: pairs, ascending by key.
type BucketName struct {
	Domain string
	Pairs  []limit.Attribute
}

// Targets are the limits that apply to a bucket.
type Targets struct {
	IDs []lease.ResourceID
	// Rates are those of IDs, per second, until their coordinators say otherwise.
	Rates []fixed.Amount
	// Unleased says that a limit applies which is not shared by leases, and none that is: nothing can be
	// assigned.
	Unleased bool
}

// Action is what an Envoy is sent about one bucket.
type Action struct {
	Bucket  *BucketName
	TTL     time.Duration // whole seconds; 0 = it ends at once
	Abandon bool
	strategy
}

// SessionOptions are the options of a Session. All but Jitter, Shards and Buckets are required.
type SessionOptions struct {
	// Instance is the name under which the Envoy is an instance of the coordinator, Number the session.
	Instance string
	Number   uint64
	// Match returns the limits that apply to a bucket.
	Match func(*BucketName) Targets
	// Shards is how many coordinators there are, ShardOf which one has a resource; 0 and nil = one.
	Shards  int
	ShardOf func(lease.ResourceID) int
	// Send sends a report of one of the session's members; the report is the receiver's.
	Send func(Peer, *lease.Report)
	// Joined says that there is a member more, which needs a stream.
	Joined func(Peer)
	Jitter func() float64
	// Buckets counts those of all sessions, of which there are at most [MaxAllBuckets]; nil = they are not bounded.
	Buckets *atomic.Int64
}

// Peer names one member of a session: an Envoy has one for each shard, and one more for each further
// bucket that spends the same resource, since an instance has one lease of each.
type Peer struct{ Layer, Shard int }

// maxLayers is how many buckets of one Envoy may spend one resource. Not more: each layer is a stream
// to the coordinator that renews each second.
const maxLayers = 16

// MaxBuckets is how many buckets one Envoy may have. Not more: a stranger could fill the memory, at some
// two kilobytes each here and at the coordinator. Not fewer: each may be of one user.
const MaxBuckets = 1 << 16

// The bounds of a server. Not more: each bucket takes some kilobytes here and at the coordinator, and each stream
// five goroutines. Not fewer: there is a stream for each Envoy.
const (
	MaxAllBuckets = 1 << 18
	MaxStreams    = 4096
)

// member is an instance of a coordinator.
type member struct {
	peer  Peer
	who   lease.Member
	agent *agent.Agent
	has   map[lease.ResourceID]*part
	load  []uint32               // handles whose load may have changed
	usage map[string]lease.Usage // by limit, since the latest report
}

// Session is one stream of an Envoy and what outlives it: assignments that may still be in use. It is
// not safe for concurrent use.
type Session struct {
	opts    SessionOptions
	now     limit.Time
	members map[Peer]*member
	list    []*member // in the order of making
	quotas  map[string]*quota
	all     []*quota // those in quotas, and those that are ending
	names   int      // bytes of the names of quotas
	dirty   []*quota
	out     []Action
	// rejected are buckets that are abandoned at the next Advance.
	rejected []*BucketName
	houseAt  limit.Time
	gone     bool // the stream has ended
	left     bool
	stats    SessionStats
}

// SessionStats are running totals of a session.
type SessionStats struct {
	Allowed, Denied uint64 // requests, as reported
	Assigned        uint64 // actions sent
	Changed         uint64 // of them, other assignments than before
	Abandoned       uint64
	Crowded         uint64 // buckets without assignment because too many of one Envoy spend one resource
	Over            uint64 // tokens that Envoys admitted above their leases
	Unleased        uint64 // buckets without assignment because no limit that applies is leased
}

// NewSession returns a session without buckets.
func NewSession(o SessionOptions, now limit.Time) *Session {
	o.Shards = max(1, o.Shards)
	return &Session{opts: o, now: now, members: map[Peer]*member{}, quotas: map[string]*quota{}, houseAt: now.Add(housekeeping)}
}

// Usage is one entry of a usage report.
type Usage struct {
	Bucket          *BucketName
	Key             string // canonical, of the bucket
	Allowed, Denied uint64
	Elapsed         time.Duration // since the report before; 0 = not known
	Reject          bool          // there is no assignment for such a bucket, which is abandoned at once
}

// Report takes a usage report.
func (s *Session) Report(now limit.Time, usages []Usage) {
	s.now = now
	for i := range usages {
		u := &usages[i]
		if u.Reject {
			s.rejected = append(s.rejected, u.Bucket)
			continue
		}
		q := s.quotas[u.Key]
		switch {
		case q == nil && s.full(len(u.Key)):
			s.stats.Crowded++
			s.rejected = append(s.rejected, u.Bucket)
			continue
		case q == nil:
			q = s.subscribe(now, u)
		case q.abandoned && u.Allowed == 0 && u.Denied == 0:
			continue // it was on its way when the bucket was abandoned
		case q.abandoned:
			s.retire(q)
			q = s.subscribe(now, u)
		default:
			q = s.rematch(now, q) // the customer's plan may have changed
		}
		s.count(q, u)
		s.stats.Allowed, s.stats.Denied = saturatingAdd(s.stats.Allowed, u.Allowed), saturatingAdd(s.stats.Denied, u.Denied)
		q.report(now, usage{u.Allowed, u.Denied}, u.Elapsed)
		s.noteLoad(q)
		q.touch()
	}
}

// full says that there is no room for one bucket more, with a name of that size.
func (s *Session) full(size int) bool {
	return len(s.quotas) >= MaxBuckets || s.names+size > maxStreamIDs || s.opts.Buckets != nil && s.opts.Buckets.Load() >= MaxAllBuckets
}

// crowded says that half of the room is taken, so that buckets have to be abandoned sooner.
func (s *Session) crowded() bool {
	return len(s.quotas) > MaxBuckets/2 || s.names > maxStreamIDs/2 || s.opts.Buckets != nil && s.opts.Buckets.Load() > MaxAllBuckets/2
}

// note counts buckets of all sessions.
func (s *Session) note(n int) {
	if s.opts.Buckets != nil {
		s.opts.Buckets.Add(int64(n))
	}
}

// count adds usage to what the next reports say of the limits.
func (s *Session) count(q *quota, u *Usage) {
	for _, p := range q.parts {
		was := p.agent.usage[p.id.Limit]
		p.agent.usage[p.id.Limit] = lease.Usage{Limit: p.id.Limit, Admitted: saturatingAdd(was.Admitted, u.Allowed), Refused: saturatingAdd(was.Refused, u.Denied)}
	}
}

// subscribe begins a bucket.
func (s *Session) subscribe(now limit.Time, u *Usage) *quota {
	q := &quota{session: s, id: u.Key, name: u.Bucket, used: now}
	s.quotas[u.Key] = q
	s.names += len(u.Key)
	s.all = append(s.all, q)
	s.note(1)
	s.open(now, q)
	return q
}

// open opens the leases of a bucket.
func (s *Session) open(now limit.Time, q *quota) {
	t := s.opts.Match(q.name)
	q.limited = len(t.IDs) > 0 || t.Unleased
	if t.Unleased {
		q.refused = true
		s.stats.Unleased++
		return
	}
	for i, id := range t.IDs {
		m := s.memberFor(id)
		if m == nil {
			q.refused = true
			s.stats.Crowded++
			return
		}
		p := &part{of: q, id: id, agent: m, at: now, answer: agent.Answer{Limit: lease.Terms{Rate: t.Rates[i]}}}
		q.parts = append(q.parts, p)
		m.has[id] = p
		p.handle = m.agent.Open(now, id, agent.LeaseOptions{Estimator: agent.Declared}, p)
	}
}

// memberFor returns a member that has no lease of a resource yet; nil = there are too many.
func (s *Session) memberFor(id lease.ResourceID) *member {
	shard := 0
	if s.opts.ShardOf != nil {
		shard = min(s.opts.ShardOf(id), s.opts.Shards-1)
	}
	for layer := range maxLayers {
		peer := Peer{layer, shard}
		m := s.members[peer]
		if m == nil {
			m = s.join(peer)
		}
		if m.has[id] == nil {
			return m
		}
	}
	return nil
}

func (s *Session) join(peer Peer) *member {
	m := &member{
		peer: peer, who: lease.Member{Instance: fmt.Sprintf("%s-%d-%d", s.opts.Instance, peer.Shard, peer.Layer), Session: s.opts.Number},
		has: map[lease.ResourceID]*part{}, usage: map[string]lease.Usage{},
	}
	m.agent = agent.New(agent.Options{Member: m.who, Jitter: s.opts.Jitter})
	s.members[peer], s.list = m, append(s.list, m)
	s.opts.Joined(peer)
	return m
}

// noteLoad has the agents of a bucket look at its load.
func (s *Session) noteLoad(q *quota) {
	for _, p := range q.parts {
		p.agent.load = append(p.agent.load, p.handle)
	}
}

// retire ends a bucket: its leases are given back when no assignment is in use.
func (s *Session) retire(q *quota) {
	if q.ending {
		return
	}
	q.ending = true
	if s.quotas[q.id] == q {
		delete(s.quotas, q.id)
		s.names -= len(q.id)
	}
	s.noteLoad(q)
}

// Granted takes a grant of a coordinator.
func (s *Session) Granted(now limit.Time, peer Peer, g *lease.Grant) {
	s.now = now
	if m := s.members[peer]; m != nil {
		s.step(m, g)
	}
}

// Connected says that the stream of a member to its coordinator is new.
func (s *Session) Connected(now limit.Time, peer Peer) {
	s.now = now
	if m := s.members[peer]; m != nil {
		s.step(m, agent.Connected{})
	}
}

// Member is the instance that a peer is.
func (s *Session) Member(peer Peer) lease.Member {
	if m := s.members[peer]; m != nil {
		return m.who
	}
	return lease.Member{}
}

// Rematch has all buckets be of the limits that apply now.
func (s *Session) Rematch(now limit.Time) {
	s.now = now
	for _, q := range slices.Clone(s.all) {
		if !q.ending && !q.abandoned {
			s.rematch(now, q)
		}
	}
}

// rematch returns the bucket of the limits that apply now. Where others applied it begins anew.
func (s *Session) rematch(now limit.Time, q *quota) *quota {
	t := s.opts.Match(q.name)
	if q.limited == (len(t.IDs) > 0 || t.Unleased) && q.refused == t.Unleased && slices.EqualFunc(t.IDs, q.parts, func(id lease.ResourceID, p *part) bool { return id == p.id }) {
		return q
	}
	s.retire(q)
	next := s.subscribe(now, &Usage{Bucket: q.name, Key: q.id})
	next.heard, next.used, next.demand, next.patience = q.heard, q.used, q.demand, q.patience
	s.noteLoad(next)
	next.touch()
	return next
}

// Lost says that the stream has ended: nothing can be sent any more, and what is assigned is in use
// until its time to live is over. The session is done when Done says so.
func (s *Session) Lost(now limit.Time) {
	s.now = now
	if s.gone {
		return
	}
	s.gone = true
	for _, q := range s.all {
		q.lost(now)
		s.retire(q)
	}
}

// Drain ends all assignments at once: an Envoy goes to the behaviour that it has for expired ones. What
// it returns is the last that is sent; [Delivery] later the session is done.
func (s *Session) Drain(now limit.Time) []Action {
	s.now = now
	s.out = s.out[:0]
	for _, q := range s.all {
		if q.sent != 0 && now < q.ends && !q.ending {
			s.out = append(s.out, Action{Bucket: q.name, strategy: q.current})
			q.ends = now.Add(Delivery)
		}
		s.retire(q)
	}
	s.gone = true
	return s.out
}

// Leave gives all leases back. It is called when nothing is in use: see Done.
func (s *Session) Leave(now limit.Time) {
	s.now = now
	if s.left {
		return
	}
	s.left = true
	for _, m := range s.list {
		s.send(m, m.agent.Step(now, agent.Leave{}))
	}
}

// Done says that the stream has ended and that no assignment of the session is in use.
func (s *Session) Done() bool { return s.gone && len(s.all) == 0 }

// Stats returns the totals.
func (s *Session) Stats() SessionStats { return s.stats }

// Buckets is how many buckets the Envoy has.
func (s *Session) Buckets() int { return len(s.quotas) }

// Next returns when Advance is due.
func (s *Session) Next() limit.Time {
	if s.left {
		return lease.Never
	}
	next := s.houseAt
	for _, m := range s.list {
		if len(m.load) > 0 {
			return s.now
		}
		next = min(next, m.agent.Next())
	}
	if len(s.dirty) > 0 || len(s.rejected) > 0 {
		return s.now
	}
	return next
}

// Advance does what is due at now and returns what is to be sent to the Envoy. It is valid until the
// next call.
func (s *Session) Advance(now limit.Time) []Action {
	s.now = now
	s.out = s.out[:0]
	if s.left {
		return nil
	}
	for _, m := range s.list {
		if len(m.load) > 0 {
			handles := m.load
			m.load = nil
			s.step(m, agent.Observed{Handles: handles})
		}
		if now >= m.agent.Next() {
			s.step(m, lease.Tick{})
		}
	}
	if now >= s.houseAt {
		s.houseAt = now.Add(housekeeping)
		s.keepHouse(now)
	}
	for _, name := range s.rejected {
		s.out = append(s.out, Action{Bucket: name, Abandon: true})
	}
	s.rejected = nil
	dirty := s.dirty
	s.dirty = nil
	for _, q := range dirty {
		q.dirty = false
		if !s.gone {
			s.consider(now, q)
		}
	}
	return s.out
}

func (s *Session) consider(now limit.Time, q *quota) {
	before := q.changed
	if q.evaluate(now) {
		s.stats.Assigned++
		if q.changed != before {
			s.stats.Changed++
		}
	}
}

// keepHouse refreshes assignments, abandons buckets and ends what is not in use any more.
func (s *Session) keepHouse(now limit.Time) {
	kept := s.all[:0]
	idleFor := AbandonAfter
	if s.crowded() {
		idleFor = crowdedAfter
	}
	for _, q := range s.all {
		switch {
		case q.ending && q.inUse(now) == lease.Capacity{}:
			s.close(now, q)
			continue
		case q.ending, s.gone:
		case q.abandoned && now >= q.ends, !q.abandoned && now > q.heard.Add(silentAfter+TTL+Delivery):
			s.retire(q)
		case q.abandoned:
		case now > q.used.Add(idleFor), q.missed >= missedRequests && q.scarce():
			q.abandoned = true
			q.follow(now)
			q.ends = min(q.ends, now.Add(Delivery))
			s.stats.Abandoned++
			s.out = append(s.out, Action{Bucket: q.name, Abandon: true})
		case now >= q.refreshAt() && !q.refused, q.lookAt != 0 && now >= q.lookAt:
			q.lookAt = 0
			q.touch()
		}
		kept = append(kept, q)
	}
	s.note(len(kept) - len(s.all))
	clear(s.all[len(kept):])
	s.all = kept
}

// close gives the leases of a bucket back.
func (s *Session) close(now limit.Time, q *quota) {
	for _, p := range q.parts {
		p.agent.agent.Close(now, p.handle)
		if p.agent.has[p.id] == p {
			delete(p.agent.has, p.id)
		}
	}
	q.parts = nil
}

func (s *Session) step(m *member, e lease.Event) { s.send(m, m.agent.Step(s.now, e)) }

func (s *Session) send(m *member, r *lease.Report) {
	if r != nil {
		own := *r // r is the agent's, until its next step
		own.Demands = slices.Clone(r.Demands)
		own.Usage = slices.SortedFunc(maps.Values(m.usage), func(a, b lease.Usage) int { return strings.Compare(a.Limit, b.Limit) })
		clear(m.usage)
		s.opts.Send(m.peer, &own)
	}
}
