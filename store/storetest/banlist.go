package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// banPolicy bans a key whose attempts in a period are above most.
func banPolicy(most int64, period, ban time.Duration, fromNow bool) limit.Policy {
	return limit.Policy{
		Algorithm: limit.FixedWindow, Align: limit.AlignFirstHit, Rate: limit.Rate{Count: most, Period: period},
		CountRefused: true, Ban: ban, BanFromNow: fromNow,
	}
}

// keeper returns the store as a BanKeeper, or nil with the test at its end.
func (h *harness) keeper() store.BanKeeper {
	k, ok := h.store.(store.BanKeeper)
	if !ok {
		h.Skip("the store lists no bans")
	}
	return k
}

// listed returns all bans by their keys; those without a key by their ID.
func (h *harness) listed(k store.BanKeeper, c store.Counters, page int) map[string]store.Ban {
	h.Helper()
	out := map[string]store.Ban{}
	for after := ""; ; {
		list, next, err := k.Bans(context.Background(), c, after, page)
		if err != nil {
			h.Fatalf("Bans: %v", err)
		}
		for _, b := range list {
			name := string(b.Key)
			if b.Key == nil {
				name = b.ID
			}
			if _, twice := out[name]; twice {
				h.Errorf("key %q is listed twice", name)
			}
			if b.ID == "" || strings.ContainsFunc(b.ID, func(r rune) bool { return r <= ' ' || r > '~' }) {
				h.Errorf("key %q has the ID %q", name, b.ID)
			}
			out[name] = b
		}
		if next == "" {
			return out
		}
		after = next
	}
}

// timeline walks through the example of an article, with a tenth of its requests: 200 in 1,200 s, then a ban of
// 3,600 s, for both ways to count it.
func timeline(h *harness) {
	const most, period, ban = 200, 1200 * time.Second, 3600 * time.Second
	for _, fromNow := range []bool{false, true} {
		c := h.bind(fmt.Sprint("timeline ", fromNow), banPolicy(most, period, ban, fromNow))
		begin := h.now()
		if n := h.admitted(most, charge(c, "k", 1)); n != most {
			h.Fatalf("%d of the first %d were admitted", n, most)
		}
		h.advance(100 * time.Second)
		// The request too many: the threshold interval ends 1,100 s later, and the ban after that.
		reason, left := limit.ReasonRate, period-100*time.Second+ban
		ends := begin.Add(period + ban)
		if fromNow {
			reason, left, ends = limit.ReasonBanned, ban, begin.Add(100*time.Second+ban)
		}
		left = time.Duration(ends - h.now())
		if v := h.verdict(charge(c, "k", 1)); v.Allowed || v.Reason != reason || v.RetryAfter != left {
			h.Errorf("from now %v: request 201: %+v, want a refusal by %v for %v", fromNow, v, reason, left)
		}
		for time.Duration(ends-h.now()) > 11*time.Second {
			h.advance(11 * time.Second)
			v := h.verdict(charge(c, "k", 1)) // attempts while banned do not prolong it
			if left := time.Duration(ends - h.now()); v.Allowed || v.RetryAfter != left {
				h.Fatalf("from now %v, %v before the end: %+v", fromNow, left, v)
			}
		}
		h.advance(time.Duration(ends-h.now()) - time.Second)
		if h.take(charge(c, "k", 1)) {
			h.Errorf("from now %v: admitted a second before the end of the ban", fromNow)
		}
		h.advance(time.Second)
		if n := h.admitted(most+1, charge(c, "k", 1)); n != most {
			h.Errorf("from now %v: %d admitted after the ban, want %d", fromNow, n, most)
		}
	}
}

// strangeKeys are what clients may send: every byte, no byte, and more than a store may keep.
func strangeKeys(r *rand.Rand, n int) []string {
	keys := []string{"", "plain", "a b", "}{%:#", "#", "\x00\n\r\x1b[31m\u2028\xff", strings.Repeat("x", 160), strings.Repeat("y", 161), strings.Repeat("\x01z", 2000)}
	for len(keys) < n {
		b := make([]byte, 1+r.IntN(40))
		for i := range b {
			b[i] = byte(r.IntN(256))
		}
		keys = append(keys, fmt.Sprintf("%d %s", len(keys), b))
	}
	return keys
}

// lists draws which keys are banned, lifted and let alone, and compares the list with that.
func lists(h *harness) {
	k := h.keeper()
	for seed := range uint64(3) {
		listsOf(h, k, seed)
	}
	plain := h.bind("plain", five)
	if list, next, err := k.Bans(context.Background(), plain, "", 10); err != nil || len(list) > 0 || next != "" {
		h.Errorf("a limit without bans: %v, %q, %v", list, next, err)
	}
	if lifted, err := k.Lift(context.Background(), plain, store.Ban{Key: []byte("k")}); err != nil || lifted {
		h.Errorf("a limit without bans: lifted %v, %v", lifted, err)
	}
	bad := h.bind("bad IDs", banPolicy(1, time.Minute, time.Minute, false))
	for _, id := range []string{"x", "=}", "=%", "=a b", "=\x00", "=#short", "zzzzzzzzzzzzzzzz", strings.Repeat("1", 1000)} {
		if lifted, err := k.Lift(context.Background(), bad, store.Ban{ID: id}); !errors.Is(err, store.ErrBanID) || lifted {
			h.Errorf("ID %.20q was taken: %v, %v", id, lifted, err)
		}
	}
}

// listsOf is lists with the keys of one seed.
func listsOf(h *harness, k store.BanKeeper, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 78))
	c := h.bind(fmt.Sprint("lists ", seed), banPolicy(2, 10*time.Second, time.Minute, seed == 1))
	ends := map[string]limit.Time{}
	keys := strangeKeys(r, 300)
	raw := func(key string) store.Charge {
		return store.Charge{Counters: c, Key: []byte(key), Cost: 1}
	}
	for range 900 {
		key := keys[r.IntN(len(keys))]
		if r.IntN(20) == 0 {
			lifted, err := k.Lift(context.Background(), c, store.Ban{Key: []byte(key)})
			if until, banned := ends[key]; err != nil || lifted != (banned && h.now() < until) {
				h.Fatalf("seed %d: Lift(%q) says %v, %v", seed, key, lifted, err)
			}
			delete(ends, key)
			continue
		}
		if v := h.verdict(raw(key)); !v.Allowed {
			ends[key] = h.now().Add(v.RetryAfter)
		}
		h.advance(time.Duration(r.Int64N(int64(200 * time.Millisecond))))
	}
	for _, page := range []int{7, 1 << 20} {
		compareBans(h, h.listed(k, c, page), ends)
	}
	// Every ban is lifted by its ID, also one whose key is not known.
	for _, b := range h.listed(k, c, 50) {
		if lifted, err := k.Lift(context.Background(), c, store.Ban{ID: b.ID}); err != nil || !lifted {
			h.Errorf("seed %d: Lift(%q): %v, %v", seed, b.ID, lifted, err)
		}
		if lifted, err := k.Lift(context.Background(), c, store.Ban{ID: b.ID}); err != nil || lifted {
			h.Errorf("seed %d: lifted twice: %q, %v", seed, b.ID, err)
		}
		if b.Key != nil && h.admitted(3, raw(string(b.Key))) != 2 {
			h.Errorf("seed %d: key %q is not new after its ban was lifted", seed, b.Key)
		}
	}
	h.advance(3 * time.Minute)
	if left := h.listed(k, c, 50); len(left) != 0 {
		h.Errorf("seed %d: %d bans are listed after all have ended", seed, len(left))
	}
}

// compareBans compares a list with when the ban of each key ends.
func compareBans(h *harness, got map[string]store.Ban, ends map[string]limit.Time) {
	h.Helper()
	named := map[string]bool{}
	unnamed := 0
	for name, b := range got {
		if b.Key == nil {
			unnamed++
			continue
		}
		named[name] = true
		if until := ends[name]; h.now().Add(b.Left) != until {
			h.Errorf("key %q is banned for %v, want until %v", name, b.Left, until)
		}
	}
	for key, until := range ends {
		switch banned := h.now() < until; {
		case banned && !named[key] && len(key) > 100:
			unnamed--
		case banned != named[key]:
			h.Errorf("key %q: banned %v, listed %v", key, banned, named[key])
		}
	}
	if unnamed != 0 {
		h.Errorf("%d more bans without a key than there are", unnamed)
	}
}

// bansOutliveChanges changes the policy behind bans.
func bansOutliveChanges(h *harness) {
	k := h.keeper()
	c := h.bind("changed", banPolicy(2, 10*time.Second, time.Minute, false))
	h.admitted(3, charge(c, "k", 1))
	for _, p := range []limit.Policy{
		banPolicy(5, 10*time.Second, time.Minute, false), banPolicy(5, 20*time.Second, time.Minute, true),
		banPolicy(1, 10*time.Second, 2*time.Minute, true), banPolicy(100, 30*time.Second, time.Hour, false),
	} {
		c = h.bind("changed", p)
		if h.take(charge(c, "k", 1)) || len(h.listed(k, c, 9)) != 1 {
			h.Errorf("%+v: the ban is gone", p)
		}
	}
}

// bansMeanwhile bans, lists and lifts at the same time, then compares the list with the states.
func bansMeanwhile(h *harness) {
	k := h.keeper()
	c := h.bind("meanwhile", banPolicy(1, time.Hour, time.Hour, true))
	const keys = 60
	var wg, others sync.WaitGroup
	stop := make(chan struct{})
	for w := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 79))
			for range 400 {
				one := []store.Charge{charge(c, fmt.Sprint(r.IntN(keys)), 1)}
				if _, err := h.store.Take(context.Background(), one); err != nil {
					h.Errorf("Take: %v", err)
				}
				h.clock.Add(int64(time.Millisecond))
			}
		})
	}
	for w := range 2 {
		others.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 80))
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := k.Lift(context.Background(), c, store.Ban{Key: charge(c, fmt.Sprint(r.IntN(keys)), 1).Key}); err != nil {
					h.Errorf("Lift: %v", err)
				}
				if _, _, err := k.Bans(context.Background(), c, "", 10); err != nil {
					h.Errorf("Bans: %v", err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	others.Wait()
	want := []string{}
	for i := range keys {
		one := []store.Charge{charge(c, fmt.Sprint(i), 0)}
		if ok, err := h.store.Peek(context.Background(), one); err != nil {
			h.Fatal(err)
		} else if !ok {
			want = append(want, string(one[0].Key))
		}
	}
	got := []string{}
	for key := range h.listed(k, c, 7) {
		got = append(got, key)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		h.Errorf("listed %q, banned are %q", got, want)
	}
}
