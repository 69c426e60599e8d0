package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/stint-io/stint/internal/envoyenv"
	"github.com/stint-io/stint/server"
)

// This file is the program of the image of envoyproxy/ratelimit: its name, and its environment.

// envoyName is the name of that program. Under it this one does the same.
const envoyName = "ratelimit"

// arguments are those of the command, for a process with the name and arguments of args.
func arguments(args []string) []string {
	if len(args) == 0 {
		return nil
	}
	if filepath.Base(args[0]) == envoyName {
		return append([]string{serveName, "--envoy-environment"}, args[1:]...)
	}
	return args[1:]
}

// envoyFlags are those of a service in the place of Envoy's.
type envoyFlags struct {
	environment bool // that of Envoy's own service is read
}

func (e *envoyFlags) register(f *pflag.FlagSet, o *server.Options) {
	f.BoolVar(&o.RLSHeaders, "rls-headers", false, "add RateLimit-Limit, -Remaining and -Reset to answers to Envoy")
	f.BoolVar(&o.RLSMetadata, "rls-metadata", false, "add domain, descriptors and rule metadata to answers to Envoy")
	f.StringVar(&o.RLSLimitHeader, "rls-limit-header", "RateLimit-Limit", "name of that header field in answers to Envoy")
	f.StringVar(&o.RLSRemainingHeader, "rls-remaining-header", "RateLimit-Remaining", "name of that header field in answers to Envoy")
	f.StringVar(&o.RLSResetHeader, "rls-reset-header", "RateLimit-Reset", "name of that header field in answers to Envoy")
	f.BoolVar(&o.RLSShadow, "rls-shadow", false, "answer OK overall to Envoy whatever the limits say; the statuses tell")
	f.BoolVar(&o.RLSQuota, "rls-quota", false, "every rule in Envoy's format is a quota: refuse only what all of them refuse")
	f.BoolVar(&o.RLSMergeDomains, "rls-merge-domains", false, "several files in Envoy's format may have one domain")
	f.BoolVar(&o.RLSCountAdmitted, "rls-count-admitted", false, "rules in Envoy's format count admitted requests only")
	f.Float64Var(&o.RLSNearLimit, "rls-near-limit", 0.8, "share of a rule in Envoy's format above which hits are counted as near its limit")
	f.BoolVar(&e.environment, "envoy-environment", false, "read the environment of the image of envoyproxy/ratelimit; flags and STINT_ variables win. Under the name ratelimit it is on")
	f.StringVar(&o.EnvoyDebugAddr, "envoy-debug", "", "address of a listener with /rlconfig and /stats, as the debug port of Envoy's own service (default: none)")
	f.StringVar(&o.EnvoyPrometheus, "envoy-prometheus", "", "address and path, such as 127.0.0.1:9090/metrics, of a listener with the statistics of Envoy's own service (default: none)")
	f.StringVar(&o.StatsD, "statsd", "", "where these statistics are sent: tcp://HOST:PORT, udp://HOST:PORT or dogstatsd://HOST:PORT (default: nowhere)")
	f.DurationVar(&o.StatsDInterval, "statsd-interval", 0, "how often they are sent (default 10s)")
	f.StringSliceVar(&o.StatsDTags, "statsd-tag", nil, "NAME=VALUE on each of them; may be repeated")
}

// read sets the flags that nobody has given by the environment of Envoy's own service, if that is
// wanted. It returns what is to be logged.
func (e *envoyFlags) read(f *pflag.FlagSet, environ []string) (notes []string, err error) {
	if !e.environment {
		return nil, nil
	}
	t, err := envoyenv.Translate(environ)
	if err != nil {
		return nil, err
	}
	given := map[string]bool{}
	f.Visit(func(one *pflag.Flag) { given[one.Name] = true })
	for _, one := range t.Flags {
		if given[one.Name] {
			continue
		}
		if err := f.Set(one.Name, one.Value); err != nil {
			return nil, fmt.Errorf("%s: %w", one.From, err)
		}
		if one.Name == "config" && !strings.Contains(one.Value, "://") {
			if _, err := os.Stat(one.Value); errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("environment: %s make the folder %s, which there is not: correct them, or make it", one.From, one.Value)
			}
		}
	}
	return t.Notes, nil
}
