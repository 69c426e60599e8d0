package stint_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pages returns the module's Markdown files with their text.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "node_modules"):
			return fs.SkipDir
		case entry.IsDir() || filepath.Ext(name) != ".md":
			return nil
		}
		text, err := os.ReadFile(name)
		found[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if found["README.md"] == "" {
		t.Fatal("found no README.md: the search is wrong")
	}
	return found
}

// TestProvenByTests: each test that a page names as proof exists.
func TestProvenByTests(t *testing.T) {
	declared := map[string]bool{}
	for _, s := range readSources(t) {
		for _, decl := range s.functions() {
			if s.test {
				declared[decl] = true
			}
		}
	}
	span := regexp.MustCompile("`[^`\n]+`")
	named := regexp.MustCompile(`\b(?:Test|Fuzz|Example)[A-Z][A-Za-z0-9]*`)
	found := 0
	for name, text := range pages(t) {
		for _, code := range span.FindAllString(text, -1) {
			for _, test := range named.FindAllString(code, -1) {
				found++
				if !declared[test] {
					t.Errorf("%s names the test %s, which does not exist", name, test)
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("the pages name %d tests only: the search is wrong", found)
	}
}

// TestDependenciesAreDecided: each module that go.mod requires for our own code has a
// page in docs/decisions, each page is in the table, and no page or line of the layers
// speaks of a module that is not required.
func TestDependenciesAreDecided(t *testing.T) {
	gomod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	required := map[string]bool{}
	for line := range strings.SplitSeq(string(gomod), "\n") {
		if m := regexp.MustCompile(`^\t(\S+) v\S+$`).FindStringSubmatch(line); m != nil {
			required[m[1]] = true
		}
	}
	if len(required) < 5 {
		t.Fatalf("found %d requirements only: the search is wrong", len(required))
	}
	decisions, table, found := "", "", 0
	for name, text := range pages(t) {
		if filepath.Dir(name) != filepath.Join("docs", "decisions") {
			continue
		}
		if filepath.Base(name) == "README.md" {
			table = text
			continue
		}
		found++
		decisions += text
	}
	for name := range required {
		// A page may call genproto by its last elements.
		elements := strings.Split(name, "/")
		if short := strings.Join(elements[1:], "/"); !strings.Contains(decisions, "`"+name+"`") && !strings.Contains(decisions, "`"+short+"`") {
			t.Errorf("go.mod requires %s, of which no page in docs/decisions speaks", name)
		}
	}
	if listed := strings.Count(table, "\n| ["); listed != found {
		t.Errorf("the table in docs/decisions/README.md has %d pages, there are %d", listed, found)
	}
	order, err := parseLattice(policy)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range order.names() {
		if external(name) && !required[name] {
			t.Errorf("the policy of layers_test.go names %s, which go.mod does not require", name)
		}
	}
}

// TestServicePage: the reference of the service has every flag of serve, every
// metric, every reason and every option of a decision endpoint, and no flag or metric
// that there is not.
func TestServicePage(t *testing.T) {
	page := pages(t)[filepath.Join("docs", "reference", "service.md")]
	collect := func(file, pattern, prefix string) map[string]bool {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(src), -1) {
			names[prefix+m[1]] = true
		}
		if len(names) < 3 {
			t.Fatalf("found %d names only in %s: the search is wrong", len(names), file)
		}
		return names
	}
	flags := collect("cmd/stint/serve.go", `VarP?\((?:&|\(\*)[^,]+, "([a-z-]+)"`, "--")
	maps.Copy(flags, collect("cmd/stint/security.go", `Var\(&[^,]+, "([a-z-]+)"`, "--"))
	maps.Copy(flags, collect("cmd/stint/envoy.go", `Var\(&[^,]+, "([a-z-]+)"`, "--"))
	maps.Copy(flags, collect("cmd/stint/cluster.go", `Var\(&[^,]+, "([a-z-]+)"`, "--"))
	maps.Copy(flags, collect("cmd/stint/parent.go", `Var\(&[^,]+, "([a-z-]+)"`, "--"))
	metrics := collect("server/internal/admin/metrics.go", `desc\("([a-z_]+)"`, "stint_")
	maps.Copy(metrics, collect("server/internal/admin/instances.go", `desc\("([a-z_]+)"`, "stint_"))
	maps.Copy(metrics, collect("server/internal/admin/security.go", `desc\("([a-z_]+)"`, "stint_"))
	maps.Copy(metrics, collect("server/internal/admin/cluster.go", `desc\("([a-z_]+)"`, "stint_"))
	maps.Copy(metrics, collect("server/internal/admin/config.go", `desc\("([a-z_]+)"`, "stint_"))
	maps.Copy(metrics, collect("server/internal/admin/counts.go", `desc\("([a-z_]+)"`, "stint_"))
	maps.Copy(metrics, collect("server/internal/admin/identity.go", `desc\("([a-z_]+)"`, "stint_"))
	metrics["stint_refused_connections_total"] = true // server/connections.go
	metrics["stint_grpc_refused_total"] = true        // server/refusedcalls.go
	maps.Copy(metrics, collect("server/internal/admin/bans.go", `desc\("([a-z_]+)"`, "stint_"))
	maps.Copy(metrics, collect("server/estimates.go", `NewDesc\("stint_([a-z_]+)"`, "stint_"))
	maps.Copy(metrics, collect("server/internal/resp/figures.go", `NewDesc\("(stint_[a-z_]+)"`, ""))
	metrics["stint_request_duration_seconds"] = true // server/internal/latency has it alone
	metrics["stint_otlp_spans_total"] = true         // internal/telemetry
	maps.Copy(metrics, collect("server/internal/spoe/figures.go", `NewDesc\("(stint_[a-z_]+)"`, ""))
	maps.Copy(metrics, collect("server/internal/rlqs/figures.go", `NewDesc\("(stint_[a-z_]+)"`, ""))
	reasons := collect("limit/verdict.go", `Reason[A-Z]\w+: +"([a-z_]+)"`, "")
	options := collect("server/internal/gate/route.go", `case name == "([a-z]+)"`, "")
	for _, names := range []map[string]bool{flags, metrics, reasons, options} {
		for name := range names {
			if !regexp.MustCompile("`" + name + "[`={]").MatchString(page) {
				t.Errorf("docs/reference/service.md lacks %s", name)
			}
		}
	}
	for _, m := range regexp.MustCompile("`(--[a-z-]+|stint_[a-z_]+)[`{]").FindAllStringSubmatch(page, -1) {
		if !flags[m[1]] && !metrics[m[1]] {
			t.Errorf("docs/reference/service.md names %s, which there is not", m[1])
		}
	}
}

// TestProxyPage: the reference of the proxy has every flag and metric, and none that there is not.
func TestProxyPage(t *testing.T) {
	page := pages(t)[filepath.Join("docs", "reference", "proxy.md")]
	for file, pattern := range map[string]string{
		"cmd/stint/proxy.go": `VarP?\((?:&|\(\*|p\.)[^"]+, "([a-z-]+)"`, "proxy/metrics.go": `NewDesc\("(stint_[a-z_]+)"`, "proxy/screen.go": `http\.Status\w+, "([a-z]+)"`,
	} {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(src), -1) {
			names[m[1]] = true
			if !regexp.MustCompile("`(?:--)?" + m[1] + "`").MatchString(page) {
				t.Errorf("docs/reference/proxy.md lacks %s of %s", m[1], file)
			}
		}
		if len(names) < 5 {
			t.Errorf("found %d names only in %s: the search is wrong", len(names), file)
		}
		kind := map[string]string{"cmd/stint/proxy.go": "`--([a-z-]+)`", "proxy/metrics.go": "`(stint_[a-z_]+)`"}[file]
		for _, m := range regexp.MustCompile(kind).FindAllStringSubmatch(page, -1) {
			if kind != "" && !names[m[1]] {
				t.Errorf("docs/reference/proxy.md names %s, which is not in %s", m[1], file)
			}
		}
	}
}
