package lending

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
)

// TestTownSchedules: members are killed, end at SIGTERM, or are cut off from the register at any event of any of
// them; the register is slow, loses its records, or goes back to those of an earlier moment, and so does the state
// folder of a member; instances are cut off and replaced; and the load moves. There are one limit or four, of as many
// shards, and fewer tokens than instances or more. In no interval more than one bucket is admitted.
func TestTownSchedules(t *testing.T) {
	schedules, played := 24, 0
	if testing.Short() {
		schedules = 1
	}
	poor, scarce := 0, 0
	for seed := range seeding.Draw(t, schedules) {
		played++
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inTown(t, func(w *town) {
				f := townSchedule(w, seed)
				poor, scarce = poor+f.poor, scarce+f.scarce
			})
		})
	}
	t.Logf("two seconds after the last fault %d of %d schedules are poor, and %d in which there were fewer tokens than instances", poor, played, scarce)
	if poor > 1+played/500 || scarce > 3+played/20 {
		t.Errorf("%d and %d of %d schedules are poor", poor, scarce, played)
	}
}

// townFleet is a town whose members and instances fail.
type townFleet struct {
	*town
	r         *rand.Rand
	addresses []string
	all       []*resident
	serial    int
	poor      int // 1 = two seconds after the last fault less than 0.95 of what is free was used
	scarce    int // the same, with fewer free tokens than instances: a token is idle while it goes from one to another
	begun     time.Time
	ending    sync.WaitGroup
	restored  time.Time         // when the register went back
	started   time.Time         // when a member began last
	former    map[string]folder // what state folders said at an earlier start
}

func (f *townFleet) log(format string, args ...any) {
	f.t.Logf("%7.3f s: "+format, append([]any{time.Since(f.begun).Seconds()}, args...)...)
}

func townSchedule(w *town, seed uint64) *townFleet {
	f := &townFleet{town: w, r: rand.New(rand.NewPCG(seed, 12)), addresses: []string{"a", "b", "c"}, begun: time.Now(), former: map[string]folder{}}
	w.forgets = f.r.IntN(2) == 0
	if w.bucket.burst = []float64{1, 2, 3, 10, 10, 10}[f.r.IntN(6)]; f.r.IntN(4) == 0 {
		w.shards, w.more = 4, make([]reference, 3)
	}
	w.bucket.level = w.bucket.burst
	for i := range w.more {
		w.more[i] = w.bucket
	}
	w.config = "limits:\n"
	for _, name := range w.names() {
		w.config += fmt.Sprintf("  - {name: %s, rate: 100/s, burst: %v, sharing: leased}\n", name, w.bucket.burst)
	}
	f.log("%d limits with burst %v, %d shards, a register that forgets %v", 1+len(w.more), w.bucket.burst, w.shards, w.forgets)
	w.heard = func(address, line string) { f.log("  %s: %s", address, line) }
	for _, a := range f.addresses {
		w.start(a)
	}
	for i := range 2 + f.r.IntN(4) {
		f.all = append(f.all, w.resident(i))
	}
	w.live(2*time.Second, f.all) // that nobody has lent before is true as long as nobody has
	w.keep()
	for range 12 {
		if f.r.IntN(2) == 0 {
			for _, one := range f.all {
				one.demand = []float64{0, 3, 60, 300}[f.r.IntN(4)]
			}
		}
		f.fault()
		f.live(f.pause(), f.all)
		f.mend(3)
	}
	w.mu.Lock()
	w.fuse = 0
	w.mu.Unlock()
	w.write(0)
	for _, one := range f.all {
		one.part(false)
		one.demand = 1000
	}
	f.mend(1)
	f.log("all is mended")
	w.live(8*time.Second, f.all)
	w.step = time.Millisecond
	want := float64(len(w.names())) * usable(10*time.Second, 100, int(w.bucket.burst), len(f.all))
	if got := w.live(10*time.Second, f.all); float64(got) < 0.95*want {
		w.t.Errorf("%d of %v were admitted in ten quiet seconds", got, want)
	}
	w.step = 0
	f.last()
	f.ending.Wait()
	return f
}

// last is a fault that a member survives which knows who leads: two seconds later the limit is used.
func (f *townFleet) last() {
	for _, one := range f.all {
		one.demand = []float64{0, 3, 60, 300}[f.r.IntN(4)]
	}
	f.live(time.Duration(f.r.Int64N(int64(3*time.Second))), f.all)
	kind := f.r.IntN(5)
	switch l := f.leader(); {
	case kind < 3 && l != nil:
		f.end(l, kind)
	case kind == 3:
		f.log("the register loses its records")
		f.put(nil)
	default:
		f.log("instance 0 is cut off")
		f.all[0].part(true)
	}
	for _, one := range f.all {
		one.demand = 1000
	}
	f.step = time.Millisecond
	f.live(2*time.Second, f.all)
	// What nobody holds who is cut off is divided among the others.
	n, want, scarce := len(f.all), 0.0, false
	if f.all[0].cut {
		n--
	}
	for _, name := range f.names() {
		rate, burst := f.free(name)
		f.log("of %s %v per second and burst %d are free", name, rate, burst)
		want += usable(2*time.Second, rate, burst, n)
		scarce = scarce || burst < n
	}
	before := f.all[0].admitted
	got := f.live(2*time.Second, f.all)
	if f.all[0].cut {
		got -= f.all[0].admitted - before
	}
	if float64(got) < 0.95*want-1 {
		if scarce {
			f.scarce++
		} else {
			f.poor++
		}
		f.log("%d were admitted from two seconds after the last fault on for two seconds, of %v that instances that reach a member could use", got, want)
	}
}

// free is the part of a limit, and the whole tokens of its burst, that instance 0 does not hold where it is cut off.
// What was sent to it and may have arrived counts as held.
func (f *townFleet) free(name string) (rate float64, burst int) {
	rate, burst = f.bucket.rate, int(f.bucket.burst)
	f.mu.Lock()
	var leaders []*shard
	for _, m := range f.members {
		for shard := range f.shards {
			if s := m.nth(shard); !m.down && s.lends() {
				leaders = append(leaders, s)
			}
		}
	}
	f.mu.Unlock()
	for _, s := range leaders {
		s.inLoop(f.t.Context(), func(now limit.Time) {
			s.loop.coordinator.Each(now, func(r *coordinator.ResourceState) bool {
				for _, one := range r.Leases {
					if r.ID.Limit == name && one.Instance == f.all[0].name && f.all[0].cut {
						rate -= float64(one.Capacity.Rate) / float64(fixed.Token)
						burst = int((r.Free.Burst - r.Reserved + r.Lent.Burst - one.Capacity.Burst).Floor())
					}
				}
				return true
			})
		})
	}
	return rate, burst
}

// usable is how many requests n instances that ask each millisecond are admitted in a time, of a rate and a burst
// that are divided equally. An instance without a token of the burst has no use of a rate, and of one token what comes
// before the next request does is lost.
func usable(d time.Duration, rate float64, burst, n int) float64 {
	switch n = min(n, burst); {
	case n <= 0:
		return 0
	case burst < 2*n:
		return float64(n) * d.Seconds() / (float64(n)/rate + time.Millisecond.Seconds())
	}
	return d.Seconds() * rate
}

// pause is until the next fault: mostly short, for a second fault while the first one has effect.
func (f *townFleet) pause() time.Duration {
	most := []time.Duration{20 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second, 7 * time.Second}[f.r.IntN(4)]
	return time.Duration(f.r.Int64N(int64(most)))
}

// mend has one of n of what is broken be whole.
func (f *townFleet) mend(n int) {
	for _, a := range f.addresses {
		m := f.members[a]
		f.mu.Lock()
		if f.r.IntN(n) == 0 {
			m.cut = false
		}
		again := m.down && f.r.IntN(n) == 0
		f.mu.Unlock()
		if again {
			if d := time.Since(f.restored); d < 2*time.Second {
				f.live(2*time.Second-d, f.all)
			}
			f.log("%s begins", a)
			f.mu.Lock()
			if f.r.IntN(4) == 0 {
				f.folders[a] = f.former[a] // an old copy was put back
			}
			f.former[a] = f.folders[a]
			f.mu.Unlock()
			f.start(a)
			f.started = time.Now()
		}
	}
	for i, one := range f.all {
		if one.cut && f.r.IntN(n) == 0 {
			f.log("instance %d reaches the members again", i)
			one.part(false)
		}
	}
}

// fault is one.
func (f *townFleet) fault() {
	m := f.members[f.addresses[f.r.IntN(3)]]
	if l := f.leader(); l != nil && f.r.IntN(2) == 0 {
		m = l
	}
	i := f.r.IntN(len(f.all))
	switch kind := f.r.IntN(11); kind {
	case 0, 1, 2:
		f.end(m, kind)
	case 3, 4, 5:
		// At an event to come, whatever that is.
		f.mu.Lock()
		f.blown, f.fuse = func(m *townMember) { f.end(m, kind-3) }, 1+f.r.IntN(25)
		f.mu.Unlock()
	case 6:
		demand := f.all[i].demand
		f.all[i].stop()
		f.serial++
		f.all[i] = f.resident(100 + f.serial)
		f.all[i].demand = demand
		f.log("instance %d is replaced", i)
	case 7, 8:
		f.log("instance %d is cut off", i)
		f.all[i].part(true)
	case 9:
		// A process that has read nothing cannot know that records were there.
		if f.r.IntN(2) == 0 || time.Since(f.started) < 2*time.Second || f.readers() == 0 {
			f.log("the register loses its records")
			f.put(nil)
			break
		}
		f.log("the register goes back")
		f.restored = time.Now()
		f.put(f.kept)
	case 10:
		d := time.Duration(f.r.Int64N(int64(60 * time.Millisecond)))
		f.log("a call of the register takes %v", 2*d)
		f.write(d)
		f.keep()
	}
}

// readers is how many members live and reach the register.
func (f *townFleet) readers() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members {
		if !m.down && !m.cut {
			n++
		}
	}
	return n
}

// end kills a member, ends it in order, or cuts it off from the register.
func (f *townFleet) end(m *townMember, how int) {
	if time.Since(f.restored) < 2*time.Second && f.readers() == 1 {
		return // what nobody alive remembers is not prevented
	}
	switch how {
	case 0:
		f.log("%s is killed", m.address)
		m.kill()
	case 1:
		f.log("%s is ended by a signal", m.address)
		f.ending.Go(func() {
			m.stop()
			m.kill()
		})
	case 2:
		f.log("%s is cut off from the register", m.address)
		f.mu.Lock()
		m.cut = true
		f.mu.Unlock()
	}
}
