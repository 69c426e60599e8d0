package redis

import (
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// A lane gives up for a caller when its time is over, though others come all the time.
func TestLaneGivesUpAmongArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Store{opts: Options{Timeout: 160 * time.Millisecond}, begin: time.Now()}
		l := &lane{store: s, breaker: newBreaker(s)}
		l.working = []*sender{{lane: l}} // which has a batch under way, for ever
		late := newOperation(verbTake, 0)
		late.deadline = int64(100 * time.Millisecond)
		l.enqueue(late)
		for range 200 {
			time.Sleep(time.Millisecond)
			o := newOperation(verbTake, 0)
			o.deadline = math.MaxInt64
			l.enqueue(o)
		}
		if late.stage.Load() != stageAbandoned || len(late.done) != 1 {
			t.Error("nobody gave up after 100 ms")
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.watcher.Stop()
	})
}

// An operation on several keys waits for the first of them that is under way. When it has to
// wait again it is queued before operations that have not waited yet, behind those that have,
// and its other keys are claimed for it.
func TestParkedAgainGoesFirst(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := &Store{}
	l := &lane{store: s}
	of := func(keys ...string) *operation {
		o := &operation{}
		for _, k := range keys {
			o.parts = append(o.parts, part{key: k})
		}
		return o
	}
	x, y := &sender{lane: l}, &sender{lane: l}
	x.claim(of("a", "d"))
	y.claim(of("b"))
	first, second, pair, other, third := of("b"), of("b"), of("a", "b", "c"), of("d", "b"), of("a", "b")
	for _, o := range []*operation{first, second, pair, other, third} {
		if !l.park(o, nil) {
			t.Fatal("a key that is under way is free")
		}
	}
	if !slices.Equal(l.busy["b"].waiting, []*operation{first, second}) || !slices.Equal(l.busy["a"].waiting, []*operation{pair, third}) {
		t.Errorf("waiting for b %v, for a %v", l.busy["b"].waiting, l.busy["a"].waiting)
	}
	if l.busy["c"] != nil {
		t.Error("the other keys are kept for one that has just come")
	}
	x.free()
	l.ready = nil
	for _, o := range []*operation{pair, other, third} {
		if !l.park(o, x) {
			t.Fatal("a key that is under way is free")
		}
	}
	if !slices.Equal(l.busy["b"].waiting, []*operation{pair, other, first, second}) || !slices.Equal(l.busy["a"].waiting, []*operation{third}) {
		t.Errorf("waiting for b: %v", l.busy["b"].waiting)
	}
	if l.busy["a"] == nil || l.busy["a"].by != y || l.busy["c"] == nil || l.busy["c"].by != y {
		t.Error("its other keys are not kept until b is free")
	}
	if l.park(of("e"), nil) || l.park(of("b"), y) {
		t.Error("one waits for a free key, or for its own sender")
	}
}

// In a Cluster each lane has 256 slots that follow one another; elsewhere there is one lane.
func TestLanesOfACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := &Store{opts: Options{Topology: Cluster}}
	s.lanes = make([]lane, s.laneCount())
	met := map[*lane]uint16{}
	for i := range 5000 {
		key := keyOf(DefaultPrefix, kindBucket, "id", keyNumber(i))
		l := s.laneOf(key)
		if l != &s.lanes[slot(key)/256] {
			t.Fatalf("slot %d is not in lane %d", slot(key), slot(key)/256)
		}
		met[l]++
	}
	if len(s.lanes) != 64 || len(met) != 64 {
		t.Errorf("%d of %d lanes are used, want all 64", len(met), len(s.lanes))
	}
	for _, topology := range []Topology{Standalone, Sentinel} {
		s := &Store{opts: Options{Topology: topology}}
		if s.laneCount() != 1 {
			t.Errorf("%v: %d lanes", topology, s.laneCount())
		}
	}
}

// As many batches are under way as the shortest round trip of this second and the one
// before has tenths of a millisecond, at least 1 and at most 16.
func TestTrips(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	var trips trips
	if got := trips.atOnce(); got != 1 {
		t.Errorf("at the beginning %d", got)
	}
	second := int64(time.Second)
	for i, tt := range []struct {
		at, took int64
		want     int
	}{
		{10, 350_000, 3},
		{10, 900_000, 3}, // a longer one tells nothing
		{10, 200_000, 2},
		{10, 199_999, 1},
		{11, 800_000, 1}, // the second before still counts
		{12, 900_000, 8},
		{13, 1_600_000, 9},
		{14, 1_599_999, 15},
		{15, 9_000_000, 15},
		{16, 8_000_000, 16},
		{17, 0, 1},
		{17, -5, 1},
	} {
		received := tt.at * second
		trips.note(received-tt.took, received)
		if got := trips.atOnce(); got != tt.want {
			t.Errorf("%d: after a trip of %d ns in second %d: %d, want %d", i, tt.took, tt.at, got, tt.want)
		}
	}
}

// What comes to a lane of a store that is closed fails, and nobody waits for it.
func TestLaneOfAClosedStore(t *testing.T) {
	s, err := New(Options{Addrs: []string{unusedAddress(t)}, Timeout: patient})
	if err != nil {
		t.Fatal(err)
	}
	c := bind(t, s, "c", still(1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		o := newOperation(verbTake, 0)
		o.fill([]store.Charge{charge(c, "k", 1)}, true)
		ended := make(chan struct{})
		go func() { together(&s.lanes[0], []*operation{o}); close(ended) }()
		select {
		case <-ended:
		case <-time.After(patient):
			t.Fatal("it waits for ever")
		}
		if !errors.Is(o.err, store.ErrUnavailable) {
			t.Errorf("got %v", o.err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("closed once more: %v", err)
		}
	}
}

// What could not be charged to Redis is kept for the next time, and what was is forgotten.
func TestSettledIsKeptUntilItIsCharged(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, failed := range []error{nil, store.ErrUnavailable} {
		s := &Store{lanes: make([]lane, 1)}
		s.lanes[0].breaker = newBreaker(s)
		r, err := newRule(tokens(1, time.Second, 10))
		if err != nil {
			t.Fatal(err)
		}
		c := &localCharge{rule: r, cost: 7}
		c.full = r.bucket.Convert(limit.BucketState{}, &r.bucket, 0)
		o := newOperation(verbSettle, 0)
		o.unattended, o.settles, o.err = true, c, failed
		o.parts = append(o.parts, part{counters: &Counters{store: s}, rule: r, key: "k", cost: 7})
		o.end()
		if got := s.localCharges.keys["k"]; (got != nil) != (failed != nil) || got != nil && got.cost != 7 {
			t.Errorf("after %v: %+v is kept", failed, got)
		}
	}
}
