package redis

import (
	"net/url"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

// A heartbeat that is answered after three were not begins a new contact: for three more
// heartbeats other instances may not have announced themselves again, and a smaller number of
// them is not used.
func TestPresence(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	var p presence
	ms := int64(time.Millisecond)
	for i, tt := range []struct {
		asked, now int64 // milliseconds
		enough     bool
	}{
		{50, 51, false},
		{2999, 3000, false},
		{3000, 3001, true},
		{5000, 5010, true},
		{8010, 8011, true},    // just three heartbeats since the last answer
		{11012, 11013, false}, // one more
		{14011, 14012, false},
		{14012, 14013, true},
		{30000, 30005, false},
		{33000, 33001, true},
	} {
		if got := p.answered(tt.asked*ms, tt.now*ms); got != tt.enough {
			t.Errorf("%d: asked at %d ms: %v, want %v", i, tt.asked, got, tt.enough)
		}
	}
}

// Calls are counted by the power of two that the number of their requests is at most, and
// the round trip is a mean of the last ones.
func TestStatsOfCalls(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := &Store{}
	var want [10]uint64
	for n, at := range map[int]int{0: 0, 1: 0, 2: 1, 3: 2, 4: 2, 5: 3, 8: 3, 9: 4, 128: 7, 129: 8, 256: 8, 257: 9, 512: 9, 2048: 9} {
		s.stats.called(n)
		want[at]++
	}
	if got := s.Stats(); got.BatchSizes != want || got.Calls != 14 {
		t.Errorf("%+v, want %v", got, want)
	}
	for i, want := range []time.Duration{1600, 1600, 1600 + 100} {
		s.stats.trip([]time.Duration{1600, 1600, 3200}[i])
		if got := s.Stats().RoundTrip; got != want {
			t.Errorf("after %d trips: %v, want %v", i+1, got, want)
		}
	}
	for range 1000 {
		if d := jitter(time.Second); d < time.Second/2 || d > time.Second {
			t.Fatalf("a second became %v", d)
		}
	}
}

// A Cluster has a breaker for each lane, and others have one.
func TestBreakersAreCounted(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for topology, want := range map[Topology]int{Standalone: 1, Sentinel: 1, Cluster: 64} {
		s := &Store{opts: Options{Topology: topology}}
		s.lanes = make([]lane, s.laneCount())
		if got := s.Stats().Breakers; got != want {
			t.Errorf("%v: %d breakers, want %d", topology, got, want)
		}
	}
}

// One run of the script is about at most 256 buckets and 2048 requests, except that one
// request may have any number; and about no bucket by two policies.
func TestBoundsOfABatch(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r, err := newRule(still(1))
	if err != nil {
		t.Fatal(err)
	}
	of := func(first, n int) *operation {
		o := new(operation)
		for i := range n {
			o.parts = append(o.parts, part{rule: r, key: string(keyNumber(first + i))})
		}
		return o
	}
	for _, tt := range []struct{ each, distinct, want int }{{1, 10_000, 256}, {1, 100, 2048}, {2, 10_000, 128}, {3, 10_000, 85}, {256, 10_000, 1}, {1000, 10_000, 1}} {
		b, got := new(batch), 0
		for b.reset(); got < 5000 && b.accept(of(got*tt.each%tt.distinct, tt.each)); got++ {
		}
		if got != tt.want {
			t.Errorf("%d requests about %d of %d keys each, want %d", got, tt.each, tt.distinct, tt.want)
		}
	}
	b := new(batch)
	b.reset()
	other := of(1, 1)
	other.parts[0].rule = new(rule)
	if !b.accept(of(1, 2)) || b.accept(other) || !b.accept(of(2, 1)) || len(b.buckets) != 2 {
		t.Errorf("%d buckets, or two policies of one", len(b.buckets))
	}
}

// The clocks differ when they are apart by more than a second and what a call takes one way.
func TestClockOffset(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	own := time.Unix(1_700_000_000, 0)
	for _, took := range []time.Duration{0, time.Millisecond, 4 * time.Second} {
		for _, by := range []time.Duration{0, time.Second + took/2, time.Second + took/2 + 1, time.Hour} {
			for _, sign := range []time.Duration{1, -1} {
				e := &examination{}
				e.offset(own.Add(sign*by), own, took)
				want := Good
				if by > time.Second+took/2 {
					want = Warning
				}
				if len(e.found) != 1 || e.found[0].Level != want {
					t.Errorf("%v apart in a call of %v: %+v, want %v", sign*by, took, e.found, want)
				}
			}
		}
	}
}

// A prefix has no braces, no spaces and nothing that cannot be printed.
func TestPrefixOfAURL(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for c := range rune(256) {
		escaped := "redis://h?prefix=a" + url.PathEscape(string(c))
		if c == '&' || c == '=' {
			continue // which a query has a use for
		}
		bad := c <= ' ' || c == 0x7f || c == '{' || c == '}'
		if o, err := ParseURL(escaped); (err != nil) != bad || !bad && o.Prefix != "a"+string(c) {
			t.Errorf("%U: %q, %v", c, o.Prefix, err)
		}
	}
}

// Options are right on their bounds, and wrong beyond.
func TestOptionsBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, tt := range map[string]struct {
		edit func(o *Options, beyond int)
	}{
		"timeout":          {func(o *Options, n int) { o.Timeout = time.Millisecond - time.Duration(n) }},
		"instances":        {func(o *Options, n int) { o.Instances = -n }},
		"database":         {func(o *Options, n int) { o.DB = -n }},
		"cluster":          {func(o *Options, n int) { o.Topology, o.DB = Cluster, n }},
		"master":           {func(o *Options, n int) { o.Master = "master"[:6*n] }},
		"sentinel":         {func(o *Options, n int) { o.Topology, o.Master = Sentinel, "master"[6*n:] }},
		"prefix":           {func(o *Options, n int) { o.Prefix = "a:{"[:2+n] }},
		"another brace":    {func(o *Options, n int) { o.Prefix = "a:}"[:2+n] }},
		"an address":       {func(o *Options, n int) { o.Addrs = []string{"h:1", "h:2"[:3-2*n]} }},
		"no port":          {func(o *Options, n int) { o.Addrs = []string{"h:1"[:3-n]} }},
		"at least a place": {func(o *Options, n int) { o.Addrs = o.Addrs[:1-n] }},
	} {
		for n := range 2 {
			o := Options{Addrs: []string{"127.0.0.1:6379"}}
			if tt.edit(&o, n); (o.complete() == nil) != (n == 0) {
				t.Errorf("%s: %+v: %v", name, o, o.complete())
			}
		}
	}
}

// Durations for people have three figures, and are off by half of the last one at most.
func TestRoundedDurations(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for d, want := range map[time.Duration]time.Duration{
		0: 0, 499: 0, 500: 1000, 999_400: 999_000, 999_999: 1_000_000, 1_004_999: 1_000_000, 1_005_000: 1_010_000,
		9_994_999: 9_990_000, 123_456_789: 123_000_000, 1_234_567_890: 1_230_000_000, 59_950_000_000: 60 * time.Second,
	} {
		if got := round(d); got != want {
			t.Errorf("%d ns is shown as %v, want %v", d, got, want)
		}
	}
	for d := time.Duration(1000); d < time.Hour; d += d/7 + 13 {
		unit := time.Microsecond
		for d >= 1000*unit {
			unit *= 10
		}
		if got := round(d); got%unit != 0 || got-d > unit/2 || d-got > unit/2 {
			t.Errorf("%d ns is shown as %v", d, got)
		}
	}
}

// Each of n shares of a count is the n-th part rounded down, but at least one of what there
// is; what has no part stays nothing.
func TestPartOf(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, tt := range [][3]int64{{0, 1, 0}, {0, 5, 0}, {1, 1, 1}, {1, 5, 1}, {4, 5, 1}, {5, 5, 1}, {9, 5, 1}, {10, 5, 2}, {limit.MaxCount, 2, limit.MaxCount / 2}} {
		if got := partOf(tt[0], tt[1]); got != tt[2] {
			t.Errorf("one of %d parts of %d is %d, want %d", tt[1], tt[0], got, tt[2])
		}
	}
}
