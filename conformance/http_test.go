package conformance_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/stint-io/stint"
	"github.com/stint-io/stint/internal/gatewaytest"
	"github.com/stint-io/stint/middleware/httplimit"
)

// browser follows no redirects and keeps no connection to a server that has ended.
var browser = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// send sends a query as a client of a site would. holdID, if any, has the application hold it.
func (q query) send(base, target string, header [][2]string, holdID string) reply {
	u, err := url.Parse(base + target)
	if err != nil {
		return reply{err: err}
	}
	req, err := http.NewRequest(q.verb(), u.String(), nil)
	if err != nil {
		return reply{err: err}
	}
	req.URL = u
	for _, f := range header {
		req.Header[f[0]] = append(req.Header[f[0]], f[1])
	}
	if q.ip != "" {
		req.Header.Set("X-Forwarded-For", q.ip)
	}
	if holdID != "" {
		req.Header.Set("X-Hold", holdID)
	}
	res, err := browser.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return reply{err: err}
	}
	return readHTTP(res, text)
}

// readHTTP reads an answer as a client does: by status, header fields and problem document.
func readHTTP(res *http.Response, text []byte) reply {
	h := res.Header
	r := reply{retry: -1}
	r.status, r.allowed = res.StatusCode, res.StatusCode < 300
	if s, err := strconv.Atoi(h.Get("X-Stint-Status")); err == nil {
		r.status = s
	}
	r.location, r.contentType, r.body = h.Get("Location"), h.Get("Content-Type"), string(text)
	if l := h.Get("X-Stint-Location"); l != "" {
		r.location = l
	}
	r.field = [2]string{"X-Reason", h.Get("X-Reason")}
	r.tag = [2]string{"X-RateLimit-Degraded", h.Get("X-RateLimit-Degraded") + h.Get("X-Seen-Degraded")}
	r.remaining, r.limit = remainingOf(h)
	if list, err := httpsfv.UnmarshalList(h.Values("X-RateLimit-Warning")); err == nil && len(list) == 1 {
		r.warning, _ = list[0].(httpsfv.Item).Value.(string)
	}
	if s, err := strconv.ParseFloat(h.Get("Retry-After"), 64); err == nil {
		r.retry = s
	}
	var problem struct {
		Violated []string `json:"violated-policies"`
		Reason   string   `json:"reason"`
		Title    string   `json:"title"`
		Detail   string   `json:"detail"`
	}
	if strings.HasPrefix(r.contentType, "application/problem+json") && json.Unmarshal(text, &problem) == nil {
		r.reason = problem.Reason
		if len(problem.Violated) > 0 {
			r.limit = problem.Violated[0]
		}
	}
	if r.status == http.StatusBadRequest || r.status >= 500 && r.limit == "" {
		r.err = fmt.Errorf("%d: %.200s", r.status, text)
	}
	return r
}

// remainingOf reads RateLimit: what the tightest limit has left, and its name.
func remainingOf(h http.Header) (left int64, limit string) {
	list, err := httpsfv.UnmarshalList(h.Values("RateLimit"))
	if err != nil {
		return -1, ""
	}
	left = -1
	if len(list) == 0 { // Envoy writes 10, 10;w=60;name="per-client"
		if n, err := strconv.ParseInt(h.Get("X-RateLimit-Remaining"), 10, 64); err == nil {
			left = n
		}
		_, limit, _ = strings.Cut(h.Get("X-RateLimit-Limit"), `name="`)
		limit, _, _ = strings.Cut(limit, `"`)
	}
	for _, member := range list {
		item, ok := member.(httpsfv.Item)
		if !ok {
			continue
		}
		value, _ := item.Params.Get("r")
		if n, ok := value.(int64); ok && (left < 0 || n < left) {
			left = n
			limit, _ = item.Value.(string)
		}
	}
	return left, limit
}

// holds are requests that the application does not answer yet.
type holds struct {
	mu   sync.Mutex
	next int
	open map[string]chan struct{} // closed to let it go on
	seen map[string]chan struct{} // closed when it has come
}

// hold makes an application hold requests with X-Hold.
func hold(app *gatewaytest.Application) *holds {
	h := &holds{open: map[string]chan struct{}{}, seen: map[string]chan struct{}{}}
	app.OnRequest = func(r *http.Request) {
		id := r.Header.Get("X-Hold")
		if id == "" {
			return
		}
		h.mu.Lock()
		open, seen := h.open[id], h.seen[id]
		h.mu.Unlock()
		close(seen)
		<-open
	}
	return h
}

// begin sends a request that is held where it gets through. The reply is then that it was let pass.
func (h *holds) begin(send func(id string) reply) reply {
	h.mu.Lock()
	h.next++
	id := strconv.Itoa(h.next)
	seen := make(chan struct{})
	h.open[id], h.seen[id] = make(chan struct{}), seen
	h.mu.Unlock()
	done := make(chan reply, 1)
	go func() { done <- send(id) }()
	select {
	case r := <-done:
		return r
	case <-seen:
		r := reply{retry: -1, permit: id}
		r.allowed, r.remaining = true, -1
		return r
	}
}

func (h *holds) end(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.open[id])
}

// httpAsker sends requests as clients of a site do.
type httpAsker struct {
	way, scenario string
	base          string
	holds         *holds
	cost          bool // X-Cost is the cost
}

func (a *httpAsker) ask(t *testing.T, q query) reply {
	header := q.header(a.way, a.scenario)
	if a.cost {
		header = append(header, [2]string{"X-Cost", strconv.FormatInt(q.tokens(), 10)})
	}
	if q.hold {
		return a.holds.begin(func(id string) reply { return q.send(a.base, q.target(a.scenario), header, id) })
	}
	return q.send(a.base, q.target(a.scenario), header, "")
}

func (a *httpAsker) settle(_ *testing.T, _ action, _ query, r reply) { a.holds.end(r.permit) }

func (a *httpAsker) in(sc string) { a.scenario = sc }

// gateAsker asks as a gateway that passes on what its client sent.
type gateAsker struct {
	way, scenario, base string
}

func (a *gateAsker) in(sc string) { a.scenario = sc }

func (a *gateAsker) ask(t *testing.T, q query) reply {
	header := append(q.header(a.way, a.scenario), [][2]string{
		{"X-Forwarded-Method", q.verb()}, {"X-Forwarded-Uri", q.target(a.scenario)}, {"X-Forwarded-Host", "shop.example"},
	}...)
	if q.ip == "" {
		q.ip = "127.0.0.1"
	}
	return q.send(a.base, fmt.Sprintf("/from=x-forwarded/wait=2500ms/cost=%d", q.tokens()), header, "")
}

var gatewayLacks = with(
	each("a gateway does not tell when a request ends", finishes),
	each("a gateway asks once for each request", reserves),
)

// publishedLacks is what a published gateway file lacks beside that.
var publishedLacks = with(gatewayLacks,
	each("the cost is an option in the gateway's configuration", costs, peeks),
	each("the published file does not wait", waits),
	each("the address is that of the connection: see the row of /v1/gate", addresses),
)

const gateways = "../examples/gateways/"

// httpWays are the ways that an HTTP request takes.
func httpWays() []way {
	gate := func(name, mode string) way {
		lacks := with(gatewayLacks)
		if mode == "nginx" {
			lacks = with(lacks)
		}
		return way{name: name, lacks: lacks, open: func(t *testing.T, s *site) asker {
			return &gateAsker{way: name, base: "http://" + s.service.HTTP + "/v1/gate/" + mode}
		}}
	}
	gateway := func(name string, start func(testing.TB, *site) string, more map[feature]string) way {
		return way{name: name, lacks: with(publishedLacks, more), open: func(t *testing.T, s *site) asker {
			s.service.Timeout = "2s"
			return &httpAsker{way: name, base: "http://" + start(t, s), holds: s.holds}
		}}
	}
	return []way{
		{
			name:  "httplimit",
			lacks: each("a middleware asks once for each request", reserves),
			notShared: map[string]string{
				"file":   "stint.Open keeps counters in memory or in Redis; only the service keeps them in a file",
				"leases": "stint.Open has no coordinator; client.Keyed spends leases in a program",
			},
			open: openMiddleware,
		},
		gate("gate forward-auth", "forward-auth"),
		gate("gate nginx", "nginx"),
		gateway("nginx", func(t testing.TB, s *site) string {
			return gatewaytest.StartNginx(t, gateways+"nginx", s.service, s.app)
		}, with(
			each("auth_request passes on no body", body, reason),
			each("auth_request passes on fields that the file names", fieldsOut),
		)),
		gateway("HAProxy with Lua", func(t testing.TB, s *site) string {
			return gatewaytest.StartHAProxy(t, gateways+"haproxy", s.service, s.app)
		}, with(
			each("the published file answers with a body of its own", body, reason),
			each("the published file passes on fields that it names", fieldsOut),
		)),
		gateway("HAProxy with SPOE", func(t testing.TB, s *site) string {
			return gatewaytest.StartSPOE(t, gateways+"haproxy", false, s.service, s.app)
		}, with(
			each("the published file passes on fields that it names", fieldsOut),
			each("the published file names the arguments of a query", fieldsIn),
		)),
		gateway("Caddy", func(t testing.TB, s *site) string {
			return gatewaytest.StartCaddy(t, gateways+"caddy", "Caddyfile", s.service, s.app)
		}, nil),
		gateway("Traefik", func(t testing.TB, s *site) string {
			return gatewaytest.StartTraefik(t, traefik, gateways+"traefik", s.service, s.app)
		}, with(
			each("Traefik passes on no field with what it admits", remaining, warning),
			each("the published file names the fields that it asks with", fieldsIn),
		)),
		gateway("Envoy with ratelimit", func(t testing.TB, s *site) string {
			return gatewaytest.StartEnvoy(t, envoy, gateways+"envoy", "envoy.yaml", s.service, s.app)
		}, with(
			each("Envoy has one status for all refusals, 429 in the published file", status),
			each("Envoy's rate limit service has no place for a reason", reason),
			each("Envoy shows a limit by its figures, and there are none where its store failed", name),
			each("the published file names the entries that it sends", fieldsIn),
		)),
		gateway("Envoy with ext_authz", func(t testing.TB, s *site) string {
			return gatewaytest.StartEnvoy(t, envoy, gateways+"envoy", "ext-authz.yaml", s.service, s.app)
		}, each("the published file names the fields that it asks with", fieldsIn)),
		{
			name: "Envoy with rate_limit_quota",
			lacks: with(publishedLacks,
				each("Envoy has one answer for all refusals, that of the filter's configuration", status, body, fieldsOut, location, name, reason, retry),
				each("Envoy decides by itself and says nothing of it", remaining, warning, tagged),
				each("the test's matcher makes a bucket of a path and a field", fieldsIn),
				each("a bucket that cannot be made goes to the next matcher", unnamed),
				each("Envoy has one value of a field that occurs twice, joined by commas", twice),
				each("Envoy rewrites bytes that are not UTF-8", bytes),
				each("the published file has Envoy decode a path before it matches, and before the application sees it", encoded),
				each("a change reaches Envoy with its next report, up to 5 s later", reloads),
			),
			notShared: map[string]string{
				"memory": "only leased limits are assigned to Envoy", "file": "only leased limits are assigned to Envoy",
				"redis": "only leased limits are assigned to Envoy",
			},
			open: openQuotas,
		},
		{
			name:   "stint proxy --config",
			lacks:  proxyLacks,
			strict: true,
			notShared: map[string]string{
				"file":   "the proxy keeps counters in memory or in Redis; only the service keeps them in a file",
				"leases": "leases take a coordinator: see the row with --coordinator",
			},
			open: openProxy("stint proxy --config", func(s *site) []string { return []string{"--config", s.config} }),
		},
		{
			name:   "stint proxy --service",
			lacks:  proxyLacks,
			strict: true,
			open: openProxy("stint proxy --service", func(s *site) []string {
				return []string{
					"--service", "http://" + s.service.HTTP, "--service-timeout", "5s",
					"--attribute", "header:x-api-key", "--attribute", "header:x-tenant", "--attribute", "header:x-size",
				}
			}),
		},
		{
			name:   "stint proxy --coordinator",
			lacks:  proxyLacks,
			strict: true,
			notShared: map[string]string{
				"memory": "a coordinator lends leased limits: without them it is the row with --config",
				"file":   "a coordinator lends leased limits: without them it is the row with --config",
				"redis":  "a coordinator lends leased limits: without them it is the row with --config",
			},
			open: openProxy("stint proxy --coordinator", func(s *site) []string {
				return []string{"--config", s.config, "--coordinator", s.service.GRPC}
			}),
		},
	}
}

var proxyLacks = with(
	each("the proxy charges one for each request", costs, peeks),
	each("the proxy asks once for each request", reserves),
)

// quotaMatcher makes a bucket for each path and value of x-api-key.
const quotaMatcher = `- predicate:
    single_predicate:
      input: { name: path, typed_config: { "@type": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput, header_name: ":path" } }
      value_match: { prefix: / }
  on_match:
    action:
      name: bucket
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings
        bucket_id_builder:
          bucket_id_builder:
            path: { custom_value: { name: path, typed_config: { "@type": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput, header_name: ":path" } } }
            "header:x-api-key": { custom_value: { name: key, typed_config: { "@type": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput, header_name: x-api-key } } }
        reporting_interval: 5s
        no_assignment_behavior: { fallback_rate_limit: { blanket_rule: DENY_ALL } }
`

// quotaAsker asks through an Envoy that decides by what it is assigned.
type quotaAsker struct {
	httpAsker
	assigned map[string]bool
}

func openQuotas(t *testing.T, s *site) asker {
	folder := gatewaytest.AddQuotaMatcher(t, gateways+"envoy", quotaMatcher, 0)
	listen := gatewaytest.StartEnvoy(t, envoy, folder, "quota.yaml", s.service, s.app)
	return &quotaAsker{httpAsker{way: "Envoy with rate_limit_quota", base: "http://" + listen, holds: s.holds}, map[string]bool{}}
}

// ask asks anew until a bucket is assigned: until then Envoy refuses.
func (a *quotaAsker) ask(t *testing.T, q query) reply {
	key, _ := q.fullKey(a.way, a.scenario)
	bucket := q.target(a.scenario) + " " + key
	begin := time.Now()
	r := a.httpAsker.ask(t, q)
	for !r.allowed && r.err == nil && !a.assigned[bucket] && time.Since(begin) < 3*time.Second {
		r = a.httpAsker.ask(t, q)
	}
	a.assigned[bucket] = true
	return r
}

func openMiddleware(t *testing.T, s *site) asker {
	limiter, err := stint.Open(s.config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = limiter.Close() })
	cost := func(r *http.Request) int64 {
		n, err := strconv.ParseInt(r.Header.Get("X-Cost"), 10, 64)
		if err != nil {
			return 1
		}
		return n
	}
	guard := httplimit.New(limiter, httplimit.WithCost(cost), httplimit.WithTrustedProxies(netip.MustParsePrefix("127.0.0.0/8")))
	server := httptest.NewServer(guard(s.app))
	t.Cleanup(server.Close)
	return &middlewareAsker{httpAsker{way: "httplimit", base: server.URL, holds: s.holds, cost: true}, limiter}
}

type middlewareAsker struct {
	httpAsker
	limiter *stint.Limiter
}

func (a *middlewareAsker) reload(t *testing.T) {
	if err := a.limiter.Reload(); err != nil {
		t.Error(err)
	}
}

func openProxy(name string, flags func(*site) []string) func(*testing.T, *site) asker {
	return func(t *testing.T, s *site) asker {
		a := gatewaytest.FreeAddrs(t, 2)
		p := s.process(t, append([]string{
			"proxy", "--upstream", "http://" + s.app.Addr, "--http", a[0], "--admin", a[1], "--trusted-proxy", "127.0.0.0/8",
		}, flags(s)...)...)
		p.Await(t, a[0])
		if !s.group.unready {
			gatewaytest.AwaitReady(t, a[1])
		}
		return &proxyAsker{httpAsker{way: name, base: "http://" + a[0], holds: s.holds}, p, a[1]}
	}
}

type proxyAsker struct {
	httpAsker
	process *gatewaytest.Process
	admin   string
}

func (a *proxyAsker) reload(t *testing.T) {
	res, err := http.Post("http://"+a.admin+"/admin/reload", "", nil)
	if err != nil {
		t.Error(err)
		return
	}
	res.Body.Close()
}
