package share

import (
	"testing"
	"time"
)

// TestOneRequestThenSilence: an instance that was asked once says so, gives back what
// it got for it, and then only renews.
func TestOneRequestThenSilence(t *testing.T) {
	f := newFleet(t, 1, 2, Terms{Rate: 10 * Token, Burst: 10 * Token})
	f.delay = time.Millisecond
	f.run(time.Second)
	f.arriveOnce(f.instances[0])
	f.run(20 * time.Second)
	before := f.coord.Stats()
	f.run(10 * time.Second)
	after := f.coord.Stats()
	// Each of two renews a little more often than once a second.
	if n := after.Reports - before.Reports; n > 2*14 {
		t.Errorf("%d reports in 10 s of silence", n)
	}
	if n := after.Rounds - before.Rounds; n > 0 {
		t.Errorf("%d rounds in 10 s of silence", n)
	}
	if n := before.Reports; n > 2*35+20 {
		t.Errorf("%d reports after one request", n)
	}
}
