package storetest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

var five = limit.Policy{Rate: limit.PerMinute(5), Burst: 5}

// testCase is one thing that is asked of a store.
type testCase struct {
	name        string
	explanation string
	run         func(h *harness)
}

var cases = []testCase{
	{"new key is full", "a key never seen admits its whole quota, and no more", func(h *harness) {
		for name, p := range policies() {
			c := h.bind(name, p)
			if got := h.admitted(int(p.Quota())+3, charge(c, "k", 1)); int64(got) != p.Quota() {
				h.Errorf("%s: a new key admitted %d, want %d", name, got, p.Quota())
			}
		}
	}},
	{"keys and limits are apart", "neither another key nor another limit's same key is charged", func(h *harness) {
		a, b := h.bind("a", five), h.bind("b", five)
		h.take(charge(a, "k", 3))
		h.wantRemaining(a, "k", 2)
		h.wantRemaining(a, "K", 5)
		h.wantRemaining(b, "k", 5)
	}},
	{"a refusal charges nothing", "a cost that does not fit leaves the bucket as it is", func(h *harness) {
		c := h.bind("c", five)
		h.take(charge(c, "k", 4))
		if v := h.verdict(charge(c, "k", 2)); v.Allowed || v.Reason != limit.ReasonRate || v.RetryAfter != 12*time.Second {
			h.Errorf("2 of 1 remaining: %+v, want a refusal for 12s", v)
		}
		h.wantRemaining(c, "k", 1)
	}},
	{"a retry at its time passes", "after RetryAfter the same cost fits, one step of the clock before it does not", func(h *harness) {
		c := h.bind("c", five)
		h.take(charge(c, "k", 5))
		v := h.verdict(charge(c, "k", 1))
		h.advance(v.RetryAfter - h.Resolution)
		if h.take(charge(c, "k", 1)) {
			h.Error("admitted a step early")
		}
		h.advance(h.Resolution)
		if !h.take(charge(c, "k", 1)) {
			h.Error("refused at the time that was promised")
		}
	}},
	{"cost above the quota", "a cost that can never fit says so", func(h *harness) {
		c := h.bind("c", five)
		if v := h.verdict(charge(c, "k", limit.MaxCount)); v.Allowed || v.Reason != limit.ReasonCost || v.RetryAfter != limit.Never {
			h.Errorf("%+v, want a refusal for ever", v)
		}
		h.wantRemaining(c, "k", 5)
	}},
	{"all or nothing", "a denial by one limit charges none of the others, whatever their order", func(h *harness) {
		a, b := h.bind("a", five), h.bind("b", limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.PerMinute(2)})
		for range 4 {
			h.take(charge(a, "k", 1), charge(b, "k", 1))
			h.take(charge(b, "k", 1), charge(a, "k", 1))
		}
		h.wantRemaining(a, "k", 3)
		h.wantRemaining(b, "k", 0)
	}},
	{"shadow", "a shadow limit refuses nothing and counts what it would admit", func(h *harness) {
		a, b := h.bind("a", five), h.bind("b", limit.Policy{Rate: limit.PerMinute(2), Burst: 2})
		shadow := charge(b, "k", 1)
		shadow.Shadow = true
		for i := range 3 {
			if !h.take(charge(a, "k", 1), shadow) {
				h.Errorf("request %d was refused by a shadow limit", i)
			}
		}
		h.wantRemaining(a, "k", 2)
		h.wantRemaining(b, "k", 0)
	}},
	{"refusals that count", "a limit that counts refused requests is charged even when another refuses", func(h *harness) {
		empty := h.bind("empty", limit.Policy{})
		counts := h.bind("counts", limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.PerHour(10), CountRefused: true})
		two := []store.Charge{charge(empty, "k", 1), charge(counts, "k", 4)}
		h.take(two...)
		h.wantRemaining(counts, "k", 6)
		if _, err := h.store.Take(context.Background(), two); err != nil || two[1].Verdict.Remaining != 2 || !two[1].Verdict.Allowed {
			h.Errorf("the verdict of 8 of 10: %+v, %v, want 2 remaining", two[1].Verdict, err)
		}
		if _, err := h.store.Take(context.Background(), two); err != nil || two[1].Verdict.Remaining != 0 || two[1].Verdict.Allowed {
			h.Errorf("the verdict of 12 of 10: %+v, %v, want a refusal", two[1].Verdict, err)
		}
	}},
	{"charges on one bucket add up", "two charges of 3 do not fit 5", func(h *harness) {
		c := h.bind("c", five)
		if h.take(charge(c, "k", 3), charge(c, "k", 3)) {
			h.Error("6 of 5 were admitted")
		}
		h.wantRemaining(c, "k", 5)
		if !h.take(charge(c, "k", 3), charge(c, "k", 2)) {
			h.Error("5 of 5 were refused")
		}
		h.wantRemaining(c, "k", 0)
	}},
	{"peek adds up", "Peek of several charges answers as Take would", func(h *harness) {
		for name, p := range policies() {
			c, other := h.bind(name, p), h.bind(name+" other", p)
			three := []store.Charge{charge(c, "k", p.Quota()-1), charge(other, "k", 1), charge(c, "k", 2)}
			ok, err := h.store.Peek(context.Background(), three)
			if err != nil || ok {
				h.Errorf("%s: Peek of more than there is: %v, %v", name, ok, err)
			}
			if v := three[1].Verdict; !v.Allowed || v.Remaining != p.Quota() || v.ResetAfter != 0 {
				h.Errorf("%s: Peek says of a limit that would be left alone: %+v", name, v)
			}
			three[2].Cost = 1
			if ok, err = h.store.Peek(context.Background(), three); err != nil || !ok || three[0].Verdict.Remaining != 0 || three[1].Verdict.Remaining != p.Quota()-1 {
				h.Errorf("%s: Peek of all there is: %v, %v, %+v", name, ok, err, three)
			}
			h.wantRemaining(c, "k", p.Quota())
		}
	}},
	{"peek takes nothing", "Peek answers as Take would", func(h *harness) {
		c := h.bind("c", five)
		two := []store.Charge{charge(c, "k", 5)}
		for range 2 {
			if ok, err := h.store.Peek(context.Background(), two); !ok || err != nil {
				h.Errorf("Peek: %v, %v", ok, err)
			}
		}
		h.wantRemaining(c, "k", 5)
	}},
	{"refund and reset", "what is given back can be taken again, and a bucket gets no fuller than full", func(h *harness) {
		c := h.bind("c", five)
		h.take(charge(c, "k", 5))
		if err := h.store.Refund(context.Background(), []store.Charge{charge(c, "k", 2)}); err != nil {
			h.Fatal(err)
		}
		h.wantRemaining(c, "k", 2)
		_ = h.store.Refund(context.Background(), []store.Charge{charge(c, "k", 100)})
		h.wantRemaining(c, "k", 5)
		h.take(charge(c, "k", 5))
		if err := h.store.Reset(context.Background(), []store.Charge{charge(c, "k", 0)}); err != nil {
			h.Fatal(err)
		}
		h.wantRemaining(c, "k", 5)
		for name, p := range policies() {
			if p.Algorithm == limit.Concurrency {
				continue // its places are given back by their permits
			}
			c := h.bind(name, p)
			h.take(charge(c, "k", 3))
			_ = h.store.Refund(context.Background(), []store.Charge{charge(c, "k", 3)})
			h.wantRemaining(c, "k", p.Quota())
			h.take(charge(c, "k", 3))
			_ = h.store.Reset(context.Background(), []store.Charge{charge(c, "k", 0)})
			h.wantRemaining(c, "k", p.Quota())
		}
	}},
	{"permits", "a place in flight comes back when its permit ends, once, or when its time is over", func(h *harness) {
		c := h.bind("c", limit.Policy{Algorithm: limit.Concurrency, MaxInFlight: 2, Timeout: time.Minute})
		one, two := charge(c, "k", 1), charge(c, "k", 1)
		one.Permit, two.Permit = 1, 2
		h.take(one)
		h.take(two)
		if v := h.verdict(charge(c, "k", 1)); v.Allowed || v.Reason != limit.ReasonConcurrency {
			h.Errorf("a third in flight: %+v", v)
		}
		for range 2 {
			if err := h.store.Finish(context.Background(), []store.Charge{one}); err != nil {
				h.Fatal(err)
			}
		}
		h.wantRemaining(c, "k", 1)
		h.advance(time.Minute)
		h.wantRemaining(c, "k", 2)
	}},
	{"a changed policy keeps what was used", "binding again neither refills nor forgets", func(h *harness) {
		for name, p := range policies() {
			if p.Algorithm == limit.Concurrency || p.Ban > 0 || p.Rate.Count == 0 {
				continue
			}
			c := h.bind(name, p)
			h.take(charge(c, "k", 4))
			was := h.remaining(c, "k")
			p.Rate.Count, p.Burst = 2*p.Rate.Count, 2*p.Burst
			if again := h.bind(name, p); again.Spec() != (store.Spec{ID: name, Policy: p}) {
				h.Errorf("%s: bound as %+v", name, again.Spec())
			}
			if now, used := h.remaining(c, "k"), p.Quota()-4; now > used || now < was {
				h.Errorf("%s: %d remaining of %d after 4, and %d before the change", name, now, p.Quota(), was)
			}
		}
	}},
	{"unbound limits", "counters bound anew after Unbind are new, unless others share them", func(h *harness) {
		c := h.bind("c", five)
		h.take(charge(c, "k", 5))
		if err := h.store.Unbind(c); err != nil {
			h.Fatal(err)
		}
		want := int64(5)
		if h.Shared {
			want = 0
		}
		h.wantRemaining(h.bind("c", five), "k", want)
	}},
	{"bad charges change nothing", "a negative or huge cost, a policy that is not valid and a context that has ended are errors", func(h *harness) {
		c := h.bind("c", five)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := h.store.Take(ctx, []store.Charge{charge(c, "k", 1)}); err == nil {
			h.Error("a context that has ended is no error")
		}
		for _, cost := range []int64{-1, limit.MaxCount + 1, -1 << 63} {
			if _, err := h.store.Take(context.Background(), []store.Charge{charge(c, "k", 1), charge(c, "k", cost)}); err == nil {
				h.Errorf("cost %d is no error", cost)
			}
		}
		if _, err := h.store.Bind(store.Spec{ID: "bad", Policy: limit.Policy{Burst: -1}}); err == nil {
			h.Error("a negative burst is no error")
		}
		h.wantRemaining(c, "k", 5)
	}},
	{"a refusal that counts says when", "who is refused and counted all the same is told a wait that suffices, and nothing less does: alone, and beside a limit with room", countedWaits},
	{"counters of another store", "are an error of every verb, which changes nothing", func(h *harness) {
		c, strange := h.bind("c", five), strangeCounters{}
		both := []store.Charge{charge(c, "k", 1), charge(strange, "k", 1)}
		ctx := context.Background()
		_, taken := h.store.Take(ctx, both)
		_, peeked := h.store.Peek(ctx, both)
		for verb, err := range map[string]error{
			"Take": taken, "Peek": peeked, "Refund": h.store.Refund(ctx, both), "Finish": h.store.Finish(ctx, both),
			"Reset": h.store.Reset(ctx, both), "Unbind": h.store.Unbind(strange),
		} {
			if err == nil {
				h.Errorf("%s takes them", verb)
			}
		}
		h.wantRemaining(c, "k", 5)
	}},
	{"bans by attempts", "attempts count whether admitted or not; one too many within a period bans until that period has ended and the ban after it, whatever is asked meanwhile; the limit is charged with what is admitted", bans},
	{"a ban ends when it should", "2,000 in 1,200 s and a ban of 3,600 s: it ends 3,600 s after the interval in which the key went over, or after the request that did, to the step of the clock", timeline},
	{"bans are listed and lifted", "the list has the keys that are banned, whatever bytes they have, and each until when; a lift ends one ban", lists},
	{"bans outlive a change of policy", "other amounts, lengths and ways to count end no ban, and the list keeps it", bansOutliveChanges},
	{"any number of new keys", "a request may name more new keys of one limit than its table has room for", func(h *harness) {
		for name, p := range policies() {
			c := h.bind(name, p)
			charges := make([]store.Charge, 700)
			for i := range charges {
				charges[i] = charge(c, fmt.Sprint(i), 1)
			}
			if !h.take(charges...) {
				h.Errorf("%s: new keys were refused", name)
			}
			for _, i := range []int{0, 350, 699} {
				h.wantRemaining(c, fmt.Sprint(i), p.Quota()-1)
			}
		}
	}},
	{"many keys", "thousands of keys keep their own state", func(h *harness) {
		c := h.bind("c", limit.Policy{Rate: limit.PerHour(3), Burst: 3})
		keys := 2000
		if h.Shared {
			keys = 500 // one request after another, over a network
		}
		for round := range 4 {
			for k := range keys {
				if got, want := h.take(charge(c, fmt.Sprint(k), 1)), round < 3; got != want {
					h.Fatalf("round %d, key %d: admitted %v, want %v", round, k, got, want)
				}
			}
		}
	}},
}

// concurrent are those in which several goroutines use the store at the same time.
var concurrent = []testCase{
	{"bans that are listed and lifted meanwhile", "when all is quiet the list has the keys that are banned", bansMeanwhile},
	{"one bucket under contention", "many takers at once get exactly the quota", func(h *harness) {
		for name, p := range policies() {
			c := h.bind(name, p)
			if got := h.together(64, func(int) []store.Charge { return []store.Charge{charge(c, "k", 1)} }); got != p.Quota() {
				h.Errorf("%s: 64 takers got %d, want %d", name, got, p.Quota())
			}
		}
	}},
	{"several buckets under contention", "requests that name two limits in either order charge both or neither", func(h *harness) {
		for _, other := range []string{"token_bucket", "fixed_window", "token_bucket_unpacked"} {
			p := policies()[other]
			p.Rate.Count, p.Burst = 40, 40
			a, b := h.bind(other+"a", limit.Policy{Rate: limit.PerHour(30), Burst: 30}), h.bind(other+"b", p)
			got := h.together(64, func(i int) []store.Charge {
				two := []store.Charge{charge(a, "k", 1), charge(b, "k", 1)}
				if i%2 == 1 {
					two[0], two[1] = two[1], two[0]
				}
				return two
			})
			if got != 30 {
				h.Errorf("%s: 64 takers got %d, want 30", other, got)
			}
			h.wantRemaining(a, "k", 0)
			h.wantRemaining(b, "k", 10)
		}
	}},
}

// together runs n takers at once and returns how many were admitted.
func (h *harness) together(n int, charges func(i int) []store.Charge) int64 {
	var admitted atomic.Int64
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-begin
			ok, err := h.store.Take(context.Background(), charges(i))
			if err != nil {
				h.Errorf("Take: %v", err)
			}
			if ok {
				admitted.Add(1)
			}
		})
	}
	close(begin)
	wg.Wait()
	return admitted.Load()
}
