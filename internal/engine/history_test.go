package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
)

// histories is how many random histories a property is tried on; STINT_HISTORIES
// sets another number.
func histories(t *testing.T) int {
	t.Helper()
	text, ok := os.LookupEnv("STINT_HISTORIES")
	if !ok {
		return 2000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("STINT_HISTORIES is %q, want a positive number", text)
	}
	return n
}

// randomLimits writes a file with two to four limits of any kind.
func randomLimits(r *rand.Rand) string {
	var b strings.Builder
	b.WriteString("limits:\n")
	for i := range 2 + r.IntN(3) {
		n, period := 1+r.IntN(12), 1+r.IntN(20)
		fmt.Fprintf(&b, "  - {name: l%d, key: [user], ", i)
		switch r.IntN(7) {
		case 0:
			fmt.Fprintf(&b, "rate: %d/%ds, burst: %d}\n", n, period, 1+r.IntN(20))
		case 1:
			fmt.Fprintf(&b, "rate: %d/%ds, burst: %d, algorithm: leaky_bucket}\n", n, period, r.IntN(10))
		case 2:
			fmt.Fprintf(&b, "rate: %d/%ds, algorithm: fixed_window}\n", n, period)
		case 3:
			fmt.Fprintf(&b, "rate: %d/%ds, algorithm: sliding_window_log}\n", n, period)
		case 4:
			fmt.Fprintf(&b, "rate: %d/%ds, algorithm: sliding_window_counter}\n", n, period)
		case 5:
			fmt.Fprintf(&b, "algorithm: concurrency, max_in_flight: %d, timeout: %ds}\n", n, period)
		case 6:
			fmt.Fprintf(&b, "rate: %d/%ds, shadow: true}\n", n, period)
		}
	}
	return b.String()
}

// A request is admitted exactly when every enforced limit admits it, a peek says
// the same as the take after it, an admission takes from every limit that
// admitted it, and a refusal leaves every limit as it was.
func TestRefusalChargesNoneInRandomHistories(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const perConfiguration = 100
	ctx := context.Background()
	refused, admitted := 0, 0
	var b *bench
	var q engine.Query
	// standing is what is left of each limit, without taking.
	standing := func(attrs []limit.Attribute) []int64 {
		q.Descriptors = append(q.Descriptors[:0], engine.Descriptor{Attributes: attrs})
		if err := b.Decide(ctx, &q); err != nil {
			t.Fatal(err)
		}
		out := make([]int64, len(q.Decision.Results))
		for i := range out {
			out[i] = q.Decision.Results[i].Remaining
		}
		return out
	}
	for h := range histories(t) {
		r := rand.New(rand.NewPCG(uint64(h), 0x57147))
		yaml := randomLimits(rand.New(rand.NewPCG(uint64(h/perConfiguration), 1)))
		if h%perConfiguration == 0 {
			b = newBench(t, yaml)
		}
		attrs := attributes("user=" + strconv.Itoa(h))
		for op := range 12 {
			b.advance(time.Duration(r.Int64N(int64(4 * time.Second))))
			req := limit.Request{Attributes: attrs, Cost: 1 + r.Int64N(4)}
			before := standing(attrs)
			peeked := b.ask(limit.Request{Attributes: attrs, Cost: req.Cost, Peek: true})
			d := b.ask(req)
			after := standing(attrs)
			for i := range peeked.Results {
				if p := &peeked.Results[i]; p.Allowed && p.Remaining != before[i] {
					t.Fatalf("history %d, request %d: a peek of cost %d says that %d remain, %d do: %+v\n%s", h, op, req.Cost, p.Remaining, before[i], *p, yaml)
				}
			}
			fit := true
			for i := range d.Results {
				res := &d.Results[i]
				fit = fit && (res.Allowed || res.Shadow)
				switch took := before[i] - after[i]; {
				case !d.Allowed && took != 0, d.Allowed && !res.Allowed && took != 0, d.Allowed && res.Allowed && took < req.Cost:
					t.Fatalf("history %d, request %d of cost %d: %d taken of %+v\nallowed %v, by\n%s", h, op, req.Cost, took, *res, d.Allowed, yaml)
				}
			}
			if fit != d.Allowed || peeked.Allowed != d.Allowed {
				t.Fatalf("history %d, request %d: allowed %v, every limit fits %v, the peek said %v\n%s", h, op, d.Allowed, fit, peeked.Allowed, yaml)
			}
			if d.Allowed {
				admitted++
			} else {
				refused++
			}
		}
	}
	if refused == 0 || admitted == 0 {
		t.Fatalf("%d refused and %d admitted: the histories try nothing", refused, admitted)
	}
}
