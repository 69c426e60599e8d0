package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stint-io/stint/internal/listen"
	"github.com/stint-io/stint/proxy"
	"github.com/stint-io/stint/server"
)

// proxyName is the name of the other command that has a log.
const proxyName = "proxy"

// proxyFlags are those of the proxy that are not options themselves.
type proxyFlags struct {
	maxBody, maxBytes byteSize
	onFailure         string
	log, adminToken   string
	trusted           []string
}

func newProxy() *cobra.Command {
	o := &proxy.Options{Decide: server.Options{MaxBytes: server.DefaultMaxBytes}}
	f := proxyFlags{maxBody: byteSize{&o.MaxBody, 0}, maxBytes: byteSize{&o.Decide.MaxBytes, server.MinMaxBytes}}
	cmd := &cobra.Command{
		Use:   proxyName,
		Short: "put limits in front of a server",
		Long: `Forward HTTP/1.1, HTTP/2, WebSocket and gRPC to a server, and hold requests to
limits before that: those of a file, those of a stint service, or those that a
coordinator lends. It is a sidecar in front of one server, or a proxy in front of
several equal ones.

SIGTERM and SIGINT drain and stop it. SIGHUP loads the limits again, which also
happens by itself when a file changes.`,
		Example: `  stint proxy --upstream http://127.0.0.1:3000 --config stint.yaml
  stint proxy --upstream http://10.0.0.5:80 --upstream http://10.0.0.6:80 \
    --config stint.yaml --store redis://127.0.0.1:6379 --health-path /healthz
  stint proxy --upstream h2c://127.0.0.1:50051 --service http://limits:8080 --on-service-failure allow
  stint proxy --upstream http://127.0.0.1:3000 --config stint.yaml --coordinator limits:8081`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, files []string) error {
			o.Decide.ConfigPaths = append(o.Decide.ConfigPaths, files...)
			if err := f.complete(cmd, o); err != nil {
				return &exit{exitUsage, err}
			}
			return runProxy(cmd.Context(), *o, cmd.OutOrStdout())
		},
	}
	f.register(cmd.Flags(), o)
	return cmd
}

func (p *proxyFlags) register(f *pflag.FlagSet, o *proxy.Options) {
	d := &o.Decide
	f.StringSliceVar(&o.Upstreams, "upstream", nil, "URL of the server to protect, with http, https or h2c; may be repeated for equal servers")
	f.StringVar(&o.HTTPAddr, "http", proxy.DefaultHTTPAddr, "address on which requests are taken")
	f.StringVar(&d.AdminAddr, "admin", proxy.DefaultAdminAddr, "address of metrics, health and reload")
	f.VarP((*configPaths)(&d.ConfigPaths), "config", "c", "limit file or folder of limit files, may be repeated; or the URL of a backend that 'stint config push' writes")
	f.StringVar(&d.Store, "store", "", "where counters are kept: memory, or a URL such as redis://127.0.0.1:6379 (default: what the files say)")
	f.Var(&p.maxBytes, "max-bytes", "most memory for counters in this process, such as 512MiB or 1GiB")
	f.StringVar(&o.Service.URL, "service", "", "URL of a stint service that decides, such as http://127.0.0.1:8080")
	f.DurationVar(&o.Service.Timeout, "service-timeout", proxy.DefaultServiceTimeout, "after what time without an answer the service is asked whether it lives")
	f.StringVar(&p.onFailure, "on-service-failure", "", "what becomes of requests when the service does not answer: local, allow or reject (default local with --config, else allow)")
	f.StringSliceVar(&o.Service.Attributes, "attribute", nil, "attribute that the service is told of besides ip, method, path and host, such as header:x-api-key; may be repeated")
	f.StringVar(&o.Service.TokenFile, "service-token-file", "", "file with the token that is sent to the service")
	f.StringSliceVar(&o.Coordinators, "coordinator", nil, "gRPC address of a service that lends limits with sharing: leased; may be repeated")
	f.StringVar(&d.Peer.CA, "peer-ca", "", "PEM file with the authorities of coordinators, which are then reached by TLS")
	f.StringVar(&d.Peer.Cert, "peer-cert", "", "PEM file with the certificate that is shown to coordinators")
	f.StringVar(&d.Peer.Key, "peer-key", "", "PEM file with its private key")
	f.StringVar(&d.Peer.TokenFile, "peer-token-file", "", "file with the token that is sent to coordinators")
	f.StringVar(&o.Health.Path, "health-path", "", "path by which upstreams are examined, such as /healthz (default: whether they accept connections)")
	f.DurationVar(&o.Health.Interval, "health-interval", time.Second, "time between two examinations of an upstream")
	f.BoolVar(&o.AllowDuplicates, "allow-duplicates", false, "let requests pass that have a header field, cookie or query parameter which limits read more than once")
	f.Var(&p.maxBody, "max-body", "largest body of a request, such as 10MiB; 0 = no bound")
	f.IntVar(&o.MaxConnections, "max-connections", 16<<10, "most connections of clients; those above wait")
	f.DurationVar(&o.Timeouts.Header, "header-timeout", 10*time.Second, "how long a client may take to send a header")
	f.DurationVar(&o.Timeouts.Body, "body-timeout", 30*time.Second, "how long a client may send nothing of a body, or take nothing of an answer")
	f.DurationVar(&o.Timeouts.Idle, "idle-timeout", 2*time.Minute, "how long an idle connection of a client is kept")
	f.DurationVar(&o.Timeouts.Connect, "connect-timeout", 2*time.Second, "how long it may take to connect to an upstream")
	f.DurationVar(&o.Timeouts.Response, "upstream-timeout", time.Minute, "how long an upstream may take to begin its answer")
	f.DurationVar(&o.Timeouts.Stream, "stream-timeout", 5*time.Minute, "how long an answer that has begun, or a WebSocket, may be silent")
	f.StringSliceVar(&p.trusted, "trusted-proxy", nil, "address or CIDR of a proxy in front whose forwarded headers are believed; may be repeated (default none)")
	f.StringVar(&d.TLS.Cert, "tls-cert", "", "PEM file with the certificate of both listeners, and its chain")
	f.StringVar(&d.TLS.Key, "tls-key", "", "PEM file with its private key")
	f.StringVar(&d.HTTPTLS.ClientCA, "http-tls-client-ca", "", "PEM file with the authorities whose client certificates the HTTP listener wants")
	f.StringVar(&d.AdminTLS.Cert, "admin-tls-cert", "", "certificate of the admin listener alone, or none")
	f.StringVar(&d.AdminTLS.Key, "admin-tls-key", "", "its private key")
	f.StringVar(&p.adminToken, "admin-token-file", "", "file with the bearer token that admin requests need")
	f.StringSliceVar(&d.AdminHosts, "admin-host", nil, "name by which the admin port may be addressed; may be repeated")
	f.StringVar(&d.RateLimitHeaders, "ratelimit-headers", "draft-10", "version of the RateLimit header fields: draft-11, draft-10, draft-07, draft-06, draft-03 or off")
	f.BoolVar(&d.XRateLimit, "x-ratelimit-headers", false, "send the X-RateLimit header fields as well")
	f.BoolVar(&d.Profiles, "pprof", false, "serve profiles on the admin port")
	f.DurationVar(&o.Grace, "grace", proxy.DefaultGrace, "how long a stop waits for requests and WebSockets to end")
	f.DurationVar(&o.DrainDelay, "drain-delay", 0, "how long to be not ready before a stop closes the listener")
	f.StringVar(&p.log, "log", "text", "form of the log on standard error: text or json")
}

// complete puts into the options what the flags say.
func (p *proxyFlags) complete(cmd *cobra.Command, o *proxy.Options) (err error) {
	d := &o.Decide
	d.Version = version()
	d.TrustedProxies = append([]string{}, p.trusted...)
	if p.onFailure == "" {
		p.onFailure = "local"
		if len(d.ConfigPaths) == 0 {
			p.onFailure = "allow"
		}
	}
	if o.Service.OnFailure, err = proxy.ParseOnFailure(p.onFailure); err != nil {
		return err
	}
	if o.Service.URL == "" && cmd.Flags().Changed("on-service-failure") {
		return errors.New("--on-service-failure is for --service, which is missing")
	}
	if d.AdminToken, err = readToken(p.adminToken, "--admin-token-file"); err != nil {
		return err
	}
	if d.Logger, err = newLogger(p.log, "info", cmd.ErrOrStderr()); err != nil {
		return err
	}
	for _, line := range exposed(cmd.Flags(), d.ConfigPaths, d.Store) {
		d.Logger.Warn(line)
	}
	for _, u := range unknownVariables(cmd.Root(), os.Environ()) {
		d.Logger.Warn(u.String())
	}
	return nil
}

// runProxy forwards until ctx ends.
func runProxy(ctx context.Context, o proxy.Options, out io.Writer) error {
	p, err := proxy.New(o)
	if err != nil {
		return &exit{exitUsage, err}
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	pacing, stop := context.WithCancel(ctx)
	var paced sync.WaitGroup
	paced.Go(func() { paceCollector(pacing, p.Decider().CounterBytes) })
	defer paced.Wait()
	defer stop()
	select {
	case <-p.Ready():
		if _, err := io.WriteString(out, proxyGreeting(p, o)); err != nil {
			o.Decide.Logger.Warn("standard output cannot be written", "error", err)
		}
	case err := <-ended:
		return failed(err)
	}
	return life{
		ended: ended, hangups: hangups, reload: p.Reload, log: o.Decide.Logger, systemd: newNotifier(os.Getenv),
		status: func() string { return "forwards to " + strings.Join(o.Upstreams, ", ") },
	}.follow(ctx)
}

// proxyGreeting is what a newcomer should know.
func proxyGreeting(p *proxy.Proxy, o proxy.Options) string {
	d := p.Decider()
	onHTTP, onAdmin := d.TLS()
	paths := configPaths(o.Decide.ConfigPaths)
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", versionLine())
	switch {
	case o.Service.URL != "":
		fmt.Fprintf(&b, "  decides  the service, and when it does not answer: %s\n", o.Service.OnFailure)
	case len(o.Coordinators) > 0:
		fmt.Fprintf(&b, "  limits   %d (%s), leased from %s\n", len(d.Limits().Limits()), paths.String(), strings.Join(o.Coordinators, ", "))
	default:
		fmt.Fprintf(&b, "  limits   %d (%s)\n", len(d.Limits().Limits()), paths.String())
		fmt.Fprintf(&b, "  store    %s\n", d.Store())
	}
	fmt.Fprintf(&b, "  upstream %s\n", strings.Join(o.Upstreams, ", "))
	fmt.Fprintf(&b, "  http     %s\n", listen.URL(scheme(onHTTP), p.Addr()))
	fmt.Fprintf(&b, "  admin    %s/metrics\n", listen.URL(scheme(onAdmin), p.AdminAddr()))
	fmt.Fprintln(&b, "ready")
	return b.String()
}
