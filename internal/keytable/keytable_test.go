package keytable

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// value is what a test opens.
type value struct {
	name   string
	kept   bool // not idle
	live   *atomic.Int64
	closed atomic.Int64
}

func (v *value) Idle(limit.Time) bool { return !v.kept }
func (v *value) Close() {
	v.closed.Add(1)
	if v.live != nil {
		v.live.Add(-1)
	}
}

func open(name string) (*value, error) { return &value{name: name}, nil }

const second = limit.Time(time.Second)

// use opens a key at a time, or says why it cannot be.
func use(t *testing.T, table *Table[*value], at limit.Time, key string) *value {
	t.Helper()
	e, err := table.Get(at, []byte(key), open)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	e.Done()
	return e.Value
}

// TestKeysAreClosedWhenIdle: a sweep closes the keys that have not been used for the time that
// was set, and no others: none whose value is not idle or with a call under way.
func TestKeysAreClosedWhenIdle(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	table := New[*value](10, 5*time.Second)
	idle, kept, young, called := use(t, table, second, "idle"), use(t, table, second, "kept"), use(t, table, second, "young"), use(t, table, second, "called")
	kept.kept = true
	call := table.Find([]byte("called"))
	use(t, table, 2*second, "young")
	if table.Sweep(6*second - 1); table.Len() != 4 {
		t.Errorf("%d keys a moment before", table.Len())
	}
	if table.Sweep(6 * second); idle.closed.Load() != 1 || table.Len() != 3 || table.Find([]byte("idle")) != nil {
		t.Errorf("one is idle: closed %d times, %d keys are left", idle.closed.Load(), table.Len())
	}
	call.Done()
	if table.Sweep(7 * second); young.closed.Load() != 1 || called.closed.Load() != 1 || kept.closed.Load() != 0 || table.Len() != 1 {
		t.Errorf("%d keys are left, want the one whose value is not idle", table.Len())
	}
	if again := use(t, table, 8*second, "idle"); again == idle || again.name != "idle" {
		t.Errorf("it is opened anew: %+v", again)
	}
}

// TestUseIsNotedOftenEnough: a key that is used all the time stays open, however short the time
// after which it is closed otherwise.
func TestUseIsNotedOftenEnough(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, idle := range []time.Duration{1, 10, time.Millisecond, time.Second, time.Hour} {
		table := New[*value](1, idle)
		v := use(t, table, second, "a")
		for now := second; now < second+20*limit.Time(idle); now += max(1, limit.Time(idle)/7) {
			use(t, table, now, "a")
			if table.Sweep(now + limit.Time(idle)*8/10); v.closed.Load() != 0 {
				t.Fatalf("closed after %v at least of %v", idle*8/10, idle)
			}
		}
	}
}

// TestFullTableEvictsTheLongestUnused: a full table closes the key that was used the longest ago,
// if that was a second ago and it is idle; else a new key is refused, and opens nothing.
func TestFullTableEvictsTheLongestUnused(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	table := New[*value](3, time.Minute)
	oldest, older, young := use(t, table, second, "oldest"), use(t, table, second+1, "older"), use(t, table, second+2, "young")
	oldest.kept = true
	opened := 0
	count := func(name string) (*value, error) { opened++; return open(name) }
	if _, err := table.Get(2*second, []byte("new"), count); !errors.Is(err, ErrFull) || opened != 0 || table.Len() != 3 {
		t.Errorf("a moment before: %v, %d opened, %d keys", err, opened, table.Len())
	}
	if _, err := table.Get(2*second, []byte("young"), count); err != nil || opened != 0 {
		t.Errorf("a key that is there: %v", err)
	}
	if _, err := table.Get(2*second+1, []byte("new"), count); err != nil || opened != 1 || older.closed.Load() != 1 || oldest.closed.Load()+young.closed.Load() != 0 || table.Len() != 3 {
		t.Errorf("a second later: %v, %d opened, %d keys", err, opened, table.Len())
	}
}

// TestWhatCannotBeOpened: a key that cannot be opened has no entry; nor has any key when the table
// is closed.
func TestWhatCannotBeOpened(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	table := New[*value](3, time.Minute)
	broken, ended := errors.New("broken"), errors.New("ended")
	if _, err := table.Get(second, []byte("a"), func(string) (*value, error) { return nil, broken }); !errors.Is(err, broken) || table.Len() != 0 || table.Find([]byte("a")) != nil {
		t.Errorf("%v, %d keys", err, table.Len())
	}
	a, b, c := use(t, table, second, "a"), use(t, table, second, "b"), use(t, table, second, "c")
	b.kept = true
	table.Drop(func(v *value) bool { return v != c })
	if a.closed.Load() != 1 || b.closed.Load() != 1 || c.closed.Load() != 0 || table.Len() != 1 {
		t.Errorf("%d keys, want the one that was not dropped", table.Len())
	}
	names := ""
	table.Each(func(v *value) { names += v.name })
	if table.Close(ended); names != "c" || c.closed.Load() != 1 || table.Len() != 0 {
		t.Errorf("%q were open, %d are", names, table.Len())
	}
	if _, err := table.Get(2*second, []byte("a"), open); !errors.Is(err, ended) {
		t.Errorf("a closed table: %v", err)
	}
}

// TestManyAtOnce: whatever comes at once, each key has one value at a time, which is not closed
// while a call on it is under way, and there never are more than the table may have.
func TestManyAtOnce(t *testing.T) {
	const keys, most = 30, 10
	table := New[*value](most, time.Second)
	var clock atomic.Int64
	var live [keys]atomic.Int64
	var wg sync.WaitGroup
	full, served := atomic.Int64{}, atomic.Int64{}
	for seed := range seeding.Draw(t, 8) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for range 5000 {
				k := r.IntN(keys)
				now := limit.Time(clock.Add(int64(r.IntN(int(second / 4)))))
				e, err := table.Get(now, fmt.Appendf(nil, "%d", k), func(name string) (*value, error) {
					if n := live[k].Add(1); n != 1 {
						t.Errorf("key %d has %d values", k, n)
					}
					return &value{name: name, live: &live[k]}, nil
				})
				if errors.Is(err, ErrFull) {
					full.Add(1)
					continue
				}
				if e.Value.closed.Load() != 0 || e.Value.name != fmt.Sprint(k) {
					t.Errorf("key %d has the value of %s, closed %d times", k, e.Value.name, e.Value.closed.Load())
				}
				served.Add(1)
				e.Done()
				if n := table.Len(); n > most {
					t.Errorf("%d keys", n)
				}
				if r.IntN(50) == 0 {
					table.Sweep(now)
				}
			}
		})
	}
	wg.Wait()
	if full.Load() == 0 || served.Load() < 1000 {
		t.Errorf("%d found the table full, %d did not: want both", full.Load(), served.Load())
	}
}

// TestAKeyInUseTakesNoMemory: to find a key, and to use one that is there, allocates nothing.
func TestAKeyInUseTakesNoMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	table := New[*value](1, time.Minute)
	key := []byte("a key of some forty bytes, an account or so")
	use(t, table, second, string(key))
	now := second
	if n := testing.AllocsPerRun(100, func() {
		now += second
		e, err := table.Get(now, key, open)
		if err != nil {
			t.Fatal(err)
		}
		e.Done()
		table.Find(key).Done()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
