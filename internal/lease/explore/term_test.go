package explore

import (
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/holding"
	"github.com/stint-io/stint/limit"
)

// This file is the process around a coordinator: its terms, as package cluster elects, and
// what it sends in them, as package lending does.

// applyProcess does an action of a process.
func (u *Universe) applyProcess(w *World, a Action, i int) (fault string, ok bool) {
	p := &w.processes[i]
	f := u.fleet.coordinators.factsOf(p.machine)
	switch a {
	case run:
		if !p.leads() || p.paused || f.next > u.clock(w, i) {
			return "", false
		}
		return u.stepProcess(w, i, ticked, 0), true
	case renew:
		if u.recorded(w, i) && !p.outdated || !u.write(w, i) {
			return "", false
		}
		return u.answered(w, i), true
	case elect:
		if !u.win(w, i) {
			return "", false
		}
		return u.begin(w, i), true
	case win:
		return "", w.may(stops) && u.win(w, i)
	case begin:
		if !p.beginning || p.paused {
			return "", false
		}
		return u.begin(w, i), true
	case quit:
		return "", u.quit(w, i)
	case crash:
		return "", w.may(crashes) && u.crash(w, i, false)
	case restore:
		return "", w.may(copies) && u.crash(w, i, true)
	case apart:
		if !p.apart && !w.may(outages) {
			return "", false
		}
		if p.apart = !p.apart; !p.current && u.reads(w, i) {
			u.see(w, i)
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
		if !p.leads() || p.apart || p.paused || w.record.run != p.run || w.record.resigned || !w.may(leaves) {
			return "", false
		}
		out := u.fleet.coordinators.after(p.machine, input{u.clock(w, i), handedOver, 0})
		if out.fault != "" {
			return out.fault, true
		}
		p.machine = out.next
		r := u.published(w, i, p.named())
		r.resigned, r.used = true, out.used
		w.endTerm(i)
		u.store(w, i, r)
		return "", true
	case ask:
		if !p.leads() || p.paused || len(p.asks) >= inTransit || !w.may(asks) {
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
	p.from, p.beginning, p.wrote = predecessor{}, false, record{}
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

// write writes a renewal to the register, with who may hold leases.
func (u *Universe) write(w *World, i int) bool {
	p := &w.processes[i]
	if p.term == 0 || p.apart || p.paused || p.writing.sent != 0 || !u.renewalDue(w, i) {
		return false
	}
	if !p.outdated && (w.record.run != p.run || w.record.epoch != p.term) {
		w.endTerm(i)
		return true
	}
	r := p.wrote
	if !u.recorded(w, i) { // else it stays as it was, with what the former leader wrote of the buckets
		r = u.published(w, i, [2]number{p.inSync()})
	}
	p.writing = write{u.clock(w, i), p.published, p.inSync()}
	if p.leads() {
		p.writing.holders = r.holders
		p.published = u.fleet.both(p.published, r.holders) // the record may be either
	}
	p.wrote = u.store(w, i, r)
	return true
}

// published is the record of a leader with what it knows.
func (u *Universe) published(w *World, i int, inSync [2]number) record {
	p := &w.processes[i]
	f := u.fleet.coordinators.factsOf(p.machine)
	r := record{epoch: p.term, published: true, holders: f.holders}
	if r.inSync.epoch, r.inSync.ids = p.term, inSync; f.epoch != p.term {
		r.risen = f.epoch
	}
	return r
}

// renewalDue says whether a quarter of the term has passed, or the record is not what it should be.
func (u *Universe) renewalDue(w *World, i int) bool {
	p := &w.processes[i]
	return u.clock(w, i) >= p.until.Add(-TTL*3/4) || p.outdated || !u.recorded(w, i)
}

// recorded says whether the record has those who hold leases, and the replica that is in sync.
func (u *Universe) recorded(w *World, i int) bool {
	p := &w.processes[i]
	return p.beginning || u.fleet.coordinators.factsOf(p.machine).holders == p.published && p.inSync() == p.listed
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
		if epoch := u.fleet.coordinators.factsOf(p.machine).epoch; epoch != p.term {
			p.published = u.fleet.setOf(holding.Holders{}) // grants wait for a record with the epoch
			u.raise(p, epoch)
		}
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

// leads says whether a process may lend.
func (p *process) leads() bool { return p.term != 0 && !p.beginning }

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
