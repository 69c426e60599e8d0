package cluster_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/alone"
)

// TestTwoProcessesOfOneName: the one that does not get its record written logs it once, with the way out.
func TestTwoProcessesOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := alone.New()
		ctx, cancel := context.WithCancel(t.Context())
		var logs [2]strings.Builder // of one each
		for i := range logs {
			p := cluster.NewPresence(cluster.PresenceOptions{
				Register: r, Self: cluster.Member{ID: "a", Address: string(rune('1' + i))}, Logger: slog.New(slog.NewTextHandler(&logs[i], nil)),
			})
			go p.Run(ctx)
			time.Sleep(time.Second / 2)
		}
		time.Sleep(20 * time.Second)
		cancel()
		synctest.Wait()
		said := logs[0].String() + logs[1].String()
		if n := strings.Count(said, "--node of its own"); n != 1 || strings.Count(said, "\n") != 1 {
			t.Errorf("it was logged %d times: %s", n, said)
		}
	})
}

// TestKilledMemberIsForgotten: a member that never deletes its record is not alive after three seconds,
// and has no record after sixty.
func TestKilledMemberIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := alone.New()
		if _, err := r.Swap(t.Context(), "presence/dead", 0, []byte(`{"ID":"dead","Address":"x"}`)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		p := cluster.NewPresence(cluster.PresenceOptions{Register: r, Self: cluster.Member{ID: "a"}})
		go p.Run(ctx)
		count := func(after time.Duration, alive, records int) {
			t.Helper()
			time.Sleep(after)
			all, err := r.List(t.Context(), "presence/")
			if err != nil || len(all) != records || len(p.Members()) != alive {
				t.Errorf("%d records, %v, and %d alive, want %d and %d", len(all), err, len(p.Members()), records, alive)
			}
		}
		count(2500*time.Millisecond, 2, 2)
		count(time.Second, 1, 2)
		count(56*time.Second, 1, 2)
		count(2*time.Second, 1, 1)
		cancel()
		synctest.Wait()
		count(0, 1, 0)
	})
}
