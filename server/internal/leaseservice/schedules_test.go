package leaseservice

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
)

var (
	townSchedules = flag.Uint64("town-schedules", 24, "random schedules of TestTownSchedules")
	townFirst     = flag.Uint64("town-first", 0, "the seed of its first schedule; 0 = another one at each run")
)

// TestTownSchedules: members are killed, end at SIGTERM, or are cut off from the register at any event of any of
// them; the register is slow, loses its records, or goes back to those of an earlier moment, and so does the state
// folder of a member; instances are cut off and replaced; and the load moves. In no interval more than one bucket is admitted.
func TestTownSchedules(t *testing.T) {
	first, schedules := *townFirst, *townSchedules
	if first == 0 {
		first = rand.Uint64N(1 << 40)
	}
	if testing.Short() {
		schedules = min(schedules, 3)
	}
	poor := 0
	for seed := first; seed < first+schedules; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { inTown(t, func(w *town) { poor += townSchedule(w, seed) }) })
	}
	// A division that is under way when an instance is cut off stays unfinished until its lease has ended.
	if t.Logf("%d of %d schedules are poor two seconds after the last fault", poor, schedules); poor > 1+int(schedules/500) {
		t.Errorf("%d of %d schedules are poor two seconds after the last fault", poor, schedules)
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
	begun     time.Time
	ending    sync.WaitGroup
	restored  time.Time         // when the register went back
	started   time.Time         // when a member began last
	former    map[string]uint64 // what state folders said at an earlier start
}

func (f *townFleet) log(format string, args ...any) {
	f.t.Logf("%7.3f s: "+format, append([]any{time.Since(f.begun).Seconds()}, args...)...)
}

func townSchedule(w *town, seed uint64) (poor int) {
	f := &townFleet{town: w, r: rand.New(rand.NewPCG(seed, 12)), addresses: []string{"a", "b", "c"}, begun: time.Now(), former: map[string]uint64{}}
	w.forgets = f.r.IntN(2) == 0
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
		one.demand = 300
	}
	f.mend(1)
	f.log("all is mended")
	w.live(8*time.Second, f.all)
	if got := w.live(10*time.Second, f.all); got < 950 {
		w.t.Errorf("%d of 1,000 were admitted in ten quiet seconds", got)
	}
	f.last()
	f.ending.Wait()
	return f.poor
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
		one.demand = 300
	}
	f.step = time.Millisecond
	f.live(2*time.Second, f.all)
	free, burst := 100.0, 10 // what nobody holds who is cut off
	if l := f.leader(); l != nil && f.all[0].cut {
		l.inLoop(f.t.Context(), func(now limit.Time) {
			l.loop.coordinator.Each(now, func(r *coordinator.ResourceState) bool {
				for _, one := range r.Leases {
					if one.Instance == f.all[0].name {
						free -= float64(one.Capacity.Rate) / float64(fixed.Token)
						burst -= int(one.Capacity.Burst / fixed.Token)
					}
				}
				return true
			})
		})
	}
	before := f.all[0].admitted
	got := f.live(2*time.Second, f.all)
	if f.all[0].cut {
		got -= f.all[0].admitted - before
	}
	// An instance without a token of the burst has no use of a rate.
	if float64(got) < 0.95*2*free-1 && burst >= len(f.all)-1 {
		f.poor++
		f.log("%d were admitted from two seconds after the last fault on for two seconds, of %v per second that nobody holds who is cut off", got, free)
	}
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
		if f.r.IntN(2) == 0 || time.Since(f.started) < 2*time.Second {
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

// end kills a member, ends it in order, or cuts it off from the register.
func (f *townFleet) end(m *townMember, how int) {
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
