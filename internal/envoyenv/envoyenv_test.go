package envoyenv_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/envoyenv"
)

// flags are those of a translation, as a command line. What is the same for every environment is left out.
func flags(t envoyenv.Translation) (list []string) {
	for _, f := range t.Flags {
		list = append(list, f.Name+"="+f.Value)
	}
	return list
}

func has(t *testing.T, got envoyenv.Translation, want ...string) {
	t.Helper()
	for _, w := range want {
		name, _, set := strings.Cut(w, "=")
		found := slices.ContainsFunc(flags(got), func(f string) bool { return f == w || !set && strings.HasPrefix(f, name+"=") })
		if set && !found || !set && found {
			t.Errorf("want %q (without = : not at all) among\n%s", w, strings.Join(flags(got), "\n"))
		}
	}
}

// An empty environment is the image without any variable: its ports, its folder.
func TestDefaults(t *testing.T) {
	got, err := envoyenv.Translate(nil)
	if err != nil {
		t.Fatal(err)
	}
	has(t, got, "http=0.0.0.0:8080", "grpc=0.0.0.0:8081", "envoy-debug=0.0.0.0:6070", "config=/srv/runtime_data/current/config", "store", "log-level", "rls-headers", "grpc-tls-cert")
	if len(got.Notes) != 1 || !strings.HasPrefix(got.Notes[0], "REDIS_URL is not set") {
		t.Errorf("%q", got.Notes)
	}
}

// What Envoy Gateway sets on its deployment, each variable of it.
func TestEnvoyGateway(t *testing.T) {
	got, err := envoyenv.Translate([]string{
		"RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_IGNOREDOTFILES=true", "RUNTIME_WATCH_ROOT=false",
		"LOG_LEVEL=info", "USE_STATSD=false", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001",
		"CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit", "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=/certs/tls.crt",
		"GRPC_SERVER_TLS_KEY=/certs/tls.key", "GRPC_SERVER_TLS_CA_CERT=/certs/ca.crt", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/certs/tls.crt", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/certs/tls.key",
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/certs/ca.crt", "FORCE_START_WITHOUT_INITIAL_CONFIG=true", "REDIS_SOCKET_TYPE=tcp",
		"REDIS_URL=redis.redis-system.svc.cluster.local:6379", "REDIS_TLS=true", "REDIS_TLS_CLIENT_CERT=/redis-certs/tls.crt", "REDIS_TLS_CLIENT_KEY=/redis-certs/tls.key",
		// What Kubernetes adds for a service that is called redis.
		"REDIS_SERVICE_HOST=10.0.0.1", "REDIS_PORT=tcp://10.0.0.1:6379", "REDIS_PORT_6379_TCP_ADDR=10.0.0.1", "REDIS_SERVICE_PORT_TCP=6379",
		"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=:19001", "PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml",
	})
	if err != nil {
		t.Fatal(err)
	}
	has(t, got, "http=0.0.0.0:8080", "grpc=0.0.0.0:8081", "grpc-tls-cert=/certs/tls.crt", "grpc-tls-key=/certs/tls.key", "grpc-tls-client-ca", "log-level=info",
		"config=xdss://envoy-gateway:18001/envoy-ratelimit?ca=%2Fcerts%2Fca.crt&cert=%2Fcerts%2Ftls.crt&key=%2Fcerts%2Ftls.key&start=empty",
		"store=rediss://redis.redis-system.svc.cluster.local:6379?cert=%2Fredis-certs%2Ftls.crt&key=%2Fredis-certs%2Ftls.key")
	for _, n := range got.Notes {
		if !strings.HasPrefix(n, "GRPC_SERVER_TLS_CA_CERT") && !strings.HasPrefix(n, "PROMETHEUS_") && !strings.HasPrefix(n, "USE_PROMETHEUS") {
			t.Errorf("%s", n)
		}
	}
}

// The kinds of Redis, with what proves who asks.
func TestRedis(t *testing.T) {
	for _, c := range []struct{ env, store string }{
		{"REDIS_URL=host:6379", "redis://host:6379"},
		{"REDIS_URL=redis://:p%40ss@host:6379/2", "redis://:p%40ss@host:6379/2"},
		{"REDIS_URL=host:6379 REDIS_AUTH=p@s:/s", "redis://p%40s:%2Fs@host:6379"},
		{"REDIS_URL=host:6379 REDIS_AUTH=secret REDIS_TLS=true REDIS_TLS_CACERT=/ca.pem", "rediss://:secret@host:6379?ca=%2Fca.pem"},
		{"REDIS_URL=rediss://host:6379", "rediss://host:6379"},
		{"REDIS_URL=host:6379 REDIS_TLS_CACERT=/ca.pem REDIS_TLS_CLIENT_CERT=/c.pem REDIS_TLS_CLIENT_KEY=/k.pem", "redis://host:6379"},
		{"REDIS_TYPE=CLUSTER REDIS_URL=a:1,_b:2", "redis+cluster://a:1,b:2"}, // _ is a space
		{"REDIS_TYPE=CLUSTER REDIS_URL=a:1,b:2 REDIS_TIMEOUT=2s CACHE_KEY_PREFIX=edge:", "redis+cluster://a:1,b:2?prefix=edge%3A&timeout=2s"},
		{"REDIS_TYPE=SENTINEL REDIS_URL=mymaster,a:1,b:2 REDIS_AUTH=x:y REDIS_SENTINEL_AUTH=z", "redis+sentinel://x:y@a:1,b:2/mymaster?sentinel_password=z"},
	} {
		env := append(strings.Fields(c.env), "REDIS_SOCKET_TYPE=tcp")
		for i := range env {
			env[i] = strings.ReplaceAll(env[i], ",_", ", ")
		}
		got, err := envoyenv.Translate(env)
		if err != nil {
			t.Errorf("%s: %v", c.env, err)
		}
		has(t, got, "store="+c.store)
	}
}

// What the answers look like, and where the limits are.
func TestChoices(t *testing.T) {
	got, err := envoyenv.Translate([]string{
		"LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_LIMIT_HEADER=X-Limit", "RESPONSE_DYNAMIC_METADATA=1", "SHADOW_MODE=true", "QUOTA_MODE=t",
		"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true", "MERGE_DOMAIN_CONFIG=true", "NEAR_LIMIT_RATIO=0.5", "HOST=127.0.0.1", "PORT=1", "GRPC_HOST=::1", "GRPC_PORT=2", "DEBUG_HOST=localhost", "DEBUG_PORT=3",
		"LOG_FORMAT=JSON", "LOG_LEVEL=WARN", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_NODE_METADATA=a=b,c=d", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=authorization:Bearer x",
		"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=1s", "XDS_CLIENT_BACKOFF_MAX_INTERVAL=5s", "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=1000",
	})
	if err != nil {
		t.Fatal(err)
	}
	has(t, got, "rls-headers=true", "rls-limit-header=X-Limit", "rls-metadata=true", "rls-shadow=true", "rls-quota=true", "rls-count-admitted=true", "rls-merge-domains=true", "rls-near-limit=0.5",
		"http=127.0.0.1:1", "grpc=[::1]:2", "envoy-debug=localhost:3", "log=json", "log-level=warn",
		"config=xds://localhost:18000/default?backoff=1s&backoff_max=5s&header_password=authorization%3ABearer+x&max_bytes=1000&metadata=a%3Db&metadata=c%3Dd")
}

// Every value that cannot be read is an error that names variable, value and the way out; all at once. A
// secret is not repeated.
func TestBadValues(t *testing.T) {
	for env, want := range map[string]string{
		"PORT=http":                                        "PORT is \"http\", want a port",
		"GRPC_PORT=tcp://10.0.0.1:80":                      "set enableServiceLinks: false",
		"DEBUG_PORT=70000":                                 "DEBUG_PORT is \"70000\", want a port, which is a number from 0 to 65535",
		"REDIS_POOL_SIZE=ten":                              "REDIS_POOL_SIZE is \"ten\", want a whole number",
		"LOCAL_CACHE_SIZE_IN_BYTES=-1":                     "want a whole number, not negative",
		"REDIS_TIMEOUT=10":                                 "REDIS_TIMEOUT is \"10\", want a duration, such as 500ms",
		"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=-1s":          "want a duration",
		"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=4MB":             "want a whole number",
		"NEAR_LIMIT_RATIO=80%":                             "NEAR_LIMIT_RATIO is \"80%\", want a number above 0 and at most 1",
		"NEAR_LIMIT_RATIO=NaN":                             "want a number above 0",
		"SHADOW_MODE=yes":                                  "SHADOW_MODE is \"yes\", want true or false",
		"GRPC_SERVER_USE_TLS=true":                         "set GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY",
		"CONFIG_TYPE=XDS":                                  "want FILE or GRPC_XDS_SOTW",
		"BACKEND_TYPE=memcache":                            "set BACKEND_TYPE=redis",
		"REDIS_TYPE=RING REDIS_URL=a:1":                    "want SINGLE, SENTINEL or CLUSTER",
		"REDIS_TYPE=SENTINEL REDIS_URL=mymaster":           "names no sentinel",
		"REDIS_URL=/var/run/redis.sock":                    "set REDIS_SOCKET_TYPE=tcp",
		"REDIS_URL=a:1 REDIS_SOCKET_TYPE=unix":             "set REDIS_SOCKET_TYPE=tcp",
		"GRPC_UDS=/tmp/x.sock":                             "no Unix socket is listened on",
		"LOG_LEVEL=loud":                                   "want trace, debug, info",
		"LOG_FORMAT=xml":                                   "want text or json",
		"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=s3cret": "want a list",
		"GRPC_SERVER_USE_TLS=1 GRPC_SERVER_TLS_CERT=a GRPC_SERVER_TLS_KEY=b GRPC_CLIENT_TLS_SAN=envoy": "others would be let in",
	} {
		_, err := envoyenv.Translate(strings.Fields(env))
		if want = strings.ReplaceAll(want, "want a list", "is not a list such as"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n%v\nwant %s", env, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("a secret is shown: %v", err)
		}
	}
	_, err := envoyenv.Translate([]string{"PORT=x", "GRPC_PORT=y", "SHADOW_MODE=z"})
	if n := strings.Count(err.Error(), "\n"); n != 2 {
		t.Errorf("%d lines, want one for each of three faults:\n%v", n+1, err)
	}
}

// What is not honoured is said with the reason, and what is no variable with what was meant; others are
// nobody's business.
func TestNotes(t *testing.T) {
	got, err := envoyenv.Translate([]string{
		"REDIS_URL=a:1", "REDIS_SOCKET_TYPE=tcp", "REDIS_POOL_SIZE=5", "TRACING_ENABLED=true", "LIMIT_LIMIT_HEADER=x", "REDIS_PERSECOND=true", "REDIS_PERSECOND_URL=s3cret:1", "MEMCACHE_SRV=m",
		"REDIS_PIPELINE_WINDO=1s", "RUNTIME_ROOTS=/x", "XDS_CLIENT_NEW=s3cret", "PATH=/bin", "HOSTNAME=pod", "GRPC_VERBOSITY=info", "REDIS_AUTH=", "TRACING_SAMPLING_RATE=1",
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, n := range got.Notes {
		names = append(names, strings.Fields(n)[0])
		if strings.Contains(n, "s3cret") {
			t.Errorf("a value is shown: %s", n)
		}
	}
	want := []string{"LIMIT_LIMIT_HEADER", "MEMCACHE_SRV", "REDIS_PERSECOND", "REDIS_PIPELINE_WINDO", "REDIS_POOL_SIZE", "RUNTIME_ROOTS", "TRACING_ENABLED", "TRACING_SAMPLING_RATE", "XDS_CLIENT_NEW"}
	if !slices.Equal(names, want) {
		t.Errorf("%q\nwant %q", names, want)
	}
	if n := got.Notes[3]; !strings.HasSuffix(n, "did you mean REDIS_PIPELINE_WINDOW?") {
		t.Errorf("%s", n)
	}
}
