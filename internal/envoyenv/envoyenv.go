// Package envoyenv reads the environment of the image of envoyproxy/ratelimit, and says by which flags of
// `stint serve` the same comes about.
//
// It is a function of the environment alone: it opens no file, sets no variable and changes no flag.
package envoyenv

import (
	"cmp"
	"errors"
	"net"
	"path"
	"slices"
	"strings"
)

// Flag is one of `stint serve`.
type Flag struct {
	Name, Value string // the name without hyphens before it
	From        string // the variables that it comes from
}

// Translation is what an environment comes to. Its zero value changes nothing.
type Translation struct {
	Flags []Flag
	// Notes are lines for the log: what is not honoured and why, what is not known, and what is done where
	// the image would do something else. They repeat no value that can be a secret.
	Notes []string
}

// Translate reads an environment, a list of NAME=value. The error has every value that cannot be read, or
// must not be ignored, with its variable and the way out. A variable that is set to nothing counts as not set.
func Translate(environ []string) (Translation, error) {
	r := &reader{values: map[string]string{}, used: map[string]bool{}}
	for _, e := range environ {
		if name, value, ok := strings.Cut(e, "="); ok && strings.TrimSpace(value) != "" {
			r.values[name] = strings.TrimSpace(value)
		}
	}
	r.addresses()
	r.grpc()
	r.logging()
	r.configuration()
	r.store()
	r.answers()
	r.statistics()

	r.rest()
	r.unknown()
	slices.Sort(r.out.Notes)
	return r.out, errors.Join(r.errs...)
}

// addresses are those that the image listens on.
func (r *reader) addresses() {
	r.flag("http", net.JoinHostPort(r.text("HOST", "0.0.0.0"), r.port("PORT", "8080")), "HOST and PORT")
	r.flag("http-host", "*", "the image, which takes any name")
	r.flag("grpc", net.JoinHostPort(r.text("GRPC_HOST", "0.0.0.0"), r.port("GRPC_PORT", "8081")), "GRPC_HOST and GRPC_PORT")
	r.flag("envoy-debug", net.JoinHostPort(r.text("DEBUG_HOST", "0.0.0.0"), r.port("DEBUG_PORT", "6070")), "DEBUG_HOST and DEBUG_PORT")
	r.flag("insecure", "true", "the image, which listens beyond the machine")
	if r.text("GRPC_UDS", "") != "" {
		r.bad("GRPC_UDS is set, and no Unix socket is listened on: unset it, and reach the service at GRPC_HOST and GRPC_PORT")
	}
}

// grpc are the settings of the gRPC listener.
func (r *reader) grpc() {
	cert, key, ca := r.text("GRPC_SERVER_TLS_CERT", ""), r.text("GRPC_SERVER_TLS_KEY", ""), r.text("GRPC_CLIENT_TLS_CACERT", "")
	san := r.text("GRPC_CLIENT_TLS_SAN", "")
	r.refused("GRPC_SERVER_TLS_CA_CERT", "Envoy Gateway sets it and the image reads GRPC_CLIENT_TLS_CACERT: no certificate is asked of clients here either")
	switch on := r.truth("GRPC_SERVER_USE_TLS", false); {
	case !on && cmp.Or(cert, key, ca, san) != "":
		r.note("GRPC_SERVER_TLS_CERT, GRPC_SERVER_TLS_KEY, GRPC_CLIENT_TLS_CACERT and GRPC_CLIENT_TLS_SAN mean nothing without GRPC_SERVER_USE_TLS=true")
	case on && (cert == "" || key == ""):
		r.bad("GRPC_SERVER_USE_TLS is true and there is no certificate: set GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY")
	case on:
		r.flag("grpc-tls-cert", cert, "GRPC_SERVER_TLS_CERT")
		r.flag("grpc-tls-key", key, "GRPC_SERVER_TLS_KEY")
		r.flag("grpc-tls-client-ca", ca, "GRPC_CLIENT_TLS_CACERT")
		if san != "" {
			r.bad("GRPC_CLIENT_TLS_SAN is set, and a name of clients is not asked for by it, so that others would be let in: unset it, and give identities with --auth (STINT_AUTH)")
		}
	}
	if r.duration("GRPC_MAX_CONNECTION_AGE") != "" || r.duration("GRPC_MAX_CONNECTION_AGE_GRACE") != "" {
		r.note("GRPC_MAX_CONNECTION_AGE and GRPC_MAX_CONNECTION_AGE_GRACE are not honoured: connections live for 30 minutes, with 30 seconds of grace, so that clients spread over instances that were added")
	}
}

// levels are those of the image's log, by ours.
var levels = map[string]string{
	"trace": "debug", "debug": "debug", "info": "info", "warn": "warn", "warning": "warn", "error": "error", "fatal": "error", "panic": "error",
}

func (r *reader) logging() {
	if level := r.text("LOG_LEVEL", ""); level != "" {
		if levels[strings.ToLower(level)] == "" {
			r.bad("LOG_LEVEL is %q, want trace, debug, info, warn, error, fatal or panic", level)
		}
		r.flag("log-level", levels[strings.ToLower(level)], "LOG_LEVEL")
	}
	switch format := r.text("LOG_FORMAT", ""); strings.ToLower(format) {
	case "":
	case "json", "text":
		r.flag("log", strings.ToLower(format), "LOG_FORMAT")
	default:
		r.bad("LOG_FORMAT is %q, want text or json", format)
	}
}

// configuration says where the limits come from.
func (r *reader) configuration() {
	r.truth("RUNTIME_WATCH_ROOT", true) // folders are watched in every case, symbolic links of Kubernetes included
	if !r.truth("RUNTIME_IGNOREDOTFILES", true) {
		r.note("RUNTIME_IGNOREDOTFILES=false is not honoured: hidden files are never read")
	}
	root, sub, app := r.text("RUNTIME_ROOT", "/srv/runtime_data/current"), r.text("RUNTIME_SUBDIRECTORY", ""), r.text("RUNTIME_APPDIRECTORY", "config")
	force, healthy := r.truth("FORCE_START_WITHOUT_INITIAL_CONFIG", false), r.truth("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", false)
	if r.truth("MERGE_DOMAIN_CONFIG", false) {
		r.flag("rls-merge-domains", "true", "MERGE_DOMAIN_CONFIG")
	}
	xds := r.xds(force && !healthy)
	switch kind := r.text("CONFIG_TYPE", "FILE"); kind {
	case "FILE":
		r.flag("config", path.Join(root, sub, app), "RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY")
		if force {
			r.note("FORCE_START_WITHOUT_INITIAL_CONFIG is not honoured with CONFIG_TYPE=FILE: without a file, or with a fault in one, the service does not start, and says why")
		}
	case "GRPC_XDS_SOTW":
		r.flag("config", xds, "CONFIG_GRPC_XDS_...")
	default:
		r.bad("CONFIG_TYPE is %q, want FILE or GRPC_XDS_SOTW", kind)
	}
}

// answers are the choices of what Envoy is told.
func (r *reader) answers() {
	headers := r.truth("LIMIT_RESPONSE_HEADERS_ENABLED", false)
	for _, b := range []struct{ name, flag string }{
		{"RESPONSE_DYNAMIC_METADATA", "rls-metadata"},
		{"SHADOW_MODE", "rls-shadow"},
		{"QUOTA_MODE", "rls-quota"},
		{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "rls-count-admitted"},
	} {
		if r.truth(b.name, false) {
			r.flag(b.flag, "true", b.name)
		}
	}
	if headers {
		r.flag("rls-headers", "true", "LIMIT_RESPONSE_HEADERS_ENABLED")
	}
	for _, h := range []struct{ name, flag string }{
		{"LIMIT_LIMIT_HEADER", "rls-limit-header"}, {"LIMIT_REMAINING_HEADER", "rls-remaining-header"}, {"LIMIT_RESET_HEADER", "rls-reset-header"},
	} {
		switch value := r.text(h.name, ""); {
		case value == "":
		case headers:
			r.flag(h.flag, value, h.name)
		default:
			r.note("%s means nothing without LIMIT_RESPONSE_HEADERS_ENABLED=true", h.name)
		}
	}
	r.flag("rls-near-limit", r.share("NEAR_LIMIT_RATIO"), "NEAR_LIMIT_RATIO")
}

// rest are the variables that have no counterpart.
func (r *reader) rest() {
	for _, name := range []string{
		"REDIS_POOL_SIZE", "REDIS_PIPELINE_LIMIT", "REDIS_CLUSTER_PIPELINE_PARALLELISM", "EXPIRATION_JITTER_MAX_SECONDS", "LOCAL_CACHE_SIZE_IN_BYTES",
		"MEMCACHE_MAX_IDLE_CONNS",
	} {
		r.number(name)
	}
	const redis = "requests that arrive together share a call, by the round trip; there is no pool to size"
	for _, name := range []string{"REDIS_POOL_SIZE", "REDIS_POOL_ON_EMPTY_BEHAVIOR", "REDIS_PIPELINE_WINDOW", "REDIS_PIPELINE_LIMIT", "REDIS_CLUSTER_PIPELINE_PARALLELISM"} {
		r.refused(name, redis)
	}
	for _, name := range []string{"REDIS_STARTUP_INITIAL_INTERVAL", "REDIS_STARTUP_MAX_INTERVAL", "REDIS_STARTUP_MAX_ELAPSED_TIME"} {
		r.refused(name, "the service listens at once, is not ready before Redis answers, and goes on trying")
	}
	r.truth("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", false)
	r.refused("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "ready means that Redis was reached once; that it fails later is the metric stint_store_up")
	if r.truth("REDIS_PERSECOND", false) {
		r.note("REDIS_PERSECOND is not honoured: there is one store for all limits")
	}
	r.refused("LOCAL_CACHE_SIZE_IN_BYTES", "refusals by Redis are remembered without an option")
	r.refused("EXPIRATION_JITTER_MAX_SECONDS", "keys expire with their window")
	for name := range r.values {
		switch {
		case strings.HasPrefix(name, "REDIS_PERSECOND_"):
			r.used[name] = true
		case strings.HasPrefix(name, "MEMCACHE_"):
			r.refused(name, "there is no memcached: set BACKEND_TYPE=redis")
		case strings.HasPrefix(name, "TRACING_"):
			if name != "TRACING_ENABLED" || r.truth(name, false) {
				r.refused(name, "there are no traces")
			}
		}
	}
}
