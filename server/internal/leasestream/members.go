package leasestream

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
	"github.com/stint-io/stint/server/internal/leaselimits"
)

// The bounds on what an instance can do.
const (
	// MaxHandles is how many resources one instance has. Not more: at some kilobytes each a
	// stranger could fill the memory.
	MaxHandles = 10_000
	// MaxServerHandles is how many a server has that spends leases for all who ask it. Not more:
	// that is 900 MB at the coordinator. Not fewer: a service with a million users has so
	// many keys in use at a time.
	MaxServerHandles = 1 << 17
	// silence is after how many leases without a report a stream is ended. Not
	// fewer: a process that was paused should find its stream.
	silence = 6
)

// Member is an instance as the loop knows it. It outlives its stream for as long as
// its leases may last, so that an instance which comes back is the same one.
type Member struct {
	lease.Member
	Stream *Stream // nil while there is none
	Own    bool    // it is in this process

	// Decided is what it has decided since it began, by limit; nil = nothing.
	Decided map[string]lease.Usage
	// Waiting are grants that may not be sent yet, in order.
	Waiting []Withheld

	heard   limit.Time
	handles map[uint32]uint64 // open ones, with the latest report that names each

	identity string         // whose it is; "" = nobody's
	holding  *holding       // of the identity; nil = nobody's
	may      *access.Leases // what its leases were asked for under
}

// Withheld is a grant that may not be sent before what a successor has to know of it is where the successor
// will find it.
type Withheld struct {
	lease.Grant
	Record uint64 // the number of the record that says that the instance may hold it
	Levels uint64 // the number of what replicas have to know of the buckets
}

// ErrDuplicate ends a stream under a name that another process has.
var ErrDuplicate = status.Error(codes.AlreadyExists, "another process reports under this instance's name: give each instance a name of its own")

var (
	errReplaced = status.Error(codes.Aborted, "a newer stream has taken the place of this one")
	errChanged  = status.Error(codes.InvalidArgument, "the instance or its session changed within a stream: open a stream for each")
	errHandles  = status.Errorf(codes.ResourceExhausted, "the instance has more than %d open handles: close those that are not used", MaxHandles)
	errSilent   = status.Error(codes.DeadlineExceeded, "the instance has not reported for several leases: open another stream")
	errStalled  = status.Error(codes.ResourceExhausted, "the instance does not read its grants: read them as they come")
)

// Members are the instances that the loop knows, by name. Make them with [NewMembers].
type Members struct {
	// Shared says that other servers report too: an instance that nobody asked who it is, or that is
	// a member, may have as many keys as a server.
	Shared bool

	lease    time.Duration
	logger   *slog.Logger
	byName   map[string]*Member
	holdings holdings

	disbelieved   uint64 // epochs
	disbelievedAt limit.Time
}

// NewMembers returns no members yet, whose leases last that long.
func NewMembers(lease time.Duration, logger *slog.Logger) *Members {
	return &Members{lease: lease, logger: logger, byName: map[string]*Member{}, holdings: holdings{}}
}

// Admit returns the member that a report is of, or ends the stream and returns nil. A report is
// changed to what the identity may ask for and may say of epochs, of which the coordinator has
// reached one.
func (all *Members) Admit(now limit.Time, st *Stream, r *lease.Report, knows func(epoch uint64) bool) *Member {
	if st.Cause() != nil {
		return nil // ended meanwhile
	}
	m := all.byName[r.Instance]
	switch {
	case st.member != (lease.Member{}) && st.member != r.Member:
		st.End(errChanged)
		return nil
	case m == nil && !all.holdings.mayJoin(st):
		st.End(errInstances)
		return nil
	case m == nil:
		m = &Member{Member: r.Member, Stream: st, handles: map[uint32]uint64{}, identity: st.holder.name, holding: all.holdings.of(st)}
		if m.holding != nil {
			m.holding.instances++
		}
		all.byName[r.Instance] = m
	case m.Session != r.Session && m.Stream != nil && now-m.heard < limit.Time(all.lease):
		st.End(ErrDuplicate)
		return nil
	case m.Session != r.Session:
		// The former one has gone, or its machine has: its leases run out.
		if m.Stream != nil {
			m.Stream.End(errReplaced)
		}
		m.replace(now.Add(2 * all.lease))
		*m = Member{Member: r.Member, Stream: st, handles: map[uint32]uint64{}, identity: m.identity, holding: m.holding}
	case m.holding != nil && st.holder.may != nil && (m.may == nil || !st.holder.may.Includes(m.may)):
		st.End(errNarrowed)
		return nil
	case m.Stream != st:
		if m.Stream != nil {
			m.Stream.End(errReplaced)
		}
		m.Stream = st
	}
	if st.member == (lease.Member{}) {
		st.member = r.Member
		close(st.accepted)
	}
	m.heard, m.Own, m.may = now, st.Own, st.holder.may
	all.believe(now, st, r, knows)
	if !all.openHandles(m, st, r) {
		st.End(errHandles)
		return nil
	}
	return m
}

// Remove forgets a member, which has left.
func (all *Members) Remove(m *Member) {
	all.holdings.forget(m)
	delete(all.byName, m.Instance)
}

// Get returns the member of a name; nil = there is none.
func (all *Members) Get(instance string) *Member { return all.byName[instance] }

// All are the members, in no order.
func (all *Members) All() iter.Seq[*Member] { return maps.Values(all.byName) }

// EndAll ends all streams with the status of err.
func (all *Members) EndAll(err error) {
	for _, m := range all.byName {
		if m.Stream != nil {
			m.Stream.End(err)
		}
	}
}

// Gone takes note of the end of a stream.
func (all *Members) Gone(st *Stream) {
	if m := all.byName[st.member.Instance]; m != nil && m.Stream == st {
		m.Stream = nil
	}
}

// Sweep forgets members whose leases have ended, and ends streams that are of no use: those of
// silent instances, and those on which one write takes longer than stalled.
func (all *Members) Sweep(now limit.Time, stalled time.Duration) {
	all.holdings.settle(now)
	for _, m := range all.byName {
		quiet := time.Duration(now - m.heard)
		switch {
		case m.Stream == nil:
			if quiet > 2*all.lease {
				all.Remove(m)
			}
		case quiet > silence*all.lease:
			m.Stream.End(errSilent)
		case m.Stream.StalledFor() > stalled:
			m.Stream.End(errStalled)
		}
	}
}

// openHandles counts the handles of a report. Keys above the bound of the identity are refused one by
// one; an instance with more than MaxHandles, or a server with more than MaxServerHandles, is not
// served.
func (all *Members) openHandles(m *Member, st *Stream, r *lease.Report) (ok bool) {
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
			d.Resource.Key, d.Attributes = leaselimits.TooManyKeys, nil
		default:
			m.handles[d.Handle] = r.Number
			m.count(+1)
		}
	}
	if st.Own || all.Shared && st.holder.may == nil {
		return len(m.handles) <= MaxServerHandles
	}
	return len(m.handles) <= MaxHandles
}

// believe bounds the epoch of a report. One that the coordinator does not know makes it begin anew, and nothing is
// lent for a lease's length meanwhile, so an identity that has the role lease alone is not believed: its
// report counts as one of an instance that has heard no coordinator.
func (all *Members) believe(now limit.Time, st *Stream, r *lease.Report, knows func(epoch uint64) bool) {
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
