package gate

import (
	"context"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
)

// The bounds on what one gateway can ask for, in numbers: a repeat within ten seconds takes nothing,
// eight times at most, if its id has at most 256 bytes; eight attributes and 4 KiB of path are
// read.
func TestNumbersThatArePromised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{size: 1000}
		h := New(b, Options{Trusted: loopback(t)})
		call := func(path, id string) (code, charged int) {
			r := httptest.NewRequest("GET", path, nil)
			r.RemoteAddr = "127.0.0.1:1"
			r.Header.Set("X-Request-Id", id)
			before, w := b.calls, httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Code, b.calls - before
		}
		const once = "/v1/gate/nginx/once=x-request-id"
		for i, want := range []int{1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0} {
			if _, n := call(once, "constant"); n != want {
				t.Errorf("call %d is charged %d times, want %d", i+1, n, want)
			}
		}
		call(once, "timed")
		time.Sleep(10*time.Second - 1)
		if _, n := call(once, "timed"); n != 0 {
			t.Error("a repeat within ten seconds is charged")
		}
		time.Sleep(1)
		if _, n := call(once, "timed"); n != 1 {
			t.Error("a repeat after ten seconds is not charged")
		}
		for bytes, want := range map[int]int{256: 1, 257: 2} {
			id := strings.Repeat("x", bytes)
			_, first := call(once, id)
			if _, second := call(once, id); first+second != want {
				t.Errorf("two calls with an id of %d bytes are charged %d times, want %d", bytes, first+second, want)
			}
		}
		const most = limit.MaxCount
		for path, want := range map[string]int{
			fmt.Sprintf("/v1/gate/nginx/cost=%d", int64(1000)): 403, fmt.Sprintf("/v1/gate/nginx/cost=%d", int64(most)): 403, fmt.Sprintf("/v1/gate/nginx/cost=%d", uint64(most)+1): 400,
		} {
			if code, n := call(path, ""); code != want || (n == 0) != (want == 400) {
				t.Errorf("%s: %d, charged %d times, want %d", path, code, n, want)
			}
		}
		for _, c := range []struct {
			attributes, bytes, code int
		}{{8, 0, 204}, {9, 0, 400}, {0, 4096, 204}, {0, 4097, 400}} {
			path := "/v1/gate/nginx"
			for i := range c.attributes {
				path += fmt.Sprintf("/attr.a%d=x", i)
			}
			path += strings.Repeat("/", max(0, c.bytes-len(path)))
			if code, _ := call(path, ""); code != c.code {
				t.Errorf("%d attributes, %d bytes: %d, want %d", c.attributes, len(path), code, c.code)
			}
		}
	})
}

// Of the decisions that are remembered in one place the oldest go first: those that stay are
// always the latest, however often the room was used again.
func TestOldestDecisionsGoFirst(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const room = 1024 // 64 Ki in 64 places
	var sh shard
	for i := range 3*room + 5 {
		sh.put(requestID{uint64(i)}, &decided{})
		if n := min(i+1, room); len(sh.entries) != n || sh.entries[requestID{uint64(i)}] == nil || sh.entries[requestID{uint64(i + 1 - n)}] == nil {
			t.Fatalf("after %d decisions %d are there, the latest: %v, the %dth before it: %v", i+1, len(sh.entries), sh.entries[requestID{uint64(i)}], n-1, sh.entries[requestID{uint64(i + 1 - n)}])
		}
	}
	// The places are used evenly.
	var s repeats
	s.init()
	client := netip.MustParseAddr("192.0.2.7")
	allow := func() (limit.Decision, error) { return limit.Decision{Allowed: true}, nil }
	for i := range 64 << 6 {
		if _, err := s.take(t.Context(), s.id(client, fmt.Sprint(i)), allow); err != nil {
			t.Fatal(err)
		}
	}
	for i := range s.shards {
		if n := len(s.shards[i].entries); n < 16 || n > 256 {
			t.Errorf("of 4096 decisions %d are in place %d of 64", n, i)
		}
	}
}

// An answer is held back for all of a delay that fits, however short, and only then is no
// delay told.
func TestShortDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			delay, most, held time.Duration
			told              string
		}{
			{1, time.Second, 1, ""},
			{time.Microsecond, 1, 1, "0.000001"},
			{2, 1, 1, "0.000000"},
			{time.Second, time.Second, time.Second, ""},
			{time.Second + time.Microsecond, time.Second, time.Second, "0.000001"},
			{0, time.Second, 0, ""},
			{time.Millisecond, 0, 0, "0.001000"},
			{time.Millisecond, -1, 0, "0.001000"},
		} {
			rec, begun := httptest.NewRecorder(), time.Now()
			New(&verdict{d: limit.Decision{Allowed: true, Delay: c.delay}}, Options{MaxDelay: c.most}).
				ServeHTTP(rec, httptest.NewRequest("GET", "/v1/gate/forward-auth", nil))
			if held := time.Since(begun); rec.Code != 200 || held != c.held || rec.Header().Get("X-Stint-Delay") != c.told || rec.Header().Get("Content-Length") != "0" {
				t.Errorf("%v with at most %v: %d after %v, %v", c.delay, c.most, rec.Code, held, rec.Header())
			}
		}
	})
}

// A decision that fails while others wait for it is made by each of them.
func TestWaitersAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s repeats
		s.init()
		id := s.id(netip.MustParseAddr("192.0.2.7"), "x")
		var calls atomic.Int32
		slow := func() (limit.Decision, error) {
			if calls.Add(1) == 1 {
				time.Sleep(time.Second)
				return limit.Decision{}, context.DeadlineExceeded
			}
			return limit.Decision{Allowed: true}, nil
		}
		failed, allowed := make(chan error, 1), make(chan bool, 3)
		go func() { _, err := s.take(t.Context(), id, slow); failed <- err }()
		synctest.Wait()
		for range 3 {
			go func() { d, err := s.take(t.Context(), id, slow); allowed <- d.Allowed && err == nil }()
		}
		if err := <-failed; err == nil {
			t.Error("the first has no error")
		}
		for range 3 {
			if !<-allowed {
				t.Error("one that waited is refused")
			}
		}
		if n := calls.Load(); n != 4 {
			t.Errorf("%d calls, want one of each", n)
		}
	})
}
