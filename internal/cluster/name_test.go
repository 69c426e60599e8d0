package cluster_test

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/alone"
)

// TestAwaitName: a name is free at once where nobody has it, or a former run of the same address; after
// three seconds where its process is dead; and never while its process lives, which is not disturbed.
func TestAwaitName(t *testing.T) {
	const dead = `{"ID":"a","Address":"10.0.0.1:8081"}`
	for name, c := range map[string]struct {
		record string           // of a process that does not live; "" = none
		other  *cluster.Member  // lives
		leaves time.Duration    // after which it ends; 0 = never
		taken  bool             // what is wanted
		after  [2]time.Duration // and when, at least and at most
	}{
		"nobody has it":            {},
		"another name":             {other: &cluster.Member{ID: "b", Address: "10.0.0.1:8081"}},
		"a former run":             {record: `{"ID":"a","Address":"10.0.0.2:8081"}`},
		"killed elsewhere":         {record: dead, after: [2]time.Duration{3 * time.Second, 3500 * time.Millisecond}},
		"a damaged record":         {record: `{`, after: [2]time.Duration{3 * time.Second, 3500 * time.Millisecond}},
		"a process lives":          {other: &cluster.Member{ID: "a", Address: "10.0.0.1:8081"}, taken: true, after: [2]time.Duration{1, 1500 * time.Millisecond}},
		"a process that just ends": {other: &cluster.Member{ID: "a", Address: "10.0.0.1:8081"}, leaves: 300 * time.Millisecond, after: [2]time.Duration{1, 500 * time.Millisecond}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := alone.New()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.record != "" {
					if _, err := r.Swap(ctx, "presence/a", 0, []byte(c.record)); err != nil {
						t.Fatal(err)
					}
				}
				var log strings.Builder
				if c.other != nil {
					p := cluster.NewPresence(cluster.PresenceOptions{Register: r, Self: *c.other, Logger: slog.New(slog.NewTextHandler(&log, nil))})
					go p.Run(ctx)
					synctest.Wait()
					if c.leaves != 0 {
						time.AfterFunc(c.leaves, cancel)
					}
				}
				begun := time.Now()
				err := cluster.AwaitName(t.Context(), cluster.PresenceOptions{Register: r, Self: cluster.Member{ID: "a", Address: "10.0.0.2:8081"}, Logger: slog.New(slog.DiscardHandler)})
				if took := time.Since(begun); took < c.after[0] || took > c.after[1] {
					t.Errorf("it took %v, want %v", took, c.after)
				}
				switch {
				case !c.taken && err != nil:
					t.Error(err)
				case c.taken && (!errors.Is(err, cluster.ErrNameTaken) || !strings.Contains(err.Error(), `"a" at "10.0.0.1:8081"`)):
					t.Errorf("%v, want that the name is taken, and where", err)
				}
				cancel()
				synctest.Wait()
				if log.Len() > 0 {
					t.Errorf("the other process noticed: %s", log.String())
				}
			})
		})
	}
}

// TestAwaitNameAtOneMoment: of two processes that start under one name at the same moment, whether the name is free or that of a
// process that was killed, one gets it and the other is told.
func TestAwaitNameAtOneMoment(t *testing.T) {
	for _, record := range []string{"", `{"ID":"a","Address":"10.0.0.9:8081"}`} {
		synctest.Test(t, func(t *testing.T) {
			r := alone.New()
			if record != "" {
				if _, err := r.Swap(t.Context(), "presence/a", 0, []byte(record)); err != nil {
					t.Fatal(err)
				}
			}
			errs := make(chan error, 2)
			for _, address := range []string{"10.0.0.1:8081", "10.0.0.2:8081"} {
				go func() {
					errs <- cluster.AwaitName(t.Context(), cluster.PresenceOptions{Register: late{r}, Self: cluster.Member{ID: "a", Address: address}, Logger: slog.New(slog.DiscardHandler)})
				}()
			}
			one, two := <-errs, <-errs
			if (one == nil) == (two == nil) || !errors.Is(cmp.Or(one, two), cluster.ErrNameTaken) {
				t.Errorf("%v and %v, want that one of them has the name", one, two)
			}
		})
	}
}

// late is a register that takes a moment to write.
type late struct{ *alone.Register }

func (r late) Swap(ctx context.Context, key string, revision uint64, value []byte) (uint64, error) {
	<-time.After(10 * time.Millisecond)
	return r.Register.Swap(ctx, key, revision, value)
}

// TestAwaitNameWithoutRegister: a register that does not answer is no proof that the name is taken.
func TestAwaitNameWithoutRegister(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := cluster.PresenceOptions{Register: silent{alone.New()}, Self: cluster.Member{ID: "a", Address: "x"}}
	if err := cluster.AwaitName(ctx, o); err == nil || errors.Is(err, cluster.ErrNameTaken) {
		t.Errorf("%v, want that the register does not answer", err)
	}
}

// silent answers nothing.
type silent struct{ cluster.Register }

func (silent) Read(ctx context.Context, _ string) (cluster.Record, error) {
	<-ctx.Done()
	return cluster.Record{}, ctx.Err()
}
