package leaseservice

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
	"github.com/stint-io/stint/server/internal/leasereplica"
	"github.com/stint-io/stint/server/internal/leasestream"
)

// This file is what a successor has to know of what is lent: grants are kept back until its record and its
// replicas have it.

// newFollower returns what keeps a replica while another member leads; nil = there is none.
func (s *Service) newFollower(connect leasereplica.Connect) *leasereplica.Follower {
	if connect == nil || s.opts.Parent != nil {
		return nil // the parent of a site knows what the site holds
	}
	leader := func() (string, bool) {
		leader, here, known := s.Leader()
		return leader.Address, known && !here
	}
	return &leasereplica.Follower{Leader: leader, Connect: connect, Shard: s.opts.Shard, Now: s.now}
}

var errNoReplica = status.Error(codes.Unavailable, "this member has nothing to replicate: it does not lead, or does not know yet what the former leader has lent, or has lost a replica of this host a moment ago, or has as many as it may")

// Replicate implements the service of the protocol, for a follower.
func (s *Service) Replicate(srv grpc.BidiStreamingServer[leasepb.Confirmation, leasepb.Levels]) error {
	if err := s.admission.Begin(); err != nil {
		return err
	}
	defer s.admission.Handlers.Done()
	first, err := srv.Recv()
	if err != nil {
		return err
	}
	st, who := leasereplica.NewStream(first.GetReplica(), leasereplica.HostOf(srv.Context())), access.FromContext(srv.Context())
	added := false
	if !s.inLoop(srv.Context(), func(now limit.Time) { added = s.addReplica(now, st) }) {
		return leasestream.ErrGoing
	}
	if !added {
		return errNoReplica
	}
	s.admission.Handlers.Go(func() {
		st.Receive(srv, func(number uint64) bool {
			return who.Still(access.Member) && s.post(srv.Context(), event{snapshot: func(now limit.Time) { s.confirmed(now, st, number) }})
		})
		s.post(context.Background(), event{snapshot: func(now limit.Time) {
			s.membership.replicas.Remove(now, st)
			s.sweepReplicas(now)
		}})
	})
	return st.Serve(srv, s.ended)
}

// addReplica begins to send to a replica, if there is something that it can know.
func (s *Service) addReplica(now limit.Time, st *leasereplica.Stream) (ok bool) {
	if s.membership == nil || s.membership.replicas == nil || !s.lends() || !s.membership.replicas.May(now, st) {
		return false
	}
	levels, others, ok := s.loop.coordinator.Replicate(now)
	if ok {
		s.membership.replicas.Add(now, st, levels, others)
	}
	return ok
}

// confirmed takes note of what a replica knows, and sends what waited for it.
func (s *Service) confirmed(now limit.Time, st *leasereplica.Stream, number uint64) {
	if s.membership.replicas.Confirm(now, st, number) {
		s.publish() // the record can name it
	}
	s.releaseAll()
}

// Replicas returns how many replicas the record names, and how many buckets this member knows as a follower.
func (s *Service) Replicas() (inSync, buckets int) {
	p := s.membership
	if p == nil {
		return 0, 0
	}
	if p.follower != nil {
		buckets = p.follower.Buckets()
	}
	return int(p.inSync.Load()), buckets
}

// tellReplicas sends replicas what the latest step has changed.
func (s *Service) tellReplicas(now limit.Time) {
	p := s.membership
	if p == nil || p.replicas == nil {
		return
	}
	levels, number := s.loop.coordinator.Levels()
	p.replicas.Tell(now, levels, number)
}

// sweepReplicas gives up replicas that do not keep up, and has the record name those that do. It returns when
// one may not keep up.
func (s *Service) sweepReplicas(now limit.Time) (next limit.Time) {
	p := s.membership
	if p == nil || p.replicas == nil || !s.lends() {
		return lease.Never
	}
	dropped, next := p.replicas.Sweep(now)
	if p.replicas.Replicas() == 0 {
		s.loop.coordinator.EndReplicating()
	}
	if dropped || !p.replicas.Current() {
		s.publish() // and what waits for them is sent then
	}
	return next
}

// withhold keeps a grant back until the record says that its session may hold what it grants, since
// the successor waits for those in the record and for nobody else, and until replicas know what is left of
// the buckets. Later grants of the session stay behind it.
func (s *Service) withhold(m *leasestream.Member, g *lease.Grant) bool {
	p := s.membership
	if p == nil {
		return false
	}
	w := leasestream.Withheld{Grant: *g, Levels: s.loop.coordinator.MustKnow(g)} // the shares are not used again
	if !m.Own || !s.ownIsExempt(s.now()) {
		s.include(m, &w)
	}
	if p.holders.Unknown || p.holders.Named(m.Session) || slices.ContainsFunc(g.Shares, func(sh lease.Share) bool { return sh.Lease != 0 }) {
		w.Record = max(w.Record, firstEdition)
	}
	if len(m.Waiting) == 0 && p.arrived(&w) {
		return false
	}
	m.Waiting = append(m.Waiting, w)
	p.blocked[m] = true
	if w.Record > p.inRecord {
		s.publish()
	}
	return true
}

// include has the next record say that an instance may hold what a grant lends it.
func (s *Service) include(m *leasestream.Member, w *leasestream.Withheld) {
	p := s.membership
	for i := range w.Shares {
		if w.Shares[i].Lease == 0 {
			continue
		}
		name := s.loop.coordinator.LimitOf(m.Member, w.Shares[i].Handle)
		if p.published.Covers(m.Session, name) {
			continue
		}
		if !p.holders.Covers(m.Session, name) {
			p.holders.Include(m.Session, name)
			p.edition++
		}
		w.Record = p.edition
	}
}

// arrived says whether a grant may be sent: what a successor has to know of it is in the record, and at the
// replicas that the record names.
func (p *membership) arrived(w *leasestream.Withheld) bool {
	return w.Record <= p.inRecord && p.replicas.Know(w.Levels)
}

// publish has the holders written to the record, unless one is being written: then they are when it is.
func (s *Service) publish() {
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
	r := holdersRecord{coordinator.Record{Epoch: s.risenEpoch(), Holders: p.holders.Clone(), InSync: p.replicas.InSync()}, p.edition, p.term}
	p.replicas.Writing(&r.InSync)
	p.records <- r
}

// wasPublished sends what waited for the record.
func (s *Service) wasPublished(r holdersRecord, err error) {
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
	p.replicas.Written(&r.InSync)
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
func (s *Service) releaseAll() {
	if s.lends() {
		s.membership.replicas.Release()
	}
	for m := range s.membership.blocked {
		if s.release(m); m.Waiting == nil {
			delete(s.membership.blocked, m)
		}
	}
}

// release is releaseAll for one instance.
func (s *Service) release(m *leasestream.Member) {
	n := 0
	for n < len(m.Waiting) && s.membership.arrived(&m.Waiting[n]) {
		s.deliver(m, &m.Waiting[n].Grant)
		n++
	}
	if m.Waiting = m.Waiting[n:]; len(m.Waiting) == 0 {
		m.Waiting = nil
	}
}
