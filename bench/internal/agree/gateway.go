package agree

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/stint-io/stint/bench/internal/process"
)

// Gateway is a comparison behind Envoy: the same requests go through two listeners with the same configuration. One
// asks envoyproxy/ratelimit, the other stint.
type Gateway struct {
	Envoy          string // the binary
	Redis          string // host:port of a server for both
	Configurations int    // drawn: actions, stages, descriptors, overrides, costs, options of the filter
	Requests       int    // drawn for each
	Seed           uint64
}

// variants is how many sets of options of the filter are drawn: each takes two listeners.
const variants = 8

// GatewayOutcome is what a Gateway saw.
type GatewayOutcome struct {
	Outcome                 // of the calls that Envoy made
	Exchanges, Compared int // HTTP requests; those whose answers had to be the same
	Uncalled            int // for which Envoy asked nobody
	Unlike              int // responses, fields or lines of the log that differ
}

// Run starts both services behind one Envoy.
func (g Gateway) Run(ctx context.Context, p Programs) (o GatewayOutcome, err error) {
	rng := rand.New(rand.NewPCG(g.Seed, 40))
	w := Walk{Set: Set{Name: "drawn", domains: map[string][]Rule{}}, Redis: g.Redis}
	var sites []*site
	for i := range g.Configurations {
		s := drawSite(rng, i, variants)
		sites = append(sites, s)
		w.Set.Files = append(w.Set.Files, s.file)
		w.Set.domains[s.domain] = s.file.Descriptors
	}
	dir, err := os.MkdirTemp("", "stint-agree-")
	if err != nil {
		return o, fmt.Errorf("agree: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	where, err := w.place(ctx, dir)
	if err != nil {
		return o, err
	}
	there, here, err := where.start(ctx, p)
	defer there.stop()
	defer here.stop()
	if err != nil {
		return o, err
	}
	sides := [2]*side{{service: there, name: "there"}, {service: here, name: "here"}}
	for _, s := range sides {
		if err := s.listen(); err != nil {
			return o, err
		}
		defer s.grpc.Stop()
	}
	app := httptest.NewServer(http.HandlerFunc(echo))
	defer app.Close()
	var filters []object
	for range variants {
		filters = append(filters, drawFilter(rng))
	}
	ports, envoy, err := startEnvoy(ctx, g.Envoy, dir, sides, filters, sites, app.Listener.Addr().String())
	if envoy != nil {
		defer envoy.Stop()
	}
	if err != nil {
		return o, err
	}
	compared, err := g.ask(ctx, rng, sites, sides, ports, NewLedger(w.Set), &o)
	if err != nil {
		return o, fmt.Errorf("%w; %s", err, envoy)
	}
	envoy.Stop() // it writes the rest of its logs
	return o, compareLogs(dir, compared, &o)
}

// echo answers with the fields that came.
func echo(w http.ResponseWriter, r *http.Request) {
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		if strings.HasPrefix(name, "X-") && !strings.HasPrefix(name, "X-Request-Id") && !strings.HasPrefix(name, "X-Envoy") {
			fmt.Fprintf(w, "%s: %q\n", name, r.Header[name])
		}
	}
}

// side is one of the services, behind a server that records what Envoy asks.
type side struct {
	rls.UnimplementedRateLimitServiceServer
	*service
	name string
	addr string
	grpc *grpc.Server

	mu    sync.Mutex
	calls []call
}

type call struct {
	question *rls.RateLimitRequest
	answer   Answer
	from, to time.Time
}

func (s *side) listen() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("agree: %w", err)
	}
	s.addr, s.grpc = l.Addr().String(), grpc.NewServer()
	rls.RegisterRateLimitServiceServer(s.grpc, s)
	go func() { _ = s.grpc.Serve(l) }() // ends with Stop
	return nil
}

// ShouldRateLimit asks the service and records the call.
func (s *side) ShouldRateLimit(ctx context.Context, q *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	from := time.Now()
	a := s.ask(ctx, q)
	s.mu.Lock()
	s.calls = append(s.calls, call{proto.CloneOf(q), Answer{proto.CloneOf(a.Response), a.Err}, from, time.Now()})
	s.mu.Unlock()
	return a.Response, a.Err
}

func (s *side) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

// taken returns the calls since the last time.
func (s *side) taken() []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.calls
	s.calls = nil
	return list
}

func endpoint(name, addr string, http2 bool) (object, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("agree: %w", err)
	}
	c := object{"name": name, "type": "STATIC", "connect_timeout": "5s", "load_assignment": object{
		"cluster_name": name, "endpoints": []object{{"lb_endpoints": []object{{
			"endpoint": object{"address": object{"socket_address": object{"address": host, "port_value": json.Number(port)}}},
		}}}},
	}}
	if http2 {
		c["typed_extension_protocol_options"] = object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
			"@type": typeURL + "extensions.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": object{"http2_protocol_options": object{}},
		}}
	}
	return c, nil
}

var anyPort = object{"socket_address": object{"address": "127.0.0.1", "port_value": 0}}

const logFormat = "%REQ(X-ID)% %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %DYNAMIC_METADATA(envoy.filters.http.ratelimit)%\n"

// startEnvoy starts an Envoy with two listeners for each variant of the filter. It returns their addresses.
func startEnvoy(ctx context.Context, bin, dir string, sides [2]*side, filters []object, sites []*site, app string) (ports [variants][2]string, envoy *process.Process, err error) {
	cluster, err := endpoint("app", app, false)
	if err != nil {
		return ports, nil, err
	}
	clusters := []object{cluster}
	var listeners []object
	for _, s := range sides {
		cluster, err := endpoint(s.name, s.addr, true)
		if err != nil {
			return ports, nil, err
		}
		clusters = append(clusters, cluster)
		for v, filter := range filters {
			var hosts []object
			for _, site := range sites {
				if site.variant == v {
					hosts = append(hosts, site.host)
				}
			}
			chain := []object{{"name": "set_metadata", "typed_config": object{
				"@type":    typeURL + "extensions.filters.http.set_metadata.v3.Config",
				"metadata": []object{{"metadata_namespace": "drawn", "value": object{"plan": "gold", "three": object{"requests_per_unit": 3, "unit": "HOUR"}}}},
			}}}
			for stage := range 2 {
				f := maps.Clone(filter)
				f["stage"] = stage
				f["rate_limit_service"] = object{"transport_api_version": "V3", "grpc_service": object{"envoy_grpc": object{"cluster_name": s.name}}}
				chain = append(chain, object{"name": fmt.Sprintf("stage%d", stage), "typed_config": f})
			}
			chain = append(chain, object{"name": "router", "typed_config": object{"@type": typeURL + "extensions.filters.http.router.v3.Router"}})
			manager := object{
				"@type": typeURL + "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "front", "use_remote_address": false,
				"access_log": []object{{"name": "file", "typed_config": object{
					"@type": typeURL + "extensions.access_loggers.file.v3.FileAccessLog", "path": filepath.Join(dir, s.name+".log"),
					"log_format": object{"text_format_source": object{"inline_string": logFormat}},
				}}},
				"route_config": object{"name": "routes", "virtual_hosts": hosts}, "http_filters": chain,
			}
			listeners = append(listeners, object{
				"name": fmt.Sprintf("%s%d", s.name, v), "address": anyPort,
				"filter_chains": []object{{"filters": []object{{"name": "http", "typed_config": manager}}}},
			})
		}
	}
	text, err := json.MarshalIndent(object{
		"admin":            object{"address": anyPort},
		"static_resources": object{"listeners": listeners, "clusters": clusters},
	}, "", " ")
	if err != nil {
		return ports, nil, fmt.Errorf("agree: %w", err)
	}
	file := filepath.Join(dir, "envoy.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return ports, nil, fmt.Errorf("agree: %w", err)
	}
	admin := filepath.Join(dir, "admin")
	envoy, err = process.Start(nil, bin, "-c", file, "--use-dynamic-base-id", "--concurrency", "1", "-l", "error", "--file-flush-interval-msec", "50",
		"--admin-address-path", admin)
	if err != nil {
		return ports, nil, err
	}
	for {
		if ports, err = listening(ctx, admin); err == nil {
			return ports, envoy, nil
		}
		select {
		case <-envoy.Ended():
			return ports, envoy, fmt.Errorf("%w; %s", err, envoy)
		case <-ctx.Done():
			return ports, envoy, fmt.Errorf("%w; %s", err, envoy)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// listening asks an Envoy whose admin address is in a file for those of its listeners. Until it is ready that is an error.
func listening(ctx context.Context, admin string) (ports [variants][2]string, err error) {
	addr, err := os.ReadFile(admin)
	if err != nil {
		return ports, fmt.Errorf("agree: %w", err)
	}
	for _, path := range []string{"/ready", "/listeners?format=json"} {
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+string(addr)+path, nil)
		if err != nil {
			return ports, fmt.Errorf("agree: %w", err)
		}
		res, body, err := exchange(q)
		if err != nil {
			return ports, err
		}
		if res.StatusCode != http.StatusOK {
			return ports, fmt.Errorf("agree: Envoy answers %s with %s", path, res.Status)
		}
		if path == "/ready" {
			continue
		}
		var list struct {
			Statuses []struct {
				Name  string `json:"name"`
				Local struct {
					Socket struct {
						Port int `json:"port_value"`
					} `json:"socket_address"`
				} `json:"local_address"`
			} `json:"listener_statuses"`
		}
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			return ports, fmt.Errorf("agree: %w", err)
		}
		for _, l := range list.Statuses {
			for v := range ports {
				for i, side := range []string{"there", "here"} {
					if l.Name == fmt.Sprint(side, v) {
						ports[v][i] = fmt.Sprintf("127.0.0.1:%d", l.Local.Socket.Port)
					}
				}
			}
		}
	}
	for _, pair := range ports {
		if slices.Contains(pair[:], "") {
			return ports, errors.New("agree: Envoy does not have all its listeners")
		}
	}
	return ports, nil
}

// late is how long a call may take that Envoy makes when a response has been sent.
const late = 50 * time.Millisecond

func (g Gateway) ask(ctx context.Context, rng *rand.Rand, sites []*site, sides [2]*side, ports [variants][2]string, ledger *Ledger, o *GatewayOutcome) (compared []string, err error) {
	o.Known = map[Deviation]int{}
	differs := map[string]bool{} // sites whose counters are not the same any more
	for n := range g.Configurations * g.Requests {
		s := sites[rng.IntN(len(sites))]
		q := drawRequest(rng, s)
		q.Header.Set("X-Id", fmt.Sprint(n))
		if left := time.Until(time.Now().Truncate(time.Second).Add(time.Second)); left < beforeTurn {
			time.Sleep(left + time.Millisecond)
		}
		var answers [2]*http.Response
		var bodies [2]string
		var errs [2]error
		var both sync.WaitGroup
		for i := range sides {
			both.Go(func() {
				one := q.Clone(ctx)
				one.URL.Host = ports[s.variant][i]
				answers[i], bodies[i], errs[i] = exchange(one)
			})
		}
		both.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			return nil, err
		}
		if s.late {
			time.Sleep(late)
		}
		for end := time.Now().Add(time.Second); sides[0].count() != sides[1].count() && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		o.Exchanges++
		there, here := sides[0].taken(), sides[1].taken()
		if len(there) == 0 && len(here) == 0 {
			o.Uncalled++
		}
		same, unlike := compareCalls(ledger, there, here, o)
		if !same {
			differs[s.domain] = true
		}
		// From the first meant difference on, what passes is another.
		if !differs[s.domain] {
			o.Compared++
			compared = append(compared, q.Header.Get("X-Id"))
			if fault := responseFault(answers, bodies); fault != "" {
				unlike = append(unlike, fault)
			}
		}
		if len(unlike) > 0 {
			o.Unlike++
			if len(o.Examples) < 5 {
				o.Examples = append(o.Examples, fmt.Sprintf("%s %s %v at %s: %q\n%s", q.Method, q.URL, q.Header, s.domain, unlike, s.file.Text))
			}
		}
	}
	return compared, ctx.Err()
}

func exchange(q *http.Request) (*http.Response, string, error) {
	res, err := http.DefaultTransport.RoundTrip(q)
	if err != nil {
		return nil, "", fmt.Errorf("agree: %w", err)
	}
	body, err := io.ReadAll(res.Body)
	return res, string(body), errors.Join(err, res.Body.Close())
}

// compareCalls compares the calls of one request. It reports whether the answers are the same but for what is added.
func compareCalls(ledger *Ledger, there, here []call, o *GatewayOutcome) (same bool, unlike []string) {
	if len(there) != len(here) {
		return false, []string{fmt.Sprintf("%d calls there, %d here", len(there), len(here))}
	}
	same = true
	for i, a := range there {
		b := here[i]
		if !proto.Equal(a.question, b.question) {
			return false, append(unlike, fmt.Sprintf("call %d is {%v} there, {%v} here", i+1, a.question, b.question))
		}
		known, unknown := ledger.Compare(a.question, a.answer, b.answer, minTime(a.from, b.from), maxTime(a.to, b.to))
		o.Requests++
		o.Statuses += len(a.question.Descriptors)
		if a.answer.Response.GetOverallCode() == rls.RateLimitResponse_OVER_LIMIT {
			o.Refused++
		}
		alike := len(unknown) == 0
		for _, d := range known {
			o.Known[d]++
			alike = alike && d.Added()
		}
		if alike {
			o.Same++
		}
		same = same && alike
		if len(unknown) > 0 {
			o.Unexplained++
			unlike = append(unlike, fmt.Sprintf("call %d, {%v}: %q", i+1, a.question, unknown))
		}
	}
	return same, unlike
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// responseFault compares what clients see: status, fields and body. Retry-After is what stint adds.
func responseFault(answers [2]*http.Response, bodies [2]string) string {
	if answers[0].StatusCode != answers[1].StatusCode {
		return fmt.Sprintf("status %d there, %d here", answers[0].StatusCode, answers[1].StatusCode)
	}
	var fields [2]http.Header
	for i, a := range answers {
		fields[i] = a.Header.Clone()
		for _, name := range []string{"Date", "Retry-After", "X-Envoy-Upstream-Service-Time"} {
			fields[i].Del(name)
		}
		for _, name := range []string{"X-Ratelimit-Reset", "Ratelimit-Reset"} {
			if v := fields[i].Values(name); len(v) > 0 {
				fields[i].Set(name, fmt.Sprint(len(v)))
			}
		}
	}
	if !maps.EqualFunc(fields[0], fields[1], slices.Equal) {
		return fmt.Sprintf("fields %v there, %v here", fields[0], fields[1])
	}
	if bodies[0] != bodies[1] {
		return fmt.Sprintf("body %q there, %q here", bodies[0], bodies[1])
	}
	return ""
}

// compareLogs compares the lines of the access logs that requests with these numbers have. The
// metadata has been compared in the calls; here, both have some or none.
func compareLogs(dir string, compared []string, o *GatewayOutcome) error {
	var lines [2]map[string]string
	for i, name := range []string{"there.log", "here.log"} {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("agree: %w", err)
		}
		lines[i] = map[string]string{}
		scan := bufio.NewScanner(f)
		scan.Buffer(nil, 1<<20)
		for scan.Scan() {
			id, rest, _ := strings.Cut(scan.Text(), " ")
			words := strings.SplitN(rest, " ", 4)
			if len(words) == 4 && words[3] != "-" {
				words[3] = "metadata"
			}
			lines[i][id] = strings.Join(words, " ")
		}
		if err := errors.Join(scan.Err(), f.Close()); err != nil {
			return fmt.Errorf("agree: %w", err)
		}
		if len(lines[i]) != o.Exchanges {
			return fmt.Errorf("agree: %s has %d lines, want %d", name, len(lines[i]), o.Exchanges)
		}
	}
	for _, id := range compared {
		if there, here := lines[0][id], lines[1][id]; there != here || there == "" {
			o.Unlike++
			o.Examples = append(o.Examples, fmt.Sprintf("access log of request %s: %q there, %q here", id, there, here))
		}
	}
	return nil
}
