package explore

import (
	"time"

	"github.com/stint-io/stint/internal/lease/coordinator"
)

// This file is what a leader tells the process that follows it, and what waits for that, as package
// lending does. There are two processes, so a leader has one replica at most.

// levels is a message to a replica. The first of a stream says of every bucket what is left.
type levels struct {
	others time.Duration
	list   []coordinator.Level
	number uint64 // of the last Level: they are counted
}

// stream is what a leader tells a replica. It is lost where the leader knows that it has ended; one of which
// it does not know that is one whose messages do not come.
type stream struct {
	id        number   // of the replica; no two streams have the same one; 0 = there is no stream
	sent      []number // messages that are not confirmed
	received  number   // how many of them have come
	confirmed uint64   // the number of the Level up to which all are; 0 = the first message is not
}

// replica is what a process knows of the buckets of a leader.
type replica struct {
	id      number
	epoch   uint64
	machine number
}

// withheld is a grant that waits for the record, and for the replicas that it names.
type withheld struct {
	grant number
	must  uint64 // the number of the Level that replicas have to know first
}

// newReplica makes what is known when the first message of a stream has come.
func (f *fleet) newReplica(in input) *coordinator.Replica {
	first := f.letters[in.arg].levels
	r := coordinator.NewReplica(in.now, first.others)
	r.Update(in.now, first.list)
	return r
}

func (f *fleet) stepReplica(r *coordinator.Replica, in input) (out outcome) {
	r.Update(in.now, f.letters[in.arg].levels.list)
	return out
}

// numberOfUsed returns the number of what is known of the buckets.
func (f *fleet) numberOfUsed(u *coordinator.Used) number {
	if u == nil {
		return 0
	}
	r := coordinator.Record{Used: u}
	text := string(r.Encode())
	if n, ok := f.usedSets[text]; ok {
		return n
	}
	n := number(len(f.used))
	f.usedSets[text] = n
	f.used = append(f.used, text)
	return n
}

// usedOf is what has the number. It is made anew each time, since a coordinator changes it.
func (f *fleet) usedOf(n number) *coordinator.Used {
	if n == 0 {
		return nil
	}
	r, err := coordinator.DecodeRecord([]byte(f.used[n]))
	if err != nil || r.Used == nil {
		panic("what is known of the buckets cannot be read from the record")
	}
	return r.Used
}

// applyReplica does an action of the stream of leader i to the other process.
func (u *Universe) applyReplica(w *World, a Action, i int) (fault string, ok bool) {
	p, to := &w.processes[i], &w.processes[1-i]
	switch a {
	case follow:
		if !p.leads() || p.paused || to.paused || !w.may(follows) {
			return "", false
		}
		return u.follow(w, i)
	case learn:
		s := &p.stream
		if to.paused || int(s.received) == len(s.sent) {
			return "", false
		}
		u.learn(w, i)
		return "", true
	case confirm:
		s := &p.stream
		if !p.leads() || p.paused || s.received == 0 {
			return "", false
		}
		return u.confirmed(w, i), true
	case unfollow:
		if p.stream.id == 0 || p.paused || !w.may(cuts) {
			return "", false
		}
		return u.unfollow(w, i), true
	}
	return "", false
}

// follow opens a stream from leader i to the other process. A stream that there is has ended, and the leader has
// not noticed it before.
func (u *Universe) follow(w *World, i int) (fault string, ok bool) {
	p := &w.processes[i]
	out := u.fleet.coordinators.after(p.machine, input{u.clock(w, i), followed, 0})
	if out.fault != "" || out.levels == 0 {
		return out.fault, out.fault != ""
	}
	w.streams++
	p.machine, p.stream = out.next, stream{id: w.streams, sent: []number{out.levels}}
	return "", true
}

// unfollow ends the stream of leader i, which knows it.
func (u *Universe) unfollow(w *World, i int) (fault string) {
	p := &w.processes[i]
	p.stream = stream{}
	out := u.fleet.coordinators.after(p.machine, input{u.clock(w, i), unfollowed, 0})
	if out.fault == "" {
		p.machine = out.next
	}
	return out.fault
}

// tell sends the replica of leader i what a step has changed. One that is too slow is lost.
func (u *Universe) tell(w *World, i int, out *outcome) (fault string) {
	s := &w.processes[i].stream
	if s.id == 0 || out.levels == 0 {
		return ""
	}
	if s.sent = later(s.sent, out.levels); len(s.sent) > inTransit {
		return u.unfollow(w, i)
	}
	return ""
}

// learn brings the replica of leader i the next message.
func (u *Universe) learn(w *World, i int) {
	s, to := &w.processes[i].stream, &w.processes[1-i]
	now, m := u.clock(w, 1-i), s.sent[s.received]
	if s.received++; to.replica.id != s.id {
		to.replica = replica{s.id, w.processes[i].term, u.fleet.replicas.begin(now, m)}
		return
	}
	to.replica.machine = u.fleet.replicas.after(to.replica.machine, input{now, received, m}).next
}

// confirmed tells leader i that its replica knows all that has come to it.
func (u *Universe) confirmed(w *World, i int) (fault string) {
	s := &w.processes[i].stream
	n := s.received
	s.confirmed = u.fleet.letters[s.sent[n-1]].levels.number
	s.sent, s.received = s.sent[n:], 0
	return u.release(w, i)
}

// inSync is the replica that the next record of leader i names; 0 = none.
func (p *process) inSync() number {
	if p.stream.confirmed > 0 {
		return p.stream.id
	}
	return 0
}

// named are the replicas that the record of a leader names, or may name.
func (p *process) named() [2]number { return [...]number{p.listed, p.writing.inSync} }

// know says whether they know the Level of that number. One that is lost knows nothing, until the record is
// written without it.
func (p *process) know(must uint64) bool {
	for _, id := range p.named() {
		if id != 0 && (id != p.stream.id || p.stream.confirmed < must) {
			return false
		}
	}
	return true
}

// release sends the answers and the grants of leader i that have waited for long enough.
func (u *Universe) release(w *World, i int) (fault string) {
	fault = u.answerAll(w, i)
	for j := range w.instances {
		m := &w.instances[j]
		if m.keeper != i {
			continue
		}
		waiting := m.waiting
		m.waiting = nil
		for _, g := range waiting {
			u.sendGrant(w, i, j, g)
		}
	}
	return fault
}

// used is what a process knows of the buckets as a replica, when its term begins after that of an epoch.
func (u *Universe) used(w *World, i int, former uint64, r *record) number {
	known := &w.processes[i].replica
	named := coordinator.InSync{Epoch: r.inSync.epoch, Replicas: []uint64{uint64(r.inSync.ids[0]), uint64(r.inSync.ids[1])}}
	if known.id == 0 || known.epoch != former || !named.Has(former, uint64(known.id)) {
		return 0
	}
	return u.fleet.numberOfUsed(u.fleet.replicas.machine(known.machine).Used(u.clock(w, i)))
}
