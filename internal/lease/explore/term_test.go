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
		if f.holders == p.published || !u.write(w, i) {
			return "", false
		}
		u.answered(w, i)
		return "", true
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
		u.answered(w, i)
		return "", true
	case resign:
		if p.term == 0 || p.apart || p.paused || w.record.run != p.run || !w.may(leaves) {
			return "", false
		}
		w.endTerm(i)
		w.record.resigned, w.record.holders = true, f.holders
		u.observe(w)
		return "", true
	}
	return "", false
}

// clock is the time by the clock of a process.
func (u *Universe) clock(w *World, i int) limit.Time { return u.clocks[i].at(w.now) }

// endTerm ends the term of a process and its streams. What it has sent may still arrive.
func (w *World) endTerm(i int) {
	p := &w.processes[i]
	p.term, p.until, p.writing = 0, 0, write{}
	for j := range w.instances {
		if m := &w.instances[j]; m.to == i {
			m.to, m.up, m.waiting, m.lateUp = nobody, nil, nil, 0
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
	w.record.holders = holders
	p.writing = write{u.clock(w, i), holders}
	p.published = u.fleet.both(p.published, holders) // the record may be either
	u.observe(w)
	return true
}

// renewalDue says whether a quarter of the term has passed, or others hold leases than the record says.
func (u *Universe) renewalDue(w *World, i int) bool {
	p := &w.processes[i]
	return u.clock(w, i) >= p.until.Add(-TTL*3/4) || u.fleet.coordinators.factsOf(p.machine).holders != p.published
}

// answered takes the answer to a renewal: the term lasts from when it was sent, and grants that waited
// for the record are sent.
func (u *Universe) answered(w *World, i int) {
	p := &w.processes[i]
	if p.term == 0 {
		return
	}
	p.until = max(p.until, p.writing.sent.Add(TTL))
	p.published, p.writing = p.writing.holders, write{}
	for j := range w.instances {
		m := &w.instances[j]
		if m.to != i {
			continue
		}
		waiting := m.waiting
		m.waiting = nil
		for _, n := range waiting {
			u.sendGrant(w, i, j, n)
		}
	}
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
	w.record = record{epoch: epoch, run: p.run, holders: holders}
	p.term, p.until, p.published = epoch, u.clock(w, i).Add(TTL), holders
	u.observe(w)
	return u.stepProcess(w, i, takenOver, u.fleet.takeover(epoch, former, holders)), true
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
	if p.machine = out.next; u.fleet.coordinators.factsOf(p.machine).broken {
		return "the books of a coordinator do not add up"
	}
	for _, n := range out.messages {
		for j := range w.instances {
			if m := &w.instances[j]; m.to == i && m.member() == u.fleet.letters[n].grant.To {
				u.sendGrant(w, i, j, n)
			}
		}
	}
	return ""
}

func (m *member) member() lease.Member { return newMember(m.session) }

// sendGrant sends a grant to an instance, or keeps it back until the record has its session.
func (u *Universe) sendGrant(w *World, i, j int, n number) {
	m := &w.instances[j]
	if len(m.waiting) > 0 || u.fleet.lends(n) && !u.fleet.holders[w.processes[i].published].Covers(uint64(m.session), theLimit) {
		m.waiting = later(m.waiting, n)
	} else {
		m.down = later(m.down, n)
	}
	if len(m.down)+len(m.waiting) > 2*inTransit {
		w.cut(j)
	}
}
