package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

// TestBaselinesAreDeterministic: the same seed gives the same run to the last request.
func TestBaselinesAreDeterministic(t *testing.T) {
	for _, s := range Baselines() {
		run := func(seed uint64) string {
			l := newLoop(t, s, Setup{Limit: perSecond(200), Instances: 7, RoundTrip: 20 * time.Millisecond, Weights: []uint32{1, 2, 3, 4, 5, 6, 7}}, seed)
			l.demand = func(i int, now time.Duration) float64 { return float64(40 * (1 + (i+int(now/time.Second))%3)) }
			l.run(70 * time.Second)
			return fmt.Sprint(len(l.admits), l.by, l.bytes, l.shares())
		}
		if a, b := run(1), run(1); a != b {
			t.Errorf("%s: %s, then %s with the same seed", s.Name(), a, b)
		}
	}
}

// TestBaselinesKeepLimitUnderEvenLoad: what each was made for. All load is even and
// twice the limit; after a minute and a half everybody is within a tenth of what the
// rules of each come to.
func TestBaselinesKeepLimitUnderEvenLoad(t *testing.T) {
	names := map[string]bool{}
	for _, s := range Baselines() {
		if names[s.Name()] {
			t.Errorf("two baselines are called %s", s.Name())
		}
		names[s.Name()] = true
		l := newLoop(t, s, Setup{Limit: perSecond(400), Instances: 8, RoundTrip: 20 * time.Millisecond}, 1)
		l.demand = func(int, time.Duration) float64 { return 100 }
		l.run(150 * time.Second)
		want := 400.0
		if s.Name() == "ably-v1" {
			want = 600 // the line's equilibrium for twice the limit
		}
		if got := l.rate(90*time.Second, 150*time.Second); !near(got, want, want/10) {
			t.Errorf("%s admits %.0f per second, want %.0f", s.Name(), got, want)
		}
	}
	if len(names) != 12 {
		t.Errorf("%d baselines, want 12", len(names))
	}
}

// TestBaselinesBearOddSetups: a limit of nothing, fewer tokens than instances, one
// instance alone, a crash of each process, a limit that changes. Nobody panics or
// asks for a rate that is none.
func TestBaselinesBearOddSetups(t *testing.T) {
	for _, s := range Baselines() {
		for _, l := range []Limit{{}, {Rate: limit.Every(2 * time.Second), Burst: 1}, perSecond(5)} {
			for _, n := range []int{1, 2, 9} {
				w := newLoop(t, s, Setup{Limit: l, Instances: n, RoundTrip: 20 * time.Millisecond}, 1)
				w.demand = func(i int, now time.Duration) float64 { return float64((i + int(now/time.Second)) % 4) }
				w.run(20 * time.Second)
				for a := Coordinator; a < Address(n); a++ {
					if w.nodes[a] != nil {
						w.start(a, 1, 2)
					}
				}
				w.run(40 * time.Second)
				w.setup.Limit = perSecond(7)
				for a := Coordinator; a < Address(n); a++ {
					if env := w.nodes[a]; env != nil {
						if setter, ok := env.node.(LimitSetter); ok {
							setter.SetLimit(w.setup.Limit)
						}
					}
				}
				w.run(60 * time.Second)
				if sum := w.shares(); !(sum >= 0 && sum < 1e6) {
					t.Errorf("%s, limit %v, %d instances: shares add up to %v", s.Name(), l, n, sum)
				}
			}
		}
	}
}

func TestModelLimiter(t *testing.T) {
	l := newLoop(t, EqualSplit{}, Setup{Limit: perSecond(10), Instances: 5}, 1)
	e := l.instance(0).(*equalInstance)
	if e.Share() != 2 || !e.Take(1) || !e.Take(1) || e.Take(1) {
		t.Fatalf("a fifth of 10 is not 2 at once, share %v", e.Share())
	}
	var order []string
	ask := func(name string, wait time.Duration) {
		e.TakeWithin(1, wait, func(ok bool) { order = append(order, fmt.Sprintf("%s %v %v", name, ok, time.Duration(l.now))) })
	}
	ask("a", time.Second)
	ask("b", 600*time.Millisecond)
	ask("c", time.Minute)
	ask("d", 0)
	l.run(2 * time.Second)
	want := "[d false 0s a true 500ms b false 600ms c true 1s]"
	if got := fmt.Sprint(order); got != want {
		t.Errorf("decided %v, want %v", got, want)
	}
	if e.attempted != 7 || e.admitted != 4 {
		t.Errorf("attempted %d, admitted %d, want 7 and 4", e.attempted, e.admitted)
	}
	e.SetLimit(perSecond(100))
	if e.Share() != 20 {
		t.Errorf("a fifth of 100 is %v", e.Share())
	}
}

// TestModelBucketHoldsOne: a share below one token per burst still admits.
func TestModelBucketHoldsOne(t *testing.T) {
	l := newLoop(t, EqualSplit{}, Setup{Limit: perSecond(10), Instances: 96}, 1)
	l.demand = func(int, time.Duration) float64 { return 37 }
	l.run(100 * time.Second)
	if got := len(l.admits); got < 940 || got > 1010 {
		t.Errorf("96 instances admit %d in 100 s of 10 per second", got)
	}
}
