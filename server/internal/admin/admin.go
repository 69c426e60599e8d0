// Package admin is what operators and their tools look at: metrics, health,
// readiness, reload, and profiles if they are wanted. Nothing here belongs on a
// port that strangers reach.
package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Options are what the handler serves.
type Options struct {
	// Metrics is what /metrics shows.
	Metrics prometheus.Gatherer
	// Instances is what /metrics/instances shows; nil = there is none.
	Instances prometheus.Gatherer
	// Ready says whether the service should be sent requests, and in a line why
	// not, or what is amiss all the same.
	Ready func() (ready bool, text string)
	// Version says which version of the configuration is in force, in a line of its own; nil, or ""
	// = it has none.
	Version func() string
	// Leases answers GET /v1/leases, which shows keys; nil = there is none.
	Leases http.Handler
	// Bans answers GET and DELETE /v1/bans, which show and take keys; nil = there are none.
	Bans http.Handler
	// Keys answers what is below /v1/admin/keys, and GET /v1/admin/audit; nil = there is none.
	Keys http.Handler
	// Customers answers GET /v1/admin/plans, and what is below /v1/admin/customers; nil = there is none.
	Customers http.Handler
	// RLConfig answers GET /rlconfig; nil = there is none.
	RLConfig http.Handler
	// UI answers what is below /ui, which browsers reach with a session, and GET /v1/top; nil = there is none.
	UI http.Handler
	// Reload loads the configuration again. The error says what is wrong with it.
	Reload func() error
	// Token, when set, must come as "Authorization: Bearer TOKEN" with every
	// request but those to /healthz and /readyz.
	Token string
	// Authorize says, where there is no Token or another came, whether a request may go on; 0 = yes,
	// or the status and text of the refusal. nil = the Token alone counts.
	Authorize func(*http.Request) (status int, text string)
	// Hosts are the names by which the port may be addressed, apart from
	// localhost and IP addresses. Any other name in the Host field is refused:
	// a hostile page may point its own name at this machine.
	Hosts []string
	// Profiles serves /debug/pprof/.
	Profiles bool
}

// New returns the handler.
func New(o Options) http.Handler {
	mux, open := http.NewServeMux(), http.NewServeMux()
	mux.Handle("/healthz", open)
	mux.Handle("/readyz", open)
	open.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	open.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		version := ""
		if o.Version != nil {
			version = o.Version()
		}
		if version != "" {
			version = "\n" + version
		}
		switch ready, text := o.Ready(); {
		case !ready:
			http.Error(w, "not ready: "+text+version, http.StatusServiceUnavailable)
		case text != "":
			fmt.Fprintln(w, "degraded: "+text+version)
		default:
			fmt.Fprintln(w, "ready"+version)
		}
	})
	guarded := http.NewServeMux()
	guarded.Handle("GET /metrics", promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	if o.Instances != nil {
		guarded.Handle("GET /metrics/instances", promhttp.HandlerFor(o.Instances, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	}
	guarded.HandleFunc("POST /admin/reload", func(w http.ResponseWriter, _ *http.Request) {
		if err := o.Reload(); err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		fmt.Fprintln(w, "reloaded")
	})
	if o.Leases != nil {
		guarded.Handle("GET /v1/leases", o.Leases)
	}
	if o.Bans != nil {
		guarded.Handle("/v1/bans", o.Bans)
	}
	if o.Keys != nil {
		guarded.Handle("/v1/admin/keys", o.Keys)
		guarded.Handle("/v1/admin/keys/", o.Keys)
		guarded.Handle("GET /v1/admin/audit", o.Keys)
	}
	if o.Customers != nil {
		guarded.Handle("GET /v1/admin/plans", o.Customers)
		guarded.Handle("/v1/admin/customers", o.Customers)
	}
	if o.RLConfig != nil {
		guarded.Handle("GET /rlconfig", o.RLConfig)
	}
	if o.Profiles {
		guarded.HandleFunc("GET /debug/pprof/", pprof.Index)
		guarded.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		guarded.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		guarded.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		guarded.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	if o.UI != nil {
		guarded.Handle("GET /v1/top", o.UI)
		dashboard := newSessions(permit(o.Token, o.Authorize), o.UI)
		mux.Handle("/ui", dashboard)
		mux.Handle("/ui/", dashboard)
	}
	mux.Handle("GET /{$}", http.RedirectHandler("/ui", http.StatusSeeOther))
	for _, path := range []string{"/v1/take", "/v1/explain", "/v1/finish", "/v1/reserve", "/v1/gate/", "/v1/usage", "/json"} {
		guarded.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "requests are decided on the HTTP port: this is the admin port, with the dashboard at /ui and metrics at /metrics", http.StatusNotFound)
		})
	}
	mux.Handle("/", requireToken(permit(o.Token, o.Authorize), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := guarded.Handler(r); pattern == "" {
			w = &notFound{ResponseWriter: w}
		}
		guarded.ServeHTTP(w, r)
	})))
	return requireHost(o.Hosts, http.NewCrossOriginProtection().Handler(mux))
}

// notFound says where pages are in place of "404 page not found".
type notFound struct {
	http.ResponseWriter
	said bool
}

// WriteHeader implements [http.ResponseWriter].
func (w *notFound) WriteHeader(status int) {
	w.ResponseWriter.WriteHeader(status)
	if status == http.StatusNotFound {
		w.said = true
		_, _ = io.WriteString(w.ResponseWriter, "no such page on the admin port: the dashboard is at /ui, metrics at /metrics, leases at /v1/leases and bans at /v1/bans\n")
	}
}

// Write implements [io.Writer].
func (w *notFound) Write(p []byte) (int, error) {
	if w.said {
		return len(p), nil
	}
	return w.ResponseWriter.Write(p)
}

// permit says who may go on; nil = everybody.
func permit(token string, authorize func(*http.Request) (int, string)) permission {
	if token == "" && authorize == nil {
		return nil
	}
	want := sha256.Sum256([]byte(token))
	return func(r *http.Request) (status int, text string) {
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		// Sums of equal length compare in the same time whatever was given.
		have := sha256.Sum256([]byte(given))
		switch {
		case token != "" && ok && subtle.ConstantTimeCompare(have[:], want[:]) == 1:
			return 0, ""
		case authorize != nil:
			return authorize(r)
		}
		return http.StatusUnauthorized, "the admin token is missing or wrong"
	}
}

func requireToken(permit permission, next http.Handler) http.Handler {
	if permit == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, text := permit(r)
		if status == 0 {
			next.ServeHTTP(w, r)
			return
		}
		if status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		http.Error(w, text, status)
	})
}

func requireHost(names []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !HostAllowed(r.Host, names) {
			http.Error(w, "this name is not allowed here: use an IP address or localhost, or allow the name", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// HostAllowed reports whether host, as it stands in a request, is an IP address,
// localhost, one of the names, or missing.
func HostAllowed(host string, names []string) bool {
	if host == "" {
		// Probes that speak HTTP/1.0 send none. Browsers always do, with the
		// name that a hostile page used.
		return true
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
	if _, err := netip.ParseAddr(host); err == nil || host == "localhost" {
		return true
	}
	for _, n := range names {
		if host == strings.ToLower(n) {
			return true
		}
	}
	return false
}
