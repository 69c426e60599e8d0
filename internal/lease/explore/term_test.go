package explore

import (
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/holding"
	"github.com/stint-io/stint/limit"
)

// This file is the process around a coordinator: its terms, as package cluster elects, and
// what it sends in them, as package leaseservice does.

// applyProcess does an action of a process.
func (u *Universe) applyProcess(w *World, a Action, i int) (fault string, ok bool) {
	p := &w.processes[i]
	f := u.fleet.coordinators.factsOf(p.machine)
	switch a {
	case run:
		if p.term == 0 || p.paused || f.next > u.clock(w, i) {
			return "", false
		}
		return u.stepProcess(w, i, ticked, 0), true
	case renew:
		if u.recorded(w, i) || !u.write(w, i) {
			return "", false
		}
		return u.answered(w, i), true
	case elect:
		return u.elect(w, i)
	case crash:
		return "", w.may(crashes) && u.crash(w, i)
	case apart:
		if !p.apart && !w.may(outages) {
			return "", false
		}
		if p.apart = !p.apart; !p.apart && !p.current {
			p.current, p.seenAt = true, u.clock(w, i)
		}
		return "", true
	case send:
		return "", w.may(slows) && u.write(w, i)
	case pauseProcess:
		if !p.paused && !w.may(pauses) {
			return "", false
		}
		p.paused = !p.paused
		return "", true
	case answer:
		if p.term == 0 || p.paused || p.writing.sent == 0 || p.apart {
			return "", false
		}
		return u.answered(w, i), true
	case resign:
		if p.term == 0 || p.apart || p.paused || w.record.run != p.run || !w.may(leaves) {
			return "", false
		}
		out := u.fleet.coordinators.after(p.machine, input{u.clock(w, i), handedOver, 0})
		if out.fault != "" {
			return out.fault, true
		}
		p.machine = out.next
		w.record.resigned, w.record.holders, w.record.used = true, f.holders, out.used
		w.record.inSync.epoch, w.record.inSync.ids = p.term, p.named()
		w.endTerm(i)
		u.observe(w)
		return "", true
	case ask:
		if p.term == 0 || p.paused || len(p.asks) >= inTransit || !w.may(asks) {
			return "", false
		}
		return u.stepProcess(w, i, asked, 0), true
	case follow, learn, confirm, unfollow:
		return u.applyReplica(w, a, i)
	}
	return "", false
}

// clock is the time by the clock of a process.
func (u *Universe) clock(w *World, i int) limit.Time { return u.clocks[i].at(w.now) }

// endTerm ends the term of a process and its streams. What it has sent may still arrive.
func (w *World) endTerm(i int) {
	p := &w.processes[i]
	p.term, p.until, p.writing, p.stream, p.listed, p.asks = 0, 0, write{}, stream{}, 0, nil
	for j := range w.instances {
		m := &w.instances[j]
		if m.to == i {
			m.to, m.up, m.lateUp = nobody, nil, 0
		}
		if m.keeper == i {
			m.keeper, m.waiting = nobody, nil
		}
	}
}

// observe lets every process that reaches the register see a record that was just written.
func (u *Universe) observe(w *World) {
	for i := range w.processes {
		p := &w.processes[i]
		if p.current = !p.apart; p.current {
			p.seenAt = u.clock(w, i)
		}
	}
}

// write writes a renewal to the register, with who may hold leases.
func (u *Universe) write(w *World, i int) bool {
	p := &w.processes[i]
	if p.term == 0 || p.apart || p.paused || p.writing.sent != 0 || !u.renewalDue(w, i) {
		return false
	}
	if w.record.run != p.run {
		w.endTerm(i)
		return true
	}
	holders := u.fleet.coordinators.factsOf(p.machine).holders
	if !u.recorded(w, i) { // else it stays as it was, with what the former leader wrote of the buckets
		w.record.holders, w.record.used = holders, 0
		w.record.inSync.epoch, w.record.inSync.ids = p.term, [2]number{p.inSync()}
	}
	p.writing = write{u.clock(w, i), holders, p.inSync()}
	p.published = u.fleet.both(p.published, holders) // the record may be either
	u.observe(w)
	return true
}

// renewalDue says whether a quarter of the term has passed, or the record is not what it should be.
func (u *Universe) renewalDue(w *World, i int) bool {
	return u.clock(w, i) >= w.processes[i].until.Add(-TTL*3/4) || !u.recorded(w, i)
}

// recorded says whether the record has those who hold leases, and the replica that is in sync.
func (u *Universe) recorded(w *World, i int) bool {
	p := &w.processes[i]
	return u.fleet.coordinators.factsOf(p.machine).holders == p.published && p.inSync() == p.listed
}

// answered takes the answer to a renewal: the term lasts from when it was sent, and grants that waited
// for the record are sent.
func (u *Universe) answered(w *World, i int) (fault string) {
	p := &w.processes[i]
	if p.term == 0 {
		return ""
	}
	p.until = max(p.until, p.writing.sent.Add(TTL))
	p.published, p.listed, p.writing = p.writing.holders, p.writing.inSync, write{}
	return u.release(w, i)
}

// elect lets a process begin a term when the record is free or was not renewed for long enough.
func (u *Universe) elect(w *World, i int) (fault string, ok bool) {
	p := &w.processes[i]
	if p.term != 0 || p.apart || p.paused || u.electable(w, i) > w.now {
		return "", false
	}
	former := w.record.epoch
	epoch := max(former, u.fleet.coordinators.factsOf(p.machine).epoch) + 1
	holders := w.record.holders
	if w.record.run == 0 {
		holders = u.fleet.setOf(holding.Holders{})
	}
	used := u.used(w, i, former)
	w.record.epoch, w.record.run, w.record.holders, w.record.resigned = epoch, p.run, holders, false
	p.term, p.until, p.published = epoch, u.clock(w, i).Add(TTL), holders
	u.observe(w)
	return u.stepProcess(w, i, takenOver, u.fleet.takeover(takeover{epoch, former, holders, used})), true
}

// electable is when a process that reaches the register may take the record over, if it stays as it is.
func (u *Universe) electable(w *World, i int) time.Duration {
	if r, p := &w.record, &w.processes[i]; r.run != 0 && !r.resigned && r.run != p.run {
		return u.clocks[i].when(p.seenAt.Add(patience))
	}
	return w.now
}

// crash ends a process. Another one begins in its place, without its memory.
func (u *Universe) crash(w *World, i int) bool {
	w.endTerm(i)
	if w.processes[1-i].stream.id != 0 && u.unfollow(w, 1-i) != "" {
		return false
	}
	next := w.processes[i].run + 2
	w.processes[i] = process{
		run: next, machine: u.fleet.coordinators.begin(u.clock(w, i), number(next)), apart: w.processes[i].apart,
		current: !w.processes[i].apart, seenAt: u.clock(w, i),
	}
	return true
}

// stepProcess steps the coordinator of a process in its term, and sends what it grants.
func (u *Universe) stepProcess(w *World, i int, kind inputKind, arg number) (fault string) {
	p := &w.processes[i]
	out := u.fleet.coordinators.after(p.machine, input{u.clock(w, i), kind, arg})
	if out.fault != "" {
		return out.fault
	}
	epoch := u.fleet.coordinators.factsOf(p.machine).epoch
	if p.machine = out.next; u.fleet.coordinators.factsOf(p.machine).broken {
		return "the books of a coordinator do not add up"
	}
	if u.fleet.coordinators.factsOf(p.machine).epoch != epoch {
		p.asks = nil
		p.stream = stream{} // what the replica knows is of the former one
	}
	if fault = u.tell(w, i, &out); fault != "" {
		return fault
	}
	if kind == asked && out.admitted > 0 {
		fault = u.answer(w, i, out.must[len(out.messages)])
	}
	for k, n := range out.messages {
		for j := range w.instances {
			if m := &w.instances[j]; m.keeper == i && m.member() == u.fleet.letters[n].grant.To {
				u.sendGrant(w, i, j, withheld{n, out.must[k]})
			}
		}
	}
	return fault
}

func (m *member) member() lease.Member { return newMember(m.session) }

// sendGrant sends a grant to an instance, or keeps it back until the record has its session, and the replica
// knows what is left of the bucket.
func (u *Universe) sendGrant(w *World, i, j int, g withheld) {
	m, p := &w.instances[j], &w.processes[i]
	switch {
	case len(m.waiting) > 0 || !p.know(g.must) || u.fleet.lends(g.grant) && !u.fleet.holders[p.published].Covers(uint64(m.session), theLimit):
		m.waiting = append(m.waiting[:len(m.waiting):len(m.waiting)], g)
	case m.to == i:
		m.down = later(m.down, g.grant)
	}
	if len(m.down)+len(m.waiting) > 2*inTransit {
		w.cut(j)
		m.waiting = nil
	}
}
