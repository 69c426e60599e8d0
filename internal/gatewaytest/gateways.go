//go:build linux

package gatewaytest

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// StartNginx runs nginx with the configuration in folder, which is that of examples/gateways/nginx.
// It returns the address at which it listens.
func StartNginx(t testing.TB, folder string, s *Service, app *Application) string {
	t.Helper()
	listen := FreeAddrs(t, 1)[0]
	site, state := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(site, "static"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(site, "static", "index.html"), []byte("the index"), 0o644); err != nil {
		t.Fatal(err)
	}
	readableByAll(t, site)
	dir := Render(t, folder, map[string]string{
		"127.0.0.1:8080": s.HTTP, "127.0.0.1:9000": app.Addr, "100ms": s.Timeout, "127.0.0.1:8000": listen,
		"/run/stint-nginx": state, "/srv/stint-example": site,
	})
	Start(t, syscall.SIGTERM, "nginx", "-p", state, "-c", filepath.Join(dir, "nginx.conf"), "-g", "daemon off;").
		Await(t, listen)
	return listen
}

// StartHAProxy runs HAProxy with haproxy.cfg in folder, which asks by Lua.
func StartHAProxy(t testing.TB, folder string, s *Service, app *Application) string {
	t.Helper()
	a := FreeAddrs(t, 2)
	_, adminPort, _ := net.SplitHostPort(s.Admin)
	dir := Render(t, folder, map[string]string{
		"127.0.0.1:8080": s.HTTP, "127.0.0.1:9000": app.Addr, "100ms": s.Timeout,
		"127.0.0.1:8000": a[0], "127.0.0.1:8001": a[1], "check port 8082": "check port " + adminPort,
	})
	// -C: lua-load is relative to the folder of the configuration.
	Start(t, syscall.SIGTERM, "haproxy", "-db", "-C", dir, "-f", "haproxy.cfg").Await(t, a[0])
	return a[0]
}

// StartSPOE runs HAProxy with haproxy-spoe.cfg in folder, which asks by SPOE; closed = with the line that it has
// for failing closed.
func StartSPOE(t testing.TB, folder string, closed bool, s *Service, app *Application) string {
	t.Helper()
	listen := FreeAddrs(t, 1)[0]
	dir := Render(t, folder, map[string]string{
		"127.0.0.1:8083": s.SPOE, "127.0.0.1:9000": app.Addr, "100ms": s.Timeout, "127.0.0.1:8000": listen,
	})
	if closed {
		name := filepath.Join(dir, "haproxy-spoe.cfg")
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		const line = "# http-request return status 503"
		if strings.Count(string(text), line) != 1 {
			t.Fatalf("%s has no line for failing closed", name)
		}
		if err := os.WriteFile(name, []byte(strings.Replace(string(text), line, line[2:], 1)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	Start(t, syscall.SIGTERM, "haproxy", "-db", "-C", dir, "-f", "haproxy-spoe.cfg").Await(t, listen)
	return listen
}

// StartCaddy runs Caddy with a Caddyfile in folder.
func StartCaddy(t testing.TB, folder, file string, s *Service, app *Application) string {
	t.Helper()
	listen := FreeAddrs(t, 1)[0]
	dir := Render(t, folder, map[string]string{
		"127.0.0.1:8080": s.HTTP, "127.0.0.1:9000": app.Addr, "100ms": s.Timeout, "127.0.0.1:8000": listen,
	})
	Start(t, syscall.SIGTERM, "caddy", "run", "--adapter", "caddyfile", "--config", filepath.Join(dir, file)).
		Await(t, listen)
	return listen
}

// StartTraefik runs the Traefik at binary with dynamic.yml in folder, and a static configuration that has an
// entry point.
func StartTraefik(t testing.TB, binary, folder string, s *Service, app *Application) string {
	t.Helper()
	listen := FreeAddrs(t, 1)[0]
	dir := Render(t, folder, map[string]string{"127.0.0.1:8080": s.HTTP, "127.0.0.1:9000": app.Addr})
	static := filepath.Join(t.TempDir(), "traefik.yml")
	text := fmt.Sprintf("entryPoints: {web: {address: %q}}\nproviders: {file: {filename: %q}}\n", listen, filepath.Join(dir, "dynamic.yml"))
	if err := os.WriteFile(static, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	Start(t, syscall.SIGTERM, binary, "--configFile="+static).Await(t, listen)
	// It listens before it has read its routes, and answers 404 until then.
	Eventually(t, "the routes of Traefik", func() bool {
		res, err := http.Get("http://" + listen + "/ready")
		return err == nil && res.Body.Close() == nil && res.StatusCode != http.StatusNotFound
	})
	return listen
}

// StartEnvoy runs the Envoy at binary with a file in folder. It asks further services over gRPC as well.
func StartEnvoy(t testing.TB, binary, folder, file string, s *Service, app *Application, further ...*Service) string {
	t.Helper()
	listen := FreeAddrs(t, 1)[0]
	port := func(addr string) string {
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		return "port_value: " + port
	}
	timeout, err := time.ParseDuration(s.Timeout)
	if err != nil {
		t.Fatal(err)
	}
	dir := Render(t, folder, map[string]string{
		"port_value: 8000": port(listen), "port_value: 9000": port(app.Addr), "port_value: 8080": port(s.HTTP), "port_value: 8081": port(s.GRPC),
		" timeout: 0.1s": fmt.Sprintf(" timeout: %gs", timeout.Seconds()),
	})
	name := filepath.Join(dir, file)
	if len(further) > 0 {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for line := range strings.Lines(string(text)) {
			lines = append(lines, line)
			if strings.Contains(line, "- endpoint:") && strings.Contains(line, port(s.GRPC)) {
				for _, f := range further {
					lines = append(lines, strings.Replace(line, port(s.GRPC), port(f.GRPC), 1))
				}
			}
		}
		if err := os.WriteFile(name, []byte(strings.Join(lines, "")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	RunEnvoy(t, binary, name, listen)
	return listen
}

// AddQuotaMatcher returns a copy of a folder with quota.yaml in which a matcher comes before the others. indent is how
// many columns of the matcher's lines are left out.
func AddQuotaMatcher(t testing.TB, folder, matcher string, indent int) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "quota.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const at = "                          matchers:\n"
	if strings.Count(string(text), at) != 1 {
		t.Fatal("quota.yaml has other matchers")
	}
	var lines strings.Builder
	for line := range strings.Lines(matcher) {
		lines.WriteString(strings.Repeat(" ", 28) + line[min(indent, len(line)-1):])
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	// The copy has the permissions of the original, which may be read-only.
	if err := os.Remove(filepath.Join(dir, "quota.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "quota.yaml"), []byte(strings.Replace(string(text), at, at+lines.String(), 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// RunEnvoy runs the Envoy at binary with a configuration, and waits until it listens.
func RunEnvoy(t testing.TB, binary, config, listen string) *Process {
	t.Helper()
	p := Start(t, syscall.SIGKILL, binary, "-c", config, "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning")
	p.Await(t, listen)
	return p
}

// readableByAll lets nginx's worker, which does not run as root, into a folder of the test's.
func readableByAll(t testing.TB, dir string) {
	t.Helper()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
