package agent

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// TestRoundTripIsSmoothed: the first answer gives the round trip, a quicker one is believed at once,
// a slower one by an eighth; what the coordinator waited before it answered does not count, and an
// answer that says nothing of the time, or something that cannot be, changes nothing.
func TestRoundTripIsSmoothed(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	b := newBench(t)
	handle := b.h.Open(b.now, theLimit, LeaseOptions{}, bucket.NewBucket(b.h.Deadline()))
	b.step(lease.Tick{})
	for i, tt := range []struct {
		under, waited time.Duration
		none          bool
		want          time.Duration
	}{
		{80 * time.Millisecond, 0, false, 80 * time.Millisecond},
		{40 * time.Millisecond, 0, false, 40 * time.Millisecond},
		{80 * time.Millisecond, 0, false, 45 * time.Millisecond},
		{125 * time.Millisecond, 40 * time.Millisecond, false, 50 * time.Millisecond},
		{50 * time.Millisecond, 60 * time.Millisecond, false, 50 * time.Millisecond},
		{2 * time.Second, time.Second, false, 50 * time.Millisecond},
		{1032 * time.Millisecond, time.Second - 1, false, 32*time.Millisecond + 1},
		{10 * time.Millisecond, 0, true, 32*time.Millisecond + 1},
		{7 * time.Millisecond, 7 * time.Millisecond, false, 875 * time.Nanosecond},
	} {
		b.number++
		g := &lease.Grant{To: anna, Epoch: 1, Number: b.number, Echo: time.Duration(b.now) - tt.under, Age: tt.waited, Lease: lease.DefaultLease, Refresh: lease.DefaultRefresh}
		if tt.none {
			g.Echo = 0
		}
		b.h.Step(b.now, g)
		if got := b.h.State(handle).RoundTrip; got != tt.want {
			t.Errorf("%d: a round trip of %v after %v, of which %v were waited, want %v", i, got, tt.under, tt.waited, tt.want)
		}
	}
}

// TestRefreshAsAsked: an instance renews as often as it is asked to, a fourth sooner at most by its jitter, and
// once a minute at least; one that is not asked goes on as before.
func TestRefreshAsAsked(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, jitter := range []float64{0, 0.5, 0.99} {
		h := New(Options{Member: anna, Jitter: func() float64 { return jitter }})
		now := limit.Time(time.Hour)
		renewed := func(asked time.Duration, number uint64, every time.Duration) {
			t.Helper()
			h.Step(now, &lease.Grant{To: anna, Epoch: 1, Number: number, Echo: time.Duration(now) - time.Millisecond, Lease: time.Hour, Refresh: asked})
			now = h.reports.renew // the one under way is of the former interval
			if r := h.Step(now, lease.Tick{}); r == nil {
				t.Fatal("it does not renew")
			}
			want := every - time.Duration(jitter*float64(every)/4)
			if got := time.Duration(h.Next() - now); got != want {
				t.Errorf("asked to report each %v, with a jitter of %v, it does after %v, want %v", asked, jitter, got, want)
			}
		}
		h.Open(now, theLimit, LeaseOptions{Silent: true}, bucket.NewBucket(h.Deadline()))
		h.Step(now, lease.Tick{})
		h.Step(now, &lease.Grant{To: anna, Epoch: 1, Number: 1, Echo: time.Duration(now), Lease: time.Hour, Refresh: time.Second, Shares: []lease.Share{
			{Handle: 1, AckedReport: 1, CapRate: fixed.MaxAmount, CapBurst: fixed.MaxAmount, Limit: hundred},
		}})
		renewed(2*time.Second, 2, 2*time.Second)
		renewed(0, 3, 2*time.Second)
		renewed(time.Minute, 4, time.Minute)
		renewed(time.Hour, 5, time.Minute)
		renewed(100*time.Millisecond, 6, 100*time.Millisecond)
	}
}
