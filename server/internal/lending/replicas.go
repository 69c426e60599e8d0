package lending

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
)

const (
	// replicaPatience is how long a replica may take to confirm. Not longer: what is lent waits for it. Not
	// shorter: one that is dropped is sent every bucket again.
	replicaPatience = 300 * time.Millisecond
	// replicaGrace is how much of its patience a replica has left when the leader sees that it is late: the leader itself
	// may have stood still, with the confirmation on the way. Not longer: it is part of what is waited for.
	replicaGrace = 50 * time.Millisecond
	// firstReplicaPatience is how long one may take to know all buckets, when nothing waits for it yet.
	firstReplicaPatience = 30 * time.Second
	// replicaQueue is how many messages wait for the network at most: what a leader sends while a million
	// buckets are on the way, and these.
	replicaQueue = 4096
)

// replicaSet is the replicas of a leader, at followers. The leader sends them what it lends before it lends it. Those that
// have confirmed everything are named in its record, and only one of those knows the buckets when it leads next: so a
// leader that is killed has a successor that does not lend what was spent, and does not withhold what was not.
//
// It is for one goroutine, which owns the coordinator. Make it with newReplicaSet for each term.
type replicaSet struct {
	epoch    uint64
	number   uint64 // of the latest Levels
	replicas map[uint64]*replicaStream
	doubts   map[string]hostDoubt // by host
	listed   []uint64             // that stand in the record, or may do so
	waiting  []waiting
}

// waiting is what is done when the replicas in the record know so many Levels.
type waiting struct {
	number uint64
	f      func(known bool)
}

// hostDoubt is what is held against a host whose replicas were lost: one that is slow again and again would cost every
// new key patience each time, and every one that begins anew is sent all buckets.
type hostDoubt struct {
	pause time.Duration
	until limit.Time // when its next replica may begin
}

// The pauses of a host. The first is not shorter than most hiccups last; a host that is lost again within
// forgiven pauses waits for twice as long, up to the longest, which is not so long that a member that has got well is
// missed at the next kill.
const (
	firstReplicaPause   = time.Second
	longestReplicaPause = time.Minute
	forgivenPauses      = 8
)

// maxReplicas bounds the replicas. Not fewer: those that the record names, and as many that begin. Not more: each
// costs a message for each change, and the record names [coordinator.MaxInSync] of them.
const maxReplicas = 2 * coordinator.MaxInSync

// newReplicaSet returns a leader without replicas, of the term of an epoch. The number is that of the latest Level of
// its coordinator.
func newReplicaSet(epoch, number uint64) *replicaSet {
	return &replicaSet{epoch: epoch, number: number, replicas: map[uint64]*replicaStream{}, doubts: map[string]hostDoubt{}}
}

// replicaStream is what is sent to one replica. It is safe for concurrent use but for what the replicaSet does.
type replicaStream struct {
	id    uint64
	host  string
	out   chan *leasepb.Levels
	ended chan struct{}
	end   func() // may be called more than once

	// Of the leader.
	confirmed uint64
	since     limit.Time // since when it was to confirm more
	late      limit.Time // when that was seen to be too long ago; 0 = it was not
}

// newReplicaStream returns a stream to the replica of that number, on a host.
func newReplicaStream(id uint64, host string) *replicaStream {
	s := &replicaStream{id: id, host: host, out: make(chan *leasepb.Levels, replicaQueue), ended: make(chan struct{})}
	s.end = sync.OnceFunc(func() { close(s.ended) })
	return s
}

// may says whether one more replica, on a host, may begin.
func (l *replicaSet) may(now limit.Time, st *replicaStream) bool {
	return len(l.replicas) < maxReplicas && now >= l.doubts[st.host].until && l.replicas[st.id] == nil
}

// add begins to send to a replica: all that it has to know, and then what tell is told.
func (l *replicaSet) add(now limit.Time, st *replicaStream, levels []coordinator.Level, others time.Duration) {
	first := true
	for ; first || len(levels) > 0; first = false {
		part := levels[:min(len(levels), maxLevels)]
		levels = levels[len(part):]
		m := &leasepb.Levels{Number: l.number, Epoch: l.epoch, Complete: len(levels) == 0}
		if first {
			m.Others = int64(others)
		}
		toLevels(m, part)
		st.put(m)
	}
	st.since = now
	l.replicas[st.id] = st
}

// tell sends levels to all replicas. The number is that of the last one.
func (l *replicaSet) tell(now limit.Time, levels []coordinator.Level, number uint64) {
	for len(levels) > 0 {
		part := levels[:min(len(levels), maxLevels)]
		levels = levels[len(part):]
		before := l.number
		l.number = number - uint64(len(levels))
		m := &leasepb.Levels{Number: l.number, Epoch: l.epoch, Complete: true}
		toLevels(m, part)
		for _, st := range l.replicas {
			if st.confirmed == before {
				st.since = now
			}
			st.put(m)
		}
	}
}

// put queues a message. A replica that does not keep up is ended.
func (s *replicaStream) put(m *leasepb.Levels) {
	select {
	case s.out <- m:
	default:
		s.end()
	}
}

// confirm takes note of what a replica knows. first says that it knows every bucket from now on.
func (l *replicaSet) confirm(now limit.Time, st *replicaStream, number uint64) (first bool) {
	if number <= st.confirmed || number > l.number || l.replicas[st.id] != st {
		return false
	}
	first = st.confirmed == 0
	st.confirmed, st.since, st.late = number, now, 0
	return first
}

// remove forgets a replica whose stream has ended, and has the next one of its host wait.
func (l *replicaSet) remove(now limit.Time, st *replicaStream) {
	st.end()
	if l.replicas[st.id] != st {
		return
	}
	delete(l.replicas, st.id)
	d := l.doubts[st.host]
	if d.pause == 0 || now > d.until.Add(forgivenPauses*d.pause) {
		d.pause = firstReplicaPause
	} else {
		d.pause = min(2*d.pause, longestReplicaPause)
	}
	d.until = now.Add(d.pause)
	l.doubts[st.host] = d
}

// sweep ends and forgets replicas that do not keep up, and reports whether there were any, and when one may be
// that does not.
func (l *replicaSet) sweep(now limit.Time) (dropped bool, next limit.Time) {
	next = lease.Never
	for _, st := range l.replicas {
		may := replicaPatience
		if st.confirmed == 0 {
			may = firstReplicaPatience
		}
		due := st.since.Add(may - replicaGrace)
		switch {
		case st.over():
			due = now
		case st.confirmed >= l.number:
			continue
		case now >= due && st.late == 0:
			st.late = now
		}
		if st.late != 0 {
			due = st.late.Add(replicaGrace)
		}
		if next = min(next, due); now >= due {
			l.remove(now, st)
			dropped = true
		}
	}
	return dropped, next
}

// after has f called when all replicas in the record know the Levels of that number, by the next release, or
// with false when the term has ended. It may be called at once.
func (l *replicaSet) after(number uint64, f func(known bool)) {
	if l.know(number) {
		f(true)
		return
	}
	l.waiting = append(l.waiting, waiting{number, f})
}

// release calls what waited for what is known by now.
func (l *replicaSet) release() {
	n := 0
	for n < len(l.waiting) && l.know(l.waiting[n].number) {
		l.waiting[n].f(true)
		n++
	}
	if l.waiting = l.waiting[n:]; len(l.waiting) == 0 {
		l.waiting = nil
	}
}

// endAll ends and forgets all replicas, and what waits for them.
func (l *replicaSet) endAll() {
	for _, w := range l.waiting {
		w.f(false)
	}
	l.waiting = nil
	for _, st := range l.replicas {
		st.end()
	}
	clear(l.replicas)
}

// count is how many there are.
func (l *replicaSet) count() int { return len(l.replicas) }

// inSync returns the replicas that can stand in the record: those that know every bucket.
func (l *replicaSet) inSync() coordinator.InSync {
	s := coordinator.InSync{Epoch: l.epoch}
	for id, st := range l.replicas {
		if st.confirmed > 0 {
			s.Replicas = append(s.Replicas, id)
		}
	}
	slices.Sort(s.Replicas)
	s.Replicas = s.Replicas[:min(len(s.Replicas), coordinator.MaxInSync)]
	return s
}

// mayBeInRecord returns the replicas that stand in the record, or may do so.
func (l *replicaSet) mayBeInRecord() coordinator.InSync {
	return coordinator.InSync{Epoch: l.epoch, Replicas: l.listed}
}

// writing says that a record with these is being written: it may be the one that a successor reads.
func (l *replicaSet) writing(s *coordinator.InSync) {
	for _, id := range s.Replicas {
		if !slices.Contains(l.listed, id) {
			l.listed = append(l.listed, id)
		}
	}
}

// written says that the record has these and no others.
func (l *replicaSet) written(s *coordinator.InSync) { l.listed = s.Replicas }

// current says whether the record has the replicas that it should have.
func (l *replicaSet) current() bool { return slices.Equal(l.inSync().Replicas, l.listed) }

// know says whether all replicas in the record know the Levels of that number. One that is lost knows
// nothing, until the record is written without it.
func (l *replicaSet) know(number uint64) bool {
	for _, id := range l.listed {
		if st := l.replicas[id]; st == nil || st.confirmed < number {
			return false
		}
	}
	return true
}

// hostOf returns the host at the other end of a stream; "" = it is in memory.
func hostOf(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return p.Addr.String()
	}
	return host
}

// receive calls f with each number that the replica confirms, until the stream ends or f returns false.
func (s *replicaStream) receive(srv grpc.BidiStreamingServer[leasepb.Confirmation, leasepb.Levels], f func(number uint64) bool) {
	for {
		m, err := srv.Recv()
		if err != nil || !f(m.GetNumber()) {
			return
		}
	}
}

func (s *replicaStream) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

var errSlow = status.Error(codes.Aborted, "the replica did not confirm in time, or the term has ended: open another stream")

// serve sends what is queued until the stream ends, or the handler's context, or the service is gone.
func (s *replicaStream) serve(srv grpc.BidiStreamingServer[leasepb.Confirmation, leasepb.Levels], gone <-chan struct{}) error {
	defer s.end()
	for {
		select {
		case m := <-s.out:
			if err := srv.Send(m); err != nil {
				return err
			}
		case <-s.ended:
			return errSlow
		case <-gone:
			return errSlow
		case <-srv.Context().Done():
			return srv.Context().Err()
		}
	}
}
