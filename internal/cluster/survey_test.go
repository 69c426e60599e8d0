package cluster_test

import (
	"context"
	"log/slog"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/alone"
)

// TestExamine: a survey says who leads and who is there, of those that live and of those that do not,
// and takes as long as it must to tell them apart.
func TestExamine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := alone.New()
		examine := func(atMost time.Duration) cluster.Survey {
			t.Helper()
			begun := time.Now()
			s, err := cluster.Examine(t.Context(), r)
			if took := time.Since(begun); err != nil || took > atMost {
				t.Errorf("%v after %v, want it within %v", err, took, atMost)
			}
			return s
		}
		if s := examine(0); len(s.Leaders)+len(s.Members)+s.Shards != 0 {
			t.Errorf("of no records: %+v", s)
		}
		ctx, cancel := context.WithCancel(t.Context())
		a := cluster.Member{ID: "a", Address: "10.0.0.1:8081"}
		quiet := slog.New(slog.DiscardHandler)
		e, err := cluster.New(cluster.Options{Register: r, Scope: "leases", Self: a, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = e.Run(ctx) }()
		go cluster.NewPresence(cluster.PresenceOptions{Register: r, Self: a, Logger: quiet}).Run(ctx)
		for key, value := range map[string]string{
			"presence/b": `{"ID":"b","Address":"10.0.0.2:8081"}`, "shards": "4",
			"leader/old": `{"epoch":7,"id":"b","run":"x","ttl_ms":500}`,
		} {
			if _, err := r.Swap(ctx, key, 0, []byte(value)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10300 * time.Millisecond) // between two writes
		leads := cluster.Leader{Scope: "leases", Member: a, Epoch: 1, TTL: time.Second, Alive: true}
		old := cluster.Leader{Scope: "old", Member: cluster.Member{ID: "b"}, Epoch: 7, TTL: 500 * time.Millisecond}
		b := cluster.Member{ID: "b", Address: "10.0.0.2:8081"}
		want := cluster.Survey{Leaders: []cluster.Leader{leads, old}, Members: []cluster.Present{{a, true}, {b, false}}, Shards: 4}
		if s := examine(3500 * time.Millisecond); !reflect.DeepEqual(s, want) {
			t.Errorf("%+v, want %+v", s, want)
		}
		cancel()
		synctest.Wait()
		leads.Alive, leads.Resigned = false, true
		want = cluster.Survey{Leaders: []cluster.Leader{leads, old}, Members: []cluster.Present{{b, false}}, Shards: 4}
		if s := examine(3500 * time.Millisecond); !reflect.DeepEqual(s, want) {
			t.Errorf("after the end of a: %+v, want %+v", s, want)
		}
	})
}

// TestExamineDamaged: a record that is not understood is an error that names it.
func TestExamineDamaged(t *testing.T) {
	for key, value := range map[string]string{"leader/leases": "{}", "shards": "x"} {
		r := alone.New()
		if _, err := r.Swap(t.Context(), key, 0, []byte(value)); err != nil {
			t.Fatal(err)
		}
		if _, err := cluster.Examine(t.Context(), r); err == nil {
			t.Errorf("%s: no error", key)
		}
	}
}
