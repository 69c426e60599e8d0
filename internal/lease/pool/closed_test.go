package pool

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// TestClosedIsBounded: not all of many buckets are known that were closed, and none of those that are full again.
func TestClosedIsBounded(t *testing.T) {
	var c Closed
	closed := func(n int, now limit.Time) {
		var id [16]byte
		binary.BigEndian.PutUint64(id[:], uint64(n))
		c.Close(id, &Pool{Rate: fixed.Token, Burst: 100 * fixed.Token, Level: 40 * fixed.Token, At: now})
	}
	now := limit.Time(time.Hour)
	for n := range 3 * maxClosed {
		if closed(n, now); len(c.of) > maxClosed {
			t.Fatalf("%d buckets are known", len(c.of))
		}
	}
	if len(c.of) < maxClosed/2 {
		t.Errorf("%d buckets are known, want half of what there is room for at least", len(c.of))
	}
	for n := -1; len(c.of) < maxClosed; n-- {
		closed(n, now)
	}
	if closed(4*maxClosed, now.Add(59*time.Second)); len(c.of) != maxClosed/2+1 {
		t.Errorf("%d buckets are known when none is full yet", len(c.of))
	}
	for n := -1; len(c.of) < maxClosed; n-- {
		closed(n, now)
	}
	if closed(5*maxClosed, now.Add(time.Minute)); len(c.of) != 2 {
		t.Errorf("%d buckets are known, want the one that is not full yet, and the last", len(c.of))
	}
}

// TestClosedGoesOn: a bucket goes on where it was closed, once, and a bucket that was full is not kept.
func TestClosedGoesOn(t *testing.T) {
	var c Closed
	c.Close([16]byte{1}, &Pool{Rate: fixed.Token, Burst: 10 * fixed.Token, Level: 3 * fixed.Token, At: limit.Time(time.Second)})
	c.Close([16]byte{2}, &Pool{Rate: fixed.Token, Burst: 10 * fixed.Token, Level: 10 * fixed.Token})
	if len(c.of) != 1 {
		t.Errorf("%d buckets are known", len(c.of))
	}
	for _, want := range []fixed.Amount{5 * fixed.Token, 10 * fixed.Token} {
		p := &Pool{Rate: fixed.Token, Burst: 10 * fixed.Token, Level: 10 * fixed.Token, At: limit.Time(3 * time.Second)}
		c.Open([16]byte{1}, p)
		if p.Refill(limit.Time(3 * time.Second)); p.Level != want {
			t.Errorf("%v tokens, want %v", p.Level, want)
		}
	}
}
