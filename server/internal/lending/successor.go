package lending

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server/internal/access"
)

// This file is what a successor has to know of what is lent: grants are kept back until its record and its
// replicas have it.

// newFollower returns what keeps a replica while another member leads; nil = there is none.
func (s *shard) newFollower(connect ConnectReplica) *follower {
	if connect == nil || s.opts.Parent != nil {
		return nil // the parent of a site knows what the site holds
	}
	leader := func() (string, bool) {
		leader, here, known := s.leader()
		return leader.Address, known && !here
	}
	return &follower{leader: leader, connect: connect, shard: s.opts.shard, now: s.now}
}

var errNoReplica = status.Error(codes.Unavailable, "this member has nothing to replicate: it does not lead, or does not know yet what the former leader has lent, or has lost a replica of this host a moment ago, or has as many as it may")

// replicate implements the service of the protocol, for a follower.
func (s *shard) replicate(srv grpc.BidiStreamingServer[leasepb.Confirmation, leasepb.Levels]) error {
	if err := s.admission.begin(); err != nil {
		return err
	}
	defer s.admission.handlers.Done()
	first, err := srv.Recv()
	if err != nil {
		return err
	}
	st, who := newReplicaStream(first.GetReplica(), hostOf(srv.Context())), access.FromContext(srv.Context())
	added := false
	if !s.inLoop(srv.Context(), func(now limit.Time) { added = s.addReplica(now, st) }) {
		return errGoing
	}
	if !added {
		return errNoReplica
	}
	s.admission.handlers.Go(func() {
		st.receive(srv, func(number uint64) bool {
			return who.Still(access.Member) && s.post(srv.Context(), event{snapshot: func(now limit.Time) { s.confirmed(now, st, number) }})
		})
		s.post(context.Background(), event{snapshot: func(now limit.Time) {
			s.membership.replicas.remove(now, st)
			s.sweepReplicas(now)
		}})
	})
	return st.serve(srv, s.ended)
}

// addReplica begins to send to a replica, if there is something that it can know.
func (s *shard) addReplica(now limit.Time, st *replicaStream) (ok bool) {
	if s.membership == nil || s.membership.replicas == nil || !s.lends() || !s.membership.replicas.may(now, st) {
		return false
	}
	levels, others, ok := s.loop.coordinator.Replicate(now)
	if ok {
		s.membership.replicas.add(now, st, levels, others)
	}
	return ok
}

// confirmed takes note of what a replica knows, and sends what waited for it.
func (s *shard) confirmed(now limit.Time, st *replicaStream, number uint64) {
	if s.membership.replicas.confirm(now, st, number) {
		s.publish() // the record can name it
	}
	s.releaseAll()
}

// replicas returns how many replicas the record names, and how many buckets this member knows as a follower.
func (s *shard) replicas() (inSync, buckets int) {
	p := s.membership
	if p == nil {
		return 0, 0
	}
	if p.follower != nil {
		buckets = p.follower.buckets()
	}
	return int(p.inSync.Load()), buckets
}

// tellReplicas sends replicas what the latest step has changed.
func (s *shard) tellReplicas(now limit.Time) {
	p := s.membership
	if p == nil || p.replicas == nil {
		return
	}
	levels, number := s.loop.coordinator.Levels()
	p.replicas.tell(now, levels, number)
}

// sweepReplicas gives up replicas that do not keep up, and has the record name those that do. It returns when
// one may not keep up.
func (s *shard) sweepReplicas(now limit.Time) (next limit.Time) {
	p := s.membership
	if p == nil || p.replicas == nil || !s.lends() {
		return lease.Never
	}
	dropped, next := p.replicas.sweep(now)
	if p.replicas.count() == 0 {
		s.loop.coordinator.EndReplicating()
	}
	if dropped || !p.replicas.current() {
		s.publish() // and what waits for them is sent then
	}
	return next
}

// withhold keeps a grant back until the record says that its session may hold what it grants, since
// the successor waits for those in the record and for nobody else, and until replicas know what is left of
// the buckets. Later grants of the session stay behind it.
func (s *shard) withhold(m *member, g *lease.Grant) bool {
	p := s.membership
	if p == nil {
		return false
	}
	w := withheld{Grant: *g, levels: s.loop.coordinator.MustKnow(g)} // the shares are not used again
	if !m.own || !s.ownIsExempt(s.now()) {
		s.include(m, &w)
	}
	if p.holders.Unknown || p.holders.Named(m.Session) || slices.ContainsFunc(g.Shares, func(sh lease.Share) bool { return sh.Lease != 0 }) {
		w.record = max(w.record, firstEdition)
	}
	if len(m.waiting) == 0 && p.arrived(&w) {
		return false
	}
	m.waiting = append(m.waiting, w)
	p.blocked[m] = true
	if w.record > p.inRecord {
		s.publish()
	}
	return true
}

// include has the next record say that an instance may hold what a grant lends it.
func (s *shard) include(m *member, w *withheld) {
	p := s.membership
	for i := range w.Shares {
		if w.Shares[i].Lease == 0 {
			continue
		}
		name := s.loop.coordinator.LimitOf(m.Member, w.Shares[i].Handle)
		// An instance whose leases have ended is taken out of the next record, and the present one may still have it.
		if !p.holders.Covers(m.Session, name) {
			p.holders.Include(m.Session, name)
			p.edition++
		}
		if !p.published.Covers(m.Session, name) {
			w.record = p.edition
		}
	}
}

// arrived says whether a grant may be sent: what a successor has to know of it is in the record, and at the
// replicas that the record names.
func (p *membership) arrived(w *withheld) bool {
	return w.record <= p.inRecord && p.replicas.know(w.levels)
}

// publish has the holders written to the record, unless one is being written: then they are when it is.
func (s *shard) publish() {
	p := s.membership
	if p.publishing {
		return
	}
	p.publishing = true
	// The record may be the new one as soon as it is sent, and stay the former one if that fails. A
	// session that rejoins meanwhile has to be in both.
	p.published.Intersect(&p.holders)
	select {
	case <-p.records: // of a former term
	default:
	}
	r := holdersRecord{coordinator.Record{Epoch: s.risenEpoch(), Holders: p.holders.Clone(), InSync: p.replicas.inSync()}, p.edition, p.term}
	p.replicas.writing(&r.InSync)
	p.records <- r
}

// wasPublished sends what waited for the record.
func (s *shard) wasPublished(r holdersRecord, err error) {
	p := s.membership
	if r.term != p.term {
		return
	}
	p.publishing = false
	if err != nil {
		if s.lends() {
			s.publish() // the backend may be gone for a moment
		}
		return
	}
	p.published, p.inRecord = r.Holders, r.edition
	p.replicas.written(&r.InSync)
	p.inSync.Store(int64(len(r.InSync.Replicas)))
	p.endAsked(true)
	s.releaseAll()
	if p.inRecord != p.edition {
		s.publish() // who came while the record was written
	}
}

// endAsked has answers go on that wait for the first record, or fail.
func (p *membership) endAsked(written bool) {
	asked := p.asked
	p.asked = nil
	for _, f := range asked {
		f(written)
	}
}

// releaseAll sends the grants that have waited for long enough.
func (s *shard) releaseAll() {
	if s.lends() {
		s.membership.replicas.release()
	}
	for m := range s.membership.blocked {
		if s.release(m); m.waiting == nil {
			delete(s.membership.blocked, m)
		}
	}
}

// release is releaseAll for one instance.
func (s *shard) release(m *member) {
	n := 0
	for n < len(m.waiting) && s.membership.arrived(&m.waiting[n]) {
		s.deliver(m, &m.waiting[n].Grant)
		n++
	}
	if m.waiting = m.waiting[n:]; len(m.waiting) == 0 {
		m.waiting = nil
	}
}
