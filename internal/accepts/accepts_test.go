package accepts

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

func throttle(t testing.TB, c Config) *Throttle {
	t.Helper()
	c, err := c.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return New(c)
}

// open says whether a request of the class would be sent at now, other than as a probe.
func open(th *Throttle, now limit.Time, of int) bool {
	copied := *th
	a, _, ok := copied.Send(now, of, 0)
	return ok && !a.Probe
}

// TestWalk: a server that goes and comes back, seen by one client, step by step.
func TestWalk(t *testing.T) {
	const second = limit.Time(time.Second)
	th := throttle(t, Config{K: 2, Spare: 2, Probe: 2 * time.Second})
	var log []string
	now := 1000 * second
	state := func(what string) {
		c := th.at(now, 0)
		log = append(log, fmt.Sprintf("%ds %s: credit %.1f, in flight %d", int64(now/second), what, c.credit.Float(), c.reserved))
	}
	send := func() Attempt {
		t.Helper()
		a, wait, ok := th.Send(now, 0, 0.5)
		if !ok {
			state(fmt.Sprintf("held back for %v", wait))
		} else if a.Probe {
			state("probe")
		}
		return a
	}
	for range 3 { // three accepts leave a credit of one each, above the two to spare
		th.Accepted(now, send())
	}
	state("accepted")
	for range 5 {
		th.Refused(now, send())
	}
	state("refused")
	send()
	now += second
	probe := send() // it is a second since it closed
	send()
	th.Accepted(now, probe)
	state("accepted")
	a, b := send(), send()
	send()
	th.Accepted(now, a)
	th.Accepted(now, b)
	state("accepted")
	now += 300 * second // everything has expired, and with it the refusals
	state("later")
	if got, want := strings.Join(log, "\n"), strings.TrimSpace(`
1000s accepted: credit 5.0, in flight 0
1000s refused: credit 0.0, in flight 0
1000s held back for 1s: credit 0.0, in flight 0
1001s probe: credit 1.0, in flight 1
1001s held back for 2s: credit 1.0, in flight 1
1001s accepted: credit 2.0, in flight 0
1001s held back for 2s: credit 2.0, in flight 2
1001s accepted: credit 4.0, in flight 0
1301s later: credit 2.0, in flight 0`); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if !open(th, now, 0) || th.at(now, 0).total != 0 {
		t.Error("after a window without refusals it is not open, or has accepts")
	}
}

// TestHigherRefusalsCountForLower: a refusal takes credit from its class and from those below,
// and none from those above.
func TestHigherRefusalsCountForLower(t *testing.T) {
	for of := range Classes {
		th := throttle(t, Config{Spare: 5})
		for range 5 {
			a, _, ok := th.Send(0, of, 0)
			if !ok {
				t.Fatal("refused although it has credit")
			}
			th.Refused(0, a)
		}
		for other := range Classes {
			if got, want := open(th, 0, other), other < of; got != want {
				t.Errorf("refusals of class %d: class %d open is %v, want %v", of, other, got, want)
			}
		}
	}
}

// TestDroppedIsFree: what never reached the server neither closes nor opens it.
func TestDroppedIsFree(t *testing.T) {
	th := throttle(t, Config{Spare: 1})
	for range 1000 {
		a, _, _ := th.Send(0, 0, 0)
		th.Dropped(0, a)
	}
	a, _, _ := th.Send(0, 0, 0)
	th.Refused(0, a)
	if open(th, 0, 0) {
		t.Fatal("open after the refusal that it has to spare")
	}
	// A probe that is dropped is lost, but not what it reserved.
	a, _, ok := th.Send(limit.Time(10*time.Second), 0, 0)
	if !ok || !a.Probe {
		t.Fatalf("%+v %v, want a probe", a, ok)
	}
	th.Dropped(limit.Time(10*time.Second), a)
	if a, _, ok := th.Send(limit.Time(10*time.Second), 0, 0); !ok || a.Probe {
		t.Errorf("%+v %v, want the attempt that the probe did not use", a, ok)
	}
}

// TestManyAtOnceAtTheStart: before the first answer nothing is known, and nothing held back.
func TestManyAtOnceAtTheStart(t *testing.T) {
	th := throttle(t, Config{})
	var first Attempt
	for range 100_000 {
		a, _, ok := th.Send(0, 3, 0)
		if !ok {
			t.Fatal("held back before any answer")
		}
		first = a
	}
	th.Refused(0, first)
	for i := range 9 {
		if _, _, ok := th.Send(0, 3, 0); !ok {
			t.Fatalf("attempt %d after one refusal held back, want 9 to spare", i)
		}
	}
	if a, _, ok := th.Send(0, 3, 0); ok && !a.Probe {
		t.Error("the tenth is sent as well")
	}
}

// TestBoundAtRandom: whatever the server does, from the start to any moment attempts are at most
// K x accepts + probes + Spare + those in flight when the first refusal came after a calm window,
// in every class, and so in all together; the credit is never negative, and never above what the
// accepts of the window allow; a closed throttle names a wait that is at most 1.5 x Probe after
// the last attempt, and then sends.
func TestBoundAtRandom(t *testing.T) {
	runs := 2000
	if testing.Short() {
		runs = 200
	}
	for seed := range runs {
		boundAtRandom(t, rand.New(rand.NewPCG(uint64(seed), 7)), fmt.Sprint("seed ", seed))
	}
}

func FuzzBound(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		boundAtRandom(t, rand.New(rand.NewPCG(seed, 8)), fmt.Sprint("seed ", seed))
	})
}

// account is what the test counts for itself of a class.
type account struct{ attempts, accepts, probes, unknown, inCalm int64 }

func boundAtRandom(t *testing.T, r *rand.Rand, name string) {
	t.Helper()
	c, err := Config{
		K:      1.1 + math.Round(r.Float64()*3000)/1000,
		Window: time.Second + time.Duration(r.Int64N(int64(3*time.Minute))),
		Spare:  1 + r.IntN(20),
	}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	th := New(c)
	var accounts [Classes]account
	var flying []Attempt
	now, last := limit.Time(r.Int64N(1e18)), limit.Time(0)
	accepts, gap := r.Float64(), time.Duration(1+r.Int64N(int64(c.Window)/50))
	most := 1 + r.IntN(200)
	for step := range 3000 {
		if r.IntN(300) == 0 { // the server or the load changes
			accepts, gap, most = []float64{0, 1, r.Float64()}[r.IntN(3)], time.Duration(1+r.Int64N(int64(c.Window)/50)), 1+r.IntN(200)
		}
		if r.IntN(1000) == 0 {
			now += limit.Time(r.Int64N(2 * int64(c.Window)))
		}
		now += limit.Time(r.Int64N(int64(gap)))
		seen := now - limit.Time(r.Int64N(2)*r.Int64N(int64(time.Second))) // clocks step back
		if len(flying) < most && r.IntN(2) == 0 {
			of := r.IntN(Classes)
			acc := &accounts[of]
			a, wait, ok := th.Send(seen, of, r.Float64())
			switch {
			case !ok && (wait <= 0 || wait > c.Probe*3/2):
				t.Fatalf("%s, step %d: the next probe is in %v, want 0 to 1.5 x %v", name, step, wait, c.Probe)
			case !ok:
				continue
			case a.Probe:
				acc.probes++
			case !a.Reserved:
				acc.inCalm++
			}
			acc.attempts++
			flying = append(flying, a)
		} else if len(flying) > 0 {
			i := r.IntN(len(flying))
			a := flying[i]
			flying[i] = flying[len(flying)-1]
			flying = flying[:len(flying)-1]
			acc := &accounts[a.Class]
			switch u := r.Float64(); {
			case u < 0.05:
				th.Dropped(seen, a)
				acc.attempts-- // the server knows nothing of it; the credit of a probe is left for another
			case u < 0.05+0.95*accepts:
				th.Accepted(seen, a)
				acc.accepts++
			default:
				for below := a.Class; below < Classes; below++ {
					if th.at(seen, below).calm() {
						// Those in flight were sent before anybody could know.
						accounts[below].unknown += accounts[below].inCalm + int64(c.Spare)
					}
				}
				th.Refused(seen, a)
			}
			if !a.Reserved {
				acc.inCalm--
			}
		}
		last = max(last, seen)
		if err := within(th, c, last, &accounts); err != nil {
			t.Fatalf("%s, step %d: %v of %+v", name, step, err, c)
		}
	}
}

// within holds what is promised of every class.
func within(th *Throttle, c Config, now limit.Time, accounts *[Classes]account) error {
	for of, acc := range accounts {
		cl := th.at(now, of)
		bound := th.k*fixed.Amount(acc.accepts) + fixed.Whole(acc.probes+acc.unknown)
		if cl.calm() {
			bound += fixed.Whole(acc.inCalm + int64(c.Spare))
		}
		if fixed.Whole(acc.attempts) > bound {
			return fmt.Errorf("class %d: %d attempts, want at most %v: %+v", of, acc.attempts, bound, acc)
		}
		if cl.credit < 0 || cl.credit > th.most(cl)+fixed.Whole(acc.probes) {
			return fmt.Errorf("class %d: credit %v of %v", of, cl.credit, th.most(cl))
		}
		if sum := sum(cl.accepted[:]); sum != cl.total {
			return fmt.Errorf("%d accepts in the window, %d in its parts", cl.total, sum)
		}
	}
	return nil
}

func sum(parts []uint32) (n int64) {
	for _, p := range parts {
		n += int64(p)
	}
	return n
}

func TestConfig(t *testing.T) {
	for _, tt := range []struct {
		c    Config
		want string // "" = valid
	}{
		{Config{}, ""},
		{Config{K: 1.1, Window: time.Second, Probe: time.Millisecond, Spare: 1}, ""},
		{Config{K: 100, Window: time.Hour, Probe: time.Hour, Spare: 1_000_000}, ""},
		{Config{K: 1}, "K is 1, want 1.1 to 100"},
		{Config{K: math.NaN()}, "K is NaN"},
		{Config{K: math.Inf(1)}, "K is +Inf"},
		{Config{K: -2}, "K is -2"},
		{Config{Window: time.Millisecond}, "window is 1ms"},
		{Config{Window: 2 * time.Hour}, "window is 2h"},
		{Config{Probe: 3 * time.Minute}, "probe interval is 3m"},
		{Config{Probe: -1}, "probe interval is -1ns"},
		{Config{Spare: -1}, "Spare is -1"},
		{Config{Spare: 1_000_001}, "Spare is 1000001"},
	} {
		c, err := tt.c.WithDefaults()
		if tt.want == "" && (err != nil || c.K == 0 || c.Window == 0 || c.Probe == 0 || c.Spare == 0) {
			t.Errorf("%+v: %+v, %v, want defaults", tt.c, c, err)
		} else if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: error %v, want %q", tt.c, err, tt.want)
		}
	}
}

func TestDefaults(t *testing.T) {
	c, err := Config{}.WithDefaults()
	if want := (Config{K: 2, Window: 2 * time.Minute, Probe: time.Second, Spare: 10}); err != nil || c != want {
		t.Errorf("%+v, %v, want %+v", c, err, want)
	}
}

// TestSpacing: with little credit attempts are sent as far apart as the accepts were, divided by K,
// and with more of it at once.
func TestSpacing(t *testing.T) {
	th := throttle(t, Config{K: 2, Spare: 1})
	const ms = limit.Time(time.Millisecond)
	now := 1000 * 1000 * ms
	refused, _, _ := th.Send(now, 0, 0)
	th.Refused(now, refused)
	now += 1000 * ms
	probe, _, ok := th.Send(now, 0, 0)
	if !ok || !probe.Probe {
		t.Fatal("no probe")
	}
	now += 100 * ms // a round trip
	th.Accepted(now, probe)
	if _, _, ok := th.Send(now, 0, 0); !ok {
		t.Fatal("the first is not sent at once")
	}
	for range 2 {
		if _, wait, ok := th.Send(now, 0, 0); ok || wait != 50*time.Millisecond {
			t.Fatalf("the second is sent %v, or in %v, want in 50ms", ok, wait)
		}
	}
	now += 50 * ms
	if a, _, ok := th.Send(now, 0, 0); !ok || a.Probe {
		t.Error("the second is not sent after 50ms")
	}
}

func TestAllocations(t *testing.T) {
	th := throttle(t, Config{})
	now := limit.Time(0)
	if n := testing.AllocsPerRun(1000, func() {
		now += limit.Time(time.Second)
		a, _, _ := th.Send(now, 1, 0.5)
		th.Accepted(now, a)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkSend(b *testing.B) {
	th := throttle(b, Config{})
	now := limit.Time(0)
	b.ReportAllocs()
	for b.Loop() {
		now += 1000
		a, _, ok := th.Send(now, 1, 0.5)
		if !ok {
			b.Fatal("held back")
		}
		th.Accepted(now, a)
	}
}
