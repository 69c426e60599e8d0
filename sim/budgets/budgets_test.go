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

// figures runs a way with some seeds, without a crash or with one when half of the budget is spent.
func figures(t *testing.T, seeds int, name string, piece int64, create budgets.New, crash float64) figure {
	t.Helper()
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
	if crash > 0 {
		name += ", crash"
	}
	last, middle := len(over)-1, len(over)/2
	t.Logf("%-70s overspend at most %5.2f %%, median %5.2f %%; use median %.4f, least %.4f; %d refused early in all", name, 100*over[last], 100*over[middle], use[middle], use[0], early)
	return figure{over[last], use[middle], use[0]}
}

// bound is what a way has to keep whatever the seed.
type bound struct{ overspend, use float64 } // at most, at least

// E33: 100 streams at a time against one budget, without and with a gateway that crashes when half of it is spent, by
// each way that has a bound. What is reserved in full and renewed with what will be used is never overspent, nor when a
// gateway crashes. With STINT_SEEDS, that many seeds of every way, for the figures:
//
//	STINT_SEEDS=10 go test ./sim/budgets -run E33 -v
func TestE33(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const ttl, piece, short = 2 * time.Minute, 64, 10 * time.Second
	seeds, measured := 1, false
	if n, err := strconv.Atoi(os.Getenv("STINT_SEEDS")); err == nil && n > 0 {
		seeds, measured = n, true
	}
	for _, way := range []struct {
		name            string
		piece           int64
		new             budgets.New
		without, crash  *bound // nil = none: it is only measured
		leastOverspends float64
	}{
		{"max_tokens, renewed", piece, budgets.Reserving(short, true), &bound{0, 0.98}, &bound{0, 0.98}, 0},
		{"learned, renewed", piece, budgets.Learning(0.9, short, true, true), &bound{0.01, 0.98}, &bound{0.01, 0.98}, 0},
		{"max_tokens, charged when it expires", 0, budgets.Reserving(ttl, true), &bound{0, 0.98}, &bound{0, 0}, 0},
		{"max_tokens, released when it expires", 0, budgets.Reserving(ttl, false), nil, nil, 0},
		{"learned, charged when it expires", 0, budgets.Learning(0.9, ttl, true, true), &bound{0.01, 0.98}, nil, 0},
		{"learned, released when it expires", 0, budgets.Learning(0.9, ttl, false, true), nil, nil, 0},
		{"learned, of streams that declare nothing, charged when it expires", 0, budgets.Learning(0.9, ttl, true, false), nil, nil, 0},
		{"max_tokens, 60 s, released (Limitador's RFC 0021)", 0, budgets.Reserving(time.Minute, false), nil, nil, 0},
		// It overspends, or the harness is not what it should be.
		{"probe, then charge (Envoy AI Gateway, LiteLLM)", 0, budgets.Probing, &bound{1, 0}, nil, 0.02},
	} {
		for _, of := range []struct {
			crash float64
			want  *bound
		}{{0, way.without}, {0.5, way.crash}} {
			if of.want == nil && !measured {
				continue
			}
			f := figures(t, seeds, way.name, way.piece, way.new, of.crash)
			if w := of.want; w != nil && (f.overspend > w.overspend || f.overspend < way.leastOverspends || f.least < w.use) {
				t.Errorf("%s, crash at %v: %+v, want %+v and at least %v overspent", way.name, of.crash, f, *w, way.leastOverspends)
			}
		}
	}
}
