package redis

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/storetest"
)

func TestRecords(t *testing.T) {
	server := redistest.Start(t)
	var clock atomic.Int64
	clock.Store(time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC).UnixNano())
	now := func() limit.Time { return limit.Time(clock.Load()) }
	s := connected(t, Options{Addrs: []string{server.Addr()}, Timeout: patient}, now)
	other := connected(t, Options{Addrs: []string{server.Addr()}, Timeout: patient}, now)
	turn := 0
	storetest.Records(t, s, now, func(d time.Duration) { clock.Add(int64(d)) }, time.Millisecond, func() store.Records {
		turn++
		return []store.Records{s, other}[turn%2]
	})
}

// By the server's own clock a record ends, and its room is given back by later writes.
func TestRecordsEnd(t *testing.T) {
	server := redistest.Start(t)
	s := connected(t, Options{Addrs: []string{server.Addr()}, Timeout: patient}, nil)
	if ok, _, err := s.Swap(t.Context(), "t", "k", nil, []byte("v"), 30*time.Millisecond); !ok || err != nil {
		t.Fatal(ok, err)
	}
	await(t, "the end of a record", func() bool {
		v, err := s.Get(t.Context(), "t", "k")
		return v == nil && err == nil
	})
	if ok, _, err := s.Swap(t.Context(), "t", "other", nil, []byte("v"), 0); !ok || err != nil {
		t.Fatal(ok, err)
	}
	c := *s.client.Load()
	n, err := c.Do(t.Context(), c.B().Hlen().Key(DefaultPrefix+formatVersion+"{r:t}").Build()).AsInt64()
	if err != nil || n != 1 {
		t.Errorf("%d records are left, %v", n, err)
	}
}

// A table expires with the last of its records, and not as long as it has one that is kept for ever.
func TestTablesExpire(t *testing.T) {
	server := redistest.Start(t)
	s := connected(t, Options{Addrs: []string{server.Addr()}, Timeout: patient}, nil)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 13))
	for n := range 40 {
		table := "t" + string(rune('a'+n%26)) + string(rune('a'+n/26))
		longest, forever := time.Duration(0), map[string]bool{}
		for range 1 + r.IntN(30) {
			keep := time.Duration(1+r.IntN(400*24)) * time.Hour
			key := string(rune('a' + r.IntN(20)))
			if r.IntN(10) == 0 {
				keep, forever[key] = 0, true
			} else {
				delete(forever, key)
			}
			is, err := s.Get(t.Context(), table, key)
			if err != nil {
				t.Fatal(err)
			}
			if ok, _, err := s.Swap(t.Context(), table, key, is, []byte("v"), keep); !ok || err != nil {
				t.Fatal(ok, err)
			}
			longest = max(longest, keep)
		}
		for _, of := range []string{"", ":k", ":e"} {
			key := DefaultPrefix + formatVersion + "{r:" + table + "}" + of
			if server.Int("EXISTS", key) == 0 {
				continue
			}
			left := time.Duration(server.Int("PTTL", key)) * time.Millisecond
			if len(forever) > 0 && left < 90*365*24*time.Hour || len(forever) == 0 && (left <= 0 || left > longest+2*time.Second) {
				t.Errorf("seed %d, %s: expires in %v, want %v, or not at all for %d records", seed, key, left, longest, len(forever))
			}
		}
	}
	if err := s.Raise(t.Context(), "marks", []store.Mark{{Key: "k", N: 1}}, 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	await(t, "the table to be gone", func() bool { return server.Int("EXISTS", DefaultPrefix+formatVersion+"{r:marks}") == 0 })
}
