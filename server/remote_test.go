package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/clusterurl"
	"github.com/stint-io/stint/internal/configstore"
	"github.com/stint-io/stint/internal/etcdtest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server"
	"github.com/stint-io/stint/split"
)

// pusher pushes to a backend what services follow.
type pusher struct {
	*configstore.Store
	t        *testing.T
	register cluster.Register
	url      string
}

func newPusher(t *testing.T, url string) *pusher {
	register, err := clusterurl.Open(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = register.Close() })
	return &pusher{configstore.New(register), t, register, url}
}

// rate pushes one limit for each user and returns the version.
func (p *pusher) rate(rate string) uint64 {
	return p.push("limits:\n  - {name: per-user, key: [user], rate: " + rate + "}\n")
}

// push makes a version of a file, whatever is in it.
func (p *pusher) push(text string) uint64 {
	p.t.Helper()
	m, err := p.Push(p.t.Context(), p.draft(text))
	if err != nil {
		p.t.Fatal(err)
	}
	return m.Version
}

func (*pusher) draft(text string) configstore.Draft {
	return configstore.Draft{Files: []configstore.File{{Name: "limits.yaml", Text: text}}, Author: "anna@host"}
}

// follows makes a server read its configuration from the backend.
func (p *pusher) follows(node, dir string) func(*server.Options) {
	return func(o *server.Options) {
		o.ConfigPaths, o.Cluster.Node, o.StateDir, o.FirstStart = []string{p.url}, node, dir, true
	}
}

// eventually waits until a service says something.
func (s *service) eventually(url string, parts ...string) {
	s.t.Helper()
	a := answer{}
	for begun := time.Now(); time.Since(begun) < 30*time.Second; <-time.After(20 * time.Millisecond) {
		a = s.do(http.MethodGet, url, "")
		missing := false
		for _, part := range parts {
			missing = missing || !strings.Contains(a.body, part)
		}
		if !missing {
			return
		}
	}
	s.t.Fatalf("%s does not say %q:\n%s", url, parts, a.body)
}

// logged fails the test unless the log has the text.
func (s *service) logged(text string) {
	s.t.Helper()
	if log := s.log.String(); !strings.Contains(log, text) {
		s.t.Errorf("the log does not have %q:\n%s", text, log)
	}
}

// of returns the numbers of a limit of one user.
func (s *service) of(user string) string {
	return s.post("/v1/explain", `{"attributes":{"user":"`+user+`"}}`).body
}

// TestConfigurationIsFollowed: what is pushed comes into force on each member, with what was used; what
// does not validate is kept out, and everybody can see why.
func TestConfigurationIsFollowed(t *testing.T) {
	t.Parallel()
	p := newPusher(t, "etcd://"+etcdtest.Start(t).Addr()+"/follow")
	p.rate("5/hour")
	var members []*service
	for _, node := range []string{"n0", "n1"} {
		members = append(members, start(t, "", p.follows(node, t.TempDir())))
	}
	for _, s := range members {
		if a := s.post("/v1/take", `{"attributes":{"user":"u"},"cost":4}`); a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	p.rate("9/hour")
	for _, s := range members {
		s.eventually(s.admin+"/readyz", "ready\nconfig version 2\n")
		if x := s.of("u"); !strings.Contains(x, `"used":4`) || !strings.Contains(x, "4 of 9 used") {
			t.Errorf("what was used is not, or the limit is not the new one: %s", x)
		}
	}
	for _, broken := range []struct{ text, why string }{
		{"limits:\n  - {name: per-user, raet: 1/s}\n", `limits.yaml:2:5: limit "per-user" has no rate (and 1 more)`},
		{"limits: []\n", "the configuration has no limits"},
		{"store: redis://127.0.0.1:1\nlimits:\n  - {name: per-user, key: [user], rate: 1/hour}\n", "restart to use the other"},
	} {
		version := p.push(broken.text)
		for _, s := range members {
			s.eventually(s.admin+"/readyz", fmt.Sprintf("degraded: config version 2 stays in force, version %d is refused: ", version), broken.why, "\nconfig version 2\n")
			s.eventually(s.admin+"/metrics", "stint_config_version 2\n", fmt.Sprintf("stint_config_refused_version %d\n", version), "stint_config_last_reload_successful 0\n")
			s.logged(fmt.Sprintf("version=%d", version))
			if x := s.of("u"); !strings.Contains(x, "4 of 9 used") {
				t.Errorf("version 2 is not in force: %s", x)
			}
		}
	}
	p.reported("n0", func(r configstore.Report) bool { return r.Version == 2 && r.Refused == 5 && r.Reason != "" })
	good := p.rate("7/hour")
	for _, s := range members {
		s.eventually(s.admin+"/readyz", fmt.Sprintf("ready\nconfig version %d\n", good))
		s.eventually(s.admin+"/metrics", "stint_config_refused_version 0\n", "stint_config_last_reload_successful 1\n", "stint_config_backend_up 1\n")
	}
	p.reported("n1", func(r configstore.Report) bool { return r.Version == good && r.Refused == 0 && r.Reason == "" })
	if err := members[1].stop(); err != nil {
		t.Error(err)
	}
	if all, err := p.Members(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("after one has stopped: %v %v", all, err)
	}
}

// reported waits for a member's report.
func (p *pusher) reported(node string, want func(configstore.Report) bool) {
	p.t.Helper()
	var all map[string]configstore.Report
	for begun := time.Now(); time.Since(begun) < 30*time.Second; <-time.After(20 * time.Millisecond) {
		var err error
		if all, err = p.Members(p.t.Context()); err == nil && want(all[node]) {
			return
		}
	}
	p.t.Fatalf("the reports are %+v", all)
}

// TestVersionThatDisappears: the one in force stays, and the next one is followed.
func TestVersionThatDisappears(t *testing.T) {
	t.Parallel()
	p := newPusher(t, "etcd://"+etcdtest.Start(t).Addr()+"/gone")
	p.rate("5/hour")
	dir := t.TempDir()
	s := start(t, "", p.follows("n", dir))
	head := p.remove("config/head")
	s.eventually(s.admin+"/readyz", "degraded: config version 1 stays in force: config: there is no configuration")
	p.write("config/head", head)
	s.eventually(s.admin+"/readyz", "ready\nconfig version 1\n")
	// A head that names what is not there.
	var h struct {
		Versions []map[string]any `json:"versions"`
	}
	if err := json.Unmarshal(head, &h); err != nil {
		t.Fatal(err)
	}
	h.Versions = append(h.Versions, map[string]any{"version": 2, "sha256": "x"})
	head, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	p.write("config/head", head)
	s.eventually(s.admin+"/readyz", "version 2 is refused: config: the record of version 2 is missing")
	p.rate("6/hour")
	s.eventually(s.admin+"/readyz", "ready\nconfig version 3\n")
	p.write("config/head", head) // the backend is set back
	s.eventually(s.admin+"/readyz", "version 2 is refused: config: the record of version 2 is missing")
	p.rate("7/hour")
	s.eventually(s.admin+"/readyz", "ready\nconfig version 4\n")
	// A start does with the copy until the record is back.
	record := p.remove("config/versions/4")
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s = start(t, "", p.follows("n", dir))
	s.eventually(s.admin+"/readyz", "config version 4 stays in force, version 4 is refused: config: the record of version 4 is missing")
	p.write("config/versions/4", record)
	s.eventually(s.admin+"/readyz", "ready\nconfig version 4\n")
	p.rate("8/hour")
	s.eventually(s.admin+"/readyz", "ready\nconfig version 5\n")
}

func (p *pusher) remove(key string) []byte {
	p.t.Helper()
	record, err := p.register.Read(p.t.Context(), key)
	if err == nil {
		_, err = p.register.Swap(p.t.Context(), key, record.Revision, nil)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return record.Value
}

func (p *pusher) write(key string, value []byte) {
	p.t.Helper()
	record, err := p.register.Read(p.t.Context(), key)
	if err == nil {
		_, err = p.register.Swap(p.t.Context(), key, record.Revision, value)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// TestBackendOfTheConfigurationIsGone: the version in force stays, also over a restart; a first start
// fails, and says why.
func TestBackendOfTheConfigurationIsGone(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	p := newPusher(t, "etcd://"+etcd.Addr()+"/away")
	if err := startFails(t, p.follows("n", "")); err == nil || !strings.Contains(err.Error(), "there is no configuration at "+p.url+": push one") {
		t.Errorf("with an unknown prefix: %v", err)
	}
	p.rate("5/hour")
	dir := t.TempDir()
	s := start(t, "", p.follows("n", dir))
	etcd.Kill()
	s.eventually(s.admin+"/readyz", "degraded: config version 1 stays in force, its backend does not answer")
	s.eventually(s.admin+"/metrics", "stint_config_backend_up 0\n", "stint_config_version 1\n")
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if err := startFails(t, p.follows("n", t.TempDir())); err == nil || !strings.Contains(err.Error(), "cannot be read, and there is no copy") {
		t.Errorf("a first start: %v", err)
	}
	s = start(t, "", p.follows("n", dir))
	s.eventually(s.admin+"/readyz", "config version 1 stays in force, its backend does not answer")
	s.logged("the configuration is from the copy of a former version")
	if x := s.of("u"); !strings.Contains(x, "0 of 5 used") {
		t.Errorf("from the copy: %s", x)
	}
	etcd.Restart()
	s.eventually(s.admin+"/readyz", "ready\nconfig version 1\n")
	p.rate("6/hour")
	s.eventually(s.admin+"/readyz", "ready\nconfig version 2\n")
	// A version that the next start cannot enforce leaves the one before in force as well.
	p.push("limits: {}\n")
	s.eventually(s.admin+"/readyz", "version 3 is refused")
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s = start(t, "", p.follows("n", dir))
	s.eventually(s.admin+"/readyz", "config version 2 stays in force, version 3 is refused", "\nconfig version 2\n")
	s.eventually(s.admin+"/metrics", "stint_config_last_reload_successful 0\n")
}

// TestConfigurationOptions: what is wrong is said before anything starts.
func TestConfigurationOptions(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for want, adjust := range map[string]func(*server.Options){
		"in files, or at one URL": func(o *server.Options) { o.ConfigPaths = []string{"a.yaml", "etcd://127.0.0.1:1"} },
		"at one URL":              func(o *server.Options) { o.ConfigPaths = []string{"etcd://127.0.0.1:1", "etcd://127.0.0.1:1"} },
		"--config: cluster: the scheme of the URL is not known": func(o *server.Options) { o.ConfigPaths = []string{"zookeeper://127.0.0.1:1"} },
		"--node is": func(o *server.Options) { o.ConfigPaths, o.Cluster.Node = []string{"etcd://127.0.0.1:1"}, "a/b" },
	} {
		if err := startFails(t, adjust); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// TestReloadAsksTheBackend: SIGHUP and /admin/reload try the latest version again, and say why not.
func TestReloadAsksTheBackend(t *testing.T) {
	t.Parallel()
	p := newPusher(t, "etcd://"+etcdtest.Start(t).Addr()+"/reload")
	p.rate("5/hour")
	s := start(t, "", p.follows("n", ""))
	if a := s.do(http.MethodPost, s.admin+"/admin/reload", ""); a.status != http.StatusOK {
		t.Errorf("%d %s", a.status, a.body)
	}
	p.push("limits:\n  - {name: x}\n")
	if a := s.do(http.MethodPost, s.admin+"/admin/reload", ""); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, `limit "x" has no rate`) {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// TestSplitFollowsTheConfiguration: a program that splits a limit by itself has the total and the number of
// instances from a service, and follows what is pushed.
func TestSplitFollowsTheConfiguration(t *testing.T) {
	t.Parallel()
	p := newPusher(t, "etcd://"+etcdtest.Start(t).Addr()+"/split")
	of := func(rate, instances int) string {
		return fmt.Sprintf("limits:\n  - {name: provider, rate: %d/s, sharing: split, split: {instances: %d}}\n", rate, instances)
	}
	p.push(of(1000, 4))
	s := start(t, "", p.follows("n", ""))
	source := split.Source{Addresses: []string{s.http}, Limit: "provider"}
	own := split.Part{First: 1, Weight: 1}
	terms, err := source.Terms(t.Context(), own)
	if err != nil || terms.Total != limit.PerSecond(1000) || terms.Part != split.Instance(1, 4) {
		t.Fatalf("%+v %v", terms, err)
	}
	l, err := split.New(terms, split.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	changes, ended := make(chan split.Terms, 10), make(chan error, 1)
	go func() {
		ended <- source.Follow(ctx, l, own, func(terms split.Terms, err error) {
			if err != nil {
				t.Error(err)
			}
			changes <- terms
		})
	}()
	p.push(of(500, 8))
	if got := <-changes; got.Total != limit.PerSecond(500) || got.Part != split.Instance(1, 8) {
		t.Errorf("%+v", got)
	}
	p.push(of(501, 8))
	if got := <-changes; got.Total != limit.PerSecond(501) {
		t.Errorf("%+v", got)
	}
	s.answersAtAChange(p, of)
	stop()
	<-ended
	p.push(of(501, 8))
	s.eventually(s.http+"/v1/limits/provider", `"instances":8`)
	// What is asked wrongly.
	for path, want := range map[string]int{"/v1/limits/none": 404, "/v1/limits/": 404, "/v1/limits/provider?wait=x": 400} {
		if a := s.do(http.MethodGet, s.http+path, ""); a.status != want {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	if a := s.post("/v1/limits/provider", ""); a.status != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", a.status)
	}
	a := s.do(http.MethodGet, s.http+"/v1/limits/provider", "")
	if want := `{"name":"provider","algorithm":"token_bucket","sharing":"split","rate":{"count":501,"period_ns":1000000000},"burst":501,"split":{"instances":8,"weight":1}}` + "\n"; a.body != want {
		t.Errorf("%s, want %s", a.body, want)
	}
	if a := s.do(http.MethodGet, s.http+"/v1/limits/provider", "", "If-None-Match", a.header.Get("ETag")); a.status != http.StatusNotModified || a.body != "" {
		t.Errorf("%d %q", a.status, a.body)
	}
}

// answersAtAChange: a question that waits is answered by the change: not before, and not when its five
// seconds are over.
func (s *service) answersAtAChange(p *pusher, of func(rate, instances int) string) {
	s.t.Helper()
	soonest := time.Minute
	for try := range 3 {
		tag := s.do(http.MethodGet, s.http+"/v1/limits/provider", "").header.Get("ETag")
		pushed := make(chan time.Time, 1)
		go func() {
			<-time.After(200 * time.Millisecond)
			if _, err := p.Push(s.t.Context(), p.draft(of(501, 9+try))); err != nil {
				s.t.Error(err)
			}
			pushed <- time.Now()
		}()
		a, questions := answer{status: http.StatusNotModified}, 0
		for ; a.status == http.StatusNotModified; questions++ {
			a = s.do(http.MethodGet, s.http+"/v1/limits/provider?wait=5s", "", "If-None-Match", tag)
		}
		soonest = min(soonest, time.Since(<-pushed))
		if a.status != http.StatusOK || !strings.Contains(a.body, fmt.Sprintf(`"instances":%d,`, 9+try)) || questions > 5 {
			s.t.Errorf("after %d questions: %d %s", questions, a.status, a.body)
		}
	}
	if soonest > 2500*time.Millisecond {
		s.t.Errorf("no answer of three came sooner than %v after its change", soonest)
	}
}
