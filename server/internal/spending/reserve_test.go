package spending_test

import (
	"errors"
	"log/slog"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/internal/reserve"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server/internal/spending"
	"github.com/stint-io/stint/store"
)

// desk is a server that reserves.
type desk struct {
	*fixture
	book   *reserve.Book
	engine *engine.Engine
}

func deskOf(t *testing.T, f *fixture) *desk {
	t.Helper()
	e, err := engine.New(f.Store, f.set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	now := func() limit.Time { return limit.At(time.Now()) }
	return &desk{f, reserve.New(e, records.New(now, 0), slog.New(slog.DiscardHandler), nil), e}
}

func asker(cost int64) limit.Request { return askerOf("1", cost) }

func askerOf(key string, cost int64) limit.Request {
	return limit.Request{Attributes: []limit.Attribute{{Name: "k", Value: key}}, Cost: cost}
}

// reserve returns the ID of a reservation, or "" when it is refused.
func (d *desk) reserve(cost int64) string {
	d.t.Helper()
	r, _, err := d.book.Reserve(d.t.Context(), asker(cost), time.Hour, false)
	if err != nil {
		d.t.Fatal(err)
	}
	return r.ID
}

func (d *desk) commit(id string, actual int64) {
	d.t.Helper()
	if _, err := d.book.Commit(d.t.Context(), id, actual); err != nil {
		d.t.Fatal(err)
	}
}

// takes asks for one, without a reservation.
func (d *desk) takes() (limit.Decision, bool) {
	d.t.Helper()
	got, err := d.engine.Take(d.t.Context(), asker(1))
	if err != nil {
		d.t.Fatal(err)
	}
	return got, got.Allowed
}

// What a commit has over its reservation is debt, which refill pays before anything is admitted: of a limit without a
// key, and of one whose keys come seldom.
func TestDebtWalk(t *testing.T) {
	for _, text := range []string{
		"  - {name: a, rate: 10/s, burst: 100, sharing: leased}\n",
		"  - {name: a, key: [k], rate: 10/s, burst: 100, sharing: leased}\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			f, stop := open(t, spending.Options{}, text)
			defer stop()
			d := deskOf(t, f)
			id := d.reserve(100)
			if id == "" {
				t.Fatal("all of it")
			}
			d.commit(id, 150) // 50 of debt: 5 s
			begun := time.Now()
			for {
				got, ok := d.takes()
				if ok {
					break
				}
				if after := got.Results[0].RetryAfter; after <= 0 || after > 6*time.Second {
					t.Errorf("after %v: %+v", time.Since(begun), got.Results[0])
				}
				time.Sleep(50 * time.Millisecond)
				if time.Since(begun) > time.Minute {
					break
				}
			}
			if took := time.Since(begun); took < 5*time.Second || took > 5500*time.Millisecond {
				t.Errorf("%s: one was admitted after %v, want 5.1 s", text, took)
			}
			more := 0
			for begun = time.Now(); time.Since(begun) < 2*time.Second; time.Sleep(50 * time.Millisecond) {
				if _, ok := d.takes(); ok {
					more++
				}
			}
			if more < 18 || more > 21 {
				t.Errorf("%s: %d were admitted in the next 2 s, want 20", text, more)
			}
		})
	}
}

// left is how much can be taken at once, and takes it.
func (d *desk) left() (n int64) {
	d.t.Helper()
	for refused := 0; refused < 4; {
		if _, ok := d.takes(); ok {
			n++
			continue
		}
		refused++
		settle()
	}
	return n
}

// What is under comes back, also when nobody has asked for the limit meanwhile; what a renewal had charged above comes
// back with a release, the debt first.
func TestUnderComesBack(t *testing.T) {
	if testing.Short() {
		t.Skip("TestFleetOfReservations has the same goroutines: nothing for the race detector")
	}
	for _, text := range []string{
		"  - {name: a, rate: 100/day, sharing: leased}\n",
		"  - {name: a, key: [k], rate: 100/day, sharing: leased}\n",
	} {
		for _, wait := range []time.Duration{0, time.Second, 10 * time.Minute} {
			synctest.Test(t, func(t *testing.T) {
				f, stop := open(t, spending.Options{}, text)
				defer stop()
				d := deskOf(t, f)
				id := d.reserve(80)
				time.Sleep(wait)
				d.commit(id, 30)
				settle()
				if n := d.left(); n < 69 || n > 71 {
					t.Errorf("%safter %v: %d are left of 70", text, wait, n)
				}
			})
			synctest.Test(t, func(t *testing.T) {
				f, stop := open(t, spending.Options{}, text)
				defer stop()
				d := deskOf(t, f)
				id := d.reserve(80)
				time.Sleep(wait)
				if _, err := d.book.Renew(t.Context(), id, 350, 0); err != nil {
					t.Fatal(err)
				}
				if n := d.left(); n != 0 {
					t.Errorf("%d were admitted beside a debt of 250", n)
				}
				time.Sleep(wait)
				if _, err := d.book.Release(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				settle()
				if n := d.left(); n < 99 || n > 101 {
					t.Errorf("%safter %v: %d are left of 100", text, wait, n)
				}
			})
		}
	}
}

// A commit that finds no room for a lease is an error, and is charged when there is room.
func TestDebtWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{MaxKeys: 1, Ask: byLease}, "  - {name: a, key: [k], rate: 1/s, burst: 100, sharing: leased}\n")
		defer stop()
		d := deskOf(t, f)
		id := d.reserve(100)
		time.Sleep(2 * time.Minute) // its lease is closed
		other, _, err := d.book.Reserve(t.Context(), askerOf("2", 100), time.Hour, false)
		if err != nil {
			t.Fatal(err)
		}
		d.commit(other.ID, 200) // 100 s of debt, in which its key is in use
		if _, err := d.book.Commit(t.Context(), id, 400); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%v, want that the store is unavailable", err)
		}
		if n := f.Owed(); n < 99 || n > 100 {
			t.Errorf("%d are owed", n)
		}
		for range 4 {
			time.Sleep(time.Minute)
			_ = d.book.Sweep(t.Context()) // an error, as long as there is no room
		}
		if n := f.Owed(); n < 60 || n > 300 {
			t.Errorf("%d are owed, of 300 less 100 of the bucket and what was paid", n)
		}
	})
}

// At most 64 bursts are owed, however often and however much is committed; a reset forgives it.
func TestDebtIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{}, "  - {name: a, rate: 100/day, sharing: leased}\n")
		defer stop()
		d := deskOf(t, f)
		for _, over := range []int64{limit.MaxCount, 5000, math.MaxInt64} {
			c := f.charge("a", "", over)
			c.Shadow, c.CountRefused = true, true
			if _, err := f.Take(t.Context(), []store.Charge{c}); err != nil {
				t.Fatal(err)
			}
			if n := f.Owed(); n < 63*100 || n > 64*100 {
				t.Errorf("%d are owed after %d, want 64 bursts of 100", n, over)
			}
		}
		if err := f.Reset(t.Context(), []store.Charge{f.charge("a", "", 0)}); err != nil {
			t.Fatal(err)
		}
		if n := f.Owed(); n != 0 {
			t.Errorf("%d are owed after a reset", n)
		}
		settle()
		if n := d.left(); n < 99 || n > 101 {
			t.Errorf("%d of 100 are left after a reset", n)
		}
	})
}
