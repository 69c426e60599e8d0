package server_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/etcdtest"
	"github.com/stint-io/stint/internal/testca"
	"github.com/stint-io/stint/server"
)

const clusterLimits = "limits:\n  - {name: day, key: [user], rate: 30/day, sharing: leased, on_store_failure: reject}\n"

// joins makes a server a member.
func joins(url, node string, adjust ...func(*server.Options)) func(*server.Options) {
	return func(o *server.Options) {
		o.Cluster.URL, o.Cluster.Node, o.FirstStart = url, node, true
		for _, f := range adjust {
			f(o)
		}
	}
}

// takeDay asks a member for one of the day until it answers by a lease. patient asks again when it is
// refused: the coordinator may be slow to answer the member.
func (s *service) takeDay(user string, patient bool) (given int) {
	var a answer
	for begun := time.Now(); time.Since(begun) < 30*time.Second; <-time.After(50 * time.Millisecond) {
		a = s.post("/v1/take", `{"attributes":{"user":"`+user+`"}}`)
		if a.status == http.StatusOK {
			return 1
		}
		if a.status == http.StatusTooManyRequests && strings.Contains(a.body, "is used up") && !patient {
			return 0
		}
	}
	s.t.Errorf("no answer by a lease came in 30 s: %d %s", a.status, a.body)
	return 0
}

// leads returns the member that says that it coordinates; nil = none does.
func leads(members []*service) *service {
	for _, s := range members {
		if strings.Contains(s.do(http.MethodGet, s.admin+"/metrics", "").body, "stint_cluster_leads 1\n") {
			return s
		}
	}
	return nil
}

// TestMembersShareALimit: whichever member is asked, a key has one bucket, also after the one that
// coordinates has stopped, and none of it is given twice.
func TestMembersShareALimit(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	url := "etcd://" + etcd.Addr() + "/one"
	var members []*service
	for i := range 3 {
		members = append(members, start(t, clusterLimits, joins(url, fmt.Sprint("n", i))))
	}
	given := 0
	for i := range 9 {
		given += members[i%3].takeDay("anna", true)
	}
	if given != 9 {
		t.Errorf("%d of 9 were given while 30 were free", given)
	}
	first := leads(members)
	if first == nil {
		t.Fatal("no member coordinates")
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	var left []*service
	for _, s := range members {
		if s != first {
			left = append(left, s)
		}
	}
	// What one has, the other gets only when it is not used. Both are asked, and then one alone: each may have a part of
	// the last token.
	for begun := time.Now(); given < 30 && time.Since(begun) < 30*time.Second; {
		given += left[0].takeDay("anna", false)
		if time.Since(begun) < 2*time.Second {
			given += left[1].takeDay("anna", false)
		}
	}
	for i := range 6 {
		given += left[i%2].takeDay("anna", false)
	}
	// The first handed on what was left, so that nothing is lost and nothing given twice.
	if given != 30 {
		t.Errorf("%d were given of 30 a day", given)
	}
	for begun := time.Now(); leads(left) == nil && time.Since(begun) < 30*time.Second; {
		<-time.After(50 * time.Millisecond)
	}
	if second := leads(left); second == nil {
		t.Error("no member coordinates after the first has stopped")
	}
	for _, s := range left {
		if a := s.do(http.MethodGet, s.admin+"/readyz", ""); a.status != http.StatusOK {
			t.Errorf("/readyz: %d %s", a.status, a.body)
		}
	}
}

// TestMembersWithTLS: members reach each other by certificates alone, or by tokens over TLS; a
// member without them is not served.
func TestMembersWithTLS(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	ca, dir := testca.New(), t.TempDir()
	cert, key := ca.Issue(testca.Names{Server: true}).Write(dir, "tls")
	mine, minesKey := ca.Issue(testca.Names{CommonName: "member"}).Write(dir, "member")
	authorities := testca.File(dir, "ca.crt", ca.PEM)
	var members []*service
	for i := range 2 {
		members = append(members, start(t, clusterLimits, joins("etcd://"+etcd.Addr()+"/tls", fmt.Sprint("n", i), func(o *server.Options) {
			o.GRPCTLS = server.TLSFiles{Cert: cert, Key: key, ClientCA: authorities}
			o.Peer = server.Peer{CA: authorities, Cert: mine, Key: minesKey}
		})))
	}
	for _, s := range members {
		s.takeDay("anna", true)
	}
	stranger := start(t, clusterLimits, joins("etcd://"+etcd.Addr()+"/tls", "n2", func(o *server.Options) {
		o.Peer = server.Peer{CA: authorities}
	}))
	if a := stranger.post("/v1/take", `{"attributes":{"user":"anna"}}`); a.status == http.StatusOK {
		t.Errorf("a member without a certificate was lent: %s", a.body)
	}
}

// TestMemberWithAnotherLeaseKey does not start, and says what to do.
func TestMemberWithAnotherLeaseKey(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	url, dir := "etcd://"+etcd.Addr()+"/key", t.TempDir()
	file := func(name string, keys ...string) string {
		for i, k := range keys {
			keys[i] = base64.StdEncoding.EncodeToString([]byte(strings.Repeat(k, 32)))
		}
		path := filepath.Join(dir, name)
		write(t, path, "# of all members\n"+strings.Join(keys, "\n")+"\n")
		return path
	}
	with := func(keys string) func(*server.Options) {
		return joins(url, "", func(o *server.Options) { o.Cluster.LeaseKeyFile = keys })
	}
	start(t, clusterLimits, with(file("a", "a")))
	start(t, clusterLimits, with(file("ba", "b", "a"))) // it was given the next key
	start(t, clusterLimits, with(file("b", "b")))       // and the others have it too
	for name, keys := range map[string]string{"another": file("c", "c"), "none": ""} {
		if err := startFails(t, with(keys)); err == nil || !strings.Contains(err.Error(), "another lease key") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// startFails returns why a server does not start. One whose backend is too slow to be asked in time does start, so it is
// stopped and started again.
func startFails(t *testing.T, adjust func(*server.Options)) error {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < time.Minute; {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Second, errors.New("it has started"))
		log := &buffer{}
		o := server.Options{HTTPAddr: "127.0.0.1:0", GRPCAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0", Logger: slog.New(slog.NewTextHandler(io.MultiWriter(log, stopOn{"does not answer yet", cancel}), nil))}
		adjust(&o)
		s, err := server.New(o)
		if err == nil {
			if err = s.Run(ctx); err == nil {
				err = context.Cause(ctx)
			}
		}
		cancel()
		if !strings.Contains(log.String(), "does not answer yet") {
			return err
		}
	}
	t.Fatal("its backend did not answer in time for a minute")
	return nil
}

// stopOn is a log that calls stop when a line has the text.
type stopOn struct {
	text string
	stop func()
}

func (s stopOn) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte(s.text)) {
		s.stop()
	}
	return len(line), nil
}

// TestClusterOptions: what is wrong is said before anything starts.
func TestClusterOptions(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	short := filepath.Join(t.TempDir(), "short")
	write(t, short, "c2hvcnQ=\n")
	for want, adjust := range map[string]func(*server.Options){
		"say of which with --cluster": func(o *server.Options) { o.Cluster.Node = "n" },
		"give it with --advertise": func(o *server.Options) {
			o.Cluster.URL, o.GRPCAddr, o.Insecure = "etcd://127.0.0.1:1", "0.0.0.0:0", true
		},
		"is not known":                  func(o *server.Options) { o.Cluster.URL = "zookeeper://127.0.0.1:1" },
		"short:1: not a lease key":      func(o *server.Options) { o.Cluster.URL, o.Cluster.LeaseKeyFile = "etcd://127.0.0.1:1", short },
		"cannot read the lease keys":    func(o *server.Options) { o.Cluster.URL, o.Cluster.LeaseKeyFile = "etcd://127.0.0.1:1", short+"er" },
		"with --lease-key-file, from a": func(o *server.Options) { o.Cluster.URL = "kubernetes://default/stint" },
		"want at least 20ms":            func(o *server.Options) { o.Cluster.URL, o.Cluster.TTL = "etcd://127.0.0.1:1", -1 },
	} {
		if err := startFails(t, adjust); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// TestDecisionsWithoutALeaseAreCounted: a member whose backend was never there answers by
// on_store_failure, and says so in the answer, in /readyz and in a metric.
func TestDecisionsWithoutALeaseAreCounted(t *testing.T) {
	t.Parallel()
	s := start(t, clusterLimits+"  - {name: open, match: {path: /open}, rate: 30/day, sharing: leased, on_store_failure: allow}\n", joins("etcd://127.0.0.1:1/nowhere", "n0"))
	for range 2 {
		if a := s.post("/v1/take", `{"attributes":{"path":"/open"}}`); a.status != http.StatusOK {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	for range 3 {
		if a := s.post("/v1/take", `{"attributes":{"user":"anna"}}`); a.status != http.StatusServiceUnavailable && !strings.Contains(a.body, "store_failure") {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	for _, line := range []string{
		`stint_decisions_total{limit="day",outcome="refused",reason="store_failure"} 3`,
		`stint_unlimited_total{limit="open",reason="no_coordinator"} 2`, `stint_unlimited_total{limit="day",reason="missing_key"} 2`,
	} {
		if a := s.do(http.MethodGet, s.admin+"/metrics", ""); !strings.Contains(a.body, line) {
			t.Errorf("no %s", line)
		}
	}
	const holes = `"unlimited":[{"name":"day","reason":"missing_key"},{"name":"open","reason":"no_coordinator"}]`
	if a := s.post("/v1/explain", `{"attributes":{"path":"/open"}}`); !strings.Contains(a.body, holes) {
		t.Errorf("explain: no %s in %s", holes, a.body)
	}
	if a := s.do(http.MethodGet, s.admin+"/readyz", ""); a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, "no member of the cluster coordinates") {
		t.Errorf("/readyz: %d %s", a.status, a.body)
	}
}
