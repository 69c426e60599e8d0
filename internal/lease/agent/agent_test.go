package agent

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// bench is a Holder whose coordinator is the test.
type bench struct {
	t       testing.TB
	h       *Agent
	now     limit.Time
	reports []lease.Report
	number  uint64
	epoch   uint64
}

func newBench(t testing.TB) *bench {
	return &bench{t: t, h: New(Options{Member: anna}), now: limit.Time(time.Hour), epoch: 1}
}

func (b *bench) step(e lease.Event) *lease.Report {
	r := b.h.Step(b.now, e)
	if r == nil {
		return nil
	}
	c := *r
	c.Demands = slices.Clone(r.Demands)
	b.reports = append(b.reports, c)
	return &c
}

// after lets time pass, and returns the reports made in that time.
func (b *bench) after(d time.Duration) []lease.Report {
	from := len(b.reports)
	for end := b.now.Add(d); ; {
		b.now = min(end, max(b.now, b.h.Next()))
		b.step(lease.Tick{})
		if b.now >= end {
			return b.reports[from:]
		}
	}
}

// answer grants shares in answer to the latest report, as if both had taken half of
// the time since.
func (b *bench) answer(shares ...lease.Share) *lease.Report {
	return b.grant(b.reports[len(b.reports)-1].Stamp, shares...)
}

func (b *bench) grant(echo time.Duration, shares ...lease.Share) *lease.Report {
	b.number++
	for i := range shares {
		if shares[i].AckedReport == 0 {
			shares[i].AckedReport = b.reports[len(b.reports)-1].Number
		}
	}
	return b.step(&lease.Grant{
		To: anna, Epoch: b.epoch, Number: b.number, Echo: echo, Lease: lease.DefaultLease, Refresh: lease.DefaultRefresh, Shares: shares,
	})
}

func (b *bench) allowed(bucket *bucket.Bucket, most int) int {
	n := 0
	for n < most {
		if ok, _ := bucket.Allow(b.now, 1); !ok {
			break
		}
		n++
	}
	return n
}

func lends(handle uint32, number uint64, h lease.Capacity) lease.Share {
	return lease.Share{Handle: handle, Lease: number, Granted: h, CapRate: fixed.MaxAmount, CapBurst: fixed.MaxAmount, Safe: 7 * fixed.Token, Limit: hundred}
}

// TestDeadline: a lease ends Lease after the report was made that was answered, however
// late the answer comes.
func TestDeadline(t *testing.T) {
	b := newBench(t)
	bucket := bucket.NewBucket(b.h.Deadline())
	handle := b.h.Open(b.now, theLimit, LeaseOptions{}, bucket)
	sent := b.now
	b.step(lease.Tick{})
	b.now = b.now.Add(800 * time.Millisecond)
	b.answer(lends(handle, 5, holding(100, 100, 100)))
	if got, want := limit.Time(b.h.Deadline().Load()), sent.Add(lease.DefaultLease); got != want {
		t.Fatalf("the lease ends %v after the report, want %v", time.Duration(got-sent), lease.DefaultLease)
	}
	// A later answer to an earlier report does not shorten it.
	b.grant(time.Duration(sent)-time.Second, lends(handle, 5, holding(100, 100, 100)))
	if got := limit.Time(b.h.Deadline().Load()); got != sent.Add(lease.DefaultLease) {
		t.Errorf("an older answer moved the end to %v", time.Duration(got-sent))
	}
	b.now = sent.Add(lease.DefaultLease) - 1
	if n := b.allowed(bucket, 10); n != 10 {
		t.Errorf("a moment before its end the lease allowed %d of 10", n)
	}
	b.now++
	if n := b.allowed(bucket, 10); n != 0 {
		t.Errorf("at its end the lease allowed %d", n)
	}
}

func TestExpiryModes(t *testing.T) {
	for mode, want := range map[ExpiryMode]int{Pessimistic: 0, Optimistic: 50, Safe: 7} {
		b := newBench(t)
		bucket := bucket.NewBucket(b.h.Deadline())
		handle := b.h.Open(b.now, theLimit, LeaseOptions{Expiry: mode, Estimator: Declared}, bucket)
		bucket.Declare(50 * fixed.Token)
		b.after(20 * time.Millisecond)
		b.answer(lends(handle, 5, holding(60, 60, 60)))
		b.after(6 * time.Second)
		if !b.h.State(handle).Expired {
			t.Fatalf("mode %v: not expired", mode)
		}
		b.allowed(bucket, 1000)
		n := 0
		for range 100 {
			b.after(100 * time.Millisecond)
			n += b.allowed(bucket, 1000)
		}
		if n/10 < want-1 || n/10 > want {
			t.Errorf("mode %v: %d per second without a lease, want %d", mode, n/10, want)
		}
		// The coordinator is back. While it learns what is lent, and while it may call
		// something back, the mode stays; when it has had its time and lends nothing,
		// there is nothing.
		b.allowed(bucket, 1000)
		for _, learning := range []bool{true, true, false, false} {
			b.answer(lease.Share{Handle: handle, Saturated: true, Recovering: learning, Limit: hundred})
			n = 0
			for range 20 {
				b.after(100 * time.Millisecond)
				n += b.allowed(bucket, 1000)
			}
			if n/2 < want-1 || n/2 > want {
				t.Errorf("mode %v: %d per second while the coordinator learns (%v) or calls back, want %d", mode, n/2, learning, want)
			}
		}
		b.after(time.Second + time.Millisecond)
		b.allowed(bucket, 1000)
		b.after(time.Second)
		if n := b.allowed(bucket, 1000); n != 0 {
			t.Errorf("mode %v: spends %d though the coordinator has had a lease's time", mode, n)
		}
	}
}

func TestStart(t *testing.T) {
	for start, want := range map[fixed.Amount]int{0: 0, 20 * fixed.Token: 20} {
		b := newBench(t)
		bucket := bucket.NewBucket(b.h.Deadline())
		handle := b.h.Open(b.now, theLimit, LeaseOptions{Start: start}, bucket)
		n := 0
		for range 20 {
			b.after(100 * time.Millisecond)
			n += b.allowed(bucket, 1000)
		}
		if n < 2*want || n > 2*want+2 {
			t.Errorf("start %v: %d in 2 s before the first answer, want %d", start, n, 2*want)
		}
		// An answer ends it, such as that there is nothing; not one that nothing is known.
		b.answer(lease.Share{Handle: handle, Recovering: true, Limit: hundred})
		n = 0
		for range 20 {
			b.after(100 * time.Millisecond)
			n += b.allowed(bucket, 1000)
		}
		if n < 2*want-2 || n > 2*want+2 {
			t.Errorf("start %v: %d in 2 s while the coordinator learns, want %d", start, n, 2*want)
		}
		b.answer(lease.Share{Handle: handle, Saturated: true, Limit: hundred})
		n = 0
		for range 10 {
			b.after(100 * time.Millisecond)
			n += b.allowed(bucket, 1000)
		}
		if n != 0 {
			t.Errorf("start %v: %d after an answer that lends nothing", start, n)
		}
	}
}

// TestClosedSpendsNothing: neither what it held, nor what it spends without a lease.
func TestClosedSpendsNothing(t *testing.T) {
	for _, leave := range []bool{false, true} {
		b := newBench(t)
		bucket := bucket.NewBucket(b.h.Deadline())
		handle := b.h.Open(b.now, theLimit, LeaseOptions{Start: 20 * fixed.Token}, bucket)
		b.after(time.Second)
		if leave {
			b.step(Leave{})
		} else {
			b.h.Close(b.now, handle)
		}
		b.now = b.now.Add(time.Second)
		if n := b.allowed(bucket, 100); n != 0 {
			t.Errorf("leave %v: allowed %d afterwards", leave, n)
		}
	}
}

func TestOlderEpochIsIgnored(t *testing.T) {
	b := newBench(t)
	bucket := bucket.NewBucket(b.h.Deadline())
	handle := b.h.Open(b.now, theLimit, LeaseOptions{}, bucket)
	b.step(lease.Tick{})
	b.epoch = 9
	b.answer(lends(handle, 5, holding(10, 10, 3)))
	for _, epoch := range []uint64{8, 0} {
		b.epoch = epoch
		b.answer(lends(handle, 6, holding(90, 90, 90)))
		if got := b.h.State(handle).Held; got.Rate != 10*fixed.Token {
			t.Errorf("epoch %d after 9 lent %+v", epoch, got)
		}
	}
	if n := b.allowed(bucket, 100); n != 3 {
		t.Errorf("allowed %d of the 3 that were lent", n)
	}
}

// TestGrantPastItsEnd: a grant that was under way for longer than its lease is not
// taken, even though another has extended the deadline since.
func TestGrantPastItsEnd(t *testing.T) {
	b := newBench(t)
	one, two := bucket.NewBucket(b.h.Deadline()), bucket.NewBucket(b.h.Deadline())
	first := b.h.Open(b.now, theLimit, LeaseOptions{}, one)
	second := b.h.Open(b.now, lease.ResourceID{Limit: "m"}, LeaseOptions{}, two)
	b.step(lease.Tick{})
	b.number++
	late := &lease.Grant{
		To: anna, Epoch: 1, Number: b.number, Echo: time.Duration(b.now), Lease: lease.DefaultLease, Refresh: lease.DefaultRefresh,
		Shares: []lease.Share{lends(first, 5, holding(100, 100, 100))},
	}
	b.after(lease.DefaultLease + time.Second)
	b.answer(lends(second, 6, holding(100, 100, 100)))
	if n := b.allowed(two, 10); n != 10 {
		t.Fatalf("a fresh grant allowed %d of 10", n)
	}
	b.step(late)
	if n := b.allowed(one, 10); n != 0 {
		t.Errorf("a grant older than its lease allowed %d", n)
	}
}

// TestForgottenHandle: what comes for a handle that is not there is given back.
func TestForgottenHandle(t *testing.T) {
	b := newBench(t)
	b.h.Open(b.now, theLimit, LeaseOptions{}, bucket.NewBucket(b.h.Deadline()))
	b.step(lease.Tick{})
	r := b.answer(lends(77, 5, holding(30, 20, 10)))
	if r == nil || len(r.Demands) == 0 {
		t.Fatal("nothing is told at once")
	}
	d := r.Demands[len(r.Demands)-1]
	if d.Handle != 77 || d.Lease != 5 || d.Returned != holding(30, 20, 10) || !d.Closed {
		t.Errorf("told %+v", d)
	}
	b.answer(lease.Share{Handle: 77, Status: lease.StatusLeaseGone})
	if n := len(b.h.leases); n != 1 {
		t.Errorf("%d handles are kept", n)
	}
}

// TestCloseAndReopen: the coordinator knows one handle for a resource at a time, and
// noBucket is left of those that are closed.
func TestCloseAndReopen(t *testing.T) {
	b := newBench(t)
	open := func() uint32 { return b.h.Open(b.now, theLimit, LeaseOptions{}, bucket.NewBucket(b.h.Deadline())) }
	first := open()
	b.step(Starved{first})
	b.answer(lends(first, 5, holding(10, 10, 10)))
	b.h.Close(b.now, first)
	second := open()
	b.h.Close(b.now, second)
	third := open()
	fourth := open()
	b.step(Starved{third})
	for _, r := range b.after(200 * time.Millisecond) {
		for _, d := range r.Demands {
			if d.Handle != first || !d.Closed {
				t.Fatalf("before the first is closed there the coordinator is told %+v", d)
			}
			if d.Returned.Rate != 10*fixed.Token || d.Returned.Burst != 10*fixed.Token {
				t.Fatalf("closed with %+v given back of 10", d.Returned)
			}
		}
	}
	b.answer(lease.Share{Handle: first, Lease: 5, Granted: holding(10, 10, 10), Limit: hundred})
	reports := b.after(20 * time.Millisecond)
	if r := b.step(Starved{third}); r != nil {
		reports = append(reports, *r)
	}
	if !slices.ContainsFunc(reports, func(r lease.Report) bool {
		return slices.ContainsFunc(r.Demands, func(d lease.Demand) bool { return d.Handle == third && d.Resource == theLimit })
	}) {
		t.Errorf("the third handle is never told: %+v", reports)
	}
	for _, handle := range []uint32{third, fourth} {
		b.h.Close(b.now, handle)
		b.after(500 * time.Millisecond)
		b.answer(lease.Share{Handle: handle, Status: lease.StatusLeaseGone})
		b.after(500 * time.Millisecond)
	}
	b.after(time.Second)
	if len(b.h.leases) != 0 || len(b.h.list) != 0 || len(b.h.of) != 0 || len(b.h.unconfirmed) != 0 || len(b.h.ready)+b.h.timers.Len() != 0 {
		t.Errorf("after all are closed there are %d handles, %d in the list, %d resources, %d to confirm, %d on the agenda",
			len(b.h.leases), len(b.h.list), len(b.h.of), len(b.h.unconfirmed), len(b.h.ready)+b.h.timers.Len())
	}
}

// TestManyOpenedAndClosed: whatever was answered, nothing is left.
func TestManyOpenedAndClosed(t *testing.T) {
	b := newBench(t)
	for i := range 200 {
		id := lease.ResourceID{Limit: "l", Key: fmt.Sprint(i)}
		handle := b.h.Open(b.now, id, LeaseOptions{}, bucket.NewBucket(b.h.Deadline()))
		b.after(20 * time.Millisecond)
		b.step(Starved{handle})
		b.answer(lends(handle, uint64(i+1), holding(10, 10, 10)))
		b.h.Close(b.now, handle)
		b.after(20 * time.Millisecond)
		b.answer(lends(handle, uint64(i+1), holding(10, 10, 10)))
	}
	b.after(time.Second)
	b.answer()
	if n := len(b.h.list) + len(b.h.leases) + len(b.h.of) + len(b.h.unconfirmed) + len(b.h.ready) + b.h.timers.Len(); n != 0 {
		t.Errorf("of 200 closed handles %d entries are left, %d of them to confirm", n, len(b.h.unconfirmed))
	}
}

// TestCloseWithPermitsInUse: they are not lent to others before they are released.
func TestCloseWithPermitsInUse(t *testing.T) {
	b := newBench(t)
	places := bucket.NewSemaphore(b.h.Deadline())
	handle := b.h.Open(b.now, theLimit, LeaseOptions{}, places)
	b.step(Starved{handle})
	gauge := lends(handle, 5, lease.Capacity{Burst: 10 * fixed.Token})
	gauge.Limit = lease.Terms{Burst: 10 * fixed.Token, Semaphore: true}
	b.answer(gauge)
	if !places.Acquire(b.now, 3) {
		t.Fatal("no places")
	}
	b.h.Close(b.now, handle)
	last := func() lease.Demand {
		b.after(300 * time.Millisecond)
		for i := len(b.reports) - 1; ; i-- {
			if len(b.reports[i].Demands) > 0 {
				return b.reports[i].Demands[0]
			}
		}
	}
	if d := last(); d.Closed || d.Returned.Burst != 7*fixed.Token {
		t.Errorf("with 3 of 10 places in use told %+v", d)
	}
	b.answer(gauge)
	if places.Acquire(b.now, 1) {
		t.Error("a closed gauge let somebody in")
	}
	places.Release(3)
	if d := last(); !d.Closed || d.Returned.Burst != 10*fixed.Token {
		t.Errorf("with no places in use told %+v", d)
	}
	b.answer(gauge)
	if len(b.h.leases) != 0 {
		t.Error("the handle is kept")
	}
}

// TestLostAnswers: what is not answered is told again, less and less often.
func TestLostAnswers(t *testing.T) {
	b := newBench(t)
	handle := b.h.Open(b.now, theLimit, LeaseOptions{}, bucket.NewBucket(b.h.Deadline()))
	b.step(lease.Tick{})
	b.answer()
	b.step(Starved{handle})
	asked := 0
	for _, r := range b.after(10 * time.Second) {
		for _, d := range r.Demands {
			if asked++; d.Resource != theLimit {
				t.Fatalf("a coordinator that has not answered is not told which resource: %+v", d)
			}
		}
	}
	if asked < 9 || asked > 30 {
		t.Errorf("asked %d times in 10 s without an answer", asked)
	}
	r := b.answer(lends(handle, 5, holding(10, 10, 10)))
	if got := b.h.State(handle).Held; r == nil && got.Rate != 10*fixed.Token {
		t.Errorf("holds %+v", got)
	}
}
