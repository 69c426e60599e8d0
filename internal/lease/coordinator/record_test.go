package coordinator

import (
	"encoding/base64"
	"fmt"
	"testing"

	"github.com/stint-io/stint/internal/lease"
)

// TestLargestRecord: whatever is in use, a record fits into a Kubernetes object, where it is in base64 twice, beside
// what else is in there. What does not fit is left out: buckets first, then who the holders are.
func TestLargestRecord(t *testing.T) {
	sync := InSync{Epoch: 1 << 62, Replicas: []uint64{1, 2, 3, 4, 5, 6, 7, 8}}
	holders := func(sessions, limits int) (h Holders) {
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
			u.of[bucketOf(lease.ResourceID{Key: fmt.Sprint(i)})] = usedBucket{fills: forever}
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
		{"many sessions", Record{Holders: holders(maxHolders, 1), InSync: sync, Used: used(500)}, maxHolders, 500},
		{"many of both", Record{Holders: holders(maxHolders, 1), InSync: sync, Used: used(maxUsed)}, maxHolders, -1},
		{"many sessions of many limits", Record{Holders: holders(maxHolders, maxHolderLimits), InSync: sync, Used: used(1)}, -1, -1},
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
