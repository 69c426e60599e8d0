package override

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// counting counts bound counters, and fails on demand.
type counting struct {
	*memory.Store
	mu           sync.Mutex
	bound        map[string]int
	bind, unbind error
}

func (s *counting) Bind(spec store.Spec) (store.Counters, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bind != nil {
		return nil, s.bind
	}
	s.bound[spec.ID]++
	return s.Store.Bind(spec)
}

func (s *counting) Unbind(c store.Counters) error {
	if s.unbind != nil {
		return s.unbind
	}
	return s.Store.Unbind(c)
}

func newOverrides(most int) (*Tables, *counting) {
	s := &counting{Store: memory.New(memory.Options{}), bound: map[string]int{}}
	return New(s, most, false), s
}

// The counters of a period are kept while a window of it may be open: for its length and ten
// seconds after the last use, to a second. Room is made when it is needed, at most once a
// second.
func TestWhenOverridesGo(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	o, _ := newOverrides(1)
	begun := time.Unix(1000, 0)
	get := func(period, after time.Duration) bool {
		t.Helper()
		_, err := o.Get(period, begun.Add(after))
		if err != nil && !errors.Is(err, ErrTooMany) {
			t.Fatal(err)
		}
		return err == nil
	}
	const minute, second = time.Minute, time.Second
	if !get(minute, 0) || get(second, 0) {
		t.Fatal("there is room for one")
	}
	if !get(minute, second) || !get(minute, 30*second) || !get(minute, 31*second) || !get(minute, 31*second-1) {
		t.Error("one that is there is not found")
	}
	last := 30 * second // uses within a second of a note are not noted
	if get(second, last+minute+grace) {
		t.Error("it is dropped when its window may be open")
	}
	if get(second, last+minute+grace+second-1) {
		t.Error("it is looked for twice within a second")
	}
	if !get(second, last+minute+grace+second) {
		t.Error("it is not dropped")
	}
	// A window that is shorter than the grace is kept for that.
	at := last + minute + grace + second
	if get(minute, at+10*second) || !get(minute, at+11*second+1) {
		t.Error("one of a second is kept for eleven")
	}
	if grace != 10*second {
		t.Errorf("the grace is %v", grace)
	}
}

// Counters that cannot be had or dropped are an error that is not the caller's, and what was
// there stays.
func TestOverridesThatCannotBeBound(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	o, s := newOverrides(1)
	fault := errors.New("no")
	s.bind = fault
	now := time.Unix(1000, 0)
	if v, err := o.Get(time.Minute, now); v != nil || !errors.Is(err, fault) || errors.Is(err, ErrTooMany) || len(o.byPeriod) != 0 {
		t.Errorf("%v, %v", v, err)
	}
	s.bind = nil
	v, err := o.Get(time.Minute, now)
	if err != nil || v.Window != time.Minute || !v.Counters.Spec().Policy.CountRefused {
		t.Fatalf("%+v, %v", v, err)
	}
	s.unbind = fault
	if _, err := o.Get(time.Hour, now.Add(time.Hour)); !errors.Is(err, fault) || len(o.byPeriod) != 1 {
		t.Errorf("it cannot be dropped: %v, %d are there", err, len(o.byPeriod))
	}
	s.unbind = nil
	if _, err := o.Get(time.Hour, now.Add(2*time.Hour)); err != nil || len(o.byPeriod) != 1 {
		t.Errorf("%v, %d are there", err, len(o.byPeriod))
	}
}

// However many ask at once for a period that is new, it has one table.
func TestOneTableForEachPeriod(t *testing.T) {
	o, s := newOverrides(1000)
	for n := range 200 {
		var all sync.WaitGroup
		var begun atomic.Int32
		o.mu.Lock() // they all find nothing, and then wait for each other
		for range 8 {
			all.Go(func() {
				begun.Add(1)
				if _, err := o.Get(time.Duration(1+n)*time.Second, time.Now()); err != nil {
					t.Error(err)
				}
			})
		}
		for begun.Load() < 8 {
			runtime.Gosched()
		}
		for range 100 {
			runtime.Gosched()
		}
		o.mu.Unlock()
		all.Wait()
	}
	for id, n := range s.bound {
		if n != 1 {
			t.Errorf("%s was bound %d times", id, n)
		}
	}
	if len(s.bound) != 200 {
		t.Errorf("%d tables for 200 periods", len(s.bound))
	}
}

// What one descriptor asks of its limit another never meets: the keys of different domains,
// names and values differ, however they are split.
func TestOverrideKeysAreApart(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	seen := map[string]string{}
	for _, domain := range []string{"", "a", "ab"} {
		for _, pairs := range [][]limit.Attribute{nil, {{Name: "a"}}, {{Value: "a"}}, {{Name: "b", Value: "c"}}, {{Name: "bc"}}, {{Name: "b"}, {Name: "c"}}, {{Name: "b", Value: "\x01"}, {Name: "c"}}, {{}, {}}} {
			key, what := string(AppendKey(nil, domain, pairs)), fmt.Sprintf("%q %q", domain, pairs)
			if was, ok := seen[key]; ok {
				t.Errorf("%s and %s are one", was, what)
			}
			seen[key] = what
		}
	}
}

// What was noted of the use of an override is at most a second old.
func TestUseIsNoted(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	var v Table
	begun := time.Unix(1000, 0)
	v.touch(begun)
	for _, c := range []struct{ at, noted time.Duration }{{time.Second, 0}, {time.Second + 1, time.Second + 1}, {time.Second, time.Second + 1}, {2 * time.Second, time.Second + 1}, {3 * time.Second, 3 * time.Second}} {
		v.touch(begun.Add(c.at))
		if got := time.Duration(v.lastUsed.Load() - begun.UnixNano()); got != c.noted {
			t.Errorf("used after %v: noted %v", c.at, got)
		}
	}
}

// Requests may bring limits of 4096 different periods at a time.
func TestMostOverrides(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	o, _ := newOverrides(DefaultMax)
	now := time.Unix(1000, 0)
	for i := range 4097 {
		if _, err := o.Get(time.Duration(1+i)*time.Millisecond, now); (err == nil) != (i < 4096) || err != nil && !errors.Is(err, ErrTooMany) {
			t.Fatalf("period %d: %v", i+1, err)
		}
	}
}
