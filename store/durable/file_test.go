package durable

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"
)

// What a write that has failed has left behind one that a crash has cut off is no part of that one, though it begins
// where that one goes on.
func TestFailedWriteIsNotContinued(t *testing.T) {
	d := newSimDisk(rand.New(rand.NewPCG(1, 2)))
	f := &file{disk: d, path: "/counts.db"}
	if err := f.make(); err != nil {
		t.Fatal(err)
	}
	attempt := func(state byte) []byte {
		f.tried++
		b := frames{number: f.tried}
		for _, id := range []string{"a", "b"} {
			b.beginNamed(frameStates, id)
			b.buf = appendState(b.buf, "key", []byte{state})
			b.end()
		}
		b.commit(time.Unix(0, 0))
		return b.buf
	}
	first, second := attempt(1), attempt(2)
	if len(first) != len(second) {
		t.Fatal("their frames begin at other places")
	}
	for cut := range len(second) {
		rest := append(bytes.Clone(second[:cut]), first[cut:]...)
		whole := bytes.Equal(rest, first) || bytes.Equal(rest, second)
		content := append(bytes.Clone(d.names["/counts.db"].data), rest...)
		x, err := load(bytes.NewReader(content), int64(len(content)), nil)
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if n := len(x.limits); whole && n != 2 || !whole && n != 0 {
			t.Errorf("cut at %d: the states of %d limits count", cut, n)
		}
	}
}
