package cluster

import "time"

// written takes a swap that was done.
func (m *machine) written(now time.Duration, op operation, revision uint64, out *output) {
	// Operations in doubt name an older revision: they cannot be done any more.
	m.doubts = nil
	from := m.before()
	m.observe(now, revision, op.claim, nil)
	m.state.written = max(m.state.written, op.version)
	switch {
	case op.claim.Resigned:
		m.resign.write = false
	case m.term.held:
		m.extend(op.sent)
	case op.claim.Epoch == m.term.epoch:
		// A renewal of a term that has ended meanwhile. The record is ours without a term.
	default:
		m.beginTerm(now, op, from, out)
	}
}

// beginTerm takes up the term that a swap has written, if it lasts yet.
func (m *machine) beginTerm(now time.Duration, op operation, from Term, out *output) {
	from.Epoch = op.claim.Epoch
	m.term = tenure{held: true, epoch: op.claim.Epoch, from: from, version: op.version}
	m.extend(op.sent)
	if now >= m.term.until {
		m.term.held = false
		return
	}
	if m.resign.stop {
		m.term.held = false
		m.resign.write, m.resign.unled = true, from.unled()
		return
	}
	m.app = beginning
	out.begin = &from
}

// before returns the term before one that takes the record that was seen.
func (m *machine) before() Term {
	c := m.seen.claim
	switch {
	case m.outdated:
		return Term{Former: m.epoch, Lost: true}
	case c == nil:
		return Term{Lost: !m.cfg.first}
	case c.Unled != nil && (c.Resigned || !m.cfg.forgets): // otherwise a later record may have been forgotten
		return Term{Former: c.Unled.Epoch, Unled: c.Epoch, State: c.State, Clean: c.Unled.Clean, Lost: c.Lost}
	}
	return Term{Former: c.Epoch, State: c.State, Clean: c.Resigned, Watched: m.seen.follows, Lost: c.Lost}
}

func (t *Term) unled() *unled { return &unled{t.Former, t.Clean} }

// extend makes the term last from a renewal that was sent then.
func (m *machine) extend(sent time.Duration) {
	m.term.until = max(m.term.until, sent+m.cfg.ttl)
	m.term.renew = sent + m.cfg.ttl/renewalsPerTTL
}

// received takes a record that was read.
func (m *machine) received(now time.Duration, r Record, out *output) {
	m.read = false
	silent := now - m.readAt
	m.readAt = now
	m.poll = now + m.cfg.ttl/renewalsPerTTL
	var c *claim
	var fault error
	if r.Revision != 0 {
		c, fault = decodeClaim(r.Value)
	}
	changed := r.Revision != m.seen.revision || !m.seen.valid
	// That there is no record has no revision: there may have been one in a time without reads.
	if changed || r.Revision == 0 && silent > m.cfg.ttl/2 {
		m.observe(now, r.Revision, c, fault)
	}
	ours := c != nil && c.Run == m.cfg.run
	if !ours || c.Resigned {
		m.resign.write = false // it is done, or another member has the record
	}
	if !m.term.held {
		return
	}
	if m.outdated {
		// A member that finds the record lost waits for a TTL: the term goes on, and so does its record.
		m.term.renew = now
		return
	}
	if !ours || c.Epoch != m.term.epoch {
		m.endTerm("another member has the record", out)
		return
	}
	if !changed {
		return // those in doubt may still come
	}
	for _, op := range m.doubts {
		if op.claim.Write == c.Write {
			m.extend(op.sent)
			m.state.written = max(m.state.written, op.version)
		}
	}
	m.doubts = nil
}

// observe records that a revision is the present one from now on.
func (m *machine) observe(now time.Duration, revision uint64, c *claim, fault error) {
	before := m.seen
	m.seen = observation{valid: true, revision: revision, claim: c, fault: fault, since: now}
	switch {
	case c != nil:
		m.seen.follows = before.claim != nil && before.claim.Epoch == c.Epoch
		if m.outdated = c.Epoch < m.epoch || c.Epoch == m.epoch && c.Write <= m.write; !m.outdated {
			m.epoch, m.write = c.Epoch, c.Write
		}
	case revision == 0:
		m.outdated = m.epoch > 0
		m.seen.follows = before.revision != 0
	}
}

// endTerm ends the term. The program is told by the end of its context, and by Ended if Began has
// returned.
func (m *machine) endTerm(why string, out *output) {
	m.term.held = false
	m.doubts = nil
	m.read = true
	out.over = why
}

func (m *machine) appBegan(now time.Duration, err error, out *output) {
	switch {
	case err == nil:
		m.app = serving // if the term is over, Ended is called at the end of the step
	case m.term.held:
		m.retire(now, retire{}, out)
		m.app = idle
	default:
		m.app = idle
	}
}

// retire ends the term, and has the record say so.
func (m *machine) retire(now time.Duration, e retire, out *output) {
	if e.stop {
		m.resign.stop = true
		m.resign.bound = now + m.cfg.ttl
	}
	if !m.term.held {
		return
	}
	m.resign.unled = nil
	if m.app == beginning && m.state.version == m.term.version {
		// The program may not know yet what the former leader left: that is what the record goes on to say.
		m.resign.unled = m.term.from.unled()
	} else if e.state != nil {
		m.state.value = e.state
		m.state.version++
	}
	doubts := len(m.doubts) > 0
	m.endTerm("it was given up", out)
	// What is known of the record stands unless a renewal is in doubt.
	m.read = doubts
	m.resign.write = true
	m.resign.bound = now + m.cfg.ttl
	m.resign.again = now + restTTLs*m.cfg.ttl
}

// giveUpResigning stops the attempts to write that the term was given up. The others find out by
// themselves after a TTL.
func (m *machine) giveUpResigning(now time.Duration) {
	if m.resign.write && now >= m.resign.bound {
		m.resign.write = false
	}
}

// leadsUntil returns until when this member leads; 0 = it does not.
func (m *machine) leadsUntil() time.Duration {
	if !m.term.held || m.app != serving {
		return 0
	}
	return m.term.until
}

// leader returns who leads, and until when that is to be believed if nothing more is seen.
func (m *machine) leader() (Member, time.Duration) {
	c := m.seen.claim
	switch {
	case m.term.held:
		return m.cfg.self, m.term.until
	case c == nil, c.Resigned, c.Run == m.cfg.run:
		return Member{}, 0
	}
	return c.member(), m.seen.since + patience(max(m.cfg.ttl, c.ttl()))
}
