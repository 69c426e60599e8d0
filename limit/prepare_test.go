package limit

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

// TestUndoNeverGivesMore: whatever others take while something is held, and however long,
// after its end a limiter has at most what one has that never saw what was undone; if no
// other took anything, and for windows and whatever else is replayed, exactly that.
func TestUndoNeverGivesMore(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 2000) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			p := randomPolicy(r)
			own, oracle := newLimiter(t, p), newLimiter(t, p)
			pause := func() { time.Sleep(time.Duration(r.Int64N(int64(50 * time.Millisecond)))) }
			take := func() {
				ahead, cost := time.Duration(r.Int64N(2)*r.Int64N(int64(time.Second))), r.Int64N(4)
				if cost == 0 {
					ahead = 0 // it takes nothing, and would count as of then all the same
				}
				if now := time.Now().Add(ahead); own.AllowN(now, cost) && !oracle.AllowN(now, cost) {
					t.Fatalf("seed %d: %+v: admitted beside what is held, not without it", seed, p)
				}
			}
			for range 5 {
				take()
				pause()
			}
			stands := func(l *Limiter) Verdict {
				var result Result
				must(l.Prepare(t.Context(), Request{Peek: true}, false, &result))
				return result.Verdict
			}
			for range 20 {
				var result Result
				cost := 1 + r.Int64N(4)
				same := stands(own) == stands(oracle) // nothing was lost in an earlier round
				h := must(own.Prepare(t.Context(), Request{Cost: cost}, false, &result))
				others := 0
				for range r.IntN(3) {
					if r.IntN(2) == 0 {
						pause()
					}
					if r.IntN(2) == 0 {
						take()
						others++
					}
				}
				if result.Allowed && r.IntN(2) == 0 {
					own.Commit(h)
					// The oracle takes it late, which cannot leave it more.
					oracle, others = own, 0
					break
				}
				if result.Allowed {
					own.Rollback(h)
				}
				got, want := own.Remaining(), oracle.Remaining()
				if got > want || same && others == 0 && got != want {
					t.Fatalf("seed %d: %+v has %d after a Hold of %d that was undone, %d without it; %d came in between", seed, p, got, cost, want, others)
				}
			}
		})
	}
}

// permitsPreparer is a Preparer of places.
type permitsPreparer struct {
	mu     sync.Mutex
	free   int64
	held   map[uint64]int64
	serial uint64
	err    error
}

func (g *permitsPreparer) Take(ctx context.Context, req Request) (Decision, error) {
	var r Result
	h, err := g.Prepare(ctx, req, false, &r)
	return Decision{Allowed: r.Allowed, Permit: h.Permit, Results: []Result{r}}, err
}

func (g *permitsPreparer) Prepare(_ context.Context, req Request, _ bool, r *Result) (h Prepared, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	*r = Result{Limit: "places", Algorithm: Concurrency, Cost: req.Cost}
	if r.Allowed = req.Cost <= g.free; r.Allowed && !req.Peek {
		g.free -= req.Cost
		g.serial++
		g.held[g.serial] = req.Cost
		h = Prepared{Permit: g.serial}
	}
	r.Remaining = g.free
	if !r.Allowed {
		r.Reason = ReasonConcurrency
	}
	return h, nil
}

func (g *permitsPreparer) Commit(Prepared) {}
func (g *permitsPreparer) Shared() bool    { return false }
func (g *permitsPreparer) Rollback(h Prepared) {
	_ = g.Finish(context.Background(), Request{}, h.Permit)
}

func (g *permitsPreparer) Finish(_ context.Context, _ Request, permit uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free += g.held[permit]
	delete(g.held, permit)
	return g.err
}

// One Finish gives back the places of all gauges, once; a refusal by any gives back the
// others' at once.
func TestScopesFinish(t *testing.T) {
	connections := &permitsPreparer{free: 3, held: map[uint64]int64{}}
	channels := &permitsPreparer{free: 2, held: map[uint64]int64{}}
	rate := newLimiter(t, bucketPolicy(PerHour(1), 100))
	s := must(All(Scope{"connections.max", connections, nil}, Scope{"channels.max", channels, nil}, Scope{"rate", rate, nil}))
	var permits []uint64
	for range 2 {
		d := must(s.Take(t.Context(), Request{}))
		if !d.Allowed || d.Permit == 0 {
			t.Fatal(show(d, nil))
		}
		permits = append(permits, d.Permit)
	}
	if got, want := show(s.Take(t.Context(), Request{})), "false by channels.max (concurrency_exceeded) 429, retry 0s; connections.max 1 of 1; channels.max 1 of 0; rate 1 of 98"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for range 2 {
		if err := s.Finish(t.Context(), Request{}, permits[0]); err != nil || connections.free != 2 || channels.free != 1 {
			t.Errorf("%v; %d and %d places are free, want 2 and 1", err, connections.free, channels.free)
		}
	}
	channels.err = errors.New("lost")
	if err := s.Finish(t.Context(), Request{}, permits[1]); !errors.Is(err, channels.err) || connections.free != 3 || len(s.permits) != 0 {
		t.Errorf("%v; %d places are free, want 3", err, connections.free)
	}
}

func TestScopesAllocateNothing(t *testing.T) {
	s, req := threeScopes(t)
	room := make([]Result, 0, 4)
	allowed, refused := 0, 0
	n := testing.AllocsPerRun(1000, func() {
		d := must(s.TakeInto(t.Context(), req, room))
		if d.Allowed {
			allowed++
		} else {
			refused++
		}
	})
	if n != 0 || allowed == 0 || refused == 0 {
		t.Errorf("%v allocations per decision, want 0; %d allowed, %d refused", n, allowed, refused)
	}
}

func threeScopes(tb testing.TB) (*Scopes, Request) {
	tb.Helper()
	limiter := func(burst int64) *Limiter { return must(NewLimiter(bucketPolicy(PerMinute(1), burst))) }
	s := must(All(Scope{"connection", limiter(20_000_000), one}, Scope{"channel", limiter(500), one}, Scope{"account", limiter(20_000_000), everyone}))
	return s, publishTo(9)
}

func BenchmarkScopes(b *testing.B) {
	for _, refuse := range []bool{false, true} {
		b.Run(map[bool]string{false: "admitted", true: "refused"}[refuse], func(b *testing.B) {
			s, req := threeScopes(b)
			for i := range s.holders {
				s.holders[i].holder = must(NewLimiter(bucketPolicy(PerSecond(1), 1<<30)))
			}
			if refuse {
				s.holders[2].holder = must(NewLimiter(Policy{}))
			}
			room := make([]Result, 0, 4)
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				if d, err := s.TakeInto(ctx, req, room); err != nil || d.Allowed == refuse {
					b.Fatal(show(d, err))
				}
			}
		})
	}
}
