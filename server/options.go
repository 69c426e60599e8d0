package server

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/internal/grpcserver"
	"github.com/stint-io/stint/internal/listen"
	"github.com/stint-io/stint/internal/xds"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/rls"
	"github.com/stint-io/stint/store/memory"
)

// The defaults of [Options]. All listeners are on loopback: a limiter trusts who
// can reach it, so opening it to a network is a decision to take.
const (
	DefaultHTTPAddr  = "127.0.0.1:8080"
	DefaultGRPCAddr  = "127.0.0.1:8081"
	DefaultAdminAddr = "127.0.0.1:8082"

	// DefaultGrace is how long requests may take to end once the server
	// shuts down. Not longer: orchestrators kill after 30 s. Not shorter: a
	// decision takes microseconds, but clients of kept connections need a
	// moment to notice.
	DefaultGrace = 10 * time.Second
)

// What [Options.MaxBytes] may be: the default, and the least.
const (
	DefaultMaxBytes = memory.DefaultMaxBytes
	MinMaxBytes     = memory.MinMaxBytes
)

// DefaultGRPCMetadata is the default of [Options.GRPCMetadata].
const DefaultGRPCMetadata = grpcserver.DefaultMetadata

// What [Options.Sync] may be besides a duration.
const (
	SyncAlways = "always" // each decision waits until its count is on the disk
	SyncNever  = "never"  // counts end with the process
)

// StoreMemory is the name of the store that keeps counters in this process.
const StoreMemory = "memory"

// Options configure a [Server]. The zero value serves demonstration limits from
// memory at the default addresses.
type Options struct {
	// HTTPAddr, GRPCAddr and AdminAddr are host:port or unix:PATH; "" = the default. Port 0
	// takes a free one; see [Server.Addrs].
	HTTPAddr, GRPCAddr, AdminAddr string

	// RESPAddr is that of the listener for clients of Redis; "" = there is none.
	RESPAddr string
	// SPOEAddr is that of the listener for HAProxy's stream processing offload; "" = there is none.
	SPOEAddr string

	// EnvoyDebugAddr is that of a listener in plain text which shows the rules in force as the debug port of
	// Envoy's own service does, and changes nothing; "" = there is none.
	EnvoyDebugAddr string
	// EnvoyPrometheus is the address and path, such as 127.0.0.1:9090/metrics, of a listener in plain text with the
	// statistics of Envoy's own service under its names; "" = there is none.
	EnvoyPrometheus string
	// StatsD is where these statistics are sent: tcp://HOST:PORT, udp://HOST:PORT or dogstatsd://HOST:PORT; "" =
	// nowhere. StatsDInterval is how often, from 100 ms; 0 = 10 s. StatsDTags are NAME=VALUE.
	StatsD         string
	StatsDInterval time.Duration
	StatsDTags     []string

	// TLS are the certificates of all listeners; HTTPTLS, GRPCTLS, AdminTLS, RESPTLS and SPOETLS go before it for
	// one, field by field, and [NoFile] takes one away. The zero values are plain text.
	TLS, HTTPTLS, GRPCTLS, AdminTLS, RESPTLS, SPOETLS TLSFiles
	// AuthFile names identities with their tokens, names of certificates, and roles; it is loaded
	// again when it changes. "" = nobody is asked who it is, but for the admin token and the
	// client certificates that TLS asks for.
	AuthFile string
	// Peer is how this server reaches other servers: those of its cluster, and the one that it
	// gets limits from. The zero value is plain text without a token.
	Peer Peer
	// Insecure allows addresses that other machines reach without TLS and without a proof of
	// who comes. Anybody who reaches such a port can take every limit.
	Insecure bool

	// ConfigPaths are limit files and folders of them, or one URL of a backend in which the
	// configuration is kept, such as etcd://127.0.0.1:2379/stint, or of a server of Envoy's discovery protocol,
	// xds://127.0.0.1:18000/NODE: then it listens without one, and Envoy's protocol is answered with Unavailable
	// until it has come; none = [DemoLimits]. They
	// are loaded again when they change and on [Server.Reload].
	ConfigPaths []string

	// Store is where counters are kept: [StoreMemory], or the URL of Redis or
	// Valkey as [github.com/stint-io/stint/store/redis.ParseURL] takes it; "" =
	// what the files say. It stays for as long as the process.
	Store string

	// StateDir is a folder where this server keeps, from one start to the next, the counts of
	// long windows (see Sync), and the coordinator of leased limits the record of the leases that may
	// still be in use. It is
	// made when it is missing, and locked: it belongs to one process alone. "" =
	// nothing is kept, and each start waits for one length of a lease before it lends.
	StateDir string
	// StateDirIfFree says that the server starts without StateDir where that cannot be
	// used; it is for a default folder.
	StateDirIfFree bool
	// FirstStart says that where StateDir has no file yet the limits were never
	// lent before, so that it need not wait.
	FirstStart bool

	// Sync says how much counting of long windows a crash of this process may lose, where counters are in this
	// process: a duration of at least 50ms, [SyncAlways] or [SyncNever]; "" = 1s. The counts are in a file,
	// counts.db in StateDir or the one that Store names.
	Sync string

	// Cluster makes this server one of several that coordinate limits shared by leases. StateDir
	// is not used then.
	Cluster Cluster
	// Parent is where this server, as one of a site, has the capacity of limits shared by leases
	// from.
	Parent Parent

	// MaxBytes bounds the memory of the counters in this process, at least
	// [MinMaxBytes]; 0 = [DefaultMaxBytes]. With Redis those are the counters of limits whose
	// on_store_failure is local.
	MaxBytes int64

	// Logger takes what operators should read; nil = [slog.Default]. Nothing is
	// logged for each request, and keys never are.
	Logger *slog.Logger

	// TrustedProxies are the CIDRs and addresses whose forwarded headers are
	// believed; nil = loopback, since gateways often run on the same host;
	// empty but not nil = none.
	TrustedProxies []string

	// RateLimitHeaders is the version of the RateLimit fields: "draft-11", "draft-10", "draft-07",
	// "draft-06", "draft-03" or "off"; "" = draft-10. XRateLimit adds the X-RateLimit fields.
	RateLimitHeaders string
	XRateLimit       bool

	// GRPCMetadata is how many bytes of metadata a call over gRPC may have, names and values, at most 8 MiB;
	// 0 = DefaultGRPCMetadata.
	// Envoy sends what its clients choose, such as tracestate.
	GRPCMetadata int64

	// RLSHeaders and RLSMetadata add to responses of Envoy's rate limit service
	// the header fields and the dynamic metadata that Envoy's own service
	// adds when it is configured to.
	RLSHeaders, RLSMetadata bool
	// RLSLimitHeader, RLSRemainingHeader and RLSResetHeader are the names of those
	// header fields; "" = RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset.
	RLSLimitHeader, RLSRemainingHeader, RLSResetHeader string
	// AllowEmpty takes a configuration without limits, at the start and at a reload. Otherwise it
	// is refused, for nothing would be limited.
	AllowEmpty bool

	// RLSShadow answers OK overall to whatever speaks Envoy's protocol. The limits
	// are charged and the statuses say what they would say otherwise.
	RLSShadow bool
	// RLSQuota makes every rule in Envoy's format a quota: a request is refused only
	// when each of its descriptors meets a rule that is over.
	RLSQuota bool
	// RLSMergeDomains lets several files in Envoy's format have one domain.
	RLSMergeDomains bool
	// RLSCountAdmitted makes rules in Envoy's format count admitted requests only.
	RLSCountAdmitted bool
	// RLSNearLimit is the share of a rule in Envoy's format above which its hits are
	// counted as near the limit, above 0 and at most 1; 0 = 0.8.
	RLSNearLimit float64

	// AdminToken must come as a bearer token with admin requests, apart from
	// /healthz and /readyz. Without it, without AuthFile and without AdminTLS that asks for a
	// client certificate AdminAddr must be loopback.
	AdminToken string
	// AdminHosts are names by which the admin port may be addressed besides
	// localhost and IP addresses.
	AdminHosts []string
	// HTTPHosts are names by which the HTTP port may be addressed besides IP
	// addresses, localhost, names without a dot and the name of the machine; "*" = any.
	// Any other name is refused: a hostile page may point its own name at this
	// machine. The decision endpoints take every name, as gateways pass on that of
	// the site they protect.
	HTTPHosts []string
	// DashboardURL is where people reach the admin port, such as https://stint.internal.example: problem documents then
	// link the page of the limit that refused; "" = they link none.
	DashboardURL string
	// Profiles serves /debug/pprof/ on the admin port.
	Profiles bool
	// Instrument watches requests and metrics; nil = nothing does.
	Instrument Instrument

	// Grace is how long a shutdown waits for requests to end; 0 = DefaultGrace.
	Grace time.Duration
	// DrainDelay is how long /readyz answers 503 before the listeners close, so
	// that load balancers look elsewhere first; 0 = no time.
	DrainDelay time.Duration

	// Version is shown in stint_build_info.
	Version string
}

// checkSync returns an error for what Sync cannot be.
func checkSync(sync string) error {
	if sync == "" || sync == SyncAlways || sync == SyncNever {
		return nil
	}
	if d, err := time.ParseDuration(sync); err != nil || d < 50*time.Millisecond || d > time.Minute {
		return fmt.Errorf("server: sync is %q, want always, never, or a duration from 50ms to 1m such as 1s", sync)
	}
	return nil
}

// complete fills in the defaults and returns everything that is wrong.
func (o *Options) complete() error {
	if o.Instrument == nil {
		o.Instrument = unwatched{}
	}
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
	for _, a := range o.listeners() {
		if err := listen.Check(a.addr); err != nil {
			example := "127.0.0.1:8080"
			if port, err := strconv.ParseUint(a.addr, 10, 16); err == nil {
				example = fmt.Sprintf("127.0.0.1:%d, or :%[1]d for all interfaces", port)
			}
			bad("%s address %q: %w, write it as %s", a.name, a.addr, err, example)
		}
	}
	errs = append(errs, append(append(o.secured(), o.checkPages()...), o.checkDashboard()...)...)
	if err := o.Parent.complete(); err != nil {
		errs = append(errs, err)
	}
	url, err := o.remoteConfig()
	if err != nil {
		errs = append(errs, err)
	}
	member := &o.Cluster
	if member.URL == "" && url != "" && !xds.IsURL(url) {
		// Who reads a configuration from a URL has a name there, also without a cluster.
		rest := o.Cluster
		rest.Node = ""
		member = &rest
	}
	if err := member.complete(o.GRPCAddr, len(o.Parent.Addresses) > 0, o.GRPCTLS.over(o.TLS).Cert != "" && o.Peer.CA == "" && o.Peer.Cert == ""); err != nil {
		errs = append(errs, err)
	}
	if o.Store != "" {
		if _, _, err := parseStore(o.Store); err != nil {
			bad("%w", err)
		}
	}
	errs = append(errs, checkSync(o.Sync), o.checkStatistics())
	if _, err := answer.ParseDraft(o.RateLimitHeaders); err != nil {
		bad("%w", err)
	}
	if _, err := forwarded.ParseTrusted(o.TrustedProxies); err != nil {
		bad("%w", err)
	}
	for _, h := range []struct{ flag, name string }{
		{"rls-limit-header", o.RLSLimitHeader}, {"rls-remaining-header", o.RLSRemainingHeader}, {"rls-reset-header", o.RLSResetHeader},
	} {
		if !fieldName(h.name) {
			bad("--%s is %q, want the name of a header field: letters, digits and hyphens", h.flag, h.name)
		}
	}
	if o.GRPCMetadata < 0 || o.GRPCMetadata > grpcserver.MaxMetadata {
		bad("--grpc-metadata is %d bytes, want at most %d", o.GRPCMetadata, grpcserver.MaxMetadata)
	}
	if !o.RLSHeaders && (changed(o.RLSLimitHeader, rls.HeaderLimit) || changed(o.RLSRemainingHeader, rls.HeaderRemaining) || changed(o.RLSResetHeader, rls.HeaderReset)) {
		bad("header fields for Envoy have names of their own and are not sent: add --rls-headers, or leave the names out")
	}
	if !(o.RLSNearLimit >= 0 && o.RLSNearLimit <= 1) {
		bad("--rls-near-limit is %v, want a share above 0 and at most 1, such as 0.8", o.RLSNearLimit)
	}
	if o.MaxBytes != 0 && o.MaxBytes < memory.MinMaxBytes {
		bad("max bytes is %d, want at least %d, which the first tables take, or 0 for the default", o.MaxBytes, memory.MinMaxBytes)
	}
	if o.Grace < 0 || o.DrainDelay < 0 {
		bad("grace %v or drain delay %v is negative", o.Grace, o.DrainDelay)
	}
	return errors.Join(errs...)
}

func changed(name, from string) bool { return name != "" && name != from }

// fieldName reports whether name can be that of a header field; "" stands for one.
func fieldName(name string) bool {
	const odd = "!#$%&'*+-.^_`|~" // what RFC 9110 allows beside letters and digits
	return !strings.ContainsFunc(name, func(r rune) bool {
		return !('0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || strings.ContainsRune(odd, r))
	})
}

// rules are the choices of how files are read.
func (o *Options) rules() rules.Options {
	return rules.Options{MergeDomains: o.RLSMergeDomains, CountAdmitted: o.RLSCountAdmitted}
}
