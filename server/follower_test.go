package server_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/etcdtest"
)

// logs waits until the log has all texts.
func (s *service) logs(texts ...string) {
	s.t.Helper()
	for begun := time.Now(); time.Since(begun) < 30*time.Second; <-time.After(20 * time.Millisecond) {
		missing := false
		for _, text := range texts {
			missing = missing || !strings.Contains(s.log.String(), text)
		}
		if !missing {
			return
		}
	}
	s.t.Errorf("the log does not have %q:\n%s", texts, s.log.String())
}

// TestFollowerSaysWhoLeads: in its log, its metrics and its page of leases, with the leader's epoch; and it
// says so when nobody leads.
func TestFollowerSaysWhoLeads(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	url := "etcd://" + etcd.Addr() + "/follower"
	a := start(t, clusterLimits, joins(url, "a"))
	a.eventually(a.admin+"/metrics", "stint_cluster_leads 1\n")
	b := start(t, clusterLimits, joins(url, "b"))
	b.takeDay("anna", true)
	b.logs(`msg="another member leads" scope=leases leader=a address=` + a.Addrs().GRPC.String() + " epoch=")
	page := func(s *service) (p struct {
		Elsewhere []struct {
			Shard           int
			Member, Address string
			Epoch           uint64
		}
		Note  string
		Epoch uint64
	},
	) {
		t.Helper()
		text := s.do(http.MethodGet, s.admin+"/v1/leases", "").body
		if err := json.Unmarshal([]byte(text), &p); err != nil || !strings.Contains(text, `"resources": [`) {
			t.Errorf("%v in %s", err, text)
		}
		return p
	}
	leads, follows := page(a), page(b)
	if leads.Epoch == 0 || len(leads.Elsewhere) != 0 || leads.Note != "" {
		t.Errorf("the leader's page: %+v", leads)
	}
	if len(follows.Elsewhere) != 1 || follows.Epoch != leads.Epoch || !strings.Contains(follows.Note, "it is a follower") {
		t.Fatalf("the follower's page: %+v, want epoch %d", follows, leads.Epoch)
	}
	if one := follows.Elsewhere[0]; one.Member != "a" || one.Address != a.Addrs().GRPC.String() || one.Epoch != leads.Epoch {
		t.Errorf("the follower says %+v", one)
	}
	if answer := b.do(http.MethodGet, b.admin+"/v1/leases?limit=none", ""); answer.status != http.StatusNotFound {
		t.Errorf("a limit that there is not: %d %s", answer.status, answer.body)
	}
	epoch := regexp.MustCompile(`(?m)^stint_cluster_epoch .*`)
	metric := epoch.FindString(a.do(http.MethodGet, a.admin+"/metrics", "").body)
	if got := epoch.FindString(b.do(http.MethodGet, b.admin+"/metrics", "").body); got != metric || metric == "" || strings.HasSuffix(metric, " 0") {
		t.Errorf("the follower has %q, the leader %q", got, metric)
	}
	etcd.Freeze()
	b.eventually(b.admin+"/v1/leases", "no member is known to coordinate")
	b.logs(`msg="nobody leads" scope=leases last_leader=a epoch=`, "no connection to the coordinator")
	etcd.Thaw()
	if log := a.log.String() + b.log.String(); strings.Contains(log, `address=""`) {
		t.Errorf("an empty address was logged:\n%s", log)
	}
}
