package redis_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/clustertest"
	"github.com/stint-io/stint/internal/cluster/redis"
	"github.com/stint-io/stint/internal/redistest"
)

// tables opens Registers on tables that differ in their prefix.
func tables(o redis.Options) func(t *testing.T) func() cluster.Register {
	made := 0
	return func(t *testing.T) func() cluster.Register {
		made++
		o := o
		o.Prefix = fmt.Sprintf("table%d:", made)
		return func() cluster.Register {
			r, err := redis.New(o)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
	}
}

func TestRegister(t *testing.T) {
	server := redistest.Start(t)
	clustertest.Run(t, clustertest.Backend{
		Table:  tables(redis.Options{Addrs: []string{server.Addr()}}),
		Freeze: server.Freeze, Thaw: server.Thaw,
	})
}

func TestRegisterInCluster(t *testing.T) {
	servers := redistest.StartCluster(t)
	clustertest.Run(t, clustertest.Backend{
		Table: tables(redis.Options{Topology: redis.Cluster, Addrs: servers.Addrs(), Replicas: 1}),
	})
}

// TestRegisterBySentinels: the master stands still until its replica has taken over, and then goes
// on as if nothing had happened, until it is told.
func TestRegisterBySentinels(t *testing.T) {
	group := redistest.StartSentinel(t)
	var sentinels []string
	for _, s := range group.Sentinels {
		sentinels = append(sentinels, s.Addr())
	}
	// A replica that has just joined confirms nothing for a moment.
	group.Master.Do("SET", "mark", "")
	if confirmed := group.Master.Int("WAIT", "1", "30000"); confirmed != 1 {
		t.Fatalf("%d replicas confirm", confirmed)
	}
	clustertest.Run(t, clustertest.Backend{
		Table: tables(redis.Options{Topology: redis.Sentinel, Addrs: sentinels, Master: redistest.MasterName, Replicas: 1}),
		Fail: func() {
			group.Master.Freeze()
			deadline := time.After(30 * time.Second)
			for group.Current() != group.Replica.Addr() {
				select {
				case <-time.After(10 * time.Millisecond):
				case <-deadline:
					t.Fatal("no failover in 30 s")
				}
			}
			group.Master.Thaw()
		},
	})
}

// TestConfirmed: without the replicas that must confirm, no call succeeds, a read neither.
func TestConfirmed(t *testing.T) {
	master := redistest.Start(t)
	open := tables(redis.Options{Addrs: []string{master.Addr()}, Replicas: 1})(t)
	r := open()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := r.Swap(ctx, "leader/default", 0, []byte("x")); err == nil {
		t.Error("Swap succeeds without a replica")
	}
	if _, err := r.Read(ctx, "leader/default"); err == nil {
		t.Error("Read succeeds without a replica")
	}
	if _, err := r.List(ctx, ""); err == nil {
		t.Error("List succeeds without a replica")
	}
	_ = r.Close()
}
