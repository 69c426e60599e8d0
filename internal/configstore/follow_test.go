package configstore_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/alone"
	"github.com/stint-io/stint/internal/configstore"
)

// silent is a register whose watches say nothing.
type silent struct{ cluster.Register }

func (silent) Watch(context.Context, string) <-chan struct{} { return make(chan struct{}) }

// TestFollow: a follower checks at once when there is another version, and within 400 ms where the
// watch is silent.
func TestFollow(t *testing.T) {
	for name, within := range map[string]time.Duration{"watch": 0, "silent": 400 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			var r cluster.Register = alone.New()
			if within > 0 {
				r = silent{r}
			}
			s := configstore.New(r)
			seen := make(chan uint64, 10)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var known configstore.Meta
			go s.Follow(ctx, func(ctx context.Context) bool {
				v, changed, err := s.Next(ctx, known)
				if changed {
					known = v.Meta
					seen <- v.Version
				}
				return err == nil
			})
			for i := range 3 {
				begun := time.Now()
				push(t, s, text(fmt.Sprint(i)))
				if got := <-seen; got != uint64(i+1) {
					t.Errorf("%s: version %d, want %d", name, got, i+1)
				}
				if took := time.Since(begun); took > within {
					t.Errorf("%s: after %v, want %v", name, took, within)
				}
			}
		})
	}
}

// TestFollowRetries: a register that does not answer is asked again soon, and regularly once it does.
func TestFollowRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, failures := time.Now(), 3
		var asked []time.Duration
		ctx, stop := context.WithTimeout(t.Context(), 1100*time.Millisecond)
		defer stop()
		configstore.New(silent{alone.New()}).Follow(ctx, func(context.Context) bool {
			asked = append(asked, time.Since(begun))
			return len(asked) > failures
		})
		const ms = time.Millisecond
		if want := []time.Duration{0, 200 * ms, 400 * ms, 600 * ms, 1000 * ms}; !slices.Equal(asked, want) {
			t.Errorf("asked after %v, want %v", asked, want)
		}
	})
}

// counting counts writes.
type counting struct {
	cluster.Register
	writes atomic.Int64
}

func (c *counting) Swap(ctx context.Context, key string, revision uint64, value []byte) (uint64, error) {
	c.writes.Add(1)
	return c.Register.Swap(ctx, key, revision, value)
}

// TestMembersReport: a member's report is there at once, follows a change at once, is written every ten
// seconds, and goes with the member. That of a run before is replaced.
func TestMembersReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &counting{Register: alone.New()}
		s := configstore.New(r)
		set(t, r, "member/a", []byte("damaged"))
		var version atomic.Uint64
		changed := make(chan struct{}, 1)
		ctx, stop := context.WithCancel(t.Context())
		go s.Publish(ctx, "a", changed, func() configstore.Report { return configstore.Report{Version: version.Load()} })
		reported := func() configstore.Report {
			t.Helper()
			synctest.Wait()
			all, err := s.Members(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return all["a"]
		}
		if got := reported(); got.Version != 0 || got.Stale(time.Now()) {
			t.Errorf("at first: %+v", got)
		}
		version.Store(7)
		changed <- struct{}{}
		if got := reported(); got.Version != 7 {
			t.Errorf("after a change: %+v", got)
		}
		before := r.writes.Load()
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		if n := r.writes.Load() - before; n != 6 {
			t.Errorf("%d writes in a minute, want 6", n)
		}
		stop()
		if got := reported(); got.Version != 0 {
			t.Errorf("after the end: %+v", got)
		}
		set(t, r, "member/killed", []byte(`{"version":7,"time":"1990-01-01T00:00:00Z"}`))
		push(t, s, text("one"))
		if all, err := s.Members(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("the report of a member that ended long ago: %v %v", all, err)
		}
	})
}
