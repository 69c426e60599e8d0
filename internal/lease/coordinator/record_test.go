package coordinator

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/holding"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/limit"
)

// TestLargestRecord: whatever is in use, a record fits into a Kubernetes object, where it is in base64 twice, beside
// what else is in there. What does not fit is left out: buckets first, then who the holders are.
func TestLargestRecord(t *testing.T) {
	sync := InSync{Epoch: 1 << 62, Replicas: []uint64{1, 2, 3, 4, 5, 6, 7, 8}}
	holders := func(sessions, limits int) (h holding.Holders) {
		for s := range sessions {
			for l := range limits {
				h.Include(uint64(s), fmt.Sprint("limit", l))
			}
		}
		return h
	}
	used := func(buckets int) *Used {
		u := &Used{others: -1, of: map[BucketID]usedBucket{}}
		for i := range buckets {
			u.of[pool.IDOf(lease.ResourceID{Key: fmt.Sprint(i)})] = usedBucket{fills: limit.Never}
		}
		return u
	}
	for _, tt := range []struct {
		name     string
		record   Record
		sessions int // that are named; -1 = anybody may hold something
		buckets  int // that are known; -1 = nothing is said
	}{
		{"buckets alone", Record{InSync: sync, Used: used(maxUsed)}, 0, maxUsed},
		{"many sessions", Record{Holders: holders(holding.MaxSessions, 1), InSync: sync, Used: used(500)}, holding.MaxSessions, 500},
		{"many of both", Record{Holders: holders(holding.MaxSessions, 1), InSync: sync, Used: used(maxUsed)}, holding.MaxSessions, -1},
		{"many sessions of many limits", Record{Holders: holders(holding.MaxSessions, holding.MaxLimits), InSync: sync, Used: used(1)}, -1, -1},
	} {
		text := tt.record.Encode()
		const others = 1024 // the rest of the claim, and other annotations
		if twice := base64.StdEncoding.EncodedLen(base64.StdEncoding.EncodedLen(len(text))+others) + others; twice > 256<<10 {
			t.Errorf("%s: %d bytes are %d in an object", tt.name, len(text), twice)
		}
		back, err := DecodeRecord(text)
		sessions, buckets := back.Holders.Sessions(), -1
		if back.Holders.Unknown {
			sessions = -1
		}
		if back.Used != nil {
			buckets = len(back.Used.of)
		}
		if err != nil || sessions != tt.sessions || buckets != tt.buckets || len(back.InSync.Replicas) != MaxInSync {
			t.Errorf("%s: %d sessions, %d buckets, %d replicas, %v", tt.name, sessions, buckets, len(back.InSync.Replicas), err)
		}
	}
}

// FuzzRecord: whatever the backend has in the place of a record, a coordinator takes over with it, lends, and hands
// over what can be read.
func FuzzRecord(f *testing.F) {
	full := Record{InSync: InSync{Epoch: 3, Replicas: []uint64{7}}, Used: &Used{others: 5, of: map[BucketID]usedBucket{pool.IDOf(theLimit): {tokens: 5, age: 3, fills: 9, held: true, leased: true}}}}
	full.Holders.Include(anna.Session, "l")
	text := full.Encode()
	f.Add(text)
	f.Add(text[:len(text)-1])
	for _, at := range []int{len(text) - 49, len(text) - 25, len(text) - 17, len(text) - 9} { // others, tokens, age, fills
		for _, extreme := range []uint64{1<<63 - 1, 1 << 63, 1 << 62, 0} {
			damaged := append([]byte(nil), text...)
			binary.BigEndian.PutUint64(damaged[at:], extreme)
			f.Add(damaged)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := DecodeRecord(text)
		if err != nil && !r.Holders.Unknown {
			t.Fatal("what cannot be read is believed")
		}
		d := newDesk(t, lease.Terms{Rate: amount(1), Burst: 100e6})
		d.start(1, 0)
		d.c.Step(d.now, Takeover{Epoch: d.c.Epoch() + 1, Former: d.c.Epoch(), Holders: r.Holders, Used: r.Used})
		for n := range uint64(3) { // past recovery
			d.c.Step(d.now, &lease.Report{Member: bert, Epoch: d.c.Epoch(), Number: n + 1, Stamp: time.Duration(d.now), Demands: []lease.Demand{asks(10)}})
			d.now = max(d.now.Add(lease.DefaultLease), d.c.Next())
			d.c.Step(d.now, lease.Tick{})
		}
		if d.c.stats.Broken > 0 {
			t.Fatal("a bucket failed")
		}
		last := Record{Holders: d.c.Holders(), Used: d.c.Used(d.now)}
		if _, err := DecodeRecord(last.Encode()); err != nil {
			t.Fatalf("its own record is damaged: %v; %+v", err, last.Used)
		}
	})
}
