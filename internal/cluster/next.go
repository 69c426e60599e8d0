package cluster

import (
	"errors"
	"math"
	"time"
)

// next returns the operation to send now, or nil.
func (m *machine) next(now time.Duration) *operation {
	switch {
	case now < m.pace:
		return nil
	case m.term.held:
		switch {
		case m.read:
			return &operation{sent: now}
		case now >= m.term.renew, m.state.version > m.state.written, len(m.doubts) > 0:
			return m.swap(now, m.term.epoch)
		}
		return nil
	case m.resign.write:
		switch {
		case m.app != idle:
			return nil // the program may still act under the term
		case m.read:
			return &operation{sent: now}
		}
		op := m.swap(now, m.term.epoch)
		op.claim.Resigned, op.claim.Unled = true, m.resign.unled
		return op
	case m.resign.stop:
		return nil
	case m.read, !m.seen.valid, now >= m.poll:
		return &operation{sent: now}
	}
	if at, ok := m.takeAt(); ok && now >= at {
		return m.take(now)
	}
	return nil
}

// takeAt returns when the record may be taken over, if it stays as it is.
func (m *machine) takeAt() (time.Duration, bool) {
	if !m.seen.valid || m.seen.fault != nil || m.app != idle || m.resign.stop {
		return 0, false
	}
	at, holder := m.seen.since, ""
	if c := m.seen.claim; c != nil {
		holder = c.ID
	}
	if m.cfg.yield != nil && m.cfg.yield(holder) {
		at += m.cfg.ttl / yieldPart
	}
	switch c := m.seen.claim; {
	case c == nil:
		// A record that is gone was deleted by hand, or lost, in the middle of a term.
		if m.cfg.forgets || m.seen.follows || m.outdated || !m.cfg.first {
			at += patience(m.cfg.ttl)
		}
	case m.outdated:
		at += patience(max(m.cfg.ttl, c.ttl())) // another term may last
	case c.Run == m.cfg.run: // ours, without a term
	case c.Resigned:
		// A backend that forgets may show a record of before the present leader's term.
		if m.cfg.forgets && !m.seen.follows {
			at += patience(max(m.cfg.ttl, c.ttl()))
		}
	default:
		at += patience(max(m.cfg.ttl, c.ttl()))
	}
	return max(at, m.resign.again), true
}

// take returns the swap that begins a term, or nil if there is no higher epoch.
func (m *machine) take(now time.Duration) *operation {
	highest := max(m.epoch, m.cfg.epoch())
	if highest == math.MaxUint64 {
		m.seen.fault = errors.New("cluster: the highest epoch is in use: delete the leader's record")
		return nil
	}
	// Until it publishes a state of its own, a leader hands on that of its predecessor.
	m.state.value, m.state.written = nil, m.state.version
	if m.seen.claim != nil {
		m.state.value = m.seen.claim.State
	}
	op, from := m.swap(now, highest+1), m.before()
	op.claim.Lost, op.claim.Unled = from.Lost, from.unled()
	return op
}

func (m *machine) swap(now time.Duration, epoch uint64) *operation {
	m.writes++
	c := &claim{
		Epoch: epoch, ID: m.cfg.self.ID, Address: m.cfg.self.Address,
		Run: m.cfg.run, Write: m.writes, TTLMillis: millis(m.cfg.ttl), State: m.state.value,
	}
	if m.state.version == m.term.version {
		c.Lost, c.Unled = m.term.from.Lost, m.term.from.unled()
	}
	return &operation{swap: true, revision: m.seen.revision, claim: c, sent: now, version: m.state.version}
}

// wake returns when a step is due though nothing happens.
func (m *machine) wake(now time.Duration) time.Duration {
	at := now + m.cfg.ttl
	if m.term.held {
		at = min(at, m.term.until)
	}
	if m.resign.write {
		at = min(at, m.resign.bound)
	}
	if m.pending == nil {
		at = min(at, max(m.due(now), m.pace))
	}
	return max(at, now)
}

// due returns when next has something to send, but for the pace after errors.
func (m *machine) due(now time.Duration) time.Duration {
	const never = math.MaxInt64
	switch {
	case m.term.held:
		if m.read || len(m.doubts) > 0 || m.state.version > m.state.written {
			return now
		}
		return m.term.renew
	case m.resign.write:
		if m.app == idle {
			return now
		}
		return never
	case m.resign.stop:
		return never
	case m.read, !m.seen.valid:
		return now
	}
	at := m.poll
	if take, ok := m.takeAt(); ok {
		at = min(at, take)
	}
	return at
}
