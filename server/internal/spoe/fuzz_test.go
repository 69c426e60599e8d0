package spoe

import (
	"bytes"
	"slices"
	"testing"
)

// FuzzFrames: whatever follows a HELLO, in whatever pieces, is answered without a fault and the same way; a buffer is no
// larger than a frame may be; and a connection that was ended for what came took nothing after it.
func FuzzFrames(f *testing.F) {
	for _, c := range badFrames {
		f.Add(c.in, uint8(3))
	}
	for _, in := range badQueries {
		f.Add(in, uint8(1))
	}
	f.Add(notifyOf(1, 1, argIP("192.0.2.7"), argText("path", "/login"), argText("method", "POST"), argNumber("cost", typeUint64, 2)), uint8(7))
	f.Fuzz(func(t *testing.T, in []byte, piece uint8) {
		whole := play(t, newServer(t), slices.Concat(greeting, in), 1<<20)
		parts := play(t, newServer(t), slices.Concat(greeting, in), 1+int(piece))
		// Queries run together, so answers come in any order, and of several for one key any may be the one refused.
		if len(whole) != len(parts) || whole[0] != greeted {
			t.Errorf("%x:\n%q as a whole\n%q in pieces of %d", in, whole, parts, 1+int(piece))
		}
		if len(whole) == 2 && whole[1] != parts[1] {
			t.Errorf("%x:\n%q as a whole\n%q in pieces of %d", in, whole, parts, 1+int(piece))
		}
		g := &gateway{in: bytes.NewReader(slices.Concat(greeting, in))}
		c := newConn(t.Context(), newServer(t), g)
		if c.run(); uint64(cap(c.frame)) > MaxFrame {
			t.Errorf("a buffer of %d bytes", cap(c.frame))
		}
	})
}

// FuzzHello: no first frame does harm.
func FuzzHello(f *testing.F) {
	f.Add(greeting)
	f.Add(greeting[:11])
	f.Add(notifyOf(1, 1))
	f.Fuzz(func(t *testing.T, in []byte) {
		s := newServer(t)
		if got := play(t, s, in, 5); len(got) > 0 && got[0][:3] != "101" && got[0][:3] != "102" {
			t.Errorf("%x: %q", in, got)
		}
	})
}
