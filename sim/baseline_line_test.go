package sim

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// lineEnv is the world of one instance, whose clocks the test sets.
type lineEnv struct {
	now, wall, wake limit.Time
}

func (e *lineEnv) Now() limit.Time        { return e.now }
func (e *lineEnv) Wall() limit.Time       { return e.wall }
func (e *lineEnv) Send(Address, any, int) {}
func (e *lineEnv) WakeAt(t limit.Time)    { e.wake = t }
func (e *lineEnv) Rand() *rand.Rand       { return nil }
func (e *lineEnv) pass(d time.Duration)   { e.now, e.wall = e.now.Add(d), e.wall.Add(d) }
func (e *lineEnv) until(i Enforcer, d limit.Time) { // wakes i until a time of Now
	for e.wake <= d {
		e.pass(time.Duration(e.wake - e.now))
		e.wake = modelNever
		i.Wake()
	}
	e.pass(time.Duration(d - e.now))
}

func lineAt(l Line, rate int64, instances int) (*lineEnv, Waiter) {
	env := &lineEnv{now: 5e9, wall: 100e9, wake: modelNever}
	return env, l.Instance(env, Setup{Limit: perSecond(rate), Instances: instances}, 0, 0).(Waiter)
}

// An instance with a part of two requests per second, and a clock that is set.
func TestLineWalkThrough(t *testing.T) {
	env, i := lineAt(Line{}, 11, 5)
	for _, step := range []struct {
		pass time.Duration
		set  time.Duration // the wall clock alone
		want bool
	}{
		{0, 0, true}, {100 * ms, 0, true}, {100 * ms, 0, false}, // 100.2
		{799 * ms, 0, false}, {ms, 0, true}, {0, 0, true}, {0, 0, false}, // 101.0
		{3 * time.Second, 0, true}, {ms, 0, true}, {ms, 0, false}, // 104.002
		{0, -10 * time.Second, true}, {ms, 0, true}, {ms, 0, false}, // 94.004: the count begins anew
		{0, ms, false}, {0, 10 * time.Second, true}, {0, 0, true}, {0, 0, false}, // and again
	} {
		env.pass(step.pass)
		env.wall = env.wall.Add(step.set)
		if got := i.Take(1); got != step.want {
			t.Errorf("at %v: %v, want %v", time.Duration(env.wall), got, step.want)
		}
	}
	if i.Share() != 2 {
		t.Errorf("share %v, want 2", i.Share())
	}
	i.(LimitSetter).SetLimit(perSecond(20))
	if first, second, third := i.Take(1), i.Take(1), i.Take(1); !first || !second || third {
		t.Error("a limit of 20 leaves 2 more in this second")
	}
}

// Those who wait try again at the second of the wall clock, in their order, go back to
// the line when it is used up again, and are refused at once when the next second is
// not within what they may wait.
func TestLineWaits(t *testing.T) {
	env, i := lineAt(Line{}, 10, 5)
	env.pass(400 * ms)
	var log []string
	join := func(name string, wait time.Duration) {
		i.TakeWithin(1, wait, func(admitted bool) {
			word := " no "
			if admitted {
				word = " yes "
			}
			log = append(log, name+word+time.Duration(env.now-5e9).String())
		})
	}
	join("a", 0)
	join("b", time.Minute)
	join("c", 600*ms)   // as long as the second still lasts: too long
	join("d", 600*ms+1) // just fits
	join("e", time.Minute)
	join("f", 1500*ms)
	join("g", time.Minute)
	env.until(i, 5e9+5e8)
	join("h", 499*ms) // too long
	join("i", 600*ms) // the second is used up when it tries again
	env.until(i, 5e9+9e8)
	env.wall = env.wall.Add(250 * ms) // a new second begins; the line waits for its timers
	join("j", 0)
	env.until(i, 5e9+1e9)
	env.until(i, 5e9+5e9)
	want := []string{
		"a yes 400ms", "b yes 400ms", "c no 400ms", "h no 500ms", "j yes 900ms",
		"d yes 1s", "i no 1s", // e, f and g go on to the next second of the clock
		"e yes 1.75s", "f yes 1.75s", "g yes 2.75s",
	}
	if !slices.Equal(log, want) {
		t.Errorf("got  %q\nwant %q", log, want)
	}
	if env.wake != modelNever {
		t.Errorf("asks to be woken at %v with nobody waiting", env.wake)
	}
}

// linePublished is the published reference code, as it stands there.
type linePublished struct{ rateLimitedSecond, counter int64 }

func (p *linePublished) tryToIncreaseCounter(now limit.Time, currentLimit int64) (waitMillis int64) {
	epochSecond := int64(now) / int64(time.Second)
	if p.rateLimitedSecond == epochSecond {
		if p.counter >= currentLimit {
			return (epochSecond+1)*1000 - int64(now)/int64(time.Millisecond)
		}
		p.counter++
		return 0
	}
	p.rateLimitedSecond = epochSecond
	p.counter = 1
	return 0
}

// The model decides as the published code does, and says to wait as long, whatever
// happens to the clock and the limit.
func TestLineEqualsPublishedCode(t *testing.T) {
	refused := 0
	for seed := range seeding.Draw(t, 500) {
		r := rand.New(rand.NewPCG(seed, 3))
		env, w := lineAt(Line{}, 10, 2)
		i := w.(*lineInstance)
		published := linePublished{rateLimitedSecond: int64(env.wall) / second}
		for range 400 {
			switch r.IntN(40) {
			case 0:
				env.wall = env.wall.Add(time.Duration(r.Int64N(int64(20*time.Second))) - 10*time.Second)
			case 1:
				i.SetLimit(perSecond(r.Int64N(30)))
			}
			env.pass(time.Duration(r.Int64N(int64(200 * ms))))
			got, want := i.count(1), published.tryToIncreaseCounter(env.wall, i.part)
			if gotMillis := int64((got + ms - 1) / ms); gotMillis != want {
				t.Fatalf("seed %d at %v with a part of %d: wait %v, published %d ms", seed, time.Duration(env.wall), i.part, got, want)
			}
			if want > 0 {
				refused++
			}
		}
	}
	if refused < 1000 {
		t.Errorf("%d refused: the test shows little", refused)
	}
}

// With CheckFirst and a clock that runs evenly, no second of it has more than the part
// of the limit. Each request is decided once, and none waits longer than it may.
func TestLineKeepsItsPart(t *testing.T) {
	for seed := range seeding.Draw(t, 200) {
		r := rand.New(rand.NewPCG(seed, 4))
		rate, instances := r.Int64N(40), 1+r.IntN(8)
		env, i := lineAt(Line{CheckFirst: true, RoundUp: seed%2 == 0}, rate, instances)
		env.wall = env.wall.Add(time.Duration(r.Int64N(second)))
		part := rate / int64(instances)
		if seed%2 == 0 {
			part = (rate + int64(instances) - 1) / int64(instances)
		}
		admitted, open := map[int64]int64{}, 0
		for range 300 {
			env.until(i, env.now+limit.Time(r.Int64N(int64(100*ms))))
			cost, wait := 1+r.Int64N(3), time.Duration(r.Int64N(int64(3*time.Second)))
			came, once := env.now, true
			open++
			i.TakeWithin(cost, wait, func(ok bool) {
				if !once {
					t.Fatalf("seed %d: decided twice", seed)
				}
				once = false
				open--
				if waited := time.Duration(env.now - came); waited > 0 && waited >= wait {
					t.Fatalf("seed %d: waited %v of %v", seed, waited, wait)
				}
				if ok {
					admitted[lineSecond(env.wall)] += cost
				}
			})
		}
		env.until(i, env.now+10e9)
		if open != 0 || env.wake != modelNever {
			t.Fatalf("seed %d: %d undecided after 10 s", seed, open)
		}
		for at, cost := range admitted {
			if cost > part {
				t.Fatalf("seed %d: %d admitted in second %d, the part is %d", seed, cost, at, part)
			}
		}
	}
}

// lineClocks are offsets for 96 instances, evenly from -most to most.
func lineClocks(most time.Duration) []time.Duration {
	clocks := make([]time.Duration, 96)
	for k, i := range rand.New(rand.NewPCG(1, 1)).Perm(96) {
		clocks[i] = time.Duration(2*k-95) * most / 95
	}
	return clocks
}

// The figures that follow from the description, 96 instances at 9,600 per second: more
// than the limit in the second in which overload begins, by how wrong the clocks are;
// twice the limit in a second across a turn of the clock.
func TestLineOfWrongClocks(t *testing.T) {
	base := Scenario{
		Limit: Limit{perSecond(9600).Rate, 96}, Instances: 96, Duration: 15 * time.Second, Seed: 1,
		Loads: []Load{{Demand: []Step{{0, 960}, {5 * time.Second, 3 * 9600}}}},
	}
	for _, tt := range []struct {
		most    time.Duration
		aligned float64
	}{{0, 1}, {50 * ms, 1.08}, {100 * ms, 1.16}, {250 * ms, 1.39}} {
		s := base
		s.Clocks = lineClocks(tt.most)
		r := runBaseline(t, s, Line{})
		t.Logf("%v: aligned %.3f sliding %.3f first tenth %.2f", tt.most, r.Aligned1, r.Rate1, r.Tenths[0])
		within(t, tt.most.String()+": aligned second", r.Aligned1, tt.aligned-0.02, tt.aligned+0.01)
	}
	for _, tt := range []struct {
		most    time.Duration
		aligned float64
	}{{0, 1}, {50 * ms, 1.13}, {100 * ms, 1.27}, {250 * ms, 1.4}} {
		s := base
		s.Clocks = lineClocks(tt.most)
		s.Loads = []Load{{Demand: []Step{{4600 * ms, 96000}, {5400 * ms, 0}, {7600 * ms, 96000}, {8400 * ms, 0}}}}
		r := runBaseline(t, s, Line{})
		t.Logf("bursts, %v: aligned %.3f sliding %.3f", tt.most, r.Aligned1, r.Rate1)
		within(t, tt.most.String()+": sliding second", r.Rate1, 1.98, 2)
		within(t, tt.most.String()+": aligned second", r.Aligned1, tt.aligned-0.02, tt.aligned+0.03)
	}
}

// A limit of 10 for 96 instances: a whole part of 0 admits nothing, and one of 1, or
// the published code with 0, 96 per second. All load on one instance: a 96th.
func TestLineOfSmallParts(t *testing.T) {
	s := Scenario{
		Limit: perSecond(10), Instances: 96, Duration: 20 * time.Second, Seed: 1, Measure: Measure{From: time.Second},
		Loads: []Load{{Demand: steady(960)}},
	}
	for _, tt := range []struct {
		line Line
		want float64
	}{{Line{}, 9.6}, {Line{RoundUp: true}, 9.6}, {Line{RoundUp: true, CheckFirst: true}, 9.6}, {Line{CheckFirst: true}, 0}} {
		within(t, "mean", runBaseline(t, s, tt.line).Mean, tt.want-1e-9, tt.want+1e-9)
	}
	s.Limit, s.Loads = perSecond(9600), []Load{{Demand: steady(9600), Split: Split{Kind: OnOne}}}
	within(t, "use with all on one", runBaseline(t, s, Line{}).Use, 0.99/96, 1.01/96)
}

// At three times the limit nearly all is admitted at the beginning of a second, and
// with those who wait all of it at its very turn.
func TestLineFrontLoadsSeconds(t *testing.T) {
	s := Scenario{
		Limit: perSecond(9600), Instances: 96, Duration: 20 * time.Second, Seed: 1, Measure: Measure{From: 5 * time.Second},
		Loads: []Load{{Demand: steady(3 * 9600)}},
	}
	r := runBaseline(t, s, Line{})
	within(t, "first three tenths", r.Tenths[0]+r.Tenths[1]+r.Tenths[2], 0.89, 0.91)
	s.Loads[0].Wait = 5 * time.Second
	r = runBaseline(t, s, Line{})
	within(t, "first tenth with waits", r.Tenths[0], 0.9999, 1)
	within(t, "use with waits", r.Use, 0.999, 1.001)
}
