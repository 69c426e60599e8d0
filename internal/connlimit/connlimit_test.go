package connlimit_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/stint-io/stint/internal/connlimit"
)

func peer(n int) net.Addr {
	if n%2 == 0 {
		return &net.TCPAddr{IP: net.IPv4(192, 0, 2, byte(n)), Port: 1000 + rand.IntN(60000)}
	}
	// All addresses of a /64 are one source.
	return &net.TCPAddr{IP: net.ParseIP(fmt.Sprintf("2001:db8:0:%x::%x", n, 1+rand.IntN(1<<16-1))), Port: 1}
}

// TestBoundsHold: in any history there are never more connections than the bound, no source has more than three quarters,
// and a source without one is admitted while any is free, also after two others took all that they could.
func TestBoundsHold(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		most := 16 + random.IntN(200)
		c := connlimit.New(most)
		of, open := map[int][]func(){}, 0
		for range 1000 {
			n := random.IntN(6)
			if random.IntN(3) == 0 && len(of[n]) > 0 {
				last := len(of[n]) - 1
				of[n][last]()
				of[n][last]() // once counts
				of[n], open = of[n][:last], open-1
				continue
			}
			if leave, ok := c.Enter(peer(n)); ok {
				of[n], open = append(of[n], leave), open+1
			} else if len(of[n]) == 0 && open < most {
				t.Fatalf("%d of %d are open, and a source without one is refused", open, most)
			}
			if open > most || len(of[n]) > most*3/4+1 {
				t.Fatalf("bound %d: %d open, %d of one source", most, open, len(of[n]))
			}
		}
		for _, all := range of {
			for _, leave := range all {
				leave()
			}
		}
		// Two sources that take all that they can leave room for a third.
		for n := range 2 {
			for range 3 * most {
				c.Enter(peer(n))
			}
		}
		if _, ok := c.Enter(peer(2)); !ok {
			t.Fatalf("bound %d: two sources have taken everything", most)
		}
	}
}

// TestListener: connections of one source that are idle do not keep another one out, and the end of a connection makes
// room.
func TestListener(t *testing.T) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const most = 50
	conns := connlimit.New(most)
	l := conns.Listener(plain)
	defer l.Close()
	go func() { // greets each connection, and closes it when its client does
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = c.Write([]byte("!"))
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}()
		}
	}()
	// greeted dials from an address, and reports whether the connection was admitted.
	greeted := func(from string) (net.Conn, bool) {
		t.Helper()
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadFull(c, make([]byte, 1))
		return c, err == nil
	}
	var open []net.Conn
	for range 2 * most {
		c, ok := greeted("127.0.0.1")
		defer c.Close()
		if ok {
			open = append(open, c)
		}
	}
	if len(open) != 38 || conns.Refused() != 2*most-38 {
		t.Errorf("%d connections of one source were admitted, %d refused, want 38 of %d", len(open), conns.Refused(), most)
	}
	other, ok := greeted("127.0.0.2")
	defer other.Close()
	if !ok {
		t.Error("another source was refused")
	}
	for _, c := range open {
		_ = c.Close()
	}
	for { // until the listener has seen that they have ended
		if c, ok := greeted("127.0.0.1"); ok {
			_ = c.Close()
			break
		}
	}
}
