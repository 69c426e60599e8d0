package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stint-io/stint/internal/listen"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server"
)

// serveName is the name of the command that has a log.
const serveName = "serve"

// plainPath is a path that cannot be a broken URL.
var plainPath = regexp.MustCompile(`^[\w./ -]+$`)

// thereIs returns an error where a limit file cannot be found.
func thereIs(path string) error {
	_, err := os.Stat(path)
	if !errors.Is(err, fs.ErrNotExist) {
		if err != nil {
			return &exit{exitUsage, err}
		}
		return nil
	}
	if !plainPath.MatchString(path) {
		path = "..." // it may be a URL with a password
	}
	return &exit{exitUsage, fmt.Errorf("%s: there is no such file (%w)\nhint: stint init writes one to begin with", path, fs.ErrNotExist)}
}

func newServe() *cobra.Command {
	o, maxBytes := optionsOfServe()
	var security securityFlags
	var envoy envoyFlags
	var logFormat, logLevel string
	var trusted []string
	cmd := &cobra.Command{
		Use: serveName + " [FILE...]", SuggestFor: []string{"run", "start", "server", "up"},
		Short: "start the service",
		Long: `Start the service: Envoy's rate limit protocol over gRPC and POST /json, stint's
own JSON API, decision endpoints for nginx, Caddy, Traefik and HAProxy, an admin
port with metrics, with --resp commands of Redis, and with --spoe queries of HAProxy. FILE is
a limit file or a folder of them, as with --config; without one the service enforces
two limits for trying it out, and stint init writes a file to begin with.

SIGTERM and SIGINT drain and stop it. SIGHUP loads the configuration again, which
also happens by itself when a file changes.`,
		Example: `  stint serve
  stint serve stint.yaml
  stint serve stint.yaml --store redis://127.0.0.1:6379
  stint serve --http 0.0.0.0:8080 --trusted-proxy 10.0.0.0/8 \
    --tls-cert tls.crt --tls-key tls.key --tls-client-ca clients.crt`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, files []string) error {
			o.ConfigPaths = append(o.ConfigPaths, files...)
			for _, path := range o.ConfigPaths {
				if server.IsConfigURL(path) {
					continue
				}
				if err := thereIs(path); errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
			notes, err := envoy.read(cmd.Flags(), os.Environ())
			if err != nil {
				return &exit{exitUsage, err}
			}
			if cmd.Flags().Changed("trusted-proxy") {
				// None: no proxy is trusted.
				o.TrustedProxies = []string{}
				for _, t := range trusted {
					if t != "none" {
						o.TrustedProxies = append(o.TrustedProxies, t)
					}
				}
			}
			if o.AdminToken, err = readToken(security.adminToken, "--admin-token-file"); err != nil {
				return &exit{exitUsage, err}
			}
			if o.Logger, err = newLogger(logFormat, logLevel, cmd.ErrOrStderr()); err != nil {
				return &exit{exitUsage, err}
			}
			for _, note := range notes {
				o.Logger.Warn(note)
			}
			for _, u := range unknownVariables(cmd.Root(), os.Environ()) {
				o.Logger.Warn(u.String())
			}
			if o.RLSNearLimit == 0 {
				return &exit{exitUsage, errors.New("--rls-near-limit is 0, want a share above 0 and at most 1, such as 0.8")}
			}
			switch o.StateDir {
			case "none":
				o.StateDir = ""
			case "":
				o.StateDir, o.StateDirIfFree = defaultStateDir(os.Getenv), true
			}
			for _, line := range exposed(cmd.Flags(), o.ConfigPaths, o.Store, o.Cluster.URL) {
				o.Logger.Warn(line)
			}
			return serve(cmd.Context(), *o, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.HTTPAddr, "http", server.DefaultHTTPAddr, "address of the HTTP listener, host:port or unix:PATH, as of all others")
	f.StringVar(&o.GRPCAddr, "grpc", server.DefaultGRPCAddr, "address of the gRPC listener")
	f.StringVar(&o.AdminAddr, "admin", server.DefaultAdminAddr, "address of metrics, health and reload")
	security.register(f, o)
	registerConfig(f, o)
	f.StringVar(&o.Store, "store", "", "where counters are kept: memory, or a URL such as redis://127.0.0.1:6379 (default: what the files say)")
	registerState(f, o)
	f.Var(&maxBytes, "max-bytes", "most memory for counters in this process, such as 512MiB or 1GiB")
	o.GRPCMetadata = server.DefaultGRPCMetadata
	metadata := byteSize{bytes: &o.GRPCMetadata}
	f.Var(&metadata, "grpc-metadata", "most metadata of a call over gRPC, up to 8MiB: Envoy sends what its clients choose")
	f.StringSliceVar(&trusted, "trusted-proxy", nil, "address or CIDR whose forwarded headers are believed, or none; may be repeated (default loopback)")
	f.StringVar(&o.RateLimitHeaders, "ratelimit-headers", "draft-10", "version of the RateLimit header fields: draft-11, draft-10, draft-07, draft-06, draft-03 or off")
	f.BoolVar(&o.XRateLimit, "x-ratelimit-headers", true, "send the X-RateLimit header fields as well")
	f.BoolVar(&o.Profiles, "pprof", false, "serve profiles on the admin port")
	f.DurationVar(&o.Grace, "grace", server.DefaultGrace, "how long a stop waits for requests to end")
	f.DurationVar(&o.DrainDelay, "drain-delay", 0, "how long to be not ready before a stop closes the listeners")
	f.StringVar(&logFormat, "log", "text", "form of the log on standard error: text or json")
	f.StringVar(&logLevel, "log-level", "info", "least level that is logged: debug, info, warn or error")
	envoy.register(f, o)
	return cmd
}

// registerState adds the flags of what is kept for the next start.
func registerState(f *pflag.FlagSet, o *server.Options) {
	f.StringVar(&o.Sync, "sync", "1s", "how much counting of long windows a crash may lose, where counters are in this process: a duration, always (nothing) or never (they are not kept)")
	f.StringVar(&o.StateDir, "state-dir", "", "folder for the counts of long windows, and for what the next coordinator of leases must know, or none (default: $STATE_DIRECTORY, $XDG_STATE_HOME/stint or ~/.local/state/stint, where one can be used)")
}

// registerConfig adds the flags of the configuration.
func registerConfig(f *pflag.FlagSet, o *server.Options) {
	f.VarP((*configPaths)(&o.ConfigPaths), "config", "c", "limit file or folder of limit files, may be repeated; or the URL of a backend that 'stint config push' writes, such as etcd://HOST:PORT[,HOST:PORT]/PREFIX")
	f.BoolVar(&o.AllowEmpty, "allow-empty", false, "take a configuration without limits, which is refused otherwise")
}

// defaultStateDir is the folder that systemd gives a service (StateDirectory=), or that of
// the user as XDG has it; "" = there is none.
func defaultStateDir(env func(string) string) string {
	// Of several, systemd puts colons in between.
	if dir, _, _ := strings.Cut(env("STATE_DIRECTORY"), ":"); filepath.IsAbs(dir) {
		return dir
	}
	// A path that is not absolute does not count, says the specification.
	if dir := env("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "stint")
	}
	if home := env("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "stint")
	}
	return ""
}

// optionsOfServe returns what is not zero by default, and the flag that sets it.
func optionsOfServe() (*server.Options, byteSize) {
	o := &server.Options{MaxBytes: server.DefaultMaxBytes}
	return o, byteSize{&o.MaxBytes, server.MinMaxBytes}
}

// serve runs the service until ctx ends.
func serve(ctx context.Context, o server.Options, out io.Writer) error {
	o.Version = version()
	sent, err := openTelemetry(ctx, &o)
	if err != nil {
		return &exit{exitUsage, err}
	}
	s, err := server.New(o)
	if err != nil {
		return &exit{exitUsage, err}
	}
	defer sent.start()()
	// Before anybody can know that the process is there, so that no SIGHUP
	// ends it.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	pacing, stop := context.WithCancel(ctx)
	var paced sync.WaitGroup
	paced.Go(func() { paceCollector(pacing, s.CounterBytes) })
	defer paced.Wait()
	defer stop()
	select {
	case <-s.Ready():
		if _, err := io.WriteString(out, greeting(s, o)); err != nil {
			o.Logger.Warn("standard output cannot be written", "error", err)
		}
	case err := <-ended:
		return failed(err)
	}
	return life{
		ended: ended, hangups: hangups, reload: s.Reload, log: o.Logger, systemd: newNotifier(os.Getenv),
		status: func() string {
			n := len(s.Limits().Limits())
			return fmt.Sprintf("%d %s, store %s", n, plural(n, "limit"), s.Store())
		},
	}.follow(ctx)
}

func failed(err error) error {
	if err == nil {
		return nil
	}
	return &exit{exitNo, err}
}

// greeting is what a newcomer should know, with one line to paste.
func greeting(s *server.Server, o server.Options) string {
	a, set := s.Addrs(), s.Limits()
	paths := configPaths(o.ConfigPaths)
	source := paths.String()
	if source == "" {
		source = "built in for trying out, give your own with --config FILE"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", versionLine())
	fmt.Fprintf(&b, "  limits  %d (%s)\n", len(set.Limits()), source)
	fmt.Fprintf(&b, "  store   %s\n", s.Store())
	onHTTP, onGRPC, onAdmin, onRESP, onSPOE := s.TLS()
	fmt.Fprintf(&b, "  http    %s\n", listen.URL(scheme(onHTTP), a.HTTP))
	fmt.Fprintf(&b, "  grpc    %s (envoy.service.ratelimit.v3%s)\n", listen.Text(a.GRPC), map[bool]string{true: ", TLS"}[onGRPC])
	fmt.Fprintf(&b, "  admin   %s/metrics\n", listen.URL(scheme(onAdmin), a.Admin))
	fmt.Fprintf(&b, "  ui      %s/ui\n", listen.URL(scheme(onAdmin), a.Admin))
	if a.RESP != nil {
		fmt.Fprintf(&b, "  resp    %s (CL.THROTTLE, RL.TAKE%s)\n", listen.Text(a.RESP), map[bool]string{true: ", TLS"}[onRESP])
	}
	if a.SPOE != nil {
		fmt.Fprintf(&b, "  spoe    %s (HAProxy%s)\n", listen.Text(a.SPOE), map[bool]string{true: ", TLS"}[onSPOE])
	}
	options, host := "", a.HTTP.String()
	if onHTTP {
		options = overTLS(&o, a.HTTP)
	}
	if a.HTTP.Network() == "unix" {
		options += "--unix-socket " + quoted(host) + " "
		host = "localhost"
	}
	fmt.Fprintf(&b, "try it:\n  %s\n", tryLine(set, options, scheme(onHTTP)+"://"+host))
	for _, line := range proofs(&o, onHTTP) {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	ready, text := s.Readiness()
	fmt.Fprintln(&b, startLine(ready, text, s.Recovering()))
	return b.String()
}

// startLine says of a service that listens whether it is ready, as /readyz does.
func startLine(ready bool, text string, recovering time.Duration) string {
	switch {
	case ready && text == "":
		return "ready"
	case ready:
		return "listening, ready but degraded: " + text
	case recovering > 0 && strings.HasPrefix(text, "recovering:"):
		return fmt.Sprintf("listening, ready in %.1f s: recovering: it is not known yet which leases of a former coordinator are in use", recovering.Seconds())
	}
	return "listening, not ready yet: " + text + "; the log says when it is ready"
}

// tryLine is a command that meets a limit of the configuration: the first in stint's
// format, or else the first rule in Envoy's, for which a request can be found.
func tryLine(set *rules.Set, options, url string) string {
	question := map[string]any{"attributes": map[string]string{}}
	for _, envoy := range []bool{false, true} {
		if found := sample(set, envoy); found != nil {
			question = found
			break
		}
	}
	// Maps of strings always have a JSON form.
	text, _ := json.Marshal(question)
	return fmt.Sprintf("curl -i %s-d '%s' %s/v1/take", options, strings.ReplaceAll(string(text), "'", `\u0027`), url)
}

// sample is the body of a request that meets a limit; nil = none was found.
func sample(set *rules.Set, envoy bool) map[string]any {
	for _, l := range set.Limits() {
		if l.Envoy != envoy || l.Whitelist || l.Base.Policy.Unlimited {
			continue
		}
		attrs, ok := set.Sample(l)
		if !ok {
			continue
		}
		if !envoy {
			attributes := make(map[string]string, len(attrs))
			for _, a := range attrs {
				attributes[a.Name] = a.Value
			}
			return map[string]any{"attributes": attributes}
		}
		var entries []map[string]string
		for _, a := range attrs {
			entries = append(entries, map[string]string{"key": a.Name, "value": a.Value})
		}
		return map[string]any{"domain": l.Domain, "descriptors": []any{map[string]any{"entries": entries}}}
	}
	return nil
}

func readToken(file, flag string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("cannot read the token of %s: %w", flag, err)
	}
	token := strings.TrimSpace(strings.TrimPrefix(string(text), byteOrderMark))
	if token == "" {
		return "", fmt.Errorf("the file given with %s is empty, put a token in it", flag)
	}
	if strings.ContainsAny(token, "\r\n") {
		return "", fmt.Errorf("the file given with %s has several lines, put one token in it, in one line", flag)
	}
	return token, nil
}

// byteOrderMark is what some editors begin a file with.
const byteOrderMark = "\ufeff"

func newLogger(format, level string, w io.Writer) (*slog.Logger, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("unknown log level %q, want debug, info, warn or error", level)
	}
	o := &slog.HandlerOptions{Level: least}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		o.ReplaceAttr = func(_ []string, a slog.Attr) slog.Attr {
			if a.Value.Kind() == slog.KindDuration { // 5.078s, and no number without a unit
				a.Value = slog.StringValue(a.Value.Duration().String())
			}
			return a
		}
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, fmt.Errorf("unknown log form %q, want text or json", format)
}
