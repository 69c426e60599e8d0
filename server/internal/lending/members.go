package lending

import (
	"iter"
	"log/slog"
	"maps"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server/internal/access"
)

// The bounds on what an instance can do.
const (
	// maxHandles is how many resources one instance has. Not more: at some kilobytes each a
	// stranger could fill the memory.
	maxHandles = 10_000
	// maxServerHandles is how many a server has that spends leases for all who ask it. Not more:
	// that is 900 MB at the coordinator. Not fewer: a service with a million users has so
	// many keys in use at a time.
	maxServerHandles = 1 << 17
	// silence is after how many leases without a report a stream is ended. Not
	// fewer: a process that was paused should find its stream.
	silence = 6
)

// member is an instance as the loop knows it. It outlives its stream for as long as
// its leases may last, so that an instance which comes back is the same one.
type member struct {
	lease.Member
	stream *stream // nil while there is none
	own    bool    // it is in this process

	// decided is what it has decided since it began, by limit; nil = nothing.
	decided map[string]lease.Usage
	// waiting are grants that may not be sent yet, in order.
	waiting []withheld

	heard   limit.Time
	handles map[uint32]uint64 // open ones, with the latest report that names each

	identity string           // whose it is; "" = nobody's
	holding  *identityHolding // of the identity; nil = nobody's
	may      *access.Leases   // what its leases were asked for under
}

// withheld is a grant that may not be sent before what a successor has to know of it is where the successor
// will find it.
type withheld struct {
	lease.Grant
	record uint64 // the number of the record that says that the instance may hold it
	levels uint64 // the number of what replicas have to know of the buckets
}

// errDuplicate ends a stream under a name that another process has.
var errDuplicate = status.Error(codes.AlreadyExists, "another process reports under this instance's name: give each instance a name of its own")

var (
	errReplaced = status.Error(codes.Aborted, "a newer stream has taken the place of this one")
	errChanged  = status.Error(codes.InvalidArgument, "the instance or its session changed within a stream: open a stream for each")
	errHandles  = status.Errorf(codes.ResourceExhausted, "the instance has more than %d open handles: close those that are not used", maxHandles)
	errSilent   = status.Error(codes.DeadlineExceeded, "the instance has not reported for several leases: open another stream")
	errStalled  = status.Error(codes.ResourceExhausted, "the instance does not read its grants: read them as they come")
)

// members are the instances that the loop knows, by name. Make them with newMembers.
type members struct {
	// shared says that other servers report too: an instance that nobody asked who it is, or that is
	// a member, may have as many keys as a server.
	shared bool

	lease    time.Duration
	logger   *slog.Logger
	byName   map[string]*member
	holdings identityHoldings

	disbelieved   uint64 // epochs
	disbelievedAt limit.Time
}

// newMembers returns no members yet, whose leases last that long.
func newMembers(lease time.Duration, logger *slog.Logger) *members {
	return &members{lease: lease, logger: logger, byName: map[string]*member{}, holdings: identityHoldings{}}
}

// admit returns the member that a report is of, or ends the stream and returns nil. A report is
// changed to what the identity may ask for and may say of epochs, of which the coordinator has
// reached one.
func (all *members) admit(now limit.Time, st *stream, r *lease.Report, knows func(epoch uint64) bool) *member {
	if st.cause() != nil {
		return nil // ended meanwhile
	}
	m := all.byName[r.Instance]
	switch {
	case st.member != (lease.Member{}) && st.member != r.Member:
		st.end(errChanged)
		return nil
	case m == nil && !all.holdings.mayJoin(st):
		st.end(errInstances)
		return nil
	case m == nil:
		m = &member{Member: r.Member, stream: st, handles: map[uint32]uint64{}, identity: st.holder.name, holding: all.holdings.of(st)}
		if m.holding != nil {
			m.holding.instances++
		}
		all.byName[r.Instance] = m
	case m.Session != r.Session && m.stream != nil && now-m.heard < limit.Time(all.lease):
		st.end(errDuplicate)
		return nil
	case m.Session != r.Session:
		// The former one has gone, or its machine has: its leases run out.
		if m.stream != nil {
			m.stream.end(errReplaced)
		}
		m.replace(now.Add(2 * all.lease))
		*m = member{Member: r.Member, stream: st, handles: map[uint32]uint64{}, identity: m.identity, holding: m.holding}
	case m.holding != nil && st.holder.may != nil && (m.may == nil || !st.holder.may.Includes(m.may)):
		st.end(errNarrowed)
		return nil
	case m.stream != st:
		if m.stream != nil {
			m.stream.end(errReplaced)
		}
		m.stream = st
	}
	if st.member == (lease.Member{}) {
		st.member = r.Member
		close(st.accepted)
	}
	m.heard, m.own, m.may = now, st.own, st.holder.may
	all.believe(now, st, r, knows)
	if !all.openHandles(m, st, r) {
		st.end(errHandles)
		return nil
	}
	return m
}

// remove forgets a member, which has left.
func (all *members) remove(m *member) {
	all.holdings.forget(m)
	delete(all.byName, m.Instance)
}

// get returns the member of a name; nil = there is none.
func (all *members) get(instance string) *member { return all.byName[instance] }

// all are the members, in no order.
func (all *members) all() iter.Seq[*member] { return maps.Values(all.byName) }

// endAll ends all streams with the status of err.
func (all *members) endAll(err error) {
	for _, m := range all.byName {
		if m.stream != nil {
			m.stream.end(err)
		}
	}
}

// gone takes note of the end of a stream.
func (all *members) gone(st *stream) {
	if m := all.byName[st.member.Instance]; m != nil && m.stream == st {
		m.stream = nil
	}
}

// sweep forgets members whose leases have ended, and ends streams that are of no use: those of
// silent instances, and those on which one write takes longer than stalled.
func (all *members) sweep(now limit.Time, stalled time.Duration) {
	all.holdings.settle(now)
	for _, m := range all.byName {
		quiet := time.Duration(now - m.heard)
		switch {
		case m.stream == nil:
			if quiet > 2*all.lease {
				all.remove(m)
			}
		case quiet > silence*all.lease:
			m.stream.end(errSilent)
		case m.stream.stalledFor() > stalled:
			m.stream.end(errStalled)
		}
	}
}

// openHandles counts the handles of a report. Keys above the bound of the identity are refused one by
// one; an instance with more than maxHandles, or a server with more than maxServerHandles, is not
// served.
func (all *members) openHandles(m *member, st *stream, r *lease.Report) (ok bool) {
	for i := range r.Demands {
		d := &r.Demands[i]
		last, known := m.handles[d.Handle]
		switch {
		case d.Closed && known && r.Number > last:
			delete(m.handles, d.Handle)
			m.count(-1)
		case known:
			// The coordinator takes nothing from a report that is not later, so such a handle stays open.
			m.handles[d.Handle] = max(last, r.Number)
		case d.Closed:
		case st.holder.may != nil && m.holding.keys >= st.holder.may.MaxKeys:
			d.Resource.Key, d.Attributes = tooManyKeys, nil
		default:
			m.handles[d.Handle] = r.Number
			m.count(+1)
		}
	}
	if st.own || all.shared && st.holder.may == nil {
		return len(m.handles) <= maxServerHandles
	}
	return len(m.handles) <= maxHandles
}

// believe bounds the epoch of a report. One that the coordinator does not know makes it begin anew, and nothing is
// lent for a lease's length meanwhile, so an identity that has the role lease alone is not believed: its
// report counts as one of an instance that has heard no coordinator.
func (all *members) believe(now limit.Time, st *stream, r *lease.Report, knows func(epoch uint64) bool) {
	if st.holder.may == nil || knows(r.Epoch) {
		return
	}
	if all.disbelieved++; all.disbelieved == 1 || now-all.disbelievedAt > limit.Time(time.Minute) {
		all.disbelievedAt = now
		all.logger.Warn("an instance reports the epoch of a coordinator that this one does not know of, and is not believed: it lies, or this coordinator has lost its state or has an old copy, or its clock was set back; in that case correct the clock and start it again",
			"instance", r.Instance, "reported", r.Epoch)
	}
	r.Epoch = 0
}
