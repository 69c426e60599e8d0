package server_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/etcdtest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server"
)

// shardsOf makes a server a member of a cluster that divides its limits.
func shardsOf(url, node string, shards int) func(*server.Options) {
	return joins(url, node, func(o *server.Options) { o.Cluster.Shards = shards })
}

// TestShards: each key has one bucket, whichever member or client spends it, with its values spelled as
// they like, also after a member has stopped; and the keys are in several coordinators.
func TestShards(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	url := "etcd://" + etcd.Addr() + "/shards"
	const yaml = `limits:
  - {name: day, key: [user], rate: 100/day, sharing: leased, on_store_failure: reject}
  - {name: net, key: [ip], rate: 20/day, sharing: leased, on_store_failure: reject}
`
	var members []*service
	for i := range 3 {
		members = append(members, start(t, yaml, shardsOf(url, fmt.Sprint("n", i), 5)))
	}
	clients := clientsOf(t, members[0], members[1])
	awaitPlacement(t, members, 5) // each leads some
	const keys, each = 16, 100
	var given [keys]atomic.Int64
	// patient asks again when it is refused: others have tokens of the key that they do not use.
	spend := func(rounds int, patient bool) {
		var wg sync.WaitGroup
		for _, c := range clients {
			k, err := c.Keyed("day", []string{"user"}, client.KeyedOptions{})
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				defer k.Close()
				for range rounds {
					for key := range keys {
						given[key].Add(take(t.Context(), k, fmt.Sprint("u", key), patient))
					}
				}
			})
		}
		for _, s := range members {
			wg.Go(func() {
				for range rounds {
					for key := range keys {
						given[key].Add(int64(s.takeDay(fmt.Sprint("u", key), patient)))
					}
				}
			})
		}
		wg.Wait()
	}
	spend(3, true)
	for key := range keys {
		if n := given[key].Load(); n != 3*5 {
			t.Errorf("key %d: %d of %d were given while %d were free", key, n, 3*5, each)
		}
	}
	if a := members[0].do(http.MethodGet, members[0].admin+"/v1/leases?limit=day", ""); a.status != http.StatusOK {
		t.Errorf("/v1/leases: %d %s", a.status, a.body)
	}
	spellings(t, clients, members)
	first := leads(members)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	var left []*service
	for _, s := range members {
		if s != first {
			left = append(left, s)
		}
	}
	members = left
	spend(30, false)
	for key := range keys {
		if n := given[key].Load(); n > each || n < 15 {
			t.Errorf("key %d: %d were given of %d a day", key, n, each)
		}
	}
}

// awaitPlacement waits until each shard is led by the member that should lead it.
func awaitPlacement(t *testing.T, members []*service, shards int) {
	t.Helper()
	var all []cluster.Member
	for i := range members {
		all = append(all, cluster.Member{ID: fmt.Sprint("n", i)})
	}
	want := make([]int, len(members))
	for shard := range shards {
		m, _ := cluster.Preferred(all, fmt.Sprintf("leases-%dof%d", shard, shards))
		want[slices.Index(all, m)]++
	}
	got := make([]int, len(members))
	for begun := time.Now(); time.Since(begun) < 60*time.Second; <-time.After(250 * time.Millisecond) {
		for i, s := range members {
			got[i] = metric(t, s, "stint_cluster_shards_led")
		}
		if slices.Equal(got, want) {
			t.Logf("%v of %d shards after %v", got, shards, time.Since(begun))
			return
		}
	}
	t.Fatalf("the members lead %v shards, want %v", got, want)
}

// clientsOf returns a client that runs for each of the members.
func clientsOf(t *testing.T, members ...*service) (clients []*client.Client) {
	t.Helper()
	for i, s := range members {
		c, err := client.New(client.Options{
			Address: s.Addrs().GRPC.String(), Others: []string{members[(i+1)%len(members)].Addrs().GRPC.String()},
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		over := make(chan struct{})
		go func() {
			defer close(over)
			_ = c.Run(ctx)
		}()
		t.Cleanup(func() {
			cancel()
			<-over
		})
		clients = append(clients, c)
	}
	return clients
}

// spellings spends one address by many spellings: whichever shard a client guesses, it has one bucket.
func spellings(t *testing.T, clients []*client.Client, members []*service) {
	t.Helper()
	given := 0
	for i, spelling := range []string{"2001:db8::1", "2001:0db8::1", "2001:DB8:0:0:0:0:0:1", "2001:db8:0::1", "2001:db8:0:0::1"} {
		k, err := clients[i%2].Keyed("net", []string{"ip"}, client.KeyedOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for range 8 {
			if d, err := k.Take(t.Context(), limit.Request{Attributes: []limit.Attribute{{Name: "ip", Value: spelling}}, Cost: 1}); err == nil && d.Allowed {
				given++
			}
		}
		k.Close()
	}
	if given > 20 || given < 8 {
		t.Errorf("%d were given to one address, want at most 20", given)
	}
	for begun := time.Now(); time.Since(begun) < 30*time.Second; <-time.After(200 * time.Millisecond) { // metrics are samples
		for _, s := range members {
			if strings.Contains(s.do(http.MethodGet, s.admin+"/metrics", "").body, `"elsewhere"`) {
				return
			}
		}
	}
	t.Error("no coordinator has sent a wrong guess on")
}

// take asks a client for one of a user's day, for up to 30 s if it is patient.
func take(ctx context.Context, k *client.Keyed, user string, patient bool) int64 {
	req := limit.Request{Attributes: []limit.Attribute{{Name: "user", Value: user}}, Cost: 1}
	for begun := time.Now(); time.Since(begun) < 30*time.Second; <-time.After(20 * time.Millisecond) {
		if d, err := k.Take(ctx, req); err == nil && d.Allowed {
			return 1
		}
		if !patient {
			break
		}
	}
	return 0
}

// metric returns the value of a metric, whose name has its labels.
func metric(t *testing.T, s *service, name string, header ...string) (n int) {
	t.Helper()
	for line := range strings.Lines(s.do(http.MethodGet, s.admin+"/metrics", "", header...).body) {
		if _, err := fmt.Sscanf(line, name+" %d", &n); err == nil {
			return n
		}
	}
	t.Errorf("no metric %s", name)
	return 0
}

// TestOtherNumberOfShards does not start, and says what to do.
func TestOtherNumberOfShards(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	url := "etcd://" + etcd.Addr() + "/count"
	start(t, clusterLimits, shardsOf(url, "n0", 4))
	start(t, clusterLimits, shardsOf(url, "n1", 4))
	for _, n := range []int{0, 1, 8} {
		if err := startFails(t, shardsOf(url, "n2", n)); err == nil || !strings.Contains(err.Error(), "--cluster-shards") {
			t.Errorf("%d shards: %v", n, err)
		}
	}
	for want, adjust := range map[string]func(*server.Options){
		"want 1 to 64": shardsOf(url, "n3", 65),
		"leave out --cluster-shards": func(o *server.Options) {
			shardsOf(url, "n4", 4)(o)
			o.Parent.Addresses, o.Parent.Site = []string{"127.0.0.1:1"}, "s"
		},
	} {
		if err := startFails(t, adjust); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// TestFirstTakeAtAFollower: a client that knows a follower alone is sent on, and its first request waits
// for that, as long as it is to wait, instead of being refused. A busy machine may take longer to send it on than a
// request waits by default.
func TestFirstTakeAtAFollower(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	var members []*service
	for i := range 2 {
		members = append(members, start(t, clusterLimits, joins("etcd://"+etcd.Addr()+"/first", fmt.Sprint("n", i))))
	}
	members[0].takeDay("warm", true)
	members[1].takeDay("warm", true)
	follower := members[0]
	if leads(members) == follower {
		follower = members[1]
	}
	for i, c := range clientsOf(t, follower, follower, follower) {
		k, err := c.Keyed("day", []string{"user"}, client.KeyedOptions{LimitOptions: client.LimitOptions{Ask: time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		d, err := k.Take(t.Context(), limit.Request{Attributes: []limit.Attribute{{Name: "user", Value: fmt.Sprint("new", i)}}, Cost: 1})
		if err != nil || !d.Allowed {
			t.Errorf("client %d: %v, %+v", i, err, d)
		}
	}
}
