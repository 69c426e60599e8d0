//go:build unix

package coordinator

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// Instances that are lost together cost each as much as one that is lost alone, however many share one limit.
func TestManyExpireTogether(t *testing.T) {
	// The processor time of this process, whatever else the machine does.
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano())
	}
	cost := func(n, times int) (sum time.Duration) {
		for range times {
			c := newCrowd(n, lease.Terms{Rate: fixed.Whole(int64(n) * 100), Burst: fixed.Whole(int64(n) * 20)})
			for i := range n {
				c.buckets[i].Declare(fixed.Whole(50))
				c.tell(i)
			}
			c.now = c.now.Add(time.Minute)
			runtime.GC()
			began := used()
			c.coord.Step(c.now, lease.Tick{})
			sum += used() - began
			if st := c.coord.Stats(); st.Expired != uint64(n) || st.Instances != 0 {
				t.Fatalf("%d instances: %+v", n, st)
			}
		}
		return sum
	}
	small, large := cost(250, 16), cost(4000, 1)
	if large > 5*small+10*time.Millisecond {
		t.Errorf("16 times 250 sessions take %v to expire, and 4,000 take %v", small, large)
	}
}
