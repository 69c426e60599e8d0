package engine_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/explain"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// A limit that was meant for a request and does not apply is counted with its reason:
// once for each request, never for a question, and over a reload. One whose match
// does not hold was not meant for it.
func TestSkippedLimitsAreCounted(t *testing.T) {
	const yaml = `
limits:
  - {name: user, key: [user], rate: 100/hour}
  - {name: size, when: request.size > 1000, rate: 100/hour}
  - {name: login, match: {path: /login}, key: [ip], rate: 100/hour}
`
	b := newBench(t, yaml)
	want := map[string][2]uint64{}
	ask := func(request string, skips ...string) {
		t.Helper()
		b.take(1, strings.Fields(request)...)
		b.peek(1, strings.Fields(request)...)
		if _, err := explain.Request(context.Background(), b.Engine, limit.Request{Attributes: attributes(strings.Fields(request)...)}); err != nil {
			t.Fatal(err)
		}
		for _, s := range skips {
			n := want[s]
			if s == "size" {
				n[1]++
			} else {
				n[0]++
			}
			want[s] = n
		}
		for _, name := range []string{"user", "size", "login"} {
			got := tallyOf(t, b, name).Skipped
			if n := want[name]; got[rules.SkipMissingKey] != n[0] || got[rules.SkipCondition] != n[1] {
				t.Fatalf("%q: %s is skipped %v times, want %v", request, name, got, n)
			}
		}
	}
	ask("user=u size=1 path=/x")
	ask("user=u size=5000 path=/login ip=192.0.2.7")
	ask("path=/x", "user", "size")
	ask("path=/login", "user", "size", "login")
	ask("user=u path=/login size=big", "size", "login")
	if err := b.Swap(parse(t, yaml+"  - {name: more, key: [other], rate: 1/hour}\n")); err != nil {
		t.Fatal(err)
	}
	ask("size=1", "user")
	if n := tallyOf(t, b, "more").Skipped[rules.SkipMissingKey]; n != 1 {
		t.Errorf("more is skipped %d times, want 1", n)
	}
	// Each descriptor of a query counts.
	q := engine.Query{Descriptors: []engine.Descriptor{{Cost: 1}, {Cost: 1}}}
	if err := b.Decide(context.Background(), &q); err != nil {
		t.Fatal(err)
	}
	if n := tallyOf(t, b, "more").Skipped[rules.SkipMissingKey]; n != 3 {
		t.Errorf("more is skipped %d times, want 3", n)
	}
}
