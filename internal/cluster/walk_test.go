package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// calm returns members in a world where a message takes 10 ms and nothing is left to chance. They
// have started.
func calm(t testing.TB, members int) *world {
	w := newWorld(t, 0, members, faults{delay: 10 * time.Millisecond})
	for _, n := range w.members {
		n.step(tick{})
	}
	return w
}

// runUntil runs until ok holds, and returns how long it took.
func (w *world) runUntil(what string, ok func() bool) time.Duration {
	w.t.Helper()
	begin := w.now
	for w.now < begin+20*ttl {
		if ok() {
			return w.now - begin
		}
		w.run(time.Millisecond)
	}
	w.t.Fatalf("waited 20 TTLs in vain: %s", what)
	return 0
}

// TestWalk follows two members through a start, a renewal, a publication, a renewal whose answer is
// lost, the loss of the leader's connection, and a resignation. testdata/walk.txt is every step.
func TestWalk(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	w := newWorld(t, 0, 2, faults{delay: 10 * time.Millisecond})
	w.log = &strings.Builder{}
	a, b := w.members[0], w.members[1]
	say := func(what string) { w.log.WriteString("\n# " + what + "\n") }

	say("A finds no record and takes it; Began takes 50 ms.")
	a.step(tick{})
	w.run(200 * time.Millisecond)
	say("B follows. It may take the record over 1 s and 1/64 after it has read it.")
	b.step(tick{})
	w.run(100 * time.Millisecond)
	say("A publishes, which renews as well.")
	a.step(publish{[]byte("1")})
	w.run(300 * time.Millisecond)
	say("The answer to A's renewal is lost. A reads, finds its renewal, and its term counts from it.")
	a.deaf = true
	w.run(300 * time.Millisecond)
	a.deaf = false
	w.run(500 * time.Millisecond)
	say("Nothing of A arrives any more.")
	a.cut = true
	w.run(1200 * time.Millisecond)
	say("A is back and follows.")
	a.cut = false
	w.run(700 * time.Millisecond)
	say("B resigns: Ended first, then the record, then A.")
	b.step(retire{state: []byte("2")})
	w.run(200 * time.Millisecond)
	a.step(hint{})
	w.run(100 * time.Millisecond)
	say("A ends.")
	a.step(retire{stop: true})
	w.run(200 * time.Millisecond)

	file := filepath.Join("testdata", "walk.txt")
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.log.String(); got != string(want) {
		made := filepath.Join(t.TempDir(), "walk.txt")
		_ = os.WriteFile(made, []byte(got), 0o600)
		t.Errorf("the walk differs from %s:\n%s", file, got)
	}
}
