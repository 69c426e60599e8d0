package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/listen"
	"github.com/stint-io/stint/internal/remote"
	"github.com/stint-io/stint/server"
)

// The defaults of [Options].
const (
	DefaultHTTPAddr  = "127.0.0.1:8000"
	DefaultAdminAddr = "127.0.0.1:8082"

	// DefaultServiceTimeout is after what time without an answer the service is asked whether it lives.
	DefaultServiceTimeout = remote.DefaultTimeout

	// DefaultGrace is how long requests may take to end once the proxy stops. Not longer:
	// orchestrators kill after 30 s.
	DefaultGrace = 20 * time.Second
)

// OnFailure says what becomes of requests while the service does not answer. The zero value is
// [FailureLocal].
type OnFailure uint8

// The choices.
const (
	FailureLocal  OnFailure = iota // this process decides by its own limits file, as if it were alone
	FailureAllow                   // let pass
	FailureReject                  // answer 503
)

// ParseOnFailure returns the choice of that name: local, allow or reject.
func ParseOnFailure(name string) (OnFailure, error) {
	for i, known := range failureNames {
		if name == known {
			return OnFailure(i), nil
		}
	}
	return 0, fmt.Errorf("proxy: unknown choice %q of what becomes of requests while the service does not answer, want local, allow or reject", name)
}

var failureNames = [...]string{FailureLocal: "local", FailureAllow: "allow", FailureReject: "reject"}

// String returns the choice's name.
func (f OnFailure) String() string {
	if int(f) < len(failureNames) {
		return failureNames[f]
	}
	return "unknown"
}

// Service is a stint service that decides in place of this process. The zero value is none.
type Service struct {
	URL     string        // of its HTTP port, such as http://127.0.0.1:8080; "" = this process decides
	Timeout time.Duration // after which it is asked whether it lives; 0 = [DefaultServiceTimeout]
	// OnFailure says what becomes of requests while it does not answer.
	OnFailure OnFailure
	// Attributes are what it is told of a request besides ip, method, path and host, such as
	// header:x-api-key; the attributes that the limits file reads are told anyway.
	Attributes []string
	// TokenFile has the token that is sent to it; "" = none. It is sent over https, or to loopback.
	TokenFile string
}

// Timeouts bound how long something may take. A zero field is the default, a negative one no bound.
type Timeouts struct {
	Header   time.Duration // for a client to send the header; 10 s
	Body     time.Duration // between two parts of a client's body, and for a client to take a part of the answer; 30 s
	Idle     time.Duration // for which a client's connection is kept; 2 m, above the 60 s of gateways in front
	Connect  time.Duration // to connect to an upstream; 2 s
	Response time.Duration // for an upstream to begin its answer; 60 s
	Stream   time.Duration // between two parts of an upstream's answer, and of a WebSocket; 5 m
}

// Health says how upstreams are examined.
type Health struct {
	// Path is asked for with GET; a status below 400 is healthy. "" = an upstream is healthy that
	// accepts connections, and it is examined only once a connection was refused.
	Path string
	// Interval is the time between two examinations; 0 = 1 s.
	Interval time.Duration
}

// Options configure a [Proxy]. Upstreams is required.
type Options struct {
	// Upstreams are equal servers, such as http://127.0.0.1:3000. The scheme h2c is HTTP/2 without
	// TLS for all requests; http is HTTP/1.1, but h2c for gRPC. There is no path in it.
	Upstreams []string
	// HTTPAddr is host:port; "" = [DefaultHTTPAddr]. Port 0 takes a free one.
	HTTPAddr string
	// Decide are the options of what decides in this process: limits files, store, certificates,
	// trusted proxies, the header fields of answers, the admin port, log and version.
	Decide server.Options
	// Service decides in place of this process.
	Service Service
	// Coordinators are the gRPC addresses of services that lend limits that are shared by leases.
	Coordinators []string
	// AllowDuplicates lets requests pass that have a header field, cookie or query parameter which limits read more than
	// once, or one that servers take for it; otherwise they are refused, see [httplimit.WithoutDuplicates].
	AllowDuplicates bool
	// MaxBody is the largest body in bytes; 0 = no bound, since bodies are not kept.
	MaxBody int64
	// MaxConnections bounds the connections of clients; those above it wait. 0 = 16,384.
	MaxConnections int
	Timeouts       Timeouts
	Health         Health
	// Grace is how long a stop waits for requests and WebSockets to end; 0 = [DefaultGrace].
	Grace time.Duration
	// DrainDelay is how long /readyz answers 503 before a stop closes the listener.
	DrainDelay time.Duration
}

// complete fills in the defaults and returns everything that is wrong.
func (o *Options) complete() error {
	o.HTTPAddr = cmp.Or(o.HTTPAddr, DefaultHTTPAddr)
	o.Decide.AdminAddr = cmp.Or(o.Decide.AdminAddr, DefaultAdminAddr)
	o.Service.Timeout = cmp.Or(o.Service.Timeout, DefaultServiceTimeout)
	o.Grace = cmp.Or(o.Grace, DefaultGrace)
	o.MaxConnections = cmp.Or(o.MaxConnections, 16<<10)
	o.Health.Interval = cmp.Or(o.Health.Interval, time.Second)
	if o.Decide.Logger == nil {
		o.Decide.Logger = slog.Default()
	}
	if o.Decide.TrustedProxies == nil {
		o.Decide.TrustedProxies = []string{}
	}
	t := &o.Timeouts
	for _, one := range []struct {
		of       *time.Duration
		standard time.Duration
	}{
		{&t.Header, 10 * time.Second},
		{&t.Body, 30 * time.Second},
		{&t.Idle, 2 * time.Minute},
		{&t.Connect, 2 * time.Second},
		{&t.Response, time.Minute},
		{&t.Stream, 5 * time.Minute},
	} {
		*one.of = max(0, cmp.Or(*one.of, one.standard))
	}
	return o.check()
}

func (o *Options) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("proxy: "+format, args...)) }
	if len(o.Upstreams) == 0 {
		bad("no upstream: name the server to protect, as --upstream http://127.0.0.1:3000 does")
	}
	for _, text := range o.Upstreams {
		if _, err := parseUpstream(text); err != nil {
			errs = append(errs, err)
		}
	}
	if err := listen.Check(o.HTTPAddr); err != nil {
		bad("http address %q: %w, write it as 127.0.0.1:8000", o.HTTPAddr, err)
	}
	if _, err := parseTrusted(o.Decide.TrustedProxies); err != nil {
		errs = append(errs, err)
	}
	if o.Service.URL != "" {
		if u, err := url.Parse(o.Service.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			bad("the URL of the service is wrong, write it as http://127.0.0.1:8080")
		}
		if o.Service.OnFailure == FailureLocal && len(o.Decide.ConfigPaths) == 0 {
			bad("without limits of its own this process cannot decide while the service does not answer: give a limits file, or allow or reject")
		}
		if len(o.Coordinators) > 0 {
			bad("a service and a coordinator both decide: name one of them")
		}
	} else if len(o.Decide.ConfigPaths) == 0 {
		bad("there are no limits: name a limits file with --config, or a service that decides with --service")
	}
	if o.MaxBody < 0 || o.MaxConnections < 0 || o.Grace < 0 || o.DrainDelay < 0 || o.Health.Interval < 0 || o.Service.Timeout < 0 {
		bad("a bound or a time is negative")
	}
	if o.Health.Path != "" && !strings.HasPrefix(o.Health.Path, "/") {
		bad("the health path %q does not begin with /", o.Health.Path)
	}
	return errors.Join(errs...)
}

// parseUpstream reads the URL of an upstream.
func parseUpstream(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" ||
		u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "h2c" {
		return nil, fmt.Errorf("proxy: upstream %q: want a URL of scheme, host and port, such as http://127.0.0.1:3000, https://10.0.0.7 or h2c://127.0.0.1:50051", text)
	}
	return u, nil
}

// parseTrusted reads the proxies in front whose forwarded fields are believed.
func parseTrusted(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a, wrong := netip.ParseAddr(text)
			if wrong != nil {
				return nil, fmt.Errorf("proxy: trusted proxy %q: want a prefix such as 10.0.0.0/8 or an address", text)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		out = append(out, p)
	}
	return out, nil
}
