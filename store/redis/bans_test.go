package redis

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

var banned = limit.Policy{
	Algorithm: limit.FixedWindow, Align: limit.AlignFirstHit, Rate: limit.Rate{Count: 2, Period: 10 * time.Second},
	CountRefused: true, Ban: time.Hour, BanFromNow: true,
}

// banStore returns a store with counters that ban.
func banStore(t *testing.T, addr string, now func() limit.Time) (*Store, store.Counters) {
	t.Helper()
	s := connected(t, Options{Addrs: []string{addr}, Timeout: patient}, now)
	c, err := s.Bind(store.Spec{ID: "ban", Policy: banned})
	if err != nil {
		t.Fatal(err)
	}
	return s, c
}

func attempt(t *testing.T, s *Store, c store.Counters, key string) bool {
	t.Helper()
	ok, err := s.Take(context.Background(), []store.Charge{{Counters: c, Key: []byte(key), Cost: 1}})
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func listBans(t *testing.T, s *Store, c store.Counters, page int) (keys []string) {
	t.Helper()
	for after := ""; ; {
		list, next, err := s.Bans(context.Background(), c, after, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range list {
			keys = append(keys, string(b.Key))
		}
		if after = next; after == "" {
			return keys
		}
	}
}

// TestBanIndex: requests that are not refused write no index; the first refusal does, and each ban is
// counted by one instance. Bans that end together are listed once each, in pages of any size.
func TestBanIndex(t *testing.T) {
	server := redistest.Start(t)
	clock := new(atomic.Int64)
	clock.Store(int64(1_700_000_000 * time.Second))
	now := func() limit.Time { return limit.Time(clock.Load()) }
	a, ca := banStore(t, server.Addr(), now)
	b, cb := banStore(t, server.Addr(), now)
	index := a.bansKey("ban")
	for i := range 50 {
		for range 2 {
			if !attempt(t, a, ca, fmt.Sprint(i)) {
				t.Fatal("refused too early")
			}
		}
	}
	if server.Int("EXISTS", index) != 0 {
		t.Error("an index without a ban")
	}
	for i := range 50 { // at one moment: all end together
		attempt(t, a, ca, fmt.Sprint(i))
		attempt(t, b, cb, fmt.Sprint(i))
	}
	for _, page := range []int{1, 7, 50, 1000} {
		seen := map[string]bool{}
		for _, key := range listBans(t, b, cb, page) {
			if seen[key] {
				t.Errorf("pages of %d: %q is listed twice", page, key)
			}
			seen[key] = true
		}
		if len(seen) != 50 {
			t.Errorf("pages of %d list %d bans, want 50", page, len(seen))
		}
	}
	listBans(t, a, ca, 100) // waits until what a has met is written
	if n := a.BanFigures(ca).Begun + b.BanFigures(cb).Begun; n != 50 {
		t.Errorf("%d bans are counted, want 50", n)
	}
	a.countBans()
	if f := a.BanFigures(ca); f.Active != 50 || f.Unlisted != 0 {
		t.Errorf("%+v", f)
	}
	clock.Add(int64(2 * time.Hour))
	a.countBans()
	if f := a.BanFigures(ca); f.Active != 0 || server.Int("EXISTS", index) != 0 {
		t.Errorf("after the bans have ended: %+v", f)
	}
}

// TestBanIndexMends: an instance that ends before it has written the index leaves a ban that is not
// listed; the first refusal by any other lists it.
func TestBanIndexMends(t *testing.T) {
	server := redistest.Start(t)
	a, ca := banStore(t, server.Addr(), nil)
	for range 3 {
		attempt(t, a, ca, "k")
	}
	listBans(t, a, ca, 10)
	server.Do("DEL", a.bansKey("ban"))
	b, cb := banStore(t, server.Addr(), nil)
	if keys := listBans(t, b, cb, 10); len(keys) > 0 {
		t.Fatalf("the index was deleted, and has %q", keys)
	}
	if attempt(t, b, cb, "k") {
		t.Fatal("the ban does not stand without its index")
	}
	if keys := listBans(t, b, cb, 10); len(keys) != 1 || keys[0] != "k" {
		t.Errorf("after a refusal: %q", keys)
	}
	// An entry without a ban is dropped, and lifts nothing.
	server.Do("ZADD", b.bansKey("ban"), "9007199254740000", "stranger")
	if keys := listBans(t, b, cb, 10); len(keys) != 1 {
		t.Errorf("listed: %q", keys)
	}
	if n := server.Int("ZCARD", b.bansKey("ban")); n != 1 {
		t.Errorf("the index has %d entries, want 1", n)
	}
}

// TestLiftIsForAll: another instance, which remembers the refusal, hears of a lift.
func TestLiftIsForAll(t *testing.T) {
	server := redistest.Start(t)
	a, ca := banStore(t, server.Addr(), nil)
	b, cb := banStore(t, server.Addr(), nil)
	for range 5 {
		attempt(t, a, ca, "k")
		attempt(t, b, cb, "k")
	}
	lifted, err := a.Lift(context.Background(), ca, store.Ban{Key: []byte("k")})
	if err != nil || !lifted {
		t.Fatal(lifted, err)
	}
	await(t, "the other instance to hear of it", func() bool { return attempt(t, b, cb, "k") })
	if keys := listBans(t, b, cb, 10); len(keys) != 0 {
		t.Errorf("listed: %q", keys)
	}
}

// TestBansWithoutRedis: without an answer the list is an error, and says so at once.
func TestBansWithoutRedis(t *testing.T) {
	server := redistest.Start(t)
	s := connected(t, Options{Addrs: []string{server.Addr()}, Timeout: unhurried}, nil)
	c, err := s.Bind(store.Spec{ID: "ban", Policy: banned})
	if err != nil {
		t.Fatal(err)
	}
	server.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	if list, _, err := s.Bans(ctx, c, "", 10); err == nil {
		t.Errorf("listed %v", list)
	}
	if lifted, err := s.Lift(ctx, c, store.Ban{Key: []byte("k")}); err == nil || lifted {
		t.Errorf("lifted %v, %v", lifted, err)
	}
}
