package client

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
)

// arrival is one that comes to wait, and until when that is of use.
type arrival struct {
	name  string
	wait  func()
	until time.Duration // of all in line, from the beginning; -1 = without end
}

// waitsUntil is until when the spender says that a waiter waits.
func (l *leasedLimit) waitsUntil(begin limit.Time) time.Duration {
	switch r := l.spender.Observe(l.client.now()); {
	case r.Waiting == 0:
		return 0
	case r.WaitUntil == 0:
		return -1
	default:
		return time.Duration(r.WaitUntil - begin)
	}
}

// TestWaitUntil: it is reported to the coordinator until when the last of those in line waits,
// whatever it is that ends the wait, and that is right as they come and go.
func TestWaitUntil(t *testing.T) {
	const ask = 300 * time.Millisecond
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.mute = true // so nobody knows whether more comes
		c := h.run(t, "one")
		strict, fed := openLimit(t, c, "m", LimitOptions{Ask: ask}), openLimit(t, c, "n", LimitOptions{Ask: ask, Start: OptimisticStart(1)})
		g, err := c.Semaphore("jobs", LimitOptions{Ask: ask})
		if err != nil {
			t.Fatal(err)
		}
		soon, cancel := context.WithTimeout(t.Context(), ms(100))
		defer cancel()
		endless, end := context.WithCancel(t.Context())
		if !fed.Allow() {
			t.Fatal("it starts with a token")
		}
		begin := c.now()
		for _, tt := range []struct {
			lease *leasedLimit
			in    []arrival
		}{
			{&strict.lease, []arrival{
				{"Take by ctx", func() { _, _ = strict.Take(soon, limit.Request{}) }, ms(100)},
				{"WaitMax", func() { _ = strict.WaitMax(t.Context(), ms(200)) }, ms(200)},
				{"Wait by ctx", func() { _ = strict.Wait(soon) }, ms(200)},
				{"WaitMax that nothing is known for", func() { _ = strict.WaitMax(t.Context(), ms(900)) }, ms(900)},
				{"Take", func() { _, _ = strict.Take(t.Context(), limit.Request{}) }, ms(900)},
				{"Wait", func() { _ = strict.Wait(endless) }, -1},
			}},
			{&g.lease, []arrival{
				{"Acquire by ctx", func() { _ = g.Acquire(soon, 1) }, ms(100)},
				{"AcquireMax", func() { _ = g.AcquireMax(t.Context(), 1, ms(200)) }, ms(200)},
				{"Take", func() { _, _ = g.Take(t.Context(), limit.Request{}) }, ask},
				{"Acquire", func() { _ = g.Acquire(endless, 1) }, -1},
			}},
			{&fed.lease, []arrival{
				{"WaitMax in time", func() { _ = fed.WaitMax(t.Context(), ms(5000)) }, ms(5000)},
				{"another", func() { _ = fed.WaitMax(t.Context(), ms(2500)) }, ms(5000)},
			}},
		} {
			for _, w := range tt.in {
				go w.wait()
				synctest.Wait()
				if got := tt.lease.waitsUntil(begin); got != w.until {
					t.Errorf("%s %s: they wait until %v, want %v", tt.lease.id.Limit, w.name, got, w.until)
				}
			}
		}
		for _, tt := range []struct {
			at    time.Duration
			lease *leasedLimit
			want  time.Duration
		}{
			{ms(350), &strict.lease, -1},
			{ms(350), &g.lease, -1},
			{ms(350), &fed.lease, ms(5000)},
			{ms(1100), &fed.lease, ms(2500)}, // the first was served
			{ms(2200), &fed.lease, 0},
		} {
			time.Sleep(tt.at - time.Duration(c.now()-begin))
			synctest.Wait()
			if got := tt.lease.waitsUntil(begin); got != tt.want {
				t.Errorf("%s at %v: they wait until %v, want %v", tt.lease.id.Limit, tt.at, got, tt.want)
			}
		}
		end()
		synctest.Wait()
		if strict.lease.waitsUntil(begin) != 0 || g.lease.waitsUntil(begin) != 0 {
			t.Error("somebody waits for ever")
		}
		if r := strict.ReserveN(time.Now(), 1); r.OK() || strict.lease.line.until() != 0 || strict.lease.line.ends.Len()+strict.lease.line.endless+strict.lease.line.checks.Len() != 0 {
			t.Error("the line should be as new")
		}
	})
}
