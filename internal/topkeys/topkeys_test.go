package topkeys

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stint-io/stint/internal/seeding"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// exact counts as a sketch does, without an error.
type exact struct {
	now float64 // in memories
	n   map[string]float64
	all float64
}

func (e *exact) add(group uint32, key []byte) {
	w := math.Exp(e.now)
	e.n[fmt.Sprint(group, " ", string(key))] += w
	e.all += w
}

func (e *exact) rate(name string) float64 { return e.n[name] / math.Exp(e.now) / Memory.Seconds() }

// hold checks the promises of a view: no rate is too low, none too high by more than its Over, which is at most Error;
// what is not listed has at most Error; the Over of all is at most all events over the places of a shard.
func hold(t *testing.T, v View, e *exact) {
	t.Helper()
	shown := map[string]bool{}
	for group, list := range v.Keys {
		for _, k := range list {
			name := fmt.Sprint(group, " ", string(k.Text))
			shown[name] = true
			is, slack := e.rate(name), 1e-9*(1+v.Rate)
			if k.Rate < is-slack || k.Rate-k.Over > is+slack || k.Over > v.Error+slack {
				t.Fatalf("%s: %g, too high by at most %g (of all %g); it is %g", name, k.Rate, k.Over, v.Error, is)
			}
		}
	}
	for name := range e.n {
		if is := e.rate(name); !shown[name] && is > v.Error+1e-6 {
			t.Fatalf("%s is not listed and has %g, more than %g", name, is, v.Error)
		}
	}
	if most := e.total() / places; v.Error > most*1.0001 {
		t.Fatalf("the error is %g, more than %g", v.Error, most)
	}
	if math.Abs(v.Rate-e.total()) > 1e-6*(1+v.Rate) {
		t.Fatalf("all: %g, want %g", v.Rate, e.total())
	}
}

func (e *exact) total() float64 { return e.all / math.Exp(e.now) / Memory.Seconds() }

// Drawn streams hold the bound: Zipf of several exponents, uniform, keys that become hot late, in several groups, with
// pauses in which all decays.
func TestBoundAgainstTheExactCount(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 40) {
		r := rand.New(rand.NewPCG(seed, 1))
		s, e := New(start), &exact{n: map[string]float64{}}
		keys := uint64(1 + r.IntN(20_000))
		zipf := rand.NewZipf(r, 1.01+2*r.Float64(), 1, keys)
		uniform, groups, late := seed%5 == 0, uint32(1+r.IntN(4)), uint64(0)
		for now := start; now.Before(start.Add(3 * time.Minute)); {
			for range 400 {
				k := zipf.Uint64()
				if uniform {
					k = r.Uint64N(keys)
				}
				key, group := fmt.Appendf(nil, "k%d", (k+late)%keys), uint32(k)%groups
				s.Add(group, key)
				e.add(group, key)
			}
			if r.IntN(60) == 0 {
				late = r.Uint64N(keys) // others are hot from now on
			}
			now = now.Add(100*time.Millisecond + time.Duration(r.Int64N(int64(4*time.Second))))
			s.Tick(now)
			e.now = float64(now.Sub(start)) / float64(Memory)
		}
		hold(t, s.View(0), e)
	}
}

// As long as the keys fit, counts are exact; a pause of years in between neither overflows nor shows what is long gone.
func TestExactWhileKeysFit(t *testing.T) {
	s := New(start)
	for i := range 50 {
		for range i + 1 {
			s.Add(7, []byte{byte(i)})
		}
	}
	v := s.View(3)
	if v.Error != 0 || v.One != 1 || len(v.Keys[7]) != 3 {
		t.Fatalf("%+v", v)
	}
	for i, k := range v.Keys[7] {
		if want := float64(50-i) / 60; math.Abs(k.Rate-want) > 1e-12 || k.Over != 0 || !k.Sure == (i < 3) || k.Text[0] != byte(49-i) || k.Size != 1 {
			t.Errorf("%d: %+v, want %g", i, k, want)
		}
	}
	now := start
	for range 4 {
		now = now.Add(365 * 24 * time.Hour)
		s.Tick(now)
		s.Tick(now.Add(-time.Hour)) // goes back: ignored
	}
	if v := s.View(3); len(v.Keys) != 0 || v.Rate > 1e-6 {
		t.Errorf("after years: %+v", v)
	}
	s.Add(7, []byte("new"))
	if v := s.View(3); len(v.Keys[7]) != 1 || math.Abs(v.Keys[7][0].Rate-1.0/60) > 1e-12 {
		t.Errorf("after years: %+v", v)
	}
}

// Long keys with one beginning are different keys, and equal ones of two groups as well.
func TestLongKeysAndGroups(t *testing.T) {
	s := New(start)
	long := make([]byte, 70_000)
	for i := range 3 {
		long[69_999] = byte(i)
		s.Add(1, long)
	}
	s.Add(2, long)
	v := s.View(0)
	if len(v.Keys[1]) != 3 || len(v.Keys[2]) != 1 || v.Keys[1][0].Size != 65535 || len(v.Keys[1][0].Text) != MaxKey {
		t.Errorf("%+v", v)
	}
}

// What cannot be told apart is said: of uniform load over many keys none is sure to be on top.
func TestUniformIsNotSure(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := New(start)
	for i := range 200_000 {
		s.Add(0, fmt.Appendf(nil, "%d", i%50_000))
	}
	for _, k := range s.View(20).Keys[0] {
		if k.Sure {
			t.Fatalf("%+v is said to be on top", k)
		}
	}
}

// More than a sketch counts one by one is sampled, and the rates stay right.
func TestSampling(t *testing.T) {
	s, now := New(start), start
	const perTick = 80_000 // of 100 ms
	for range 30 {
		for i := range perTick {
			s.Add(0, []byte{byte(i % 4)})
		}
		now = now.Add(100 * time.Millisecond)
		s.Tick(now)
	}
	v := s.View(4)
	if v.One < 8 || v.One > 64 {
		t.Errorf("one in %d", v.One)
	}
	want := 30 * perTick / 60.0 / 4
	for _, k := range v.Keys[0] {
		if math.Abs(k.Rate-want) > 0.1*want {
			t.Errorf("%v: %g, want about %g", k.Text, k.Rate, want)
		}
	}
	for range 10 {
		now = now.Add(time.Second)
		s.Tick(now)
	}
	if v := s.View(1); v.One != 1 {
		t.Errorf("one in %d when it is quiet", v.One)
	}
}

// Many at once: no event is lost, and the index finds every key.
func TestConcurrentCallers(t *testing.T) {
	s := New(start)
	var all sync.WaitGroup
	for g := range uint32(4) {
		all.Go(func() {
			for i := range 20_000 {
				s.Add(g, fmt.Appendf(nil, "%d", i%100))
				if i%1000 == 0 {
					s.View(3)
				}
			}
		})
	}
	all.Wait()
	for g, list := range s.View(0).Keys {
		if len(list) != 100 {
			t.Errorf("group %d has %d keys", g, len(list))
		}
		for _, k := range list {
			if math.Abs(k.Rate*60-200) > 1e-6 {
				t.Errorf("%+v", k)
			}
		}
	}
}

// Keys are in the order of the middle of what they may have. One is surely on top if the least that it may have is above
// the most of the next: where events are sampled, by three standard deviations of both.
func TestOrderAndSure(t *testing.T) {
	for _, one := range []struct {
		skip uint32
		n    [3]float64 // of keys a, b, c
		over [3]float64
		want string
	}{
		{0, [3]float64{600, 500, 100}, [3]float64{}, "a b sure"},
		{0, [3]float64{600, 650, 100}, [3]float64{0, 110, 0}, "a b sure"}, // 600 and 540 to 650
		{0, [3]float64{600, 650, 100}, [3]float64{0, 90, 0}, "b a sure"},  // 600 and 560 to 650
		{0, [3]float64{600, 500, 400}, [3]float64{0, 150, 0}, "a b"},      // b has 350 at least, and c 400
		{0, [3]float64{600, 500, 400}, [3]float64{500, 0, 0}, "b c"},      // a has 100 to 600
		{7, [3]float64{60_000, 50_000, 41_000}, [3]float64{}, "a b sure"}, // far enough from each other
		{7, [3]float64{60_000, 50_000, 49_000}, [3]float64{}, "a b"},      // by chance c may have more
		{7, [3]float64{60_000, 50_000, 48_000}, [3]float64{}, "a b"},      // each alone is not enough
	} {
		s := New(start)
		s.skip.Store(one.skip)
		sh := &s.shards[0]
		for i := range one.n {
			sh.add(uint64(i+1)<<8|1, 1, []byte{'a' + byte(i)}, 1)
			sh.n[i], sh.over[i] = one.n[i], one.over[i]
		}
		list, got := s.View(2).Keys[1], ""
		for _, k := range list {
			got += string(k.Text) + " "
		}
		if list[1].Sure {
			got += "sure"
		}
		if got := strings.TrimSpace(got); got != one.want {
			t.Errorf("%+v: %s", one, got)
		}
	}
}

// When weights begin from 1 again, a count and its error shrink alike, and a place is found as before.
func TestRescale(t *testing.T) {
	s := New(start)
	sh := &s.shards[0]
	sh.add(257, 1, []byte("a"), 8)
	sh.over[0] = 2
	s.Tick(start.Add(rescale * Memory))
	if sh.n[0] != 8 || s.weight.Load() == math.Float64bits(1) {
		t.Errorf("before its time: %g", sh.n[0])
	}
	s.Tick(start.Add(rescale*Memory + time.Second))
	if small := math.Exp(-rescale); sh.n[0] > 8*small || sh.n[0] <= 0 || math.Abs(sh.over[0]/sh.n[0]-0.25) > 1e-9 || math.Abs(sh.total/sh.n[0]-1) > 1e-9 || s.weight.Load() != math.Float64bits(1) {
		t.Errorf("%g, error %g, all %g", sh.n[0], sh.over[0], sh.total)
	}
}

// What it takes: both sketches of a server are below 1 MiB, and Add allocates nothing.
func TestMemory(t *testing.T) {
	if size := unsafe.Sizeof(Sketch{}); size > 512<<10-8<<10 {
		t.Errorf("%d bytes", size)
	}
	s, key := New(start), []byte("a")
	if n := testing.AllocsPerRun(1000, func() { s.Add(1, key); key[0]++ }); n != 0 {
		t.Errorf("%g allocations", n)
	}
	runtime.KeepAlive(s)
}

// The true top 20 among a million keys by the exact count, for skews at which the error tells them apart: all are found.
// Events come within a minute, of which the last third has three keys that become hot late. TOPKEYS_EVENTS sets how many.
func TestTopTwentyOfAMillion(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	events := 600_000
	if text := os.Getenv("TOPKEYS_EVENTS"); text != "" {
		var err error
		if events, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	exponents := []float64{1.1, 1.5}
	if events > 600_000 {
		exponents = []float64{0, 0.6, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2}
	}
	for _, exponent := range exponents {
		r := topTwenty(exponent, events, uint64(exponent*100))
		t.Logf("Zipf %g, %d/s: %d of 20 found, %d sure, %.2f ns for an event, %.2f %% of a processor, one in %d; key 20 has %.1f/s, error at most %.2f/s",
			exponent, events/60, r.found, r.sure, float64(r.took.Nanoseconds())/float64(events), 100*r.took.Seconds()/60, r.one, r.last, r.error)
		if exponent > 1 && r.found < 20 {
			t.Errorf("exponent %g: %+v", exponent, r)
		}
		if exponent == 0 && r.sure > 0 {
			t.Errorf("of uniform load %d keys are said to be sure", r.sure)
		}
	}
}

// result is that of topTwenty.
type result struct {
	found, sure, one int
	took             time.Duration // by Add
	last, error      float64       // rate of the 20th, and what a key that is not listed may have
}

// processorTime is that of this process: others use the machine too.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// topTwenty plays events over a million keys, and compares with the exact count. A key counts as found if no key that is
// not listed has more than it.
func topTwenty(exponent float64, events int, seed uint64) (res result) {
	r := rand.New(rand.NewPCG(seed, 2))
	draw := zipf(r, exponent, 1_000_000)
	s, now := New(start), start
	n := make([]float64, 1_000_000)
	keys := make([][]byte, events/600)
	for tick := range 600 {
		w := math.Exp(float64(now.Sub(start)) / float64(Memory))
		for i := range keys {
			k := draw()
			if tick > 400 && k < 3 {
				k += 999_000 // three that become hot late
			}
			keys[i] = fmt.Appendf(keys[i][:0], "user-%d", k)
			n[k] += w
		}
		begin := processorTime()
		for _, key := range keys {
			s.Add(0, key)
		}
		res.took += processorTime() - begin
		now = now.Add(time.Minute / 600)
		s.Tick(now)
	}
	v := s.View(20)
	unit := 1 / (math.Exp(float64(now.Sub(start))/float64(Memory)) * Memory.Seconds())
	sorted := slices.Clone(n)
	slices.SortFunc(sorted, func(a, b float64) int { return cmp.Compare(b, a) })
	res.one, res.error, res.last = v.One, v.Error, sorted[19]*unit
	for _, k := range v.Keys[0] {
		var id int
		if _, err := fmt.Sscanf(string(k.Text), "user-%d", &id); err == nil && n[id] >= sorted[19] {
			res.found++
		}
		if k.Sure {
			res.sure++
		}
	}
	return res
}

// zipf draws from keys of which number i has the weight (i+1)^-exponent; math/rand has no exponents up to 1.
func zipf(r *rand.Rand, exponent float64, keys int) func() int {
	if exponent == 0 {
		return func() int { return r.IntN(keys) }
	}
	sums := make([]float64, keys)
	sum := 0.0
	for i := range sums {
		sum += math.Pow(float64(i+1), -exponent)
		sums[i] = sum
	}
	return func() int {
		i, _ := slices.BinarySearch(sums, r.Float64()*sum)
		return i
	}
}

func BenchmarkAdd(b *testing.B) {
	for _, exponent := range []float64{0, 0.8, 1, 1.2} {
		b.Run(fmt.Sprintf("zipf=%g", exponent), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			draw := zipf(r, exponent, 1_000_000)
			keys := make([][]byte, 1<<20)
			for i := range keys {
				keys[i] = fmt.Appendf(nil, "user-%d", draw())
			}
			s := New(start)
			i := 0
			for b.Loop() {
				s.Add(3, keys[i&(1<<20-1)])
				i++
			}
		})
	}
}
