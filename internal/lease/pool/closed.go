package pool

import (
	"maps"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// maxClosed bounds the buckets of a Closed, of some 80 bytes each. Not fewer: an instance has as many keys,
// and can close all of them and open them again.
const maxClosed = 10_000

// Closed is what was used of the buckets that an instance had for itself and has closed, by a hash of their
// names. Until that has refilled, a bucket that is opened again goes on where it was. The zero value has none.
type Closed struct{ of map[[16]byte]closedBucket }

type closedBucket struct {
	used, rate fixed.Amount
	at         limit.Time
}

func (b closedBucket) full(now limit.Time) bool {
	return b.rate.In(time.Duration(now-b.at)) >= b.used
}

// Close takes note of a bucket that is closed at the time up to which it is refilled. Of too many a half is
// forgotten: those begin full.
func (c *Closed) Close(id [16]byte, p *Pool) {
	if p.Level >= p.Burst {
		return
	}
	if len(c.of) >= maxClosed {
		maps.DeleteFunc(c.of, func(_ [16]byte, b closedBucket) bool { return b.full(p.At) })
		for other := range c.of {
			if len(c.of) <= maxClosed/2 {
				break
			}
			delete(c.of, other)
		}
	}
	if c.of == nil {
		c.of = map[[16]byte]closedBucket{}
	}
	c.of[id] = closedBucket{p.Burst - p.Level, p.Rate, p.At}
}

// Open makes a full bucket the one that was closed.
func (c *Closed) Open(id [16]byte, p *Pool) {
	if b, ok := c.of[id]; ok {
		p.Begin(p.Burst-b.used, b.at)
		delete(c.of, id)
	}
}
