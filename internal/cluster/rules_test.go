package cluster

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

// Each test here is one rule, on members in a calm world. One goroutine steps them.

func oneGoroutine(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
}

// join adds a member that has not started.
func (w *world) join(name, run string) *node {
	n := &node{w: w, name: name, rate: 1}
	n.cfg = config{self: Member{ID: name}, run: run, ttl: ttl, epoch: func() uint64 { return 0 }}
	w.members = append(w.members, n)
	return n
}

// write puts a value into the register, as some other program would.
func (w *world) write(value []byte) {
	w.writes++
	w.record = Record{Revision: w.writes, Value: value}
}

// atLeast fails the test unless d is at least least, and not much longer.
func atLeast(t *testing.T, what string, d, least time.Duration) {
	t.Helper()
	// Two messages there and back, Began, and a poll.
	if most := least + 40*time.Millisecond + ttl/20 + ttl/renewalsPerTTL; d < least || d > most {
		t.Errorf("%s took %v, want %v to %v", what, d, least, most)
	}
}

// TestTakenWhenSilent: the wait begins when the read is received.
func TestTakenWhenSilent(t *testing.T) {
	oneGoroutine(t)
	w := newWorld(t, 0, 2, faults{delay: 100 * time.Millisecond})
	a, b := w.members[0], w.members[1]
	a.step(tick{})
	w.run(2 * ttl)
	a.cut = true
	w.run(700 * time.Millisecond)
	b.step(tick{})
	var read time.Duration
	w.runUntil("B has read", func() bool { read = w.now; return b.seen.valid })
	w.runUntil("B swaps", func() bool { return b.pending != nil && b.pending.swap })
	if waited := w.now - read; waited < ttl+ttl/driftPart-time.Millisecond || waited > ttl+ttl/driftPart+2*time.Millisecond {
		t.Errorf("B waited %v after its read", waited)
	}
}

// TestLongerTTLOfTheLeader: a candidate waits for what the leader believes.
func TestLongerTTLOfTheLeader(t *testing.T) {
	oneGoroutine(t)
	w := newWorld(t, 0, 2, faults{delay: 10 * time.Millisecond})
	a, b := w.members[0], w.members[1]
	a.cfg.ttl = 5 * ttl
	a.step(tick{})
	w.run(ttl)
	b.step(tick{})
	w.run(ttl)
	a.cut = true
	since := b.seen.since
	w.runUntil("B leads", b.leads)
	atLeast(t, "the take-over", w.now-since, patience(5*ttl))
}

// TestRecordIsLost: the leader writes it again, and its term goes on. Where the leader has gone, the next one
// knows that there was a term, and that what it published is lost.
func TestRecordIsLost(t *testing.T) {
	oneGoroutine(t)
	w := calm(t, 2)
	w.loses = true
	w.runUntil("one leads", func() bool { return w.members[0].leads() })
	w.members[0].step(publish{[]byte("1")})
	w.run(ttl)
	a, b := w.members[0], w.members[1]
	w.record = Record{}
	begin := w.now
	w.runUntil("A writes it again", func() bool { return w.record.Revision != 0 })
	if took := w.now - begin; took > ttl/renewalsPerTTL+100*time.Millisecond || a.term.epoch != 1 || !a.leads() {
		t.Errorf("A wrote epoch %d after %v", a.term.epoch, took)
	}
	w.run(5 * ttl)
	if c, err := decodeClaim(w.record.Value); err != nil || w.terms != 1 || string(c.State) != "1" {
		t.Errorf("%d terms, and the record has %v (%v)", w.terms, c, err)
	}
	a.cut = true
	w.record, begin = Record{}, w.now
	w.runUntil("B leads", b.leads)
	atLeast(t, "the next term", w.now-begin, patience(ttl))
	if got := b.began[0]; got.Epoch != 2 || got.Former != 1 || !got.Lost || got.State != nil {
		t.Errorf("B begins %+v", got)
	}
}

// TestKnownTerm: a member that knows a term from a former run takes an earlier record, and none, for one that was lost.
func TestKnownTerm(t *testing.T) {
	oneGoroutine(t)
	for _, known := range []uint64{0, 1, 2, 7} {
		for _, empty := range []bool{false, true} {
			w := newWorld(t, 0, 2, faults{delay: 10 * time.Millisecond})
			w.loses = true
			a, c := w.members[0], w.members[1]
			a.step(tick{})
			w.runUntil("A leads", a.leads)
			a.step(publish{[]byte("of A")})
			w.run(ttl)
			a.step(retire{stop: true})
			w.run(ttl)
			if empty && known == 0 {
				continue // nobody knows that there was a term
			}
			if empty {
				w.record = Record{}
			}
			c.machine.epoch = known
			c.step(tick{})
			w.runUntil("C leads", c.leads)
			got, lost := c.began[0], empty || known > 1
			if got.Lost != lost || got.Clean == lost || got.Watched || got.Epoch <= known || lost && got.Former != known || !lost && string(got.State) != "of A" {
				t.Errorf("knows %d, without records %v: C begins %+v", known, empty, got)
			}
		}
	}
}

// TestWatched: a term says whether its member saw the one before renewed, and then given up.
func TestWatched(t *testing.T) {
	oneGoroutine(t)
	for _, watches := range []bool{true, false} {
		w := newWorld(t, 0, 2, faults{delay: 10 * time.Millisecond})
		a, b := w.members[0], w.members[1]
		a.step(tick{})
		w.runUntil("A leads", a.leads)
		if watches {
			b.step(tick{})
		}
		w.run(2 * ttl)
		a.step(retire{stop: true})
		w.run(50 * time.Millisecond)
		if !watches {
			b.step(tick{})
		}
		w.runUntil("B leads", b.leads)
		if got := b.began[0]; got.Watched != watches || !got.Clean {
			t.Errorf("B watches %v, and begins %+v", watches, got)
		}
	}
}

// TestTermThatDoesNotLead: a member that ends before Began has returned, or whose Began fails, leaves what it found:
// the next one follows the term before.
func TestTermThatDoesNotLead(t *testing.T) {
	oneGoroutine(t)
	for what, clean := range map[string]bool{"it is stopped": true, "Began fails": true, "after a kill, it is stopped": false, "after a kill, Began fails": false} {
		w := newWorld(t, 0, 3, faults{delay: 10 * time.Millisecond})
		a, b, c := w.members[0], w.members[1], w.members[2]
		a.step(tick{})
		w.runUntil("A leads", a.leads)
		a.step(publish{[]byte("of A")})
		w.run(ttl)
		b.wrong = errors.New("wrong")
		b.step(tick{})
		w.run(ttl)
		a.cut = !clean
		if clean {
			a.step(retire{})
		}
		w.runUntil("B begins", func() bool { return len(b.began) == 1 })
		if strings.Contains(what, "stopped") {
			b.step(retire{state: []byte("of B"), stop: true})
		}
		c.step(tick{})
		w.runUntil("C leads", c.leads)
		if got := c.began[0]; got.Former != 1 || string(got.State) != "of A" || got.Clean != clean || got.Lost {
			t.Errorf("%s: C begins %+v", what, got)
		}
	}
}

// TestTermsThatPublishNothing: terms that lapse before anything is published leave what they found. One that has published
// something is the former term of the next one, and so is any of a register that forgets, which may have lost a later record.
func TestTermsThatPublishNothing(t *testing.T) {
	oneGoroutine(t)
	for seed := range seeding.Draw(t, 100) {
		r := rand.New(rand.NewPCG(seed, 2))
		lapses, speaker, clean, forgets := r.IntN(4), r.IntN(4), r.IntN(2) == 0, r.IntN(2) == 0
		w := newWorld(t, 0, lapses+2, faults{delay: 10 * time.Millisecond})
		for _, n := range w.members {
			n.cfg.forgets = forgets
		}
		var want Term
		for i, n := range w.members {
			n.step(tick{})
			w.runUntil("it leads", n.leads)
			if i > 0 {
				got := n.began[0]
				if got.Former != want.Former || got.Unled != want.Unled || got.Clean != want.Clean || string(got.State) != string(want.State) || got.Lost {
					t.Fatalf("seed %d: term %d, a register that forgets %t: %+v, want %+v", seed, i, forgets, got, want)
				}
				want.Unled = got.Epoch
			}
			if i == 0 || i == speaker {
				want = Term{Former: n.term.epoch, State: w.newState()}
				n.step(publish{want.State})
			} else if forgets {
				want = Term{Former: n.term.epoch, State: want.State}
			}
			w.run(ttl / 2)
			if i+1 < len(w.members) {
				w.members[i+1].step(tick{}) // it watches
			}
			w.run(ttl / 2)
			if i == 0 && clean {
				want.Clean, want.State = true, w.newState()
				n.step(retire{state: want.State, stop: true})
			}
			w.run(ttl / 5)
			n.cut = true
		}
	}
}

// TestRegisterThatForgets: what is not there, or resigned, may be older than the present leader.
func TestRegisterThatForgets(t *testing.T) {
	oneGoroutine(t)
	w := newWorld(t, 0, 3, faults{delay: 10 * time.Millisecond})
	a, b, c := w.members[0], w.members[1], w.members[2]
	for _, n := range w.members {
		n.cfg.forgets = true
	}
	a.step(tick{})
	w.runUntil("A leads", a.leads)
	atLeast(t, "the first term", w.now, patience(ttl))

	b.step(tick{})
	w.run(ttl)
	begin := w.now
	a.step(retire{})
	a.cut = false
	w.runUntil("B leads", b.leads)
	atLeast(t, "after a resignation that B followed", w.now-begin, 0)

	b.step(retire{stop: true})
	a.step(retire{stop: true})
	w.run(ttl)
	begin = w.now
	c.step(tick{})
	w.runUntil("C leads", c.leads)
	atLeast(t, "after a resignation that C did not see", w.now-begin, patience(ttl))
}

func TestEpochFromElsewhere(t *testing.T) {
	oneGoroutine(t)
	w := newWorld(t, 0, 2, faults{delay: 10 * time.Millisecond})
	a, b := w.members[0], w.members[1]
	a.cfg.epoch = func() uint64 { return 41 }
	a.step(tick{})
	w.runUntil("A leads", a.leads)
	a.step(retire{stop: true})
	w.run(ttl)
	b.cfg.epoch = func() uint64 { return 7 }
	b.step(tick{})
	w.runUntil("B leads", b.leads)
	if a.term.epoch != 42 || b.term.epoch != 43 {
		t.Errorf("epochs %d and %d, want 42 and 43", a.term.epoch, b.term.epoch)
	}
}

// TestNoHigherEpoch: nobody leads rather than one that nobody would believe.
func TestNoHigherEpoch(t *testing.T) {
	oneGoroutine(t)
	w := newWorld(t, 0, 1, faults{delay: 10 * time.Millisecond})
	a := w.members[0]
	a.cfg.epoch = func() uint64 { return math.MaxUint64 }
	a.step(tick{})
	w.run(10 * ttl)
	if w.writes != 0 || a.seen.fault == nil {
		t.Errorf("%d writes, fault %v", w.writes, a.seen.fault)
	}
}

// TestRecordNotUnderstood: it may be a leader's of another version. It stays until somebody removes it.
func TestRecordNotUnderstood(t *testing.T) {
	oneGoroutine(t)
	for _, value := range []string{
		"", "x", "{}", `{"epoch":1,"run":"r"}`, `{"epoch":1,"ttl_ms":1000}`, `{"run":"r","ttl_ms":1000}`,
		`{"epoch":-1,"run":"r","ttl_ms":1000}`, `{"epoch":1,"run":"r","ttl_ms":9223372036854775807}`,
	} {
		w := newWorld(t, 0, 1, faults{delay: 10 * time.Millisecond})
		a := w.members[0]
		w.write([]byte(value))
		a.step(tick{})
		w.run(10 * ttl)
		if w.writes != 1 || a.seen.fault == nil {
			t.Errorf("%q: %d writes, fault %v", value, w.writes, a.seen.fault)
		}
		w.record = Record{}
		w.runUntil("A leads", a.leads)
	}
}

func TestRecordWithMoreFields(t *testing.T) {
	oneGoroutine(t)
	c, err := decodeClaim([]byte(`{"epoch":4611686018427387904,"id":"a","run":"r","ttl_ms":1000,"later":{"x":1}}`))
	if err != nil || c.Epoch != maxEpoch || c.ID != "a" {
		t.Errorf("%+v, %v", c, err)
	}
	// One above it is not remembered: when the record is deleted, as the fault says, members lead again.
	if _, err := decodeClaim([]byte(`{"epoch":4611686018427387905,"id":"a","run":"r","ttl_ms":1000}`)); err == nil {
		t.Error("a record of the far future is believed")
	}
}

// TestRestartedMember: a member that starts again is another one: it waits for what it was.
func TestRestartedMember(t *testing.T) {
	oneGoroutine(t)
	w := calm(t, 1)
	a := w.members[0]
	w.runUntil("A leads", a.leads)
	a.cut = true
	again := w.join("A", "run2")
	begin := w.now
	again.step(tick{})
	w.runUntil("A leads again", again.leads)
	atLeast(t, "the second term", w.now-begin, patience(ttl))
}

// TestOwnRecordAfterLapse: who stood still need not wait for itself, and begins a new term.
func TestOwnRecordAfterLapse(t *testing.T) {
	oneGoroutine(t)
	w := calm(t, 1)
	a := w.members[0]
	w.runUntil("A leads", a.leads)
	a.paused = w.now + 10*ttl
	w.run(2 * ttl)
	if a.leads() {
		t.Error("A leads while it stands still, after its term")
	}
	w.run(8*ttl - time.Millisecond)
	begin := w.now
	w.runUntil("A leads again", a.leads)
	atLeast(t, "the second term", w.now-begin, 0)
	if a.ends != 1 || len(a.began) != 2 || a.began[1].Epoch != 2 || a.began[1].Former != 0 || a.began[1].Unled != 1 || a.began[1].Clean {
		t.Errorf("%d ends, terms %+v", a.ends, a.began)
	}
}

// TestLateAnswer: an answer that comes after the end of a term does not revive it.
func TestLateAnswer(t *testing.T) {
	oneGoroutine(t)
	w := calm(t, 1)
	a := w.members[0]
	w.runUntil("A leads", a.leads)
	w.runUntil("A renews", func() bool { return a.pending != nil })
	until := a.term.until
	a.paused = until + ttl/10 // the answer is received before the tick of the lapse
	w.run(ttl + ttl/5)
	if a.leads() && a.term.epoch == 1 || a.ends != 1 {
		t.Errorf("leads %t in epoch %d, told of %d ends", a.leads(), a.term.epoch, a.ends)
	}
}

// TestBeganFails: the term is given up, and the others come first.
func TestBeganFails(t *testing.T) {
	oneGoroutine(t)
	w := newWorld(t, 0, 2, faults{delay: 10 * time.Millisecond})
	a, b := w.members[0], w.members[1]
	a.wrong = errors.New("wrong")
	a.step(tick{})
	w.runUntil("A gives up", func() bool { return a.seen.claim != nil && a.seen.claim.Resigned })
	begin := w.now
	b.step(tick{})
	w.runUntil("B leads", b.leads)
	atLeast(t, "B's term", w.now-begin, 0)
	if b.began[0].Former != 0 || b.began[0].Lost || a.ends != 0 {
		t.Errorf("B begins %+v, A was told of %d ends", b.began[0], a.ends)
	}
	b.step(retire{})
	w.run(ttl)
	if len(a.began) != 1 {
		t.Errorf("A began %d terms in its rest", len(a.began))
	}
	a.wrong = nil
	w.runUntil("A leads", a.leads)
}

// TestAloneAfterResignation: a member that resigned and has no others goes on after a rest.
func TestAloneAfterResignation(t *testing.T) {
	oneGoroutine(t)
	w := calm(t, 1)
	a := w.members[0]
	w.runUntil("A leads", a.leads)
	a.step(retire{state: []byte("9")})
	atLeast(t, "the rest", w.runUntil("A leads again", a.leads), restTTLs*ttl)
	if term := a.began[1]; !term.Clean || string(term.State) != "9" {
		t.Errorf("A begins %+v", term)
	}
}

// TestLapseWhileBeginning: a term that ends before Began returns never leads, and Ended follows.
func TestLapseWhileBeginning(t *testing.T) {
	oneGoroutine(t)
	w := calm(t, 1)
	a := w.members[0]
	w.runUntil("A begins", func() bool { return a.app == beginning })
	a.cut = true
	out := a.machine.step(a.term.until, tick{})
	if out.over == "" || out.end || a.app != beginning {
		t.Errorf("at the end of the term: %+v in phase %d", out, a.app)
	}
	if out = a.machine.step(a.term.until+1, began{}); !out.end || a.leadsUntil() != 0 {
		t.Errorf("when Began returns: %+v", out)
	}
}

// TestResignationWaitsForTheProgram: the record says so only when Ended has returned.
func TestResignationWaitsForTheProgram(t *testing.T) {
	oneGoroutine(t)
	w := calm(t, 1)
	a := w.members[0]
	w.runUntil("A leads", a.leads)
	now := w.now
	out := a.machine.step(now, retire{state: []byte("5")})
	if !out.end || out.send != nil || a.leadsUntil() != 0 {
		t.Errorf("resigning: %+v", out)
	}
	if out = a.machine.step(now+1, tick{}); out.send != nil {
		t.Errorf("%+v is sent before Ended has returned", out.send)
	}
	if out = a.machine.step(now+2, ended{}); out.send == nil || !out.send.claim.Resigned || string(out.send.claim.State) != "5" {
		t.Errorf("after Ended: %+v", out.send)
	}
	// An answer that never comes, or that leaves it open, does not hold up the end for longer than a TTL.
	if out = a.machine.step(now+ttl/2, answered{err: errors.New("timeout")}); out.send == nil || out.send.swap {
		t.Errorf("after a timeout: %+v", out.send)
	}
	a.machine.step(now+ttl, answered{err: errors.New("timeout")})
	if a.resign.write {
		t.Error("it goes on resigning after a TTL")
	}
}

// TestStopWhileTaking: a member that ends while it takes the record gives it up unused.
func TestStopWhileTaking(t *testing.T) {
	oneGoroutine(t)
	w := calm(t, 2)
	a, b := w.members[0], w.members[1]
	b.cut = true
	w.runUntil("A takes the record", func() bool { return a.pending != nil && a.pending.swap })
	a.step(retire{stop: true})
	w.runUntil("A is done", func() bool { return a.done })
	if c, err := decodeClaim(w.record.Value); err != nil || !c.Resigned || len(a.began) != 0 {
		t.Errorf("the record is %+v, %v; A began %d terms", c, err, len(a.began))
	}
}

// TestHintsAreBounded: a leader that publishes often does not make its followers read as often.
func TestHintsAreBounded(t *testing.T) {
	oneGoroutine(t)
	w := newWorld(t, 0, 2, faults{delay: ttl / 5000})
	w.members[0].step(tick{})
	b := w.members[1]
	b.step(tick{})
	w.run(ttl)
	b.calls = 0
	for range 1000 {
		b.step(hint{})
		w.run(ttl / 1000)
	}
	// Each call and its end are counted.
	if reads := b.calls / 2; reads < 10 || reads > hintsPerTTL {
		t.Errorf("%d reads in a TTL of hints", reads)
	}
}

// TestNoHaste: a register that fails at once is not asked without end.
func TestNoHaste(t *testing.T) {
	oneGoroutine(t)
	m := &machine{cfg: config{run: "r", ttl: ttl, epoch: func() uint64 { return 0 }}}
	calls := 0
	out := m.step(0, tick{})
	for now := time.Duration(0); now < ttl; now = out.wake {
		if out.send == nil {
			if out = m.step(out.wake, tick{}); out.send == nil {
				t.Fatalf("a step at %v was due for nothing", now)
			}
		}
		calls++
		out = m.step(out.send.sent, answered{err: errors.New("refused")})
		if out.send != nil {
			t.Fatal("a call that failed is repeated at once")
		}
	}
	if calls < retriesPerTTL || calls > retriesPerTTL+1 {
		t.Errorf("%d calls in a TTL", calls)
	}
}

func TestNobodyButTheLeaderIsNamed(t *testing.T) {
	oneGoroutine(t)
	w := calm(t, 2)
	a, b := w.members[0], w.members[1]
	if m, until := b.leader(); m != (Member{}) || until != 0 {
		t.Errorf("before any record the leader is %v", m)
	}
	w.run(ttl)
	if m, until := b.leader(); m.ID != "A" || until <= w.now {
		t.Errorf("B knows %v until %v", m, until)
	}
	if m, _ := a.leader(); m.ID != "A" {
		t.Errorf("A knows %v", m)
	}
	b.cut = true
	if _, until := b.leader(); until > w.now+patience(ttl) {
		t.Errorf("B believes in A for %v without news", until-w.now)
	}
	b.cut = false
	a.step(retire{stop: true})
	w.runUntil("B leads", b.leads)
	if m, _ := b.leader(); m.ID != "B" {
		t.Errorf("B knows %v", m)
	}
}

func TestOptionsThatCannotWork(t *testing.T) {
	oneGoroutine(t)
	good := Options{Register: &fixedRegister{}, Scope: "default", Self: Member{ID: "a"}}
	for want, change := range map[string]func(*Options){
		"no Register": func(o *Options) { o.Register = nil },
		"scope":       func(o *Options) { o.Scope = "a b" },
		`scope ""`:    func(o *Options) { o.Scope = "" },
		"no ID":       func(o *Options) { o.Self.ID = "" },
		"TTL":         func(o *Options) { o.TTL = time.Millisecond },
		"TTL of 2h":   func(o *Options) { o.TTL = 2 * time.Hour },
	} {
		o := good
		change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
}

// fixedRegister is one that New asks whether it forgets.
type fixedRegister struct{ Register }

func (*fixedRegister) Forgets() bool { return false }
