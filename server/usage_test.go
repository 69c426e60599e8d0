package server_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/client"
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
	deadline, poll := time.Now().Add(20*time.Second), time.NewTicker(10*time.Millisecond)
	defer poll.Stop()
	for (figure("allowed") < admitted || figure("refused") < refused) && time.Now().Before(deadline) {
		<-poll.C
	}
	if a, r := figure("allowed"), figure("refused"); a != admitted || r != refused || refused == 0 || admitted == 0 {
		t.Errorf("the metrics say %d allowed and %d refused, the instances %d and %d", a, r, admitted, refused)
	}
}
