package main

import "time"

// hostClock is the time that all processes of this machine agree on: the host's wall
// clock, read once and carried on by the monotonic clock. What is measured goes by it;
// the clocks that are off are what limiters are told.
type hostClock struct{ origin time.Time }

func newHostClock() hostClock { return hostClock{time.Now()} }

// now is in nanoseconds since the Unix epoch.
func (c hostClock) now() int64 { return c.origin.UnixNano() + int64(time.Since(c.origin)) }
