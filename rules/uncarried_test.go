package rules

import (
	"strings"
	"testing"
)

// TestUncarried: what Envoy's protocol cannot do is a warning: it waits for nobody, and has one status.
func TestUncarried(t *testing.T) {
	s, err := Parse("l.yaml", []byte(`limits:
  - {name: bucket, rate: 5/s}
  - {name: paced, rate: 5/s, burst: 3, algorithm: leaky_bucket}
  - {name: queued, rate: 5/s, on_exceed: {queue: {max_wait: 1s}}}
  - {name: away, rate: 5/s, on_exceed: {redirect: /busy}}
`))
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, w := range s.Uncarried() {
		said = append(said, w.Message)
	}
	want := []string{`limit "paced": a leaky bucket does not pace`, `limit "queued": queue is not for`, `limit "away": redirect is for HTTP`}
	if len(said) != len(want) {
		t.Fatalf("%q", said)
	}
	for i, w := range want {
		if !strings.HasPrefix(said[i], w) || !strings.Contains(said[i], "Envoy's protocol") {
			t.Errorf("%q, want %s", said[i], w)
		}
	}
}
