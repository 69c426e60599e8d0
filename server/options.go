package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/forwarded"
)

// The defaults of [Options]. All listeners are on loopback: a limiter trusts who
// can reach it, so opening it to a network is a decision to take.
const (
	DefaultHTTPAddr  = "127.0.0.1:8080"
	DefaultGRPCAddr  = "127.0.0.1:8081"
	DefaultAdminAddr = "127.0.0.1:8082"

	// DefaultGrace is how long requests may take to end once the server is
	// told to. Not longer: orchestrators kill after 30 s. Not shorter: a
	// decision takes microseconds, but clients of kept connections need a
	// moment to notice.
	DefaultGrace = 10 * time.Second
)

// StoreMemory is the name of the store that keeps counters in this process.
const StoreMemory = "memory"

// Options configure a [Server]. The zero value serves demonstration limits from
// memory at the default addresses.
type Options struct {
	// HTTPAddr, GRPCAddr and AdminAddr are host:port; "" = the default. Port 0
	// takes a free one; see [Server.Addrs].
	HTTPAddr, GRPCAddr, AdminAddr string

	// ConfigPaths are limit files and folders of them; none = [DemoLimits].
	// They are loaded again when they change and on [Server.Reload].
	ConfigPaths []string

	// Store is where counters are kept: [StoreMemory], or the URL of Redis or
	// Valkey as [github.com/stint-io/stint/store/redis.ParseURL] takes it; "" =
	// what the files say. It stays for as long as the process.
	Store string

	// StateDir is a folder where the coordinator of leased limits keeps, from
	// one start to the next, what tells it which leases may still be in use. It
	// must be there, and belong to one process alone. "" = nothing is kept, and
	// each start waits for one length of a lease before it lends.
	StateDir string

	// MaxBytes bounds the memory of the counters in this process; 0 = the
	// store's default. With Redis those are the counters of limits whose
	// on_store_failure is local.
	MaxBytes int64

	// Logger takes what operators should read; nil = [slog.Default]. Nothing is
	// logged for each request, and keys never are.
	Logger *slog.Logger

	// TrustedProxies are the CIDRs and addresses whose forwarded headers are
	// believed; nil = loopback, since gateways often run on the same host;
	// empty but not nil = nobody.
	TrustedProxies []string

	// RateLimitHeaders is the version of the RateLimit fields, "draft-10" or
	// "off"; "" = draft-10. XRateLimit adds the X-RateLimit fields.
	RateLimitHeaders string
	XRateLimit       bool

	// RLSHeaders and RLSMetadata add to responses of Envoy's rate limit service
	// the header fields and the dynamic metadata that Envoy's own service
	// adds when it is told to.
	RLSHeaders, RLSMetadata bool

	// AdminToken must come as a bearer token with admin requests, apart from
	// /healthz and /readyz. It may be empty only while AdminAddr is loopback.
	AdminToken string
	// AdminHosts are names by which the admin port may be addressed besides
	// localhost and IP addresses.
	AdminHosts []string
	// Profiles serves /debug/pprof/ on the admin port.
	Profiles bool

	// Grace is how long a shutdown waits for requests to end; 0 = DefaultGrace.
	Grace time.Duration
	// DrainDelay is how long /readyz answers 503 before the listeners close, so
	// that load balancers look elsewhere first; 0 = no time.
	DrainDelay time.Duration

	// Version is shown in stint_build_info.
	Version string
}

// complete fills in the defaults and returns everything that is wrong.
func (o *Options) complete() error {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&o.HTTPAddr, DefaultHTTPAddr)
	def(&o.GRPCAddr, DefaultGRPCAddr)
	def(&o.AdminAddr, DefaultAdminAddr)
	def(&o.Version, "dev")
	if o.Grace == 0 {
		o.Grace = DefaultGrace
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.TrustedProxies == nil {
		o.TrustedProxies = []string{"127.0.0.0/8", "::1/128"}
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("server: "+format, args...)) }
	for _, a := range []struct{ name, addr string }{{"http", o.HTTPAddr}, {"grpc", o.GRPCAddr}, {"admin", o.AdminAddr}} {
		if _, _, err := net.SplitHostPort(a.addr); err != nil {
			bad("%s address %q: %w, write it as 127.0.0.1:8080", a.name, a.addr, err)
		}
	}
	if o.AdminToken == "" && !loopback(o.AdminAddr) {
		bad("the admin address %s can be reached from other machines and there is no admin token: give one with --admin-token-file, or listen on 127.0.0.1", o.AdminAddr)
	}
	if o.Store != "" {
		if _, err := parseStore(o.Store); err != nil {
			bad("%w", err)
		}
	}
	if _, err := answer.ParseDraft(o.RateLimitHeaders); err != nil {
		bad("%w", err)
	}
	if _, err := forwarded.ParseTrusted(o.TrustedProxies); err != nil {
		bad("%w", err)
	}
	if o.Grace < 0 || o.DrainDelay < 0 || o.MaxBytes < 0 {
		bad("grace %v, drain delay %v or max bytes %d is negative", o.Grace, o.DrainDelay, o.MaxBytes)
	}
	return errors.Join(errs...)
}

func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return true // reported already
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
