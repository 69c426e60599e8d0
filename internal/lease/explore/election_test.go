package explore

import (
	"cmp"
	"math"
	"time"

	"github.com/stint-io/stint/internal/lease/holding"
)

// This file is the election, as package cluster does it, and what a process reads from the record when its term
// begins, as package lending does.

// tells says whether a process knows that the record is not the latest: it saw a later one, or the epoch of one is in
// its state folder.
func (p *process) tells(r *record) bool {
	known := max(p.epoch, p.known)
	return known > 0 && (r.epoch < known || r.epoch == p.epoch && r.write <= p.write)
}

// reads says whether a process reads the record. What follows from a record of an earlier moment that is read by a
// process that cannot know it is not prevented, so it is left out, but for a register that is known to forget: when
// all leases have ended it is believed in nothing that is lent again. A state folder with the epoch of that record is
// believed, so that is left out as well.
func (u *Universe) reads(w *World, i int) bool {
	p := &w.processes[i]
	switch {
	case p.apart:
		return false
	case !w.lost || p.tells(&w.record):
		return true
	}
	return u.forgets && w.record.run != 0 && u.ended(w) && p.known != w.record.epoch
}

// remembered says whether a process knows that the record is not the latest, or none has to.
func (u *Universe) remembered(w *World) bool {
	return !w.lost || u.forgets && w.record.run != 0 && u.ended(w) || w.processes[0].tells(&w.record) || w.processes[1].tells(&w.record)
}

// ended says whether no instance may spend anything.
func (u *Universe) ended(w *World) bool {
	for i := range w.instances {
		if u.local(w, i) < u.fleet.instances.factsOf(w.instances[i].machine).deadline {
			return false
		}
	}
	return true
}

// lose has the register hold another record, of an earlier moment, or none.
func (u *Universe) lose(w *World, r record) bool {
	w.record, w.lost = r, true
	for i := range w.processes {
		if p := &w.processes[i]; p.first && p.epoch == 0 {
			return false // it takes the register for new
		}
	}
	if !u.remembered(w) {
		return false
	}
	u.look(w)
	return true
}

// store writes a record.
func (u *Universe) store(w *World, i int, r record) record {
	p := &w.processes[i]
	p.writes++
	r.run, r.write = p.run, p.writes
	w.record, w.lost = r, false
	u.look(w)
	return r
}

// look lets every process that reads the register see a record that was just written.
func (u *Universe) look(w *World) {
	var reads [2]bool
	for i := range reads {
		reads[i] = u.reads(w, i)
	}
	for i, reads := range reads {
		if w.processes[i].current = false; reads {
			u.see(w, i)
		}
	}
}

// see has a process see the record.
func (u *Universe) see(w *World, i int) {
	p, r := &w.processes[i], &w.record
	p.current, p.seenAt = true, u.clock(w, i)
	if r.run == 0 {
		p.follows, p.outdated = p.seen != 0, p.epoch > 0
	} else {
		p.follows = p.seen == r.epoch
		if p.outdated = r.epoch < p.epoch || r.epoch == p.epoch && r.write <= p.write; !p.outdated {
			p.epoch, p.write = r.epoch, r.write
		}
	}
	p.seen = r.epoch
}

// never is later than any time.
const never = time.Duration(math.MaxInt64)

// electable is when a process may take the record over, if it stays as it is.
func (u *Universe) electable(w *World, i int) time.Duration {
	r, p := &w.record, &w.processes[i]
	waits := true
	switch {
	case !p.current:
		return never
	case r.run == 0:
		waits = u.forgets || p.follows || p.outdated || !p.first
	case p.outdated:
	case r.run == p.run:
		waits = false
	case r.resigned:
		waits = u.forgets && !p.follows
	}
	if waits {
		return u.clocks[i].when(p.seenAt.Add(patience))
	}
	return w.now
}

// before is the term before one that takes the record.
func (p *process) before(r *record) predecessor {
	switch {
	case p.outdated:
		return predecessor{epoch: p.epoch, lost: true}
	case r.run == 0:
		return predecessor{lost: !p.first}
	case r.unled.is:
		return predecessor{epoch: r.unled.epoch, clean: r.unled.clean, lost: r.lost}
	}
	return predecessor{r.epoch, r.resigned, p.follows, r.lost}
}

// win lets a process take the record when it is free or was not renewed for long enough.
func (u *Universe) win(w *World, i int) bool {
	p := &w.processes[i]
	if p.term != 0 || p.apart || p.paused || u.electable(w, i) > w.now {
		return false
	}
	p.from = p.before(&w.record)
	r := w.record // until it publishes, a leader hands on what its predecessor published
	r.epoch = max(p.epoch, w.latest, u.fleet.coordinators.factsOf(p.machine).epoch) + 1
	r.resigned, r.unled, r.lost = false, unled{}, p.from.lost
	w.latest = max(w.latest, r.epoch)
	p.term, p.until, p.beginning = r.epoch, u.clock(w, i).Add(TTL), true
	p.wrote = u.store(w, i, r)
	return true
}

// begin has the coordinator of a process that was elected take over.
func (u *Universe) begin(w *World, i int) (fault string) {
	p := &w.processes[i]
	t, known := takeover{epoch: p.term, former: p.from.epoch}, p.recordOf(u)
	t.holders, t.used = known.holders, known.used
	if t.used == 0 {
		t.used = u.used(w, i, t.former, &known)
	}
	t.former = cmp.Or(known.risen, t.former)
	p.published, p.beginning = known.holders, false
	u.raise(p, p.term)
	return u.stepProcess(w, i, takenOver, u.fleet.takeover(t))
}

// raise writes an epoch to the state folder of a process.
func (u *Universe) raise(p *process, epoch uint64) {
	if u.folders {
		p.folder = epoch
	}
}

// recordOf is what a process believes of the record that it took.
func (p *process) recordOf(u *Universe) record {
	r := p.wrote
	mine := p.known != 0 && p.known == cmp.Or(r.risen, p.from.epoch)
	switch {
	case p.from.lost || !r.published && u.forgets && p.from.epoch != 0:
		return record{holders: u.fleet.setOf(holding.Holders{Unknown: true})}
	case !p.from.clean || u.forgets && !p.from.watched && !mine:
		r.used = 0
	}
	if u.forgets {
		r.inSync.epoch, r.inSync.ids = 0, [2]number{}
	}
	return r
}

// quit has a process give its term up before its coordinator has taken over.
func (u *Universe) quit(w *World, i int) bool {
	p := &w.processes[i]
	if !p.beginning || p.apart || p.paused || w.record.run != p.run || w.record.resigned {
		return false
	}
	r := p.wrote
	r.resigned, r.unled = true, unled{true, p.from.epoch, p.from.clean}
	w.endTerm(i)
	u.store(w, i, r)
	return true
}

// crash ends a process. Another one begins in its place, without its memory, by what its state folder says, or a copy
// of it: the folder as it was when the process began.
func (u *Universe) crash(w *World, i int, copied bool) bool {
	p := &w.processes[i]
	folder := p.folder
	if copied {
		folder = p.known
	}
	w.endTerm(i)
	if w.processes[1-i].stream.id != 0 && u.unfollow(w, 1-i) != "" {
		return false
	}
	next := p.run + 2
	*p = process{run: next, machine: u.fleet.coordinators.begin(u.clock(w, i), number(next)), apart: p.apart, folder: folder, known: folder, epoch: folder}
	if !u.remembered(w) {
		return false
	}
	if u.reads(w, i) {
		u.see(w, i)
	}
	return true
}
