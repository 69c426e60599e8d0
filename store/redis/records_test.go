package redis

import (
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
