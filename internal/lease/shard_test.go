package lease

import (
	"fmt"
	"testing"
)

// TestShardsStayWhereTheyAre holds the values that other versions compute.
func TestShardsStayWhereTheyAre(t *testing.T) {
	for _, c := range []struct {
		id                   ResourceID
		of1, of3, of8, of256 int
	}{
		{ResourceID{Limit: "a"}, 0, 1, 5, 229},
		{ResourceID{Limit: "messages.maxRate"}, 0, 0, 6, 150},
		{ResourceID{Limit: "a", Key: "\x01b"}, 0, 1, 0, 168},
		{ResourceID{Limit: "ab", Key: "\x01"}, 0, 1, 3, 251},
		{ResourceID{Limit: "api-per-user", Key: "\x02u1"}, 0, 0, 4, 180},
		{ResourceID{Limit: "api-per-user", Key: "\x02u2"}, 0, 0, 3, 195},
		{ResourceID{Limit: "per-ip", Key: "\xfd\xc0\x00\x02\x07"}, 0, 0, 5, 85},
	} {
		got := [4]int{c.id.Shard(1), c.id.Shard(3), c.id.Shard(8), c.id.Shard(256)}
		if want := [4]int{c.of1, c.of3, c.of8, c.of256}; got != want {
			t.Errorf("%q: shards of 1, 3, 8 and 256 are %v, want %v: instances of other versions would ask another coordinator", c.id, got, want)
		}
	}
}

func TestNameAndKeyOfAShardAreToldApart(t *testing.T) {
	const shards = 1 << 20
	if a, b := (ResourceID{Limit: "ab", Key: "c"}).Shard(shards), (ResourceID{Limit: "a", Key: "bc"}).Shard(shards); a == b {
		t.Errorf("both are in shard %d", a)
	}
}

// TestShardsAreEvenlyFilled: limits and keys that differ at their end alone are spread as at random.
func TestShardsAreEvenlyFilled(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const each = 1000
	kinds := map[string]func(i int) ResourceID{
		"limits": func(i int) ResourceID { return ResourceID{Limit: fmt.Sprintf("limit-%d", i)} },
		"keys":   func(i int) ResourceID { return ResourceID{Limit: "user", Key: fmt.Sprintf("\x08%08d", i)} },
		"addresses": func(i int) ResourceID {
			return ResourceID{Limit: "ip", Key: string([]byte{0xfd, 10, byte(i >> 16), byte(i >> 8), byte(i)})}
		},
		"networks": func(i int) ResourceID {
			return ResourceID{Limit: "ip", Key: string([]byte{0xfc, 32, 1, 13, 184, byte(i >> 16), byte(i >> 8), byte(i), 0, 0, 0, 0, 0, 0, 0, 0, 0})}
		},
	}
	for name, id := range kinds {
		for _, n := range []int{2, 3, 8, 64, 256} {
			counts := make([]int, n)
			for i := range n * each {
				counts[id(i).Shard(n)]++
			}
			for shard, count := range counts {
				// Five standard deviations of a Poisson number around 1,000.
				if count < each-160 || count > each+160 {
					t.Errorf("%s over %d shards: shard %d has %d of %d expected", name, n, shard, count, each)
				}
			}
		}
	}
}

func TestShardAllocatesNothing(t *testing.T) {
	id := ResourceID{Limit: "api-per-user", Key: "\x02u1"}
	if n := testing.AllocsPerRun(100, func() { _ = id.Shard(8) }); n != 0 {
		t.Errorf("%v allocations, want none: it is computed for every key that is opened", n)
	}
}
