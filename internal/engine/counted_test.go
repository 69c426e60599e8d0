package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
)

// TestCostsKnownAfterwards: a cost that has been spent is charged in full to every limit
// of every algorithm, whichever of them it fits; the Decision says that it was too much.
func TestCostsKnownAfterwards(t *testing.T) {
	b := newBench(t, `
limits:
  - {name: bucket, rate: 100/s, burst: 1000}
  - {name: queue, rate: 100/s, burst: 999, algorithm: leaky_bucket}
  - {name: fixed, rate: 1000/hour, algorithm: fixed_window}
  - {name: log, rate: 1000/hour, algorithm: sliding_window_log}
  - {name: sliding, rate: 1000/hour, algorithm: sliding_window_counter}
  - {name: wide, rate: 1/hour, burst: 5000}
`)
	counted := limit.Request{Cost: 900, CountRefused: true}
	if d := b.ask(counted); !d.Allowed {
		t.Fatalf("900 of 1000: %+v", d)
	}
	d := b.ask(counted)
	if d.Allowed || d.Status != 429 {
		t.Fatalf("900 of the 100 that are left: %+v", d)
	}
	wait := map[string]time.Duration{} // until one more fits
	for _, r := range b.peek(1).Results {
		wait[r.Limit] = r.RetryAfter
		if r.Limit == "wide" && r.Remaining != 3200 {
			t.Errorf("the limit that had room has %d, want 3200", r.Remaining)
		}
		if r.Limit != "wide" && (r.Remaining != 0 || r.Allowed) {
			t.Errorf("%s has %d left", r.Limit, r.Remaining)
		}
	}
	if wait["bucket"] != 8010*time.Millisecond || wait["queue"] != 8010*time.Millisecond {
		t.Errorf("the debt of 800 and one more take %v and %v at 100/s, want 8.01 s", wait["bucket"], wait["queue"])
	}
	// What is refused without the option takes nothing.
	b.take(500)
	for _, r := range b.peek(1).Results {
		if r.RetryAfter != wait[r.Limit] {
			t.Errorf("%s was charged by an ordinary request that was refused: %v, was %v", r.Limit, r.RetryAfter, wait[r.Limit])
		}
	}
}

// TestCountedOfTheLimit: a bucket that counts refused requests goes into debt by each.
func TestCountedOfTheLimit(t *testing.T) {
	b := newBench(t, "limits:\n  - {name: bucket, rate: 1/s, burst: 10, count_refused: true}\n")
	wantAllowed(t, b.take(8), 2)
	for range 3 {
		wantRefused(t, b.take(5), "bucket", limit.ReasonRate)
	}
	if got := waitOf(b.peek(1)); got != 14*time.Second {
		t.Errorf("8 and 15 of 10, and one more, take %v", got)
	}
}

// TestCountedTakesNoPlace: what is refused is not in flight, and one that misses a key is
// counted by the limits that it does not miss.
func TestCountedTakesNoPlace(t *testing.T) {
	b := newBench(t, `
limits:
  - {name: places, algorithm: concurrency, max_in_flight: 1000}
  - {name: bucket, rate: 1/s, burst: 10}
  - {name: keyed, key: [user], missing: reject, rate: 1000/s}
`)
	for range 3 {
		d := b.ask(limit.Request{Cost: 4, CountRefused: true})
		if d.Allowed || d.Permit != 0 {
			t.Fatalf("%+v", d)
		}
	}
	d := b.ask(limit.Request{Cost: 4, CountRefused: true, Attributes: attributes("user=u")})
	wantRefused(t, d, "bucket", limit.ReasonRate)
	for _, r := range b.peek(1, "user=u").Results {
		if want := map[string]int64{"places": 1000, "bucket": 0, "keyed": 996}[r.Limit]; r.Remaining != want && r.Remaining != want-1 {
			t.Errorf("%s has %d left, want %d", r.Limit, r.Remaining, want)
		}
		if r.Limit == "bucket" && r.RetryAfter != 7*time.Second {
			t.Errorf("16 of 10, and one more, take %v", r.RetryAfter)
		}
	}
}

// TestCountedQuery: a query of several descriptors counts as a request does, and a peek never.
func TestCountedQuery(t *testing.T) {
	b := newBench(t, `
limits:
  - {name: bucket, rate: 1/s, burst: 100}
`)
	q := engine.Query{CountRefused: true, Descriptors: []engine.Descriptor{{Cost: 120}}}
	if err := b.Decide(context.Background(), &q); err != nil || q.Decision.Allowed {
		t.Fatalf("%+v, %v", q.Decision, err)
	}
	if got := waitOf(b.peek(1)); got != 21*time.Second {
		t.Errorf("120 of 100, and one more, take %v", got)
	}
	q.Peek = true
	if err := b.Decide(context.Background(), &q); err != nil || q.Decision.Allowed {
		t.Fatalf("%+v, %v", q.Decision, err)
	}
	if got := waitOf(b.peek(1)); got != 21*time.Second {
		t.Errorf("a peek was charged: %v", got)
	}
}

func waitOf(d limit.Decision) time.Duration { return d.RetryAfter() }
