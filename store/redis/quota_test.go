package redis

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// A request that brings a count above what is exact in Redis, such as that of a customer who has a hundred times what his
// plan says, has that: it is not left without a decision.
func TestQuotaAboveTheMost(t *testing.T) {
	server := redistest.Start(t)
	s := connected(t, Options{Addrs: []string{server.Addr()}, Timeout: patient}, nil)
	c, err := s.Bind(store.Spec{ID: "month", Policy: limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 5, Period: 720 * time.Hour}}})
	if err != nil {
		t.Fatal(err)
	}
	take := func(cost, quota int64) bool {
		charges := []store.Charge{{Counters: c, Key: []byte("k"), Cost: cost, Quota: quota, HasQuota: true}}
		ok, err := s.Take(t.Context(), charges)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if !take(1000, maxCount+1) || !take(1000, limit.MaxCount) || take(maxCount, limit.MaxCount) || !take(maxCount-2000, limit.MaxCount) || take(1, limit.MaxCount) {
		t.Error("a count above 2^50 is not 2^50")
	}
}
