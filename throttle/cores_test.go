package throttle_test

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/costs"
	"github.com/stint-io/stint/throttle"
)

// cores are the processors of a server in virtual time. Running tasks share them evenly, as
// with a scheduler of very short slices: n of them advance at min(1, cores/n) each.
type cores struct {
	n      int
	origin time.Time

	mu    sync.Mutex
	at    time.Duration     // of the figures below
	used  float64           // CPU nanoseconds so far
	jobs  map[*job]struct{} // that compute now
	timer *time.Timer
}

type job struct {
	left float64 // CPU nanoseconds
	done chan struct{}
}

func newCores(n int) *cores {
	return &cores{n: n, origin: time.Now(), jobs: map[*job]struct{}{}}
}

// meter divides the CPU time of these processors.
func (c *cores) meter() throttle.Meter {
	return costs.NewMeter(c.cpu, func() time.Duration { return time.Since(c.origin) }, c.n)
}

// cpu is the clock of the process.
func (c *cores) cpu() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	return time.Duration(c.used)
}

// compute returns when d of CPU time has passed, or ctx has ended.
func (c *cores) compute(ctx context.Context, d time.Duration) error {
	j := &job{left: float64(d), done: make(chan struct{})}
	c.change(func() { c.jobs[j] = struct{}{} })
	select {
	case <-j.done:
		return nil
	case <-ctx.Done():
		c.change(func() { delete(c.jobs, j) })
		return context.Cause(ctx)
	}
}

// change does f and sets the timer for whoever is ready next.
func (c *cores) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	f()
	least := math.Inf(1)
	for j := range c.jobs {
		if j.left <= 0.5 {
			delete(c.jobs, j)
			close(j.done)
			continue
		}
		least = math.Min(least, j.left)
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	if len(c.jobs) > 0 {
		wait := math.Ceil(least / c.speed())
		c.timer = time.AfterFunc(time.Duration(wait), func() { c.change(func() {}) })
	}
}

func (c *cores) speed() float64 { return math.Min(1, float64(c.n)/float64(len(c.jobs))) }

func (c *cores) advance() {
	now := time.Since(c.origin)
	if n := len(c.jobs); n > 0 {
		done := float64(now-c.at) * c.speed()
		for j := range c.jobs {
			j.left -= done
		}
		c.used += done * float64(n)
	}
	c.at = now
}
