package budgets_test

import (
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/sim/budgets"
)

// scenario is 100 streams at a time of lengths that are lognormal, with a budget of some 1,500 of them.
func scenario(seed uint64, crash float64) budgets.Scenario {
	return budgets.Scenario{Budget: 1_000_000, Streams: 100, MaxTokens: 4096, Median: 400, Sigma: 1, Rate: 50, CrashAt: crash, Seed: seed}
}

// figure is what came of some seeds.
type figure struct{ overspend, use, least float64 }

// figures runs a way without and with a crash, and puts what came of it under its name.
func figures(t *testing.T, seeds int, name string, piece int64, create budgets.New, to map[string]figure) {
	t.Helper()
	for _, crash := range []float64{0, 0.5} {
		var over, use []float64
		early := 0
		for seed := range seeding.Draw(t, seeds) {
			s := scenario(seed, crash)
			s.Piece = piece
			r, err := budgets.Simulate(s, create)
			if err != nil {
				t.Fatal(err)
			}
			over, use, early = append(over, r.Overspend), append(use, r.Use), early+r.Early
		}
		slices.Sort(over)
		slices.Sort(use)
		name := name
		if crash > 0 {
			name += ", crash"
		}
		to[name] = figure{over[seeds-1], use[seeds/2], use[0]}
		t.Logf("%-70s overspend at most %5.2f %%, median %5.2f %%; use median %.4f, least %.4f; %d refused early in all", name, 100*over[seeds-1], 100*over[seeds/2], use[seeds/2], use[0], early)
	}
}

// E33: 100 streams at a time against one budget, without and with a gateway that crashes when half of it is spent,
// by each way, one seed each, or as many as STINT_SEEDS says. What is reserved in full and renewed with what will be
// used is never overspent, nor when a gateway crashes.
//
//	STINT_SEEDS=10 go test ./sim/budgets -run E33 -v
func TestE33(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const ttl, piece, short = 2 * time.Minute, 64, 10 * time.Second
	seeds := 1
	if n, err := strconv.Atoi(os.Getenv("STINT_SEEDS")); err == nil && n > 0 {
		seeds = n
	}
	all := map[string]figure{}
	for _, way := range []struct {
		name  string
		piece int64
		new   budgets.New
	}{
		{"max_tokens, renewed", piece, budgets.Reserving(short, true)},
		{"learned, renewed", piece, budgets.Learning(0.9, short, true, true)},
		{"max_tokens, charged when it expires", 0, budgets.Reserving(ttl, true)},
		{"max_tokens, released when it expires", 0, budgets.Reserving(ttl, false)},
		{"learned, charged when it expires", 0, budgets.Learning(0.9, ttl, true, true)},
		{"learned, released when it expires", 0, budgets.Learning(0.9, ttl, false, true)},
		{"learned, of streams that declare nothing, charged when it expires", 0, budgets.Learning(0.9, ttl, true, false)},
		{"max_tokens, 60 s, released (Limitador's RFC 0021)", 0, budgets.Reserving(time.Minute, false)},
		{"probe, then charge (Envoy AI Gateway, LiteLLM)", 0, budgets.Probing},
	} {
		figures(t, seeds, way.name, way.piece, way.new, all)
	}
	for _, want := range []struct {
		way       string
		overspend float64 // at most
		use       float64 // at least, whatever the seed
	}{
		{"max_tokens, renewed", 0, 0.98},
		{"max_tokens, renewed, crash", 0, 0.98},
		{"learned, renewed", 0.01, 0.98},
		{"learned, renewed, crash", 0.01, 0.98},
		{"max_tokens, charged when it expires", 0, 0.98},
		{"max_tokens, charged when it expires, crash", 0, 0},
		{"learned, charged when it expires", 0.01, 0.98},
	} {
		if f, ok := all[want.way]; !ok || f.overspend > want.overspend || f.least < want.use {
			t.Errorf("%s: %+v, want %+v", want.way, f, want)
		}
	}
	if probe := all["probe, then charge (Envoy AI Gateway, LiteLLM)"]; probe.overspend < 0.02 {
		t.Errorf("probe-then-charge overspends by %v only: is the harness what it should be?", probe.overspend)
	}
}
