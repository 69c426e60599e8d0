package redis

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/store"
)

// TestSlowCallMovesNoDeadline: a call that was in transit for long does not make later calls count
// after their time-out.
func TestSlowCallMovesNoDeadline(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var hold atomic.Int64
	d := openDoor(t, func(client net.Conn) {
		redis, err := net.Dial("tcp4", server.Addr())
		if err != nil {
			return
		}
		defer func() { _ = redis.Close() }()
		go func() { _, _ = io.Copy(client, redis) }()
		b := make([]byte, 1<<16)
		for {
			n, err := client.Read(b)
			if err != nil {
				return
			}
			pass(time.Duration(hold.Load())) // in transit
			if _, err := redis.Write(b[:n]); err != nil {
				return
			}
		}
	})
	s := connected(t, Options{Addrs: []string{d.address()}, Timeout: unhurried, Prefix: "slow:", Logger: new(journal).logger()}, nil)
	c := bind(t, s, "l", still(100))
	take := func(key string) (bool, error) {
		return s.Take(t.Context(), []store.Charge{charge(c, key, 1)})
	}
	// Four fast calls, one of which is likely to be as fast as the machine can, and a slow one.
	for range 4 {
		if ok, err := take("k"); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	slow := unhurried / 2
	hold.Store(int64(slow))
	if ok, err := take("k"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	hold.Store(0)
	server.Freeze()
	if ok, err := take("k"); ok || err == nil {
		t.Fatalf("%v, %v of a server that stands still", ok, err)
	}
	pass(slow / 4) // longer than a fast call is in transit: had the slow call moved the clock, this one would count
	server.Thaw()
	await(t, "Ready", func() bool { return s.Ready() == nil })
	if got := used(t, s, c, "k"); got != 5 {
		t.Errorf("%d are charged, want 5: what was decided without the server does not count", got)
	}
}
