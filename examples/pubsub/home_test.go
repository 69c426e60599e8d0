package main

import (
	"strconv"
	"testing"
)

func TestHome(t *testing.T) {
	nodes := []string{"node-1", "node-2", "node-3"}
	counts := map[string]int{}
	for i := range 3000 {
		name := channelName{"acme", strconv.Itoa(i)}
		at := home(name, nodes)
		counts[at]++
		if fewer := home(name, nodes[:2]); at != "node-3" && fewer != at {
			t.Fatalf("%v moves from %s to %s though its node stays", name, at, fewer)
		}
	}
	for node, n := range counts {
		if n < 800 || n > 1200 {
			t.Errorf("%s is home to %d of 3000 channels", node, n)
		}
	}
}

func TestHistoryRing(t *testing.T) {
	h, name := newHomes(), channelName{"acme", "ring"}
	var first, last uint64
	for i := range historyLength + 100 {
		position, ok, err := h.append(name, message{Data: strconv.Itoa(i)}, func(message) error { return nil })
		if !ok || err != nil || i > 0 && position != last+1 {
			t.Fatalf("message %d at %d after %d: %v %v", i, position, last, ok, err)
		}
		if last = position; i == 0 {
			first = position
		}
	}
	seen := 0
	for from := uint64(0); ; {
		p := h.read(name, from, last)
		if p.First != first+100 {
			t.Fatalf("the first that is there is %d, want %d", p.First, first+100)
		}
		for _, m := range p.Messages {
			if want := strconv.Itoa(int(m.Position - first)); m.Data != want {
				t.Fatalf("at %d is %s, want %s", m.Position, m.Data, want)
			}
			seen++
		}
		if from = p.Next; from == 0 {
			break
		}
	}
	if seen != historyLength {
		t.Errorf("%d can be read, want %d", seen, historyLength)
	}
}
