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
	"github.com/stint-io/stint/store"
)

// cuttable are records that can be out of reach.
type cuttable struct {
	store.Records
	away     atomic.Bool
	unraised bool // marks are lost
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
	return c.Records.Swap(ctx, table, key, old, value, keep)
}

// Three servers on one records store, and a plain map: whatever is set, removed, refused, reloaded and forgotten at
// random, each server says what the map says once it has looked, and the one that made a change at once. Clocks of the
// servers jump together, as plans end by them; the list of changes does not go by clocks.
func TestModel(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			rec := &cuttable{Records: records.New(nil, 0)}
			offices := []*office{newOffice(t, rec, files), newOffice(t, rec, files), newOffice(t, rec, files)}
			for _, o := range offices {
				if err := o.Open(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			type entry struct {
				plans.Assignment
				version uint64
			}
			model := make(map[string]entry)
			names := []string{"acme", "bob", "cleo", "dan", "eve"}
			now := offices[0].now
			check := func(o *office, name string) {
				t.Helper()
				plan, count := "free", int64(100)
				if name == "acme" {
					plan = "pro"
				}
				if e, ok := model[name]; ok {
					switch {
					case e.Until.IsZero() || now.Before(e.Until):
						plan = e.Plan
						if c, ok := e.Counts["messages"]; ok && (c.Until.IsZero() || now.Before(c.Until)) {
							count = max(c.N, c.Percent)
						}
					case e.Then != "":
						plan = e.Then
					}
				}
				o.has(name, plan, count)
			}
			for step := range 400 {
				o := offices[r.IntN(len(offices))]
				name := names[r.IntN(len(names))]
				was, there := model[name]
				by := plans.Change{}
				if r.IntN(3) == 0 {
					by.Version = uint64(r.IntN(4))
				}
				conflict := by.Version != 0 && by.Version != was.version
				var err error
				changed := false
				switch r.IntN(8) {
				case 0:
					if err = o.Remove(t.Context(), name, by); err == nil {
						delete(model, name)
						changed = true
					} else if !conflict && there || conflict && !errors.Is(err, plans.ErrConflict) {
						t.Fatalf("step %d: %v", step, err)
					}
				case 1:
					now = now.Add(time.Duration(r.Int64N(int64(48*time.Hour))) - 12*time.Hour)
					for _, o := range offices {
						o.now = now
					}
				case 2:
					o.read(files)
				case 3:
					if r.IntN(5) == 0 { // the list of changes is lost, as after an hour
						fresh := records.New(nil, 0)
						for _, table := range []string{"customers"} {
							found, _ := rec.Records.Range(t.Context(), table, "", "", 1000)
							for _, one := range found {
								_, _, _ = fresh.Swap(t.Context(), table, one.Key, nil, one.Value, 0)
							}
						}
						if head, _ := rec.Records.Marks(t.Context(), "customerhead", "", "", 1); len(head) > 0 {
							_ = fresh.Raise(t.Context(), "customerhead", head, 0)
						}
						rec.Records = fresh
					}
				default:
					a := plans.Assignment{Plan: files.Plans[r.IntN(3)]}
					if r.IntN(2) == 0 {
						a.Until = now.Add(time.Duration(1 + r.Int64N(int64(48*time.Hour))))
						if r.IntN(2) == 0 {
							a.Then = files.Plans[r.IntN(3)]
						}
					}
					if r.IntN(2) == 0 {
						c := plans.Count{N: 1 + r.Int64N(1000)}
						if r.IntN(2) == 0 {
							c = plans.Count{Percent: 1 + r.Int64N(1000)}
						}
						if r.IntN(2) == 0 {
							c.Until = now.Add(time.Duration(1 + r.Int64N(int64(48*time.Hour))))
						}
						a.Counts = map[string]plans.Count{"messages": c}
					}
					var c plans.Changed
					if c, err = o.Set(t.Context(), name, a, by); err == nil {
						model[name] = entry{a, was.version + 1}
						changed = true
						if c.Version != was.version+1 {
							t.Fatalf("step %d: version %d after %d", step, c.Version, was.version)
						}
					} else if !conflict || !errors.Is(err, plans.ErrConflict) {
						t.Fatalf("step %d: %v", step, err)
					}
				}
				if changed {
					if conflict {
						t.Fatalf("step %d: version %d was changed by version %d", step, was.version, by.Version)
					}
					check(o, name)
				}
				if r.IntN(3) == 0 {
					for _, o := range offices {
						if err := o.Open(t.Context()); err != nil {
							t.Fatal(err)
						}
						for _, name := range names {
							check(o, name)
						}
					}
				}
				if t.Failed() {
					t.Fatalf("step %d", step)
				}
			}
		})
	}
}
