// Package conformance_test asks the same questions through every way to ask stint, on every
// store, and compares each answer with one that was written by hand from the documentation.
//
// A scenario is a limit and the requests that meet it. A way is a transport, a client or a command.
// A sharing is where the counters are. Every cell of the table that they span is an outcome: the
// answers are as expected, or the way or the sharing cannot carry what the scenario is about, and
// says which element is missing. The table in docs/reference/transports.md is generated from it:
//
//	go test ./conformance -update
package conformance_test

import (
	"fmt"
	"strings"
)

// A feature is an element of a request or of an answer that some way may lack.
type feature string

// Elements of requests.
const (
	costs     feature = "cost"       // another cost than 1
	peeks     feature = "peek"       // ask and take nothing
	finishes  feature = "finish"     // the end of a request in flight is told
	reserves  feature = "reserve"    // an estimate that is settled later
	addresses feature = "address"    // the client's address is the test's to choose
	unnamed   feature = "unnamed"    // a request without the attribute of the key
	empty     feature = "empty"      // an attribute whose value is empty
	bytes     feature = "bytes"      // values that are not UTF-8
	twice     feature = "twice"      // a name that occurs twice
	lookalike feature = "look-alike" // a field whose name differs by an underscore
	encoded   feature = "encoded"    // a path with percent-encoded dots and slashes
	fieldsIn  feature = "fields"     // header fields of the test's choice
	customers feature = "customers"  // plans of customers
	reloads   feature = "reload"     // another configuration while it runs
)

// Elements of answers.
const (
	status    feature = "status"    // the HTTP status of a refusal
	name      feature = "limit"     // the limit that decided
	reason    feature = "reason"    // why it refused
	remaining feature = "remaining" // the tokens left
	retry     feature = "retry"     // when to ask again
	body      feature = "body"      // a body of the limit's own
	fieldsOut feature = "answer fields"
	location  feature = "location" // where a redirect leads
	tagged    feature = "tag"      // the mark for the server behind
	warning   feature = "warning"  // used beyond the soft threshold
	waits     feature = "wait"     // the request waits for its turn
	rejects   feature = "rejects"  // a request that is malformed is refused
)

// query is one request in the terms of a scenario. Every way sends it as its users would.
type query struct {
	path    string // "" = the scenario's
	method  string // "" = GET
	key     string // the value of x-api-key, after the prefix that belongs to the way; see fullKey
	rawKey  string // the value as it is; "" = made of key
	noKey   bool
	second  string // a second field x-api-key behind the first
	alike   string // a field x_api_key
	fields  map[string]string
	ip      string // "" = the way's own
	cost    int64  // 0 = 1
	peek    bool
	hold    bool // keep the permit for finish
	reserve bool // reserve in place of taking
	soon    bool // something takes a moment, such as a permit that was just given back: ask until it is as expected
}

// want is what is expected of an answer. Elements that the way lacks are not compared.
type want struct {
	allowed     bool
	status      int // of a refusal
	limit       string
	reason      string
	remaining   int64 // -1 = not compared
	retryAtMost float64
	noRetry     bool // no wait helps
	body        string
	contentType string
	field       [2]string
	location    string
	tag         [2]string
	warning     string
	invalid     bool // the request is refused as malformed, with no decision
}

// action is what a step does.
type action int

const (
	ask     action = iota
	finish         // the permit of the last query that was held
	release        // the last reservation
	commit         // the last reservation, for one token
)

type step struct {
	do   action
	q    query
	want want
}

// scenario is one limit, or a few, and what is asked of them.
type scenario struct {
	name string
	// limits is the YAML of the limits, items of a list. SHARED stands for the sharing.
	limits string
	// more is YAML for the root of the file, beside limits.
	more string
	// about are the elements that the scenario is about: a way that lacks one cannot answer it.
	about []feature
	steps []step
	// reloaded takes the place of limits before later.
	reloaded string
	later    []step
	// without has the steps for ways that lack an element of an answer that changes the decision.
	without map[feature][]step
	// notShared has the sharings that cannot do this, and the reason that the reference gives.
	notShared map[string]string
	// strict has the steps for ways that refuse what two servers could read differently.
	strict []step
	// group is the service that it needs: see groups.
	group string
}

// group is a service of a kind, and the scenarios that need it.
type group struct {
	name string
	// notShared are sharings in which there is no such service, with the reason.
	notShared map[string]string
	// notIn are ways that cannot be asked there.
	notIn map[string]string
	// unready: the service, and what asks it, are not ready and are asked all the same.
	unready bool
	// afresh: the service is started anew before each way is asked.
	afresh bool
}

const (
	plansGroup      = "plans"
	failedGroup     = "store failed"
	recoveringGroup = "recovering"
	restartGroup    = "restart"
	settledName     = "settled"
)

var libraryHasNoPlans = "stint.Open refuses a file with plans"

var groups = []group{
	{},
	{name: plansGroup, notIn: map[string]string{
		"stint.Limiter": libraryHasNoPlans, "httplimit": libraryHasNoPlans, "grpclimit": libraryHasNoPlans,
	}},
	{name: failedGroup, notShared: map[string]string{
		"memory": "memory does not fail", "file": "counters are in memory, which does not fail",
		"leases": "a leased limit is lent by the service and has no store of its own",
	}, notIn: map[string]string{
		"stint replay": "it decides on counters of its own, from empty", "stint test": "it decides on counters of its own, from empty",
	}},
	{name: recoveringGroup, unready: true, afresh: true, notShared: map[string]string{
		"memory": "only leases have a coordinator", "file": "only leases have a coordinator", "redis": "only leases have a coordinator",
	}, notIn: map[string]string{
		"HAProxy with Lua":     "the published file lets requests pass while the service is not ready",
		"Envoy with ratelimit": "the published file lets requests pass while the service is not ready",
		"Envoy with ext_authz": "the published file lets requests pass while the service is not ready",
	}},
	{name: restartGroup, notShared: map[string]string{"memory": "counters in memory end with the process"}, notIn: map[string]string{
		"stint proxy --coordinator":   "it is the service that is restarted; what the proxy was lent, it has",
		"Envoy with rate_limit_quota": "what Envoy is assigned on a new stream begins with a burst: see the bound in rlqs.md",
	}},
}

func allowed(left int64) want { return want{allowed: true, remaining: left} }

func refused(status int, limit, why string) want {
	return want{status: status, limit: limit, reason: why, remaining: -1, retryAtMost: 3600}
}

func takes(q query, w want) step { return step{q: q, want: w} }

func first(w want) step { return takes(query{key: "a"}, w) }

// tooLong is a queue in which the second request would wait for longer than it may.
var tooLong = []step{
	takes(query{path: "/queue/long", key: "a"}, allowed(-1)), takes(query{path: "/queue/long", key: "a"}, refused(429, "long", "rate_exceeded")),
}

const leasedWithout = "leased limits do not support "

// vip are the customers with a plan of their own: one of each way.
func vip() string {
	var list []string
	for _, w := range ways() {
		key, _ := query{key: "vip"}.fullKey(w.name, "")
		list = append(list, fmt.Sprintf("%q: pro", key))
	}
	return strings.Join(list, ", ")
}

// scenarios are all questions. Where the outcome is not obvious, the page that says so is named.
func scenarios() []scenario {
	long := strings.Repeat("k", 900)
	return []scenario{
		{
			name:   "allow",
			limits: `- {name: allow, match: {path: /allow}, key: ["header:x-api-key"], rate: 2/h SHARED}`,
			steps:  []step{first(allowed(1)), first(allowed(0)), takes(query{key: "b"}, allowed(1))},
		},
		{
			name:   "no-limit",
			limits: ``,
			steps:  []step{first(allowed(-1)), first(allowed(-1))},
		},
		{
			name:   "refuse",
			limits: `- {name: refuse, match: {path: /refuse}, key: ["header:x-api-key"], rate: 1/h SHARED}`,
			steps: []step{
				first(allowed(0)), first(refused(429, "refuse", "rate_exceeded")),
				first(refused(429, "refuse", "rate_exceeded")), takes(query{key: "b"}, allowed(0)),
			},
		},
		{
			name:   "status",
			limits: `- {name: status, match: {path: /status}, key: ["header:x-api-key"], rate: 1/h, on_exceed: {reject: 503} SHARED}`,
			about:  []feature{status},
			steps:  []step{first(allowed(0)), first(refused(503, "status", "rate_exceeded"))},
		},
		{
			name: "body",
			limits: `- {name: body, match: {path: /body}, key: ["header:x-api-key"], rate: 1/h SHARED, ` +
				`on_exceed: {reject: {status: 429, body: "slow down", content_type: text/plain, header: {X-Reason: quota}}}}`,
			about: []feature{body, fieldsOut},
			steps: []step{first(allowed(0)), first(want{
				status: 429, limit: "body", remaining: -1, body: "slow down", contentType: "text/plain", field: [2]string{"X-Reason", "quota"},
			})},
		},
		{
			name: "queue",
			limits: `- {name: queue, match: {path: /queue}, key: ["header:x-api-key"], rate: 4/s, burst: 1, on_exceed: {queue: {max_wait: 2s}}}
- {name: long, match: {path: /queue/long}, key: ["header:x-api-key"], rate: 1/h, on_exceed: {queue: {max_wait: 2s}}}`,
			about: []feature{waits},
			steps: append([]step{first(allowed(-1)), first(allowed(-1)), first(allowed(-1))}, tooLong...),
			// 4/s may have refilled before the second request.
			without:   map[feature][]step{waits: tooLong},
			notShared: map[string]string{"leases": leasedWithout + "queues"},
		},
		{
			name:   "redirect",
			limits: `- {name: redirect, match: {path: /redirect}, key: ["header:x-api-key"], rate: 1/h, on_exceed: {redirect: "https://example.com/busy?a=b"} SHARED}`,
			about:  []feature{location},
			steps: []step{first(allowed(0)), first(want{
				status: 302, limit: "redirect", reason: "rate_exceeded", remaining: -1, location: "https://example.com/busy?a=b",
			})},
		},
		{
			name:   "tag",
			limits: `- {name: tag, match: {path: /tag}, key: ["header:x-api-key"], rate: 1/h, on_exceed: tag SHARED}`,
			about:  []feature{tagged},
			steps: []step{first(allowed(0)), first(want{
				allowed: true, remaining: -1, tag: [2]string{"X-RateLimit-Degraded", "tag"},
			}), takes(query{key: "b"}, allowed(0))},
		},
		{
			name:   "ban",
			limits: `- {name: ban, match: {path: /ban}, key: ["header:x-api-key"], rate: 1/h, on_exceed: {reject: 403, ban: {for: 2h, after: 3/h, from: now}}}`,
			steps: []step{
				first(allowed(0)), first(refused(403, "ban", "rate_exceeded")), first(refused(403, "ban", "rate_exceeded")),
				first(want{status: 403, limit: "ban", reason: "banned", remaining: -1, retryAtMost: 7200}),
				takes(query{key: "b"}, allowed(0)),
			},
			notShared: map[string]string{"leases": leasedWithout + "bans"},
		},
		{
			name:   "soft",
			limits: `- {name: soft, match: {path: /soft}, key: ["header:x-api-key"], rate: 4/h, soft: 50% SHARED}`,
			about:  []feature{warning},
			steps: []step{
				first(allowed(3)), first(allowed(2)),
				first(want{allowed: true, remaining: 1, warning: "soft"}), first(want{allowed: true, remaining: 0, warning: "soft"}),
				first(refused(429, "soft", "rate_exceeded")),
			},
		},
		{
			name:   "shadow",
			limits: `- {name: shadow, match: {path: /shadow}, key: ["header:x-api-key"], rate: 1/h, shadow: true SHARED}`,
			steps:  []step{first(allowed(-1)), first(allowed(-1)), first(allowed(-1))},
		},
		{
			name:   "cost",
			limits: `- {name: cost, match: {path: /cost}, key: ["header:x-api-key"], rate: 7/h SHARED}`,
			about:  []feature{costs},
			steps: []step{
				takes(query{key: "a", cost: 5}, allowed(2)), takes(query{key: "a", cost: 5}, refused(429, "cost", "rate_exceeded")),
				takes(query{key: "a", cost: 2}, allowed(0)),
			},
		},
		{
			name:   "cost-above-burst",
			limits: `- {name: cost-above-burst, match: {path: /cost-above-burst}, key: ["header:x-api-key"], rate: 3/h SHARED}`,
			about:  []feature{costs},
			steps: []step{
				takes(query{key: "a", cost: 4}, want{status: 429, limit: "cost-above-burst", reason: "cost_exceeds_limit", remaining: -1, noRetry: true}),
				takes(query{key: "a", cost: 3}, allowed(0)),
			},
		},
		{
			name:   "peek",
			limits: `- {name: peek, match: {path: /peek}, key: ["header:x-api-key"], rate: 1/h SHARED}`,
			about:  []feature{peeks},
			steps: []step{
				takes(query{key: "a", peek: true}, allowed(1)), takes(query{key: "a", peek: true}, allowed(1)), first(allowed(0)),
				takes(query{key: "a", peek: true}, refused(429, "peek", "rate_exceeded")),
			},
		},
		{
			name:   "refund",
			limits: `- {name: refund, match: {path: /refund}, key: ["header:x-api-key"], rate: 5/h, algorithm: fixed_window, align: first_hit SHARED}`,
			about:  []feature{reserves},
			steps: []step{
				takes(query{key: "a", cost: 5, reserve: true}, want{allowed: true, remaining: -1}),
				first(refused(429, "refund", "rate_exceeded")),
				{do: release},
				first(allowed(4)),
				takes(query{key: "a", cost: 4, reserve: true}, want{allowed: true, remaining: -1}),
				{do: commit},
				first(allowed(2)),
			},
			notShared: map[string]string{"leases": leasedWithout + "windows"},
		},
		{
			name: "all-or-nothing",
			limits: `
- {name: wide, match: {path: /all-or-nothing*}, key: ["header:x-api-key"], rate: 5/h SHARED}
- {name: narrow, match: {path: /all-or-nothing/narrow}, key: ["header:x-api-key"], rate: 1/h SHARED}`,
			steps: []step{
				takes(query{path: "/all-or-nothing/narrow", key: "a"}, allowed(0)),
				takes(query{path: "/all-or-nothing/narrow", key: "a"}, refused(429, "narrow", "rate_exceeded")),
				takes(query{path: "/all-or-nothing/narrow", key: "a"}, refused(429, "narrow", "rate_exceeded")),
				takes(query{path: "/all-or-nothing/wide", key: "a"}, allowed(3)),
			},
		},
		{
			name: "override",
			limits: `- {name: override, match: {path: /override}, key: ["header:x-api-key"], rate: 1/h SHARED, ` +
				`overrides: [{when: {"header:x-api-key": "*vip"}, rate: 3/h}]}`,
			steps: []step{
				takes(query{key: "vip"}, allowed(2)), takes(query{key: "vip"}, allowed(1)),
				first(allowed(0)), first(refused(429, "override", "rate_exceeded")),
			},
		},
		{
			name:   "missing-key-skips",
			limits: `- {name: missing-key-skips, match: {path: /missing-key-skips}, key: ["header:x-api-key"], rate: 1/h SHARED}`,
			about:  []feature{unnamed},
			steps:  []step{takes(query{noKey: true}, allowed(-1)), takes(query{noKey: true}, allowed(-1))},
		},
		{
			name:   "missing-key-rejects",
			limits: `- {name: missing-key-rejects, match: {path: /missing-key-rejects}, key: ["header:x-api-key"], rate: 1/h, missing: reject SHARED}`,
			about:  []feature{unnamed},
			steps: []step{takes(query{noKey: true}, want{
				status: 429, limit: "missing-key-rejects", reason: "missing_key", remaining: -1, noRetry: true,
			}), first(allowed(0))},
		},
		{
			name:   "empty-value",
			limits: `- {name: empty-value, match: {path: /empty-value}, key: ["header:x-tenant"], rate: 1/h, missing: reject SHARED}`,
			about:  []feature{fieldsIn, empty},
			steps: []step{takes(query{key: "a", fields: map[string]string{"X-Tenant": ""}}, want{
				status: 429, limit: "empty-value", reason: "missing_key", remaining: -1, noRetry: true,
			})},
		},
		{
			name:   "ipv4",
			limits: `- {name: ipv4, match: {path: /ipv4}, key: [ip, "header:x-api-key"], rate: 2/h SHARED}`,
			about:  []feature{addresses},
			steps: []step{
				takes(query{ip: "198.51.100.1"}, allowed(1)), takes(query{ip: "198.51.100.2"}, allowed(1)),
				takes(query{ip: "::ffff:198.51.100.1"}, allowed(0)),
				takes(query{ip: "64:ff9b::198.51.100.1"}, refused(429, "ipv4", "rate_exceeded")),
				takes(query{ip: "64:ff9b::198.51.100.2"}, allowed(0)),
			},
		},
		{
			name: "ipv6",
			limits: `
- {name: ipv6, match: {path: /ipv6}, key: [ip, "header:x-api-key"], rate: 2/h SHARED}
- {name: ipv6-one, match: {path: /ipv6, ip: "2001:db8:0:2::9"}, key: [ip, "header:x-api-key"], rate: 1/h SHARED}`,
			about: []feature{addresses},
			steps: []step{
				takes(query{ip: "2001:db8:0:1::1"}, allowed(1)), takes(query{ip: "2001:db8:0:1:ffff::2"}, allowed(0)),
				takes(query{ip: "2001:db8:0:1::3"}, refused(429, "ipv6", "rate_exceeded")),
				// A match sees the address, the key sees its network.
				takes(query{ip: "2001:db8:0:2::9"}, allowed(0)), takes(query{ip: "2001:db8:0:2::9"}, refused(429, "ipv6-one", "rate_exceeded")),
				takes(query{ip: "2001:db8:0:2::8"}, allowed(0)),
			},
		},
		{
			name:   "long-value",
			limits: `- {name: long-value, match: {path: /long-value}, key: ["header:x-api-key"], rate: 1/h SHARED}`,
			steps: []step{
				takes(query{key: long + "1"}, allowed(0)), takes(query{key: long + "2"}, allowed(0)),
				takes(query{key: long + "1"}, refused(429, "long-value", "rate_exceeded")),
			},
		},
		{
			name:   "not-utf8",
			limits: `- {name: not-utf8, match: {path: /not-utf8}, key: ["header:x-api-key"], rate: 1/h SHARED}`,
			about:  []feature{bytes},
			steps: []step{
				takes(query{key: "gold\xff"}, allowed(0)), takes(query{key: "gold\xff"}, refused(429, "not-utf8", "rate_exceeded")),
			},
		},
		{
			name:   "encoded-path",
			limits: `- {name: encoded-path, match: {path: "/encoded-path/*"}, key: ["header:x-api-key"], rate: 1/h SHARED}`,
			about:  []feature{encoded},
			steps: []step{
				takes(query{path: "/encoded-path/cats", key: "a"}, allowed(0)),
				takes(query{path: "/encoded-path/cats%2f..%2f..%2fz", key: "a"}, refused(429, "encoded-path", "rate_exceeded")),
				takes(query{path: "/encoded-path/%2e%2e%2fz", key: "a"}, refused(429, "encoded-path", "rate_exceeded")),
				takes(query{path: "/encoded%2dpath/cats", key: "a"}, refused(429, "encoded-path", "rate_exceeded")),
			},
		},
		{
			name:   "twice",
			limits: `- {name: twice, match: {path: /twice}, key: ["header:x-api-key"], rate: 1/h SHARED}`,
			about:  []feature{twice},
			steps: []step{
				first(allowed(0)), takes(query{key: "a", second: "z"}, refused(429, "twice", "rate_exceeded")),
				takes(query{key: "z"}, allowed(0)),
			},
			strict: []step{first(allowed(0)), takes(query{key: "a", second: "z"}, want{invalid: true}), takes(query{key: "z"}, allowed(0))},
		},
		{
			name: "condition-fails",
			limits: `- {name: condition-fails, match: {path: /condition-fails}, key: ["header:x-api-key"], rate: 1/h SHARED, ` +
				`when: 'int(attributes["header:x-size"]) > 5'}`,
			about: []feature{fieldsIn},
			steps: []step{
				takes(query{key: "a", fields: map[string]string{"X-Size": "1"}}, allowed(-1)),
				// It cannot be evaluated: a limit that refuses applies.
				takes(query{key: "a", fields: map[string]string{"X-Size": "big"}}, allowed(0)),
				takes(query{key: "a", fields: map[string]string{"X-Size": "big"}}, refused(429, "condition-fails", "rate_exceeded")),
			},
		},
		{
			name: "condition",
			limits: `- {name: condition, match: {path: /condition}, key: ["header:x-api-key"], rate: 1/h SHARED, ` +
				`when: 'attributes["header:x-size"] == "big"'}`,
			about: []feature{fieldsIn},
			steps: []step{
				takes(query{key: "a", fields: map[string]string{"X-Size": "big"}}, allowed(0)),
				takes(query{key: "a", fields: map[string]string{"X-Size": "big"}}, refused(429, "condition", "rate_exceeded")),
				takes(query{key: "a", fields: map[string]string{"X-Size": "small"}}, allowed(-1)),
			},
		},
		{
			name:   "in-flight",
			limits: `- {name: in-flight, match: {path: /in-flight}, key: ["header:x-api-key"], algorithm: concurrency, max_in_flight: 1, timeout: 1h SHARED}`,
			about:  []feature{finishes},
			steps: []step{
				takes(query{key: "a", hold: true}, want{allowed: true, remaining: -1}),
				first(want{status: 429, limit: "in-flight", reason: "concurrency_exceeded", remaining: -1}),
				{do: finish},
				takes(query{key: "a", hold: true, soon: true}, want{allowed: true, remaining: -1}),
				{do: finish},
			},
		},
		{
			name:     "reload",
			limits:   `- {name: reload, match: {path: /reload}, key: ["header:x-api-key"], rate: 3/h SHARED}`,
			reloaded: `- {name: reload, match: {path: /reload}, key: ["header:x-api-key"], rate: 5/h SHARED}`,
			about:    []feature{reloads},
			steps:    []step{first(allowed(2)), first(allowed(1)), first(allowed(0)), first(refused(429, "reload", "rate_exceeded"))},
			// What was used stays used: of five, three.
			later: []step{first(allowed(1)), first(allowed(0)), first(refused(429, "reload", "rate_exceeded"))},
		},
		{
			name:  "plan",
			group: plansGroup,
			more: `plans:
  - name: free
    limits: [{name: calls, match: {path: /plan}, key: ["header:x-api-key"], rate: 1/h SHARED}]
  - name: pro
    limits: [{name: calls, match: {path: /plan}, key: ["header:x-api-key"], rate: 3/h SHARED}]
customers: {by: "header:x-api-key", default: free, list: {` + vip() + `}}
`,
			steps: []step{
				first(allowed(0)), first(refused(429, "free.calls", "rate_exceeded")),
				takes(query{key: "vip"}, allowed(2)), takes(query{key: "vip"}, allowed(1)),
			},
		},
		{
			name: "store-failed-allow", group: failedGroup,
			limits: `- {name: store-failed-allow, match: {path: /store-failed-allow}, key: ["header:x-api-key"], rate: 1/h}`,
			steps:  []step{first(allowed(-1)), first(allowed(-1))},
		},
		{
			name: "store-failed-reject", group: failedGroup,
			limits: `- {name: store-failed-reject, match: {path: /store-failed-reject}, key: ["header:x-api-key"], rate: 1/h, on_store_failure: reject}`,
			steps:  []step{first(refused(503, "store-failed-reject", "store_failure"))},
		},
		{
			name: "store-failed-local", group: failedGroup,
			// The URL says that two processes share the store.
			limits: `- {name: store-failed-local, match: {path: /store-failed-local}, key: ["header:x-api-key"], rate: 4/h, on_store_failure: local}`,
			steps:  []step{first(allowed(-1)), first(allowed(-1)), first(refused(429, "store-failed-local", "rate_exceeded"))},
		},
		{
			name: "ban-restart", group: restartGroup,
			limits: `- {name: ban-restart, match: {path: /ban-restart}, key: ["header:x-api-key"], rate: 1/h, on_exceed: {reject: 403, ban: {for: 2h, after: 2/minute, from: now}}}`,
			steps: []step{
				first(allowed(0)), first(refused(403, "ban-restart", "rate_exceeded")),
				first(want{status: 403, limit: "ban-restart", reason: "banned", remaining: -1, retryAtMost: 7200}),
			},
			later: []step{
				first(want{status: 403, limit: "ban-restart", reason: "banned", remaining: -1, retryAtMost: 7200}), takes(query{key: "b"}, allowed(0)),
			},
			notShared: map[string]string{"leases": leasedWithout + "bans"},
		},
		{
			// It tells when a way reaches the service again.
			name: settledName, group: restartGroup,
			limits: `- {name: settled, match: {path: /settled}, key: ["header:x-api-key"], rate: 1M/h SHARED}`,
			steps:  []step{first(allowed(-1))},
		},
		{
			name: "soft-restart", group: restartGroup,
			limits: `- {name: soft-restart, match: {path: /soft-restart}, key: ["header:x-api-key"], rate: 4/h, soft: 50% SHARED}`,
			about:  []feature{warning},
			steps:  []step{first(allowed(3)), first(allowed(2))},
			later: []step{
				first(want{allowed: true, remaining: 1, warning: "soft-restart"}), takes(query{key: "b"}, allowed(3)),
			},
		},
		{
			name: "tag-restart", group: restartGroup,
			limits: `- {name: tag-restart, match: {path: /tag-restart}, key: ["header:x-api-key"], rate: 1/h, on_exceed: tag SHARED}`,
			about:  []feature{tagged},
			steps:  []step{first(allowed(0))},
			later: []step{
				first(want{allowed: true, remaining: -1, tag: [2]string{"X-RateLimit-Degraded", "tag-restart"}}), takes(query{key: "b"}, allowed(0)),
			},
		},
		{
			name: "redirect-restart", group: restartGroup,
			limits: `- {name: redirect-restart, match: {path: /redirect-restart}, key: ["header:x-api-key"], rate: 1/h, on_exceed: {redirect: "https://example.com/busy"} SHARED}`,
			about:  []feature{location},
			steps:  []step{first(allowed(0))},
			later: []step{
				first(want{status: 302, limit: "redirect-restart", reason: "rate_exceeded", remaining: -1, location: "https://example.com/busy"}),
				takes(query{key: "b"}, allowed(0)),
			},
		},
		{
			name: "recovering", group: recoveringGroup,
			limits: `- {name: recovering, match: {path: /recovering}, key: ["header:x-api-key"], rate: 5/h SHARED}`,
			steps:  []step{takes(query{key: "a", soon: true}, refused(429, "recovering", "recovering"))},
		},
	}
}
