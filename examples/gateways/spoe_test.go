//go:build linux

package gateways_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// startSPOE starts HAProxy with the published configuration for SPOE; closed = with the line that it has for it.
func startSPOE(closed bool) func(*testing.T, *service, *application) string {
	return func(t *testing.T, s *service, app *application) string {
		listen := freeAddrs(t, 1)[0]
		dir := render(t, "haproxy", map[string]string{
			"127.0.0.1:8083": s.spoe, "127.0.0.1:9000": app.addr, "100ms": s.timeout, "127.0.0.1:8000": listen,
		})
		if closed {
			name := filepath.Join(dir, "haproxy-spoe.cfg")
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			const line = "# http-request return status 503"
			if strings.Count(string(text), line) != 1 {
				t.Fatalf("no line to fail closed in %s", name)
			}
			writeFile(t, name, strings.Replace(string(text), line, line[2:], 1))
		}
		start(t, syscall.SIGTERM, "haproxy", "-db", "-C", dir, "-f", "haproxy-spoe.cfg").await(t, listen)
		return listen
	}
}
