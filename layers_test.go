package stint_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// policy states which package may import which. It is a statement of policy, not
// a list of what is so today: read it before you add an import, and if it must
// change, say why in the commit.
//
// "A < B" says that B, and whatever is above B, may import A. Packages that no
// line puts in an order may not import each other. Libraries of others stand here
// by the path of their module, so that each has the place it is meant for and no
// other. The standard library is open to all. Tests are free.
const policy = `
# How callers wait, for every limiter: one line, deadlines, one timer, wake-up or
# call-back. It knows no limit.
NONE < internal/waitline;

# Amounts, and numbers of 128 bits; then a token bucket in one word.
NONE < internal/fixed < internal/gcra;

# The words and the arithmetic stand on these and the standard library.
internal/waitline, internal/gcra < limit;

# What keeps state, what a store must do, and what is written in a limits file.
limit < store < store/memory;
# Who among the tenants of one bucket may take next; the store counts the bucket.
store < internal/tenants < internal/engine;
store < store/storetest;

# Small values beside the counters, in this process.
store, github.com/google/btree < internal/records;

# Counters and records that outlive the process, in a file.
store/memory, internal/records, github.com/google/btree, go.etcd.io/bbolt < store/durable;
# What was done to counters, as the engine tells it.
store < internal/observe < internal/engine, internal/usage, internal/crossings, server;
# Which keys crossed a threshold, once per window. It sends nothing.
store < internal/crossings < server;
# Values by when they are due.
limit < internal/due;
# Signed messages to one URL, each until it is taken.
internal/due < internal/webhook < server;
# Who changed what by hand.
store < internal/audit;

# One line of a log a minute.
NONE < internal/lograte < server/internal/tlsfiles, internal/usage, server;

# What was admitted, by limit, key and hour.
store < internal/usage;
store, github.com/redis/rueidis < store/redis;

# What a request will cost, and did cost; and what servers report of it. Neither admits.
NONE < internal/quantile < internal/costs;
internal/costs, google.golang.org/protobuf < internal/costs/orca;

# What one server runs, what waits and what is turned away: the state machine, and its driver.
limit < internal/admission;
internal/admission, internal/costs < throttle;

# What each recipient of a stream of messages is sent.
limit < fanout;

# Certificates, seeds and the stint command for tests. Nothing else imports them.
NONE < internal/builttest;
NONE < internal/testca;
NONE < internal/seeding;

# Real servers for tests. Nothing but tests imports it.
github.com/redis/rueidis < internal/redistest < internal/etcdtest;
# Real gateways with the published configurations.
internal/redistest < internal/gatewaytest;

# The one form of IP addresses.
NONE < internal/address < internal/forwarded;

# YAML is read in one place, within bounds.
github.com/goccy/go-yaml < internal/document;

# Files are watched in one place.
github.com/fsnotify/fsnotify < internal/filewatch;

internal/document,
cel.dev/cel-go,
internal/filewatch,
internal/address,
limit
< rules;

# Translations of a request and of an answer, for whoever speaks HTTP or gRPC.
# They decide nothing.
limit < internal/answer;
github.com/gaissmai/bart, internal/address < internal/forwarded;
limit, internal/forwarded < internal/forwarded/identify;

google.golang.org/grpc,
google.golang.org/protobuf,
google.golang.org/genproto/googleapis/rpc
< GRPC;

GRPC, internal/answer < internal/answer/grpcerror;

# Leases: amounts, allocators, estimators and the bucket of one instance; then the
# messages, the ledger of what is lent, and the two machines that exchange messages. Neither
# machine knows the other. The simulator drives the same machines.
internal/fixed < internal/fairshare;
limit < internal/demand < internal/bucket;
internal/fairshare, internal/bucket < internal/lease;
internal/lease, internal/due < internal/lease/agent;
internal/lease < internal/lease/pool;
internal/lease/pool < internal/lease/ledger < internal/lease/coordinator;
NONE < internal/lease/holding < internal/lease/coordinator, server/internal/lending;
# A site joins both: it is an instance of its parent and lends on what it is lent.
internal/lease/agent, internal/lease/coordinator < internal/lease/uplink;
limit < internal/lease/leasetest;

# Both machines in one room, for tests alone: every order of events up to a depth.
internal/lease/agent, internal/lease/coordinator < internal/lease/explore;
limit < internal/partition < split < examples/newyear;
GRPC < internal/gen/leasepb;
GRPC < internal/gen/memberpb;
# The messages of stint's own service, for everybody's clients; those of Kuadrant's, on Envoy's; and what protoc
# reads of Envoy's.
GRPC < stintpb;
GRPC, github.com/envoyproxy/go-control-plane/envoy < internal/gen/kuadrantpb;
GRPC, github.com/envoyproxy/go-control-plane/envoy < proto/imports;
internal/lease, internal/gen/leasepb < internal/leasewire;
limit < internal/keytable;
limit < internal/lease/adjust;
internal/leasewire, internal/lease/agent, internal/lease/pool, internal/lease/adjust, internal/keytable < client;
NONE < internal/traffic;
internal/lease/agent, internal/lease/coordinator, internal/partition, internal/traffic, rules < sim;
NONE < sim/internal/agenda < sim;
rules < sim/internal/words < sim/internal/report < sim;
# Charts. It knows nothing of what it draws.
NONE < internal/picture < sim, sim/overload, internal/replay;

# Who coordinates: one election over a small table of records, and the backends that keep
# such a table. None of them knows another, and the election knows none of them.
NONE < internal/cluster < internal/cluster/alone;
internal/cluster, go.etcd.io/etcd/client/v3, go.uber.org/zap, google.golang.org/grpc < internal/cluster/etcd;
internal/cluster, github.com/redis/rueidis < internal/cluster/redis;
internal/cluster < internal/cluster/kubernetes;
internal/cluster < internal/cluster/clustertest;

# The URL of a register. It reads one of Redis as the store does.
internal/cluster/alone, internal/cluster/etcd, internal/cluster/redis, internal/cluster/kubernetes,
store/redis
< internal/cluster/clusterurl;

# Small values of all members in such a table, as other records.
internal/cluster, store < internal/cluster/tables < server;

# A configuration by Envoy's discovery protocol. It does not know what the documents say.
GRPC, github.com/envoyproxy/go-control-plane/envoy, github.com/envoyproxy/go-control-plane/ratelimit < internal/xds < server;

# Versions of a configuration in such a table. It knows neither a backend nor what a configuration says.
internal/cluster < internal/configstore;

# The other side of it: what a program sends. How many attempts a server is worth, and how many may
# be retries, are arithmetic.
limit < internal/accepts;
internal/fixed < internal/retrybudget;

# What a server says of its limits, read back. Servers do not link the parser.
limit, github.com/dunglas/httpsfv < internal/answer/reader;
internal/answer/reader < internal/holdoff;

# How a program sends, and its two doors. Neither door knows the other, nor a store. The class of a
# request goes on from the throttle that lets it in.
internal/accepts, internal/retrybudget, internal/holdoff, internal/keytable, throttle
< middleware/outgoing;
middleware/outgoing, internal/answer < middleware/httpclient;
middleware/outgoing, internal/answer/grpcerror < middleware/grpcclient;

# One line to protect a handler. Neither kind knows a store, a limits file or the
# server: any Taker will do.
limit < internal/held < middleware/httplimit, middleware/grpclimit;
internal/answer, internal/forwarded/identify < middleware/httplimit;
internal/answer/grpcerror, internal/forwarded/identify < middleware/grpclimit;

# The doors of a throttle: they describe a request, and read what it has cost.
throttle, internal/costs/orca, internal/answer, internal/forwarded/identify < middleware/httpthrottle;
throttle, internal/costs/orca, internal/answer/grpcerror, internal/forwarded/identify < middleware/grpcthrottle;

# Who a client is: databases of addresses, and tokens; then the attributes that are found by them.
github.com/oschwald/maxminddb-golang/v2, internal/address < internal/geo;
github.com/go-jose/go-jose/v4 < internal/claims;
internal/geo, internal/claims, internal/filewatch, internal/forwarded/identify, limit < internal/derive < server;

# Which customer has which plan.
internal/audit, limit < internal/plans < server/internal/admin;

# Both by the files alone, without a service.
internal/derive, internal/plans, rules < internal/derive/fromfiles < server;

# Requests that wait for a limit.
rules < internal/waitqueue < internal/engine;

# The counters of limits that come with requests.
store < internal/override < internal/engine;

# The engine decides. It knows neither HTTP nor gRPC.
rules, store < internal/engine;

# What observes its decisions: how often each limit was met, and with which answer; which keys are met most often now, and
# which requests there were in the latest hour.
internal/engine < internal/tally < server/internal/ui, server/internal/admin, server;
NONE < internal/topkeys;
store/memory < internal/lasthour;
internal/engine, internal/topkeys, internal/lasthour < internal/watch;

# Costs that are taken before they are known.
internal/engine < internal/reserve;
store, internal/due, internal/quantile < internal/estimate < internal/reserve;

# Streams against a budget in virtual time, on the machines that ship.
internal/reserve, internal/estimate, internal/records, store/memory, sim/internal/agenda < sim/budgets;

# Access logs, decided by a configuration at the times of the log, on the machines that ship.
internal/forwarded/identify, internal/address < internal/accesslog;
internal/accesslog, internal/engine, internal/derive/fromfiles, store/memory < internal/replay < cmd/stint;

# Tests of limits files, on the same machines.
internal/engine, internal/derive/fromfiles, internal/document, internal/forwarded/identify, store/memory < internal/limittest < cmd/stint;

# Bans are listed and lifted beside it.
internal/engine, internal/document < internal/banlist;

# Counters of single keys are read and changed by hand beside it.
internal/engine, internal/document, internal/audit < internal/keyadmin;

# Hits of rules, as Envoy's own service counts them; and what sends counters.
internal/engine < internal/hits < server;
internal/answer < server/internal/rls;
NONE < internal/statsd < server;

# The transports translate. None of them knows another.
internal/reserve, internal/gen/kuadrantpb < server/internal/rls;
internal/reserve, stintpb < server/internal/rpc;
# Quotas of Envoys, as leases; and a filter that behaves as Envoy's, for tests.
rules, GRPC, github.com/envoyproxy/go-control-plane/envoy, github.com/prometheus/client_golang, internal/lease/agent < server/internal/rlqs;
GRPC, github.com/envoyproxy/go-control-plane/envoy < internal/envoyfilter;

internal/engine < internal/explain < server/internal/rest;
internal/engine, internal/answer, internal/usage, internal/reserve < server/internal/rest;
internal/answer, internal/forwarded/identify < server/internal/gate;
internal/banlist, internal/keyadmin, internal/answer, github.com/prometheus/client_golang < server/internal/admin;
internal/usage, internal/keyadmin, internal/gen/memberpb < server/internal/members;

# Who reaches a port: certificates in files, and identities with their roles. Neither knows a
# protocol.
internal/filewatch < server/internal/tlsfiles;
internal/filewatch, internal/document < server/internal/access;

# How many connections a listener has, and one source of them.
NONE < internal/connlimit < server/internal/accept, server, proxy;
NONE < internal/listen < server, proxy, cmd/stint;

# A transport whose clients say who they are within its protocol.
internal/override, internal/reserve, internal/answer, server/internal/accept, server/internal/access, github.com/prometheus/client_golang < server/internal/resp;
internal/engine, internal/answer, internal/forwarded/identify, server/internal/accept, server/internal/access, github.com/prometheus/client_golang < server/internal/spoe;

# What the server lends: it drives coordinators, and serves the streams of instances, which are held to their identity.
rules, client, GRPC, golang.org/x/sys, internal/lease/coordinator, internal/lease/uplink, internal/cluster, server/internal/access
< server/internal/lending;

# What operators look at in a browser. The admin port asks who they are.
internal/watch, internal/banlist, internal/explain, internal/answer, internal/forwarded/identify, internal/picture, server/internal/lending
< server/internal/ui < server/internal/admin;

# What the server spends of leases, by a stream that it hands its own instance, as any client does.
rules, store, client < server/internal/spending;

# How long requests for decisions take.
GRPC, github.com/prometheus/client_golang < server/internal/latency < server;

# Bounds and keepalive of the gRPC server; benchmarks give them to a server that does nothing.
GRPC < internal/grpcserver;

server/internal/rls, server/internal/rlqs, server/internal/rpc, server/internal/rest, server/internal/gate, server/internal/admin, server/internal/members, server/internal/resp, server/internal/spoe,
server/internal/tlsfiles, server/internal/access, server/internal/lending, server/internal/spending, internal/grpcserver,
store/memory, store/durable, store/redis, internal/records, internal/cluster/clusterurl, internal/configstore
< server;

# Who asks a service over HTTP: one client.
internal/answer < internal/remote;

# The proxy: requests from one side to the other, and the server's own decisions in between.
internal/remote < proxy, cmd/stint;
server, middleware/httplimit, middleware/httpthrottle < proxy;

# The library's front door: limits from a file, kept in this process or in Redis.
internal/engine, internal/reserve, internal/records, store/memory, store/redis < stint;

# One limit among processes, drawn.
client, server, internal/picture < examples/fleet;

# A gateway of language models and its servers: it asks stint over HTTP, as any program does, and imports nothing of it.
NONE < examples/llm;

# The environment of Envoy's own service, as flags of the command.
NONE < internal/envoyenv < cmd/stint;

# Servers under overload in virtual time, with the machines that ship.
internal/admission, internal/accepts, internal/traffic, sim/internal/agenda, sim/internal/report < sim/overload;

# What is sent to a receiver of OpenTelemetry. The command links it, and nothing else does.
GRPC, store, github.com/prometheus/client_golang,
go.opentelemetry.io/otel, go.opentelemetry.io/otel/sdk, go.opentelemetry.io/otel/sdk/metric, go.opentelemetry.io/otel/trace,
go.opentelemetry.io/otel/exporters/otlp/otlptrace, go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc, go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp,
go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc, go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp,
go.opentelemetry.io/contrib/bridges/prometheus
< internal/telemetry < cmd/stint;

# The command. Flags and the environment are read nowhere else.
server, proxy, sim, client, github.com/spf13/cobra, github.com/spf13/pflag < cmd/stint;
server, sim, sim/overload, client, github.com/spf13/cobra, github.com/spf13/pflag < cmd/stint;
`

// TestLayers holds the imports of every package, under every build constraint,
// against the policy.
func TestLayers(t *testing.T) {
	order, err := parseLattice(policy)
	if err != nil {
		t.Fatal(err)
	}
	sources := readSources(t)
	imports := map[string]map[string]string{} // package -> imported -> file
	for _, f := range sources {
		if f.test {
			continue
		}
		if imports[f.pkg] == nil {
			imports[f.pkg] = map[string]string{}
		}
		for _, path := range f.imports() {
			imports[f.pkg][path] = f.name
		}
	}
	if len(imports) < 10 {
		t.Fatalf("found %d packages only: the search is wrong", len(imports))
	}
	for _, pkg := range slices.Sorted(maps.Keys(imports)) {
		if !order.has(pkg) {
			t.Errorf("package %s is not in the policy of layers_test.go", pkg)
			continue
		}
		for _, path := range slices.Sorted(maps.Keys(imports[pkg])) {
			file := imports[pkg][path]
			target, ok := resolve(order, path)
			switch {
			case !ok:
				t.Errorf("%s imports %s, which is not in the policy of layers_test.go", file, path)
			case target != "" && !order.below(target, pkg):
				t.Errorf("%s: package %s may not import %s", file, pkg, path)
			}
		}
	}
	for _, name := range order.names() {
		if !external(name) && name != strings.ToUpper(name) && imports[name] == nil {
			t.Errorf("the policy of layers_test.go names package %s, which does not exist", name)
		}
	}
}

// TestSmallPartsStaySmall: who imports one package of the library does not link expressions, Redis or the service.
func TestSmallPartsStaySmall(t *testing.T) {
	imports := map[string][]string{}
	for _, f := range readSources(t) {
		if !f.test {
			imports[f.pkg] = append(imports[f.pkg], f.imports()...)
		}
	}
	for _, small := range []string{
		"limit", "store", "store/memory", "store/durable", "client", "split", "throttle", "fanout", "middleware/httplimit", "middleware/grpclimit",
		"middleware/httpthrottle", "middleware/grpcthrottle", "middleware/httpclient", "middleware/grpcclient", "middleware/outgoing",
	} {
		if len(imports[small]) == 0 {
			t.Errorf("found nothing that %s imports: the search is wrong", small)
		}
		seen := map[string]bool{small: true}
		for todo := []string{small}; len(todo) > 0; todo = todo[1:] {
			for _, path := range imports[todo[0]] {
				if strings.HasPrefix(path, "cel.dev/") || strings.HasPrefix(path, "github.com/redis/") || path == modulePath+"/server" {
					t.Errorf("%s links %s, which %s imports", small, path, todo[0])
				}
				if own, isOwn := strings.CutPrefix(path, modulePath+"/"); isOwn && !seen[own] {
					seen[own] = true
					todo = append(todo, own)
				}
			}
		}
	}
}

// resolve returns the policy's name for an import path: "" for the standard
// library, which is open to all.
func resolve(order lattice, path string) (name string, ok bool) {
	if path == modulePath {
		return "stint", true
	}
	if own, isOwn := strings.CutPrefix(path, modulePath+"/"); isOwn {
		return own, order.has(own)
	}
	if !external(path) {
		return "", true
	}
	// The longest module path that leads to the package.
	for prefix := path; prefix != "."; {
		if order.has(prefix) {
			return prefix, true
		}
		cut := strings.LastIndexByte(prefix, '/')
		if cut < 0 {
			break
		}
		prefix = prefix[:cut]
	}
	return "", false
}

// external reports whether an import path is neither ours nor of the standard
// library: its first element has a dot.
func external(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return strings.Contains(first, ".")
}
