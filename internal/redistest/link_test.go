package redistest

import (
	"strings"
	"testing"
)

// TestRewriterAnyChunks: however a stream is cut into chunks, it is rewritten as a
// whole would be.
func TestRewriterAnyChunks(t *testing.T) {
	rules := []rule{{"7.0.15", "5.0.14"}, {"ab", "ba"}, {"aab", "xyz"}}
	const in = "$6\r\n7.0.15\r\n7.0.7.0.15 aab ab abab 7.0.1\r\n"
	const want = "$6\r\n5.0.14\r\n7.0.5.0.14 xyz ba baba 7.0.1\r\n"
	for size := 1; size <= len(in); size++ {
		var w rewriter
		var out strings.Builder
		for rest := in; rest != ""; {
			n := min(size, len(rest))
			out.Write(w.rewrite([]byte(rest[:n]), rules))
			rest = rest[n:]
		}
		if len(w.held) > 0 {
			t.Errorf("chunks of %d: %q is held back after a line break", size, w.held)
		}
		if out.String() != want {
			t.Errorf("chunks of %d: %q, want %q", size, out.String(), want)
		}
	}
}

func TestRewriterHoldsOnlyWhatMayBeCompleted(t *testing.T) {
	var w rewriter
	rules := []rule{{"abc", "xyz"}}
	for _, step := range []struct{ in, want string }{
		{"1ab", "1"},
		{"ab", "ab"},
		{"c2a", "xyz2"},
		{"\n", "a\n"},
	} {
		if got := string(w.rewrite([]byte(step.in), rules)); got != step.want {
			t.Errorf("%q lets out %q, want %q", step.in, got, step.want)
		}
	}
	w.rewrite([]byte("ab"), rules)
	if got := string(w.rewrite([]byte("c"), nil)); got != "abc" {
		t.Errorf("without rules it lets out %q, want all that was held", got)
	}
}

func TestParseNode(t *testing.T) {
	const id = "07c37dfeb235213a872192d90877d0cd55635b91"
	n, err := parseNode(id + " 127.0.0.1:30004@31004,host myself,master - 0 1426238317239 4 connected 0-9 42 [93->-" + id + "]\n")
	if err != nil || !n.self || !n.master || n.replica || !n.healthy || n.epoch != 4 {
		t.Fatalf("%+v, %v", n, err)
	}
	for slot, want := range map[int64]bool{0: true, 9: true, 10: false, 41: false, 42: true, 93: false} {
		if n.has(slot) != want {
			t.Errorf("it has slot %d: %v, want %v", slot, n.has(slot), want)
		}
	}
	for _, bad := range []string{"", "a b c", id + " a master - 0 1 x connected", id + " a master - 0 1 2 connected 1-b"} {
		if _, err := parseNode(bad); err == nil {
			t.Errorf("%q is a node", bad)
		}
	}
	for _, sick := range []string{"slave,fail?", "slave,fail", "handshake"} {
		if n, err := parseNode(id + " a " + sick + " - 0 1 2 connected"); err != nil || n.healthy {
			t.Errorf("%s: %+v, %v, want it not in health", sick, n, err)
		}
	}
}
