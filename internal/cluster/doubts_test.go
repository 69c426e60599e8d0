package cluster

import (
	"errors"
	"testing"
)

// TestRenewalsInDoubt: a renewal of unknown outcome may come into force behind the back of a read and
// make the next one fail. That is no loss of the record.
func TestRenewalsInDoubt(t *testing.T) {
	oneGoroutine(t)
	w := calm(t, 1)
	a := w.members[0]
	w.runUntil("A leads", a.leads)
	before := w.record
	m := &a.machine
	renewed := m.term.renew
	first := m.step(renewed, tick{}).send
	read := m.step(renewed+10, answered{err: errors.New("timeout")})
	if read.send != nil {
		t.Fatalf("%+v is sent without a pause", read.send)
	}
	read = m.step(read.wake, tick{})
	if read.send == nil || read.send.swap {
		t.Fatalf("a renewal in doubt is followed by %+v", read.send)
	}
	until := m.term.until
	second := m.step(read.send.sent+10, answered{record: before})
	if second.send == nil || !second.send.swap || second.send.revision != first.revision || m.term.until != until {
		t.Fatalf("a renewal that was not written is followed by %+v, and the term ends at %v", second.send, m.term.until)
	}
	third := m.step(second.send.sent+10, answered{err: ErrChanged})
	if third.over != "" || third.send == nil || third.send.swap {
		t.Fatalf("the term ends (%s) because of the own renewal; %+v is sent", third.over, third.send)
	}
	w.write(first.claim.encode())
	last := m.step(third.send.sent+10, answered{record: w.record})
	if last.over != "" || m.term.until != first.sent+ttl {
		t.Errorf("over %q, and the term ends %v after the renewal was sent", last.over, m.term.until-first.sent)
	}
	// Without any in doubt, somebody else has changed it, or it was lost: it is read.
	m.step(m.term.renew, tick{})
	if m.pending == nil {
		t.Fatal("no renewal")
	}
	out := m.step(m.pending.sent+10, answered{err: ErrChanged})
	if out.over != "" || out.send == nil || out.send.swap {
		t.Fatalf("the record was changed: %+v", out)
	}
	w.write((&claim{Epoch: 2, ID: "B", Run: "runB", TTLMillis: 1000}).encode())
	if out := m.step(out.send.sent+10, answered{record: w.record}); out.over == "" || a.machine.leadsUntil() != 0 {
		t.Errorf("the record was changed by another: %+v", out)
	}
}

// TestForeignRecordInDoubt: a leader that reads a record of another term has lost its own, also when its own clock
// says that it lasts.
func TestForeignRecordInDoubt(t *testing.T) {
	oneGoroutine(t)
	for what, value := range map[string]*claim{
		"another member": {Epoch: 2, ID: "B", Run: "runB", TTLMillis: 1000},
		"another epoch":  {Epoch: 2, ID: "A", Run: "runA", TTLMillis: 1000},
	} {
		w := calm(t, 1)
		a := w.members[0]
		w.runUntil("A leads", a.leads)
		m := &a.machine
		now := m.term.renew
		m.step(now, tick{})
		now = m.step(now, answered{err: errors.New("timeout")}).wake
		if out := m.step(now, tick{}); out.send == nil || out.send.swap {
			t.Fatalf("%+v is sent", out.send)
		}
		w.record = Record{}
		w.write(value.encode())
		if out := m.step(now+10, answered{record: w.record}); out.over == "" || !out.end || m.leadsUntil() != 0 {
			t.Errorf("%s: %+v", what, out)
		}
	}
}

// TestPublicationThatFails is tried again after the pace, not with the next renewal.
func TestPublicationThatFails(t *testing.T) {
	oneGoroutine(t)
	w := calm(t, 1)
	a := w.members[0]
	w.runUntil("A leads", a.leads)
	w.runUntil("A has renewed", func() bool { return a.writes == 2 && a.pending == nil })
	m := &a.machine
	now := w.now
	if out := m.step(now, publish{[]byte("1")}); out.send == nil {
		t.Fatal("nothing is sent")
	}
	out := m.step(now+1, answered{err: errors.New("refused")})
	if pause := out.wake - now; pause != ttl/retriesPerTTL {
		t.Errorf("the read that settles it is due after %v", pause)
	}
	out = m.step(out.wake, tick{})
	out = m.step(out.send.sent+1, answered{err: errors.New("refused")})
	if pause := out.wake - now; pause != 2*ttl/retriesPerTTL {
		t.Errorf("the next read is due after %v", pause)
	}
	out = m.step(out.wake, tick{})
	if out = m.step(out.send.sent+1, answered{record: w.record}); out.send == nil || !out.send.swap || string(out.send.claim.State) != "1" {
		t.Errorf("%+v is sent", out.send)
	}
}
