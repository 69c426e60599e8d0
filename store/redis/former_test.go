package redis

import (
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// A state that a former version wrote, whose tag has the quota, is read as it is meant.
func TestReadsFormerTag(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	f := newFleet(t, 1)
	f.begin("former")
	f.bind(0, limit.Policy{Rate: limit.PerHour(1), Burst: 5})
	r := f.bound[0].(*Counters).bound.Load().rule
	var s state
	if !r.take(&s, f.now(), 4, terms{}).Allowed {
		t.Fatal("4 of 5 do not fit")
	}
	raw := r.encode(s)
	raw = raw[:len(raw)-8] + string(words(5))
	client := *f.stores[0].client.Load()
	key := f.stores[0].keyOfCharge(store.Charge{Counters: f.bound[0], Key: keyNumber(1)})
	if err := client.Do(t.Context(), client.B().Set().Key(key).Value(raw).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	if !f.take(0, 1) || f.take(0, 1) {
		t.Error("not just the one fits that is left")
	}
}

// The tag of a former version is read for every quota that there can be, that of the
// longest queue included, which is one above the largest burst; and no other is.
func TestReadsEveryFormerQuota(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const now = limit.Time(1_700_000_000_000_000_000)
	for _, p := range []limit.Policy{
		{Rate: limit.Rate{Count: 1 << 40, Period: time.Nanosecond}, Burst: limit.MaxCount},
		{Algorithm: limit.LeakyBucket, Rate: limit.Rate{Count: 1 << 40, Period: time.Nanosecond}, Burst: limit.MaxCount},
		{Rate: limit.PerSecond(10), Burst: 1},
		{Algorithm: limit.LeakyBucket, Rate: limit.PerSecond(10)},
	} {
		r, err := newRule(p)
		if err != nil {
			t.Fatalf("%+v: %v", p, err)
		}
		for quota, ok := range map[uint64]bool{uint64(p.Quota()): true, limit.MaxCount + 2: false, 1 << 63: false} {
			var s state
			r.bucket.Take(&s.bucket, now, p.Quota())
			raw := r.encode(s)
			raw = raw[:len(raw)-8] + string(words(quota))
			if _, got := r.writer(raw); got != ok {
				t.Errorf("%+v: a tag with a quota of %d is read: %v, want %v", p, quota, got, ok)
			}
			if got := r.decode(r.convert(raw, now)); ok && got.bucket != s.bucket {
				t.Errorf("%+v: %+v became %+v", p, s.bucket, got.bucket)
			}
		}
	}
}

// A queue reads the state of a bucket of the same rate whatever its burst was, up to the
// longest that there can be.
func TestQueueReadsTheLongestBucket(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	p := limit.Policy{Rate: limit.PerSecond(7)}
	p.Burst = longestBurst(p)
	long, err := newRule(p)
	if err != nil {
		t.Fatal(err)
	}
	queue, err := newRule(limit.Policy{Algorithm: limit.LeakyBucket, Rate: p.Rate, Burst: 5})
	if err != nil {
		t.Fatal(err)
	}
	var s state
	long.bucket.Take(&s.bucket, 1_700_000_000_000_000_000, 3)
	raw := long.encode(s)
	raw = raw[:len(raw)-8] + string(words(uint64(p.Burst)))
	if got := queue.decode(queue.convert(raw, 1_700_000_000_000_000_000)); got.bucket != s.bucket {
		t.Errorf("%+v became %+v", s.bucket, got.bucket)
	}
}
