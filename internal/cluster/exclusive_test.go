package cluster

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

// TestNeverTwoLeaders: whatever is delayed, lost or paused, and with clocks whose rates differ by
// the drift margin, at no instant do two members believe that they lead. Once all is well, one
// leads, and goes on leading.
//
//	STINT_HISTORIES=100000 go test ./internal/cluster -run 'TestNeverTwoLeaders$' -timeout 2h
func TestNeverTwoLeaders(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	trials, terms := 1000, 0
	if more, err := strconv.Atoi(os.Getenv("STINT_HISTORIES")); err == nil {
		trials = more
	}
	for seed := range seeding.Draw(t, trials) {
		w := troubledWorld(t, seed+1)
		w.run(30 * ttl)
		terms += w.terms
		w.heal(seed)
	}
	if terms < trials*5 {
		t.Errorf("%d terms: too few to find a fault", terms)
	}
}

// troubledWorld starts members with clocks and faults that depend on the seed.
func troubledWorld(t testing.TB, seed uint64) *world {
	w := newWorld(t, seed, 2+int(seed%3), faults{})
	w.faults = faults{
		delay:   w.upTo(ttl / 3),
		long:    w.random.Float64() * 0.2,
		request: w.random.Float64() * 0.2,
		answer:  w.random.Float64() * 0.3,
		pause:   w.random.Float64() * 0.05,
	}
	w.loses = w.random.IntN(2) == 0
	for _, n := range w.members {
		if n.cfg.first = !w.loses; w.loses {
			n.cfg.epoch = func() uint64 { return uint64(w.now) } // as a clock does
		}
		n.zero = w.upTo(time.Hour)
		if w.random.IntN(2) == 0 {
			n.rate = 1 + 1.0/driftPart
		}
		w.after(w.delay(), func() { n.step(tick{}) })
	}
	w.trouble()
	return w
}

// trouble makes things happen at random until the faults end.
func (w *world) trouble() {
	w.after(w.upTo(ttl), func() {
		if w.faults == (faults{delay: w.faults.delay}) {
			return
		}
		n := w.members[w.random.IntN(len(w.members))]
		switch w.random.IntN(8) {
		case 0:
			state := w.newState()
			if w.early[w.published] = n.app == beginning && n.term.held && n.state.version == n.term.version; w.now < n.paused {
				delete(w.early, w.published) // the wish comes later
			}
			n.step(retire{state: state})
		case 1:
			if n.term.held {
				n.step(publish{w.newState()})
			}
		case 2, 3:
			n.step(hint{})
		case 4:
			n.wrong = errors.New("wrong")
		case 5:
			n.wrong = nil
		case 6:
			w.faults.down = true
			w.after(w.upTo(2*ttl), func() { w.faults.down = false })
		case 7:
			w.lose()
		}
		w.trouble()
	})
}

// lose has the register lose its record, or show an earlier one, at most once in the time for which a call may be
// under way, and not one that is new.
func (w *world) lose() {
	value := w.record.Value
	if !w.loses || w.now < w.lost+4*ttl || w.now < w.born+ttl || value == nil {
		return
	}
	last, err := decodeClaim(value)
	if err != nil {
		w.t.Fatal(err)
	}
	known := true
	for _, n := range w.members {
		if n.epoch != last.Epoch || n.write != last.Write {
			known, w.hidden = false, last.Epoch // one that has not seen it cannot know that it was there
		}
	}
	switch {
	case known && w.earlier != nil && w.random.IntN(2) == 0:
		w.writes++
		w.record, w.lost = Record{Revision: w.writes, Value: w.earlier}, w.now
	default:
		w.earlier = value
		w.record, w.lost = Record{}, w.now
	}
}

func (w *world) newState() []byte {
	w.published++
	return []byte(strconv.Itoa(w.published))
}

// heal ends the faults: within a few TTLs somebody leads, and it stays so.
func (w *world) heal(seed uint64) {
	w.faults = faults{delay: ttl / 50}
	for _, n := range w.members {
		n.wrong = nil
	}
	// A pause, an outage, a member that resigned and a record that has to lapse can follow each other.
	w.run(10 * ttl)
	leader := -1
	for i, n := range w.members {
		if n.leads() {
			leader = i
		}
	}
	if leader < 0 {
		w.t.Fatalf("seed %d: nobody leads 10 TTLs after the last fault", seed)
	}
	epoch := w.epochs
	w.run(20 * ttl)
	if !w.members[leader].leads() || w.epochs != epoch {
		w.t.Fatalf("seed %d: the leader changed without cause", seed)
	}
}
