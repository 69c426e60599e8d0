package server_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/limit"
)

// What instances admit and refuse by their leases is in the server's metrics, also what
// an instance decided right before it went; it never is more.
func TestUsageOfInstancesReachesMetrics(t *testing.T) {
	s := start(t, leasedConfig, stateIn(t.TempDir()))
	var mu sync.Mutex
	var admitted, refused int64
	var work sync.WaitGroup
	for i := range 3 {
		ctx, cancel := context.WithCancel(context.Background())
		c, err := client.New(client.Options{Address: s.Addrs().GRPC.String(), Instance: fmt.Sprint("instance-", i)})
		if err != nil {
			t.Fatal(err)
		}
		work.Go(func() {
			if err := c.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		k, err := c.Keyed("messages", []string{"account"}, client.KeyedOptions{})
		if err != nil {
			t.Fatal(err)
		}
		work.Go(func() {
			defer cancel()
			for n := range 600 {
				d, err := k.Take(t.Context(), limit.Request{Attributes: []limit.Attribute{{Name: "account", Value: strconv.Itoa(n % 3)}}, Cost: 2})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if d.Allowed {
					admitted += 2
				} else {
					refused += 2
				}
				mu.Unlock()
			}
		})
	}
	work.Wait()
	figure := func(outcome string) int64 {
		a := s.do(http.MethodGet, s.admin+"/metrics", "")
		m := regexp.MustCompile(`(?m)^stint_lease_decided_total\{limit="messages",outcome="` + outcome + `"\} (\S+)$`).FindStringSubmatch(a.body)
		if m == nil {
			return 0
		}
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return int64(v)
	}
	deadline, poll := time.Now().Add(time.Minute), time.NewTicker(10*time.Millisecond)
	defer poll.Stop()
	for (figure("allowed") < admitted || figure("refused") < refused) && time.Now().Before(deadline) {
		<-poll.C
	}
	if a, r := figure("allowed"), figure("refused"); a != admitted || r != refused || refused == 0 || admitted == 0 {
		t.Errorf("the metrics say %d allowed and %d refused, the instances %d and %d", a, r, admitted, refused)
	}
}

// What each instance wants, has and decided is on a page of its own, and on no other: names
// of instances are not bounded.
func TestMetricsOfInstances(t *testing.T) {
	if testing.Short() {
		t.Skip("TestUsageOfInstancesReachesMetrics has the same goroutines: nothing for the race detector")
	}
	s := start(t, leasedConfig, stateIn(t.TempDir()))
	stream := s.hold("by-stream")
	share := until(t, stream, func(l *leasepb.Share) bool { return l.GetGranted().GetRate() >= 40e6 })
	page := s.do(http.MethodGet, s.admin+"/metrics/instances", "")
	for _, line := range []string{
		`stint_lease_instance_demand{instance="by-stream",limit="messages"} 40`, `stint_lease_instances_not_shown 0`,
		fmt.Sprintf(`stint_lease_instance_lent{instance="by-stream",limit="messages"} %d`, share.GetGranted().GetRate()/1e6),
	} {
		if !strings.Contains(page.body, line+"\n") {
			t.Errorf("%d, no %q in\n%s", page.status, line, page.body)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	c, err := client.New(client.Options{Address: s.Addrs().GRPC.String(), Instance: "by-client"})
	if err != nil {
		t.Fatal(err)
	}
	var run sync.WaitGroup
	run.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer run.Wait()
	defer cancel()
	k, err := c.Keyed("messages", []string{"account"}, client.KeyedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The second time the instance has given its lease back, and counts it no more.
	allowed, refused := 0, 0
	for range 2 {
		for range 300 {
			d, err := k.Take(ctx, account("acme"))
			if err != nil {
				t.Fatal(err)
			}
			if d.Allowed {
				allowed++
			} else {
				refused++
			}
		}
		for _, line := range []string{
			fmt.Sprintf(`stint_lease_instance_decided_total{instance="by-client",limit="messages",outcome="allowed"} %d`, allowed),
			fmt.Sprintf(`stint_lease_instance_decided_total{instance="by-client",limit="messages",outcome="refused"} %d`, refused),
			`stint_lease_instance_lent{instance="by-client",limit="messages"} 0`,
		} {
			await(t, line, func() bool {
				page = s.do(http.MethodGet, s.admin+"/metrics/instances", "")
				return strings.Contains(page.body, line+"\n")
			})
		}
		<-time.After(2500 * time.Millisecond)
	}
	if page := s.do(http.MethodGet, s.admin+"/metrics", ""); strings.Contains(page.body, "by-stream") || strings.Contains(page.body, "by-client") {
		t.Errorf("instances are in\n%s", page.body)
	}
	if page := s.do(http.MethodGet, s.http+"/metrics/instances", ""); page.status != http.StatusNotFound {
		t.Errorf("instances are shown on a port for everybody: %d %s", page.status, page.body)
	}
}
