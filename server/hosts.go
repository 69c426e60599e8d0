package server

import (
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/lograte"
	"github.com/stint-io/stint/server/internal/admin"
	"github.com/stint-io/stint/server/internal/gate"
)

// anyHost, among the configured names, allows every name.
const anyHost = "*"

// ownHosts refuses requests that address the service by a name that is not its own.
// A page in a user's browser can point its own name at this machine, and is then, to
// the browser, of the same origin as the service (DNS rebinding). That name is one of
// the public domain name system: IP addresses, names without a dot and names below
// privateDomains are the service's own, the machine's name is, and what is configured.
//
// A gateway sends the service's own name, too, as a page could also describe its requests
// as gateways do. /healthz and /healthcheck are left out: they show nothing else, and
// Envoy's health checks name the cluster.
func ownHosts(configured []string, o *Options, next http.Handler) http.Handler {
	names := configured
	if name, err := os.Hostname(); err == nil {
		names = append([]string{name}, configured...)
	}
	for _, n := range configured {
		if n == anyHost {
			return next
		}
	}
	var logged lograte.Minute
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" || r.URL.Path == "/healthcheck" || !mayBePublic(r.Host) || admin.HostAllowed(r.Host, names) {
			next.ServeHTTP(w, r)
			return
		}
		if logged.Allow(time.Now()) {
			o.Logger.Warn("a request was refused because it addressed the service by a name that is not its own: allow the name with --http-host if it is",
				"host", r.Host[:min(len(r.Host), 100)])
		}
		const text = "this name is not one of the service: use an IP address or localhost, or allow the name with --http-host"
		if strings.HasPrefix(r.URL.Path, gate.Prefix) {
			gate.Refuse(w, r, http.StatusMisdirectedRequest, text)
			return
		}
		answer.WriteError(w, http.StatusMisdirectedRequest, text)
	})
}

// privateDomains are those below which no name can be registered: RFC 6761, ICANN's
// resolution of 2024-07-29, and what Kubernetes serves inside of a cluster.
var privateDomains = []string{".localhost", ".internal", ".svc", ".cluster.local"}

// mayBePublic reports whether a name may be one of the public domain name system. A dot at
// the end only says that the name is complete.
func mayBePublic(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return strings.Contains(host, ".") && !slices.ContainsFunc(privateDomains, func(domain string) bool { return strings.HasSuffix(host, domain) })
}
