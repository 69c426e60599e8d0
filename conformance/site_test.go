package conformance_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stint-io/stint/internal/builttest"

	"github.com/stint-io/stint/internal/gatewaytest"
	"github.com/stint-io/stint/internal/redistest"
)

// site is one running service, with its counters in one place, and what the ways need beside it.
type site struct {
	sharing string
	group   group
	config  string // the limits file
	store   string // the value of store:
	app     *gatewaytest.Application
	service *gatewaytest.Service
	resp    string
	holds   *holds
	redis   *redistest.Server // of the sharing redis
}

var sharings = []string{"memory", "file", "redis", "leases"}

// binary is stint, built once. Traefik and Envoy come from a cache.
var binary, traefik, envoy string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "stint-conformance-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if binary, err = builttest.Stint(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for name, to := range map[string]*string{"traefik": &traefik, "envoy": &envoy} {
		path, err := exec.Command("../scripts/" + name).Output()
		if err != nil {
			fmt.Fprintf(os.Stderr, "scripts/%s: %v\n", name, err)
			os.Exit(1)
		}
		*to = strings.TrimSpace(string(path))
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// configuration returns the limits file of all scenarios.
func configuration(list []scenario, sharing, store string, reloaded bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "store: %s\n", store)
	leased := ""
	if sharing == "leases" {
		leased = ", sharing: leased"
	}
	for _, sc := range list {
		b.WriteString(strings.ReplaceAll(sc.more, " SHARED", leased))
	}
	if !slices.ContainsFunc(list, func(sc scenario) bool { return sc.limits != "" }) {
		return b.String()
	}
	b.WriteString("limits:\n")
	for _, sc := range list {
		text := sc.limits
		if reloaded && sc.reloaded != "" {
			text = sc.reloaded
		}
		if sc.notShared["leases"] != "" {
			text = strings.ReplaceAll(text, " SHARED", "")
		}
		text = strings.ReplaceAll(text, " SHARED", leased)
		for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
			if line != "" {
				fmt.Fprintf(&b, "  %s\n", line)
			}
		}
	}
	return b.String()
}

// start starts a service for a sharing.
func start(t *testing.T, sharing string, of group) *site {
	t.Helper()
	s := &site{sharing: sharing, group: of, store: "memory", app: gatewaytest.StartApplication(t)}
	var args []string
	switch sharing {
	case "file":
		args = []string{"--sync", "always"}
	case "redis":
		s.redis = redistest.Start(t)
		s.store = s.redis.URL() + "?timeout=5s"
		if of.name == failedGroup {
			s.store = s.redis.URL() + "?instances=2&timeout=50ms"
		}
	}
	s.holds = hold(s.app)
	if of.name == restartGroup {
		args = append(args, "--state-dir", t.TempDir())
	}
	s.config = filepath.Join(t.TempDir(), "limits.yaml")
	s.write(t, false)
	s.resp = gatewaytest.FreeAddrs(t, 1)[0]
	s.service = gatewaytest.StartService(t, binary, s.config, append(args, "--resp", s.resp, "--trusted-proxy", "127.0.0.0/8")...)
	if !of.unready {
		gatewaytest.AwaitReady(t, s.service.Admin)
	}
	return s
}

// scenarios are those of the site's group.
func (s *site) scenarios() []scenario {
	return slices.DeleteFunc(scenarios(), func(sc scenario) bool { return sc.group != s.group.name })
}

// write writes the limits file, before or after the change.
func (s *site) write(t *testing.T, reloaded bool) {
	t.Helper()
	text := configuration(s.scenarios(), s.sharing, s.store, reloaded)
	if err := os.WriteFile(s.config+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.config+".new", s.config); err != nil {
		t.Fatal(err)
	}
}

// process starts a further program that ends with the test.
func (s *site) process(t *testing.T, args ...string) *gatewaytest.Process {
	t.Helper()
	return gatewaytest.Start(t, syscall.SIGKILL, binary, args...)
}
