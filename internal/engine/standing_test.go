package engine_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/explain"
	"github.com/stint-io/stint/limit"
)

// A refusal charges no limit, and says so: whether asked by Take, by a peek or by
// Explain, the limits that had room stand as they stood.
func TestRefusalSaysHowTheOthersStand(t *testing.T) {
	b := newBench(t, `
limits:
  - {name: user, key: [user], rate: 3/hour}
  - {name: all, rate: 10/hour, algorithm: fixed_window}
  - {name: named, key: [name], rate: 5/hour, missing: reject}
`)
	for range 3 {
		wantAllowedAny(t, b.take(1, "user=u", "name=n"))
	}
	refused := []string{"user=u", "name=n"}
	wantRemaining(t, b.take(1, refused...), 0, 7, 2)
	wantRemaining(t, b.peek(1, refused...), 0, 7, 2)
	x, err := explain.Request(context.Background(), b.Engine, limit.Request{Attributes: attributes(refused...), Cost: 2})
	if err != nil {
		t.Fatal(err)
	}
	wantRemaining(t, x.Decision, 0, 7, 2)
	for i, want := range []int64{3, 3, 3} {
		if got := x.Limits[i].Used; got != want {
			t.Errorf("explain: %d of limit %d are used, want %d", got, i, want)
		}
	}
	// The same for a request without an attribute of the key.
	wantRemaining(t, b.take(1, "user=v"), 3, 7, 0)
	wantAllowed(t, b.take(1, "user=v", "name=n"), 2, 6, 1)
}

// A limit that several descriptors meet with one key is charged once, with the
// largest cost, however many limits and descriptors there are.
func TestOneChargePerKeyAmongMany(t *testing.T) {
	const limits, descriptors = 20, 12
	text := "limits:\n"
	for i := range limits {
		text += fmt.Sprintf("  - {name: l%d, key: [user], rate: 10/hour}\n", i)
	}
	b := newBench(t, text)
	q := engine.Query{}
	for i := range descriptors {
		user := fmt.Sprintf("user=%d", i/2)
		q.Descriptors = append(q.Descriptors, engine.Descriptor{Attributes: attributes(user), Cost: int64(1 + i%2)})
	}
	for round := range int64(3) {
		if err := b.Decide(context.Background(), &q); err != nil {
			t.Fatal(err)
		}
		if got := len(q.Decision.Results); got != limits*descriptors/2 || !q.Decision.Allowed {
			t.Fatalf("%d results, want %d: %v", got, limits*descriptors/2, q.Decision.Allowed)
		}
		for i := range q.Decision.Results {
			if r := &q.Decision.Results[i]; r.Cost != 2 || r.Remaining != 8-2*round {
				t.Fatalf("round %d: %s costs %d and has %d remaining", round, r.Limit, r.Cost, r.Remaining)
			}
		}
	}
}
