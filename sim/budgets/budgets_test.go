package budgets_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stint-io/stint/sim/budgets"
)

// scenario is 100 streams at a time of lengths that are lognormal, with a budget of some 1,500 of them.
func scenario(seed uint64, crash float64) budgets.Scenario {
	return budgets.Scenario{Budget: 1_000_000, Streams: 100, MaxTokens: 4096, Median: 400, Sigma: 1, Rate: 50, CrashAt: crash, Seed: seed}
}

// E33: 100 streams at a time against one budget, without and with a gateway that crashes when half of it is spent,
// by each way, 3 seeds each, or as many as STINT_SEEDS says. What is reserved in full is never overspent, nor when a gateway crashes if what it has
// reserved stays charged.
//
//	STINT_SEEDS=10 go test ./sim/budgets -run E33 -v
func TestE33(t *testing.T) {
	const ttl = 2 * time.Minute
	seeds := 3
	if n, err := strconv.Atoi(os.Getenv("STINT_SEEDS")); err == nil && n > 0 {
		seeds = n
	}
	type figure struct{ overspend, use, least float64 }
	figures := map[string]figure{}
	for _, crash := range []float64{0, 0.5} {
		for _, way := range []struct {
			name string
			new  budgets.New
		}{
			{"max_tokens, charged when it expires", budgets.Reserving(ttl, true)},
			{"max_tokens, released when it expires", budgets.Reserving(ttl, false)},
			{"learned, charged when it expires", budgets.Learning(0.9, ttl, true, true)},
			{"learned, released when it expires", budgets.Learning(0.9, ttl, false, true)},
			{"learned, of streams that declare nothing, charged when it expires", budgets.Learning(0.9, ttl, true, false)},
			{"max_tokens, 60 s, released (Limitador's RFC 0021)", budgets.Reserving(time.Minute, false)},
			{"probe, then charge (Envoy AI Gateway, LiteLLM)", budgets.Probing},
		} {
			var over, use []float64
			early := 0
			for seed := range uint64(seeds) {
				r, err := budgets.Simulate(scenario(seed, crash), way.new)
				if err != nil {
					t.Fatal(err)
				}
				over, use, early = append(over, r.Overspend), append(use, r.Use), early+r.Early
			}
			slices.Sort(over)
			slices.Sort(use)
			name := fmt.Sprintf("%s, crash %v", way.name, crash > 0)
			figures[name] = figure{over[seeds-1], use[seeds/2], use[0]}
			t.Logf("%-70s overspend at most %5.2f %%, median %5.2f %%; use median %.4f, least %.4f; %d refused early in all", name, 100*over[seeds-1], 100*over[seeds/2], use[seeds/2], use[0], early)
		}
	}
	for _, crash := range []string{"false", "true"} {
		if f := figures["max_tokens, charged when it expires, crash "+crash]; f.overspend > 0 {
			t.Errorf("reserved in full, and overspent by %v", f.overspend)
		}
	}
	if f := figures["max_tokens, charged when it expires, crash false"]; f.least < 0.98 {
		t.Errorf("reserved in full, and used %v only", f.least)
	}
	if f := figures["learned, charged when it expires, crash false"]; f.overspend > 0.01 || f.use < 0.98 {
		t.Errorf("learned: %+v", f)
	}
	if probe := figures["probe, then charge (Envoy AI Gateway, LiteLLM), crash false"]; probe.overspend < 0.02 {
		t.Errorf("probe-then-charge overspends by %v only: is the harness what it should be?", probe.overspend)
	}
}
