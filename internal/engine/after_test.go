package engine

import (
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// A gateway that learns the cost at the end of a request asks with a cost of 0 and reports afterwards: what it
// reports always counts, also above the limit, and when nothing is left the next one is refused. Without charge:
// after a cost above what is left takes nothing, for ever.
func TestChargeAfter(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "token_bucket", "sliding_window_counter", "sliding_window_log"} {
		set, err := rules.Parse("x.yaml", []byte("limits: [{name: tokens, key: [t], rate: 1000/hour, charge: after, algorithm: "+algorithm+"}, {name: other, rate: 10/hour}]"))
		if err != nil {
			t.Fatal(err)
		}
		now := limit.At(time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC))
		e, err := New(memory.New(memory.Options{Now: func() limit.Time { return now }}), set, Options{})
		if err != nil {
			t.Fatal(err)
		}
		ask := func(cost int64) limit.Decision {
			t.Helper()
			q := &Query{Descriptors: []Descriptor{{Attributes: []limit.Attribute{{Name: "t", Value: "acme"}}, Cost: cost}}}
			if err := e.Decide(t.Context(), q); err != nil {
				t.Fatal(err)
			}
			return q.Decision
		}
		if d := ask(0); !d.Allowed || d.Results[0].Remaining != 1000 {
			t.Errorf("%s: %+v", algorithm, d)
		}
		ask(3) // of the other limit 3 are taken
		if d := ask(0); !d.Allowed || d.Results[0].Remaining != 997 {
			t.Errorf("%s: %+v", algorithm, d)
		}
		set2 := ask(997)
		if set2.Results[0].Remaining > 1 {
			t.Errorf("%s: %+v", algorithm, set2)
		}
		d := ask(0)
		if d.Allowed || d.Refused().Limit != "tokens" || d.Refused().Reason != limit.ReasonRate || d.RetryAfter() <= 0 {
			t.Errorf("%s: nothing is left, and a probe gets %+v", algorithm, d)
		}
		other := d.Results[1].Remaining
		ask(5000) // a request that was admitted before reports what it has cost
		now = now.Add(59 * time.Minute)
		if algorithm == "fixed_window" || algorithm == "token_bucket" {
			if d := ask(0); d.Allowed {
				t.Errorf("%s: after 5000 above the limit: %+v", algorithm, d)
			}
		}
		if other != 7 {
			t.Errorf("%s: a refused probe took from another limit: %d left", algorithm, other)
		}
	}
}
