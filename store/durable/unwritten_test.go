package durable

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// TestUnwritten: while the file takes nothing, what is admitted is decided as OnFailure says; what is refused was not
// taken, of any limit of the request; and what memory knows to be used up stays refused.
func TestUnwritten(t *testing.T) {
	s, err := Open(Options{Path: filepath.Join(t.TempDir(), "stint.db"), Sync: true})
	if err != nil {
		t.Fatal(err)
	}
	p := monthly
	p.Rate.Count = 10
	month, err := s.Bind(store.Spec{ID: "month", Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	flight, err := s.Bind(store.Spec{ID: "flight", Policy: limit.Policy{Algorithm: limit.Concurrency, MaxInFlight: 10, Timeout: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	used := func(c store.Counters, quota int64) int64 {
		t.Helper()
		look := []store.Charge{{Counters: c, Key: []byte("a")}}
		if _, err := s.Peek(t.Context(), look); err != nil {
			t.Fatal(err)
		}
		return quota - look[0].Verdict.Remaining
	}
	if err := s.writer.close(); err != nil { // writes fail from here on
		t.Fatal(err)
	}
	for i, step := range []struct {
		name    string
		how     store.OnFailure
		shadow  bool
		cost    int64
		allowed bool
		reason  limit.Reason
		used    int64
	}{
		{name: "allow", how: store.FailAllow, cost: 3, allowed: true, used: 3},
		{name: "local", how: store.FailLocal, cost: 3, allowed: true, used: 6},
		{name: "reject", how: store.FailReject, cost: 3, reason: limit.ReasonStoreFailure, used: 6},
		{name: "reject, a shadow", how: store.FailReject, shadow: true, cost: 1, allowed: true, used: 7},
		{name: "used up", how: store.FailAllow, cost: 4, reason: limit.ReasonRate, used: 7},
		{name: "cost 0", how: store.FailReject, cost: 0, allowed: true, used: 7},
		{name: "take", how: store.FailTake, cost: 3, used: 7},
	} {
		before := used(flight, 10)
		charges := []store.Charge{
			{Counters: month, Key: []byte("a"), Cost: step.cost, OnFailure: step.how, Shadow: step.shadow},
			{Counters: flight, Key: []byte("a"), Cost: min(step.cost, 1), Permit: uint64(i+1) << 20},
		}
		allowed, err := s.Take(t.Context(), charges)
		if failed := step.how == store.FailTake; failed != errors.Is(err, store.ErrUnavailable) || !failed && err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if allowed != step.allowed || err == nil && charges[0].Verdict.Reason != step.reason {
			t.Errorf("%s: %v %+v", step.name, allowed, charges[0].Verdict)
		}
		if n := used(month, 10); n != step.used {
			t.Errorf("%s: %d used, want %d", step.name, n, step.used)
		}
		if n := used(flight, 10) - before; n > 0 != (step.allowed && step.cost > 0) {
			t.Errorf("%s: %d more in flight", step.name, n)
		}
	}
}
