package plans_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/plans"
	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/store"
)

// cuttable are records that can be out of reach.
type cuttable struct {
	store.Records
	away     atomic.Bool
	unraised bool // marks are lost
	untold   bool // changes cannot be listed for other servers
	room     int  // for changes that are listed; 0 = without bound
}

func (c *cuttable) cut(away bool) { c.away.Store(away) }

// records2 are the same records by a way that is not cut.
func records2(c *cuttable) store.Records { return c.Records }

func (c *cuttable) Get(ctx context.Context, table, key string) ([]byte, error) {
	if c.away.Load() {
		return nil, store.ErrUnavailable
	}
	return c.Records.Get(ctx, table, key)
}

func (c *cuttable) Marks(ctx context.Context, table, prefix, after string, most int) ([]store.Mark, error) {
	if c.away.Load() {
		return nil, store.ErrUnavailable
	}
	return c.Records.Marks(ctx, table, prefix, after, most)
}

func (c *cuttable) Raise(ctx context.Context, table string, marks []store.Mark, keep time.Duration) error {
	if c.unraised {
		return nil
	}
	return c.Records.Raise(ctx, table, marks, keep)
}

func (c *cuttable) Swap(ctx context.Context, table, key string, old, value []byte, keep time.Duration) (bool, []byte, error) {
	if c.away.Load() {
		return false, nil, store.ErrUnavailable
	}
	if table == "customerchanges" && c.untold {
		return false, nil, store.ErrUnavailable
	}
	if table == "customerchanges" && value != nil && c.room > 0 {
		if found, _ := c.Range(ctx, table, "", "", c.room); len(found) == c.room {
			return false, nil, store.ErrFull
		}
	}
	return c.Records.Swap(ctx, table, key, old, value, keep)
}

// world is three servers on one records store, and a plain map of what they were told.
type world struct {
	*testing.T
	r       *rand.Rand
	rec     *cuttable
	offices []*office
	now     time.Time
	model   map[string]plans.Assignment
}

var customers = []string{"acme", "bob", "cleo", "dan", "eve"}

// check holds what an office says of a customer against the map.
func (w *world) check(o *office, name string) {
	w.Helper()
	plan, count := "free", int64(100)
	if name == "acme" {
		plan = "pro"
	}
	if e, ok := w.model[name]; ok {
		switch {
		case e.Until.IsZero() || w.now.Before(e.Until):
			plan = e.Plan
			if c, ok := e.Counts["messages"]; ok && (c.Until.IsZero() || w.now.Before(c.Until)) {
				count = max(c.N, c.Percent)
			}
		case e.Then != "":
			plan = e.Then
		}
	}
	o.has(name, plan, count)
}

// later is a time within two days.
func (w *world) later() time.Time {
	return w.now.Add(time.Duration(1 + w.r.Int64N(int64(48*time.Hour))))
}

// assignment is one at random.
func (w *world) assignment() plans.Assignment {
	a := plans.Assignment{Plan: files.Plans[w.r.IntN(3)]}
	if w.r.IntN(2) == 0 {
		a.Until = w.later()
		if w.r.IntN(2) == 0 {
			a.Then = files.Plans[w.r.IntN(3)]
		}
	}
	if w.r.IntN(2) == 0 {
		c := plans.Count{N: 1 + w.r.Int64N(1000)}
		if w.r.IntN(2) == 0 {
			c = plans.Count{Percent: 1 + w.r.Int64N(1000)}
		}
		if w.r.IntN(2) == 0 {
			c.Until = w.later()
		}
		a.Counts = map[string]plans.Count{"messages": c}
	}
	return a
}

// change has an office set or remove a customer, and the map the same; it says whether it was done.
func (w *world) change(o *office, name string, remove bool) bool {
	w.Helper()
	_, there := w.model[name]
	var err error
	if remove {
		if err = o.Remove(w.Context(), name, ""); err == nil {
			delete(w.model, name)
		}
	} else {
		a := w.assignment()
		if _, err = o.Set(w.Context(), name, a, ""); err == nil {
			w.model[name] = a
		}
	}
	if remove && !there && !errors.Is(err, plans.ErrUnknown) || (there || !remove) && err != nil {
		w.Fatal(err)
	}
	return err == nil
}

// forget loses the list of changes, as after an hour, or any of them, and neither the customers nor the latest number.
func (w *world) forget() {
	if w.r.IntN(2) == 0 {
		changes, _ := w.rec.Range(w.Context(), "customerchanges", "", "", 1000)
		for _, c := range changes {
			if w.r.IntN(3) == 0 {
				_, _, _ = w.rec.Swap(w.Context(), "customerchanges", c.Key, c.Value, nil, 0)
			}
		}
		return
	}
	fresh := records.New(nil, 0)
	found, _ := w.rec.Records.Range(w.Context(), "customers", "", "", 1000)
	for _, one := range found {
		_, _, _ = fresh.Swap(w.Context(), "customers", one.Key, nil, one.Value, 0)
	}
	head, _ := w.rec.Records.Marks(w.Context(), "customerhead", "", "", 1)
	_ = fresh.Raise(w.Context(), "customerhead", head, 0)
	w.rec.Records = fresh
}

// look has every office look for changes, and checks all that they say.
func (w *world) look() {
	w.Helper()
	for _, o := range w.offices {
		if err := o.Open(w.Context()); err != nil {
			w.Fatal(err)
		}
		for _, name := range customers {
			w.check(o, name)
		}
	}
}

// Whatever is set, removed, refused, reloaded and forgotten at random by three servers, each says what a plain map says
// once it has looked, and the one that made a change at once. Clocks of the servers jump together, as plans end by them.
func TestModel(t *testing.T) {
	for seed := range seeding.Draw(t, 20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := &world{T: t, r: rand.New(rand.NewPCG(seed, 1)), rec: &cuttable{Records: records.New(nil, 0)}, model: map[string]plans.Assignment{}}
			for range 3 {
				w.offices = append(w.offices, newOffice(t, w.rec, files))
			}
			w.now = w.offices[0].now
			if seed%2 == 1 {
				w.rec.room = 7
			}
			w.look()
			for step := range 400 {
				o := w.offices[w.r.IntN(len(w.offices))]
				name := customers[w.r.IntN(len(customers))]
				switch kind := w.r.IntN(8); kind {
				case 1:
					w.now = w.now.Add(time.Duration(w.r.Int64N(int64(48*time.Hour))) - 12*time.Hour)
					for _, o := range w.offices {
						o.now = w.now
					}
				case 2:
					o.read(files)
				case 3:
					if w.r.IntN(5) == 0 {
						w.forget()
					}
				default:
					if w.change(o, name, kind == 0) {
						w.check(o, name)
					}
				}
				if w.r.IntN(3) == 0 {
					w.look()
				}
				if t.Failed() {
					t.Fatalf("step %d", step)
				}
			}
		})
	}
}
