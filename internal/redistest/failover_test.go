package redistest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
)

func TestCluster(t *testing.T) {
	begin := time.Now()
	c := redistest.StartCluster(t)
	t.Logf("the cluster took %v", time.Since(begin))
	if want := "redis+cluster://" + strings.Join(c.Addrs(), ","); c.URL() != want || len(c.Addrs()) != 6 {
		t.Errorf("URL %s, want %s of 6 nodes", c.URL(), want)
	}
	// foo is in slot 12182, bar in 5061, hello in 866.
	for key, node := range map[string]int{"foo": 2, "bar": 0, "hello": 0, "{foo}x": 2} {
		if got := c.Master(key); got != c.Nodes[node] {
			t.Errorf("%s is served by %s, want node %d of %v", key, got.Addr(), node, c.Addrs())
		}
	}

	old := c.Master("foo")
	old.Do("SET", "foo", "kept")
	if got := old.Int("WAIT", "1", "10000"); got != 1 {
		t.Fatalf("%d replicas have the key", got)
	}
	old.Kill()
	begin = time.Now()
	master := c.Master("foo")
	t.Logf("the failover took %v", time.Since(begin))
	if master != c.Nodes[5] {
		t.Fatalf("foo is served by %s, want node 5 of %v, the replica of what was killed", master.Addr(), c.Addrs())
	}
	eventually(t, "the new master to serve", func() bool {
		reply, err := master.Try("GET", "foo")
		if err != nil {
			return false
		}
		text, err := reply.ToString()
		return err == nil && text == "kept"
	})

	// The one that was master comes back as a replica.
	old.Restart()
	eventually(t, "the killed node to follow", func() bool { return old.Info("master_link_status") == "up" })
	if got := c.Master("foo"); got != master {
		t.Errorf("foo is served by %s, want %s", got.Addr(), master.Addr())
	}
}

func TestClusterMasterFrozen(t *testing.T) {
	c := redistest.StartCluster(t, "--requirepass", "hush")
	old := c.Master("foo")
	old.Freeze()
	master := c.Master("foo")
	if master == old {
		t.Fatal("a frozen node is master")
	}
	// Thawed, it takes itself for master until it hears otherwise.
	old.Thaw()
	if got := c.Master("foo"); got != master {
		t.Errorf("foo is served by %s, want %s", got.Addr(), master.Addr())
	}
	eventually(t, "the thawed node to follow", func() bool { return old.Info("role") == "slave" })
}

func TestStartSentinel(t *testing.T) {
	for _, args := range [][]string{nil, {"--requirepass", "hush"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) { testSentinel(t, args) })
	}
}

func testSentinel(t *testing.T, args []string) {
	begin := time.Now()
	g := redistest.StartSentinel(t, args...)
	t.Logf("the group took %v", time.Since(begin))
	var addrs []string
	for _, s := range g.Sentinels {
		addrs = append(addrs, s.Addr())
	}
	if want := "redis+sentinel://" + strings.Join(addrs, ",") + "/mymaster"; g.URL() != want || len(addrs) != 3 {
		t.Errorf("URL %s, want %s of 3 sentinels", g.URL(), want)
	}
	if got := g.Current(); got != g.Master.Addr() {
		t.Fatalf("the master is at %s, want %s", got, g.Master.Addr())
	}
	g.Master.Do("SET", "k", "kept")
	if got := g.Master.Int("WAIT", "1", "10000"); got != 1 {
		t.Fatalf("%d replicas have the key", got)
	}

	g.Master.Kill()
	begin = time.Now()
	eventually(t, "the replica to be the master", func() bool { return g.Current() == g.Replica.Addr() })
	t.Logf("the failover took %v", time.Since(begin))
	if got := g.Replica.Text("GET", "k"); got != "kept" {
		t.Errorf("the new master holds %q", got)
	}
	g.Replica.Do("SET", "k", "written")

	g.Master.Restart()
	eventually(t, "the killed master to follow", func() bool { return g.Master.Info("master_link_status") == "up" })
	if got := g.Current(); got != g.Replica.Addr() {
		t.Errorf("the master is at %s, want %s", got, g.Replica.Addr())
	}

	// A sentinel that starts again knows what it knew.
	g.Sentinels[0].Kill()
	g.Sentinels[0].Restart()
	if got := g.Current(); got != g.Replica.Addr() {
		t.Errorf("after a sentinel's restart the master is at %s, want %s", got, g.Replica.Addr())
	}
}
