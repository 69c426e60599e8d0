package explore

import (
	"fmt"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// Universe is what stays the same in a search: the machines, the limit and the clocks.
type Universe struct {
	fleet  *fleet
	clocks [4]clock // of the processes, then of the instances

	forgets bool // the register may lose what it has said that it holds, and says so
	folders bool // processes have state folders
}

// Action is an event. The low bits say of which process or instance.
type Action uint8

const (
	tick          Action = iota // of an instance, when it is due
	deliver                     // the next grant to an instance
	submit                      // the next report of an instance
	connect                     // an instance opens a stream to the process that lends
	take                        // the application takes all that it may
	run                         // a tick of a coordinator, when it is due
	renew                       // a process renews its term, and publishes who may hold leases
	elect                       // a process takes over; time goes on to when it may
	pass                        // time goes on by the grid, and all that is due is done
	moment                      // the same, by an instant
	second                      // time goes on by a second in which nothing is done
	seconds                     // the same, four
	crash                       // a process begins anew
	restart                     // an instance begins anew
	cut                         // a stream breaks
	loseGrant                   // the next grant is lost
	loseReport                  // the next report is lost
	copyGrant                   // the next grant comes twice, later
	copyReport                  // the next report comes twice, later
	copied                      // the copy of the grant comes
	copiedUp                    // the copy of the report comes
	apart                       // a process does not reach the register, or reaches it again
	send                        // a renewal is written, and its answer is late
	answer                      // the answer comes
	resign                      // a process gives its term up
	leave                       // an instance leaves
	pauseProcess                // a process is paused, or goes on
	pauseInstance               // an instance is paused, or goes on
	follow                      // the other process follows one that leads
	learn                       // the replica of a leader is told the next levels
	confirm                     // the leader knows what its replica was told
	unfollow                    // the stream of a leader to its replica ends
	ask                         // a server asks a leader for a token
	win                         // a process is elected, and its coordinator has not taken over yet
	begin                       // the coordinator takes over
	quit                        // a process that was elected gives the term up before that: it ends, or fails
	restore                     // a process begins anew with an old copy of its state folder
	lose                        // the register loses its record
	keep                        // the record is one that the register may go back to
	goBack                      // the register has that record again
	actions
)

var actionNames = [...]string{
	"tick", "deliver", "submit", "connect", "take", "run", "renew", "elect", "pass", "moment", "second", "seconds", "crash", "restart", "cut", "loseGrant",
	"loseReport", "copyGrant", "copyReport", "copied", "copiedUp", "apart", "send", "answer", "resign", "leave", "pauseProcess", "pauseInstance",
	"follow", "learn", "confirm", "unfollow", "ask",
	"win", "begin", "quit", "restore", "lose", "keep", "goBack",
}

// String returns the name of the action and the number of the process that does it.
func (a Action) String() string { return fmt.Sprintf("%s %d", actionNames[a>>1], a&1) }

// every calls f with every action of a search. Ticks are done when time passes.
func every(f func(Action)) {
	for k := range actions {
		if k == tick || k == run {
			continue
		}
		f(k << 1)
		switch k {
		case pass, moment, second, seconds, lose, keep, goBack:
		default:
			f(k<<1 | 1)
		}
	}
}

// apply does an action. ok is false where it is not possible. A fault is a violation.
func (u *Universe) apply(w *World, a Action) (fault string, ok bool) {
	i := int(a & 1)
	switch a >> 1 {
	case tick:
		return u.tick(w, i)
	case deliver:
		return u.deliver(w, i)
	case submit:
		return u.submit(w, i)
	case connect:
		return u.connect(w, i)
	case take:
		if w.instances[i].paused || !w.may(takes) {
			return "", false
		}
		return u.stepInstance(w, i, spent, 0), true
	case pass:
		return u.pass(w, grid), true
	case moment:
		if !w.may(moments) {
			return "", false
		}
		return u.pass(w, instant), true
	case second:
		u.advance(w, w.now+time.Second)
		return "", w.may(pauses)
	case seconds:
		u.advance(w, w.now+4*time.Second)
		return "", w.may(pauses)
	case pauseInstance:
		m := &w.instances[i]
		if !m.paused && !w.may(pauses) {
			return "", false
		}
		m.paused = !m.paused
		return "", true
	case restart:
		return "", w.may(restarts) && u.restart(w, i)
	case cut:
		return "", w.instances[i].to != nobody && w.may(cuts) && w.cut(i)
	case loseGrant:
		m := &w.instances[i]
		return "", len(m.down) > 0 && w.may(losses) && drop(&m.down)
	case loseReport:
		m := &w.instances[i]
		return "", len(m.up) > 0 && w.may(losses) && drop(&m.up)
	case copyGrant, copyReport, copied, copiedUp:
		return u.again(w, a>>1, i)
	case leave:
		if u.fleet.instances.factsOf(w.instances[i].machine).next == lease.Never || !w.may(leaves) {
			return "", false
		}
		return u.stepInstance(w, i, left, 0), true
	case lose:
		return "", w.record.run != 0 && w.may(oblivions) && u.lose(w, record{})
	case keep:
		if w.record == w.kept || w.lost || !w.may(keeps) {
			return "", false
		}
		w.kept = w.record
		return "", true
	case goBack:
		return "", w.kept.run != 0 && w.kept != w.record && w.may(oblivions) && u.lose(w, w.kept)
	}
	return u.applyProcess(w, a>>1, i)
}

// may says whether a fault may happen still, and counts it.
func (w *World) may(k faultKind) bool {
	if w.faults[k] == 0 {
		return false
	}
	w.faults[k]--
	return true
}

func drop(l *[]number) bool {
	*l = (*l)[1:]
	return true
}

// later returns a list with one more, which shares nothing with the former one.
func later(l []number, n number) []number { return append(l[:len(l):len(l)], n) }

// advance lets time go on. Terms end by the clocks of their processes.
func (u *Universe) advance(w *World, to time.Duration) {
	if to <= w.now {
		return
	}
	u.fill(w, to-w.now, 0)
	w.now = to
	for i := range w.processes {
		if p := &w.processes[i]; p.term != 0 && u.clocks[i].at(w.now) >= p.until {
			w.endTerm(i)
		}
	}
}

// pass lets time go on. All that is due by then is done, but by those that are paused: the
// order does not matter, since each does it for itself.
func (u *Universe) pass(w *World, by time.Duration) (fault string) {
	u.advance(w, w.now+by)
	for i := range w.processes {
		p := &w.processes[i]
		if p.term != 0 && !p.paused && (p.outdated || u.clock(w, i) >= p.until.Add(-TTL*3/4)) && u.write(w, i) {
			if fault = u.answered(w, i); fault != "" {
				return fault
			}
		}
	}
	for _, k := range [...]Action{tick, run} {
		for i := range Action(2) {
			if fault, _ := u.apply(w, k<<1|i); fault != "" {
				return fault
			}
		}
	}
	return ""
}

// local is the time by the clock of an instance.
func (u *Universe) local(w *World, i int) limit.Time { return u.clocks[2+i].at(w.now) }

func (u *Universe) tick(w *World, i int) (fault string, ok bool) {
	m := &w.instances[i]
	next := u.fleet.instances.factsOf(m.machine).next
	if m.paused || next > u.local(w, i) || len(m.up) >= inTransit {
		return "", false
	}
	return u.stepInstance(w, i, ticked, 0), true
}

// inTransit is how many messages may be on the way at once. An instance that has so many waits, and a
// coordinator ends the stream.
const inTransit = 3

// stepInstance steps an instance, and sends what it reports.
func (u *Universe) stepInstance(w *World, i int, kind inputKind, arg number) (fault string) {
	m := &w.instances[i]
	out := u.fleet.instances.after(m.machine, input{u.local(w, i), kind, arg})
	if out.fault != "" {
		return out.fault
	}
	m.machine = out.next
	if out.admitted > 0 {
		u.fill(w, 0, fixed.Whole(out.admitted))
	}
	if fault = w.over(); fault != "" || m.to == nobody {
		return fault
	}
	for _, n := range out.messages {
		m.up = later(m.up, n)
	}
	return ""
}

// rounding is by how much the level of one bucket and those of its parts may differ, in millionths.
const rounding = 16

func (u *Universe) deliver(w *World, i int) (fault string, ok bool) {
	m := &w.instances[i]
	if m.paused || len(m.down) == 0 {
		return "", false
	}
	n := m.down[0]
	drop(&m.down)
	return u.stepInstance(w, i, received, n), true
}

func (u *Universe) submit(w *World, i int) (fault string, ok bool) {
	m := &w.instances[i]
	if len(m.up) == 0 || w.processes[m.to].paused {
		return "", false
	}
	n := m.up[0]
	drop(&m.up)
	return u.stepProcess(w, m.to, received, n), true
}

func (u *Universe) connect(w *World, i int) (fault string, ok bool) {
	m := &w.instances[i]
	if m.to != nobody || m.paused {
		return "", false
	}
	to := nobody
	for i := range w.processes {
		if p := &w.processes[i]; !p.paused && p.leads() && (to == nobody || p.term > w.processes[to].term) {
			to = i
		}
	}
	if to == nobody {
		return "", false
	}
	if m.keeper != to {
		m.keeper, m.waiting = to, nil
	}
	m.to, m.down, m.lateUp = to, nil, 0
	return u.stepInstance(w, i, connected, 0), true
}

// cut ends the stream of an instance. What is on the way is lost.
func (w *World) cut(i int) bool {
	m := &w.instances[i]
	m.to, m.up, m.down, m.lateUp = nobody, nil, nil, 0
	return true
}

// restart kills an instance. Another run of it begins.
func (u *Universe) restart(w *World, i int) bool {
	session := w.instances[i].session + 2
	w.instances[i] = member{session: session, machine: u.fleet.instances.begin(u.local(w, i), session), to: nobody, keeper: nobody}
	return true
}

// again copies a message that then comes twice, in another order, or brings the copy.
func (u *Universe) again(w *World, a Action, i int) (fault string, ok bool) {
	m := &w.instances[i]
	switch {
	case a == copyGrant && len(m.down) > 0 && m.late == 0 && w.may(repeats):
		m.late = m.down[0]
		return "", true
	case a == copyReport && len(m.up) > 0 && m.lateUp+m.replay == 0 && w.may(repeats):
		if u.fleet.claims(m.up[0]) {
			m.replay = m.up[0]
		} else {
			m.lateUp = m.up[0]
		}
		return "", true
	case a == copied && m.late != 0 && !m.paused:
		n := m.late
		m.late = 0
		return u.stepInstance(w, i, received, n), true
	case a == copiedUp && m.lateUp != 0 && !w.processes[m.to].paused:
		n := m.lateUp
		m.lateUp = 0
		return u.stepProcess(w, m.to, received, n), true
	case a == copiedUp && m.replay != 0:
		n := m.replay
		m.replay = 0
		for p := range w.processes {
			if w.processes[p].leads() && !w.processes[p].paused {
				return u.stepProcess(w, p, received, n), true
			}
		}
	}
	return "", false
}
