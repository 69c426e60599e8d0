package conformance_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/dunglas/httpsfv"

	"github.com/stint-io/stint"
	"github.com/stint-io/stint/internal/gen/kuadrantpb"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/grpclimit"
	"github.com/stint-io/stint/stintpb"
)

func dial(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

const stringsAreUTF8 = "strings of protocol buffers are UTF-8"

// rlsAsker asks by Envoy's rate limit service, over gRPC or as JSON.
type rlsAsker struct {
	way, scenario string
	call          func(context.Context, *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error)
}

func (a *rlsAsker) in(sc string) { a.scenario = sc }

func (q query) descriptor(way, sc string) *commonpb.RateLimitDescriptor {
	d := &commonpb.RateLimitDescriptor{}
	for _, at := range q.attributes(way, sc) {
		d.Entries = append(d.Entries, &commonpb.RateLimitDescriptor_Entry{Key: at[0], Value: at[1]})
	}
	return d
}

func (a *rlsAsker) ask(t *testing.T, q query) reply {
	d := q.descriptor(a.way, a.scenario)
	d.HitsAddend = wrapperspb.UInt64(uint64(q.tokens()))
	resp, err := a.call(t.Context(), &rlspb.RateLimitRequest{Domain: "edge", Descriptors: []*commonpb.RateLimitDescriptor{d}})
	if err != nil {
		return reply{err: err}
	}
	return readRLS(resp)
}

func readRLS(resp *rlspb.RateLimitResponse) reply {
	r := reply{retry: -1}
	r.allowed, r.remaining, r.body = resp.OverallCode == rlspb.RateLimitResponse_OK, -1, string(resp.RawBody)
	if len(resp.Statuses) == 1 {
		st := resp.Statuses[0]
		if st.CurrentLimit != nil {
			r.remaining, r.limit = int64(st.LimitRemaining), st.CurrentLimit.Name
		}
	}
	if names := resp.GetDynamicMetadata().GetFields()["stint"].GetStructValue().GetFields()["limits"].GetListValue().GetValues(); len(names) > 0 {
		r.limit = names[0].GetStringValue()
	}
	field := func(list []*corev3.HeaderValue, name string) string {
		for _, h := range list {
			if strings.EqualFold(h.Key, name) {
				return h.Value
			}
		}
		return ""
	}
	out := resp.ResponseHeadersToAdd
	if s, err := strconv.ParseFloat(field(out, "Retry-After"), 64); err == nil {
		r.retry = s
	}
	r.location, r.contentType, r.field = field(out, "Location"), field(out, "Content-Type"), [2]string{"X-Reason", field(out, "X-Reason")}
	r.tag = [2]string{"X-RateLimit-Degraded", field(resp.RequestHeadersToAdd, "X-RateLimit-Degraded")}
	r.warning = unquoted(field(out, "X-RateLimit-Warning"))
	return r
}

// unquoted reads a list of one quoted name.
func unquoted(text string) string {
	if list, err := httpsfv.UnmarshalList([]string{text}); err == nil && len(list) == 1 {
		if item, ok := list[0].(httpsfv.Item); ok {
			name, _ := item.Value.(string)
			return name
		}
	}
	return ""
}

// kuadrantAsker asks as Kuadrant's filter: it checks, and reports what it lets pass.
type kuadrantAsker struct {
	way, scenario string
	client        kuadrantpb.RateLimitServiceClient
}

func (a *kuadrantAsker) in(sc string) { a.scenario = sc }

func (a *kuadrantAsker) ask(t *testing.T, q query) reply {
	d := q.descriptor(a.way, a.scenario)
	list := []*commonpb.RateLimitDescriptor{d}
	if q.reserve {
		resp, err := a.client.Reserve(t.Context(), &kuadrantpb.ReserveRequest{
			Domain: "edge", Descriptors: list, Amount: uint64(q.tokens()), Ttl: durationpb.New(time.Minute),
		})
		if err != nil {
			return reply{err: err}
		}
		r := reply{retry: -1, id: resp.ReservationId}
		r.allowed, r.remaining = resp.Code == rlspb.RateLimitResponse_OK, -1
		return r
	}
	req := &rlspb.RateLimitRequest{Domain: "edge", Descriptors: list, HitsAddend: uint32(max(1, q.tokens()))}
	resp, err := a.client.CheckRateLimit(t.Context(), req)
	if err != nil {
		return reply{err: err}
	}
	r := readRLS(resp)
	r.remaining = -1 // of before the report
	if r.allowed && !q.peek {
		if _, err := a.client.Report(t.Context(), req); err != nil {
			return reply{err: err}
		}
	}
	return r
}

func (a *kuadrantAsker) settle(t *testing.T, do action, q query, r reply) {
	amount := map[action]uint64{release: 0, commit: 1}[do]
	_, err := a.client.Commit(t.Context(), &kuadrantpb.CommitRequest{
		Domain: "edge", Descriptors: []*commonpb.RateLimitDescriptor{q.descriptor(a.way, a.scenario)}, ReservationId: r.id, ActualAmount: amount,
	})
	if err != nil {
		t.Errorf("%s: settling: %v", a.way, err)
	}
}

// limitsAsker asks by stint.limits.v1.Limits.
type limitsAsker struct {
	way, scenario string
	client        stintpb.LimitsClient
}

func (a *limitsAsker) in(sc string) { a.scenario = sc }

func (a *limitsAsker) ask(t *testing.T, q query) reply {
	attributes := toMap(q.attributes(a.way, a.scenario))
	if q.reserve {
		resp, err := a.client.Reserve(t.Context(), &stintpb.ReserveRequest{Attributes: attributes, Cost: q.tokens()})
		if err != nil {
			return reply{err: err}
		}
		r := readLimits(resp.Decision)
		r.id = resp.Reservation.GetId()
		return r
	}
	d, err := a.client.Take(t.Context(), &stintpb.TakeRequest{Attributes: attributes, Cost: proto.Int64(q.tokens())})
	if err != nil {
		return reply{err: err}
	}
	return readLimits(d)
}

func readLimits(d *stintpb.Decision) reply {
	r := reply{retry: -1, permit: strconv.FormatUint(d.Permit, 10)}
	r.allowed, r.status, r.remaining = d.Allowed, int(d.Status), -1
	if d.RetryAfter != nil {
		r.retry = d.RetryAfter.AsDuration().Seconds()
	}
	for _, value := range d.Tags {
		r.tag = [2]string{"X-RateLimit-Degraded", value}
	}
	if a := d.Action; a != nil {
		r.location, r.body, r.contentType = a.Location, a.GetBody(), a.ContentType
		for _, f := range a.Header {
			r.field = [2]string{f.Name, f.Value}
		}
	}
	for _, l := range d.Limits {
		if l.Soft {
			r.warning = l.Name
		}
		switch {
		case !d.Allowed && !l.Allowed && !l.Shadow && r.reason == "":
			r.limit, r.reason = l.Name, l.Reason
		case d.Allowed && !l.Shadow && (r.remaining < 0 || l.Remaining < r.remaining):
			r.limit, r.remaining = l.Name, l.Remaining
		}
	}
	return r
}

func (a *limitsAsker) settle(t *testing.T, do action, q query, r reply) {
	var err error
	switch do {
	case finish:
		permit, _ := strconv.ParseUint(r.permit, 10, 64)
		_, err = a.client.Finish(t.Context(), &stintpb.FinishRequest{Attributes: toMap(q.attributes(a.way, a.scenario)), Permit: permit})
	case release:
		_, err = a.client.Release(t.Context(), &stintpb.ReleaseRequest{Id: r.id})
	case commit:
		_, err = a.client.Commit(t.Context(), &stintpb.CommitRequest{Id: r.id, Actual: 1})
	}
	if err != nil {
		t.Errorf("%s: settling: %v", a.way, err)
	}
}

// guarded is a gRPC server behind grpclimit.
type guarded struct {
	healthpb.UnimplementedHealthServer
	mu   sync.Mutex
	next int
	open map[string]chan struct{}
	seen map[string]chan struct{}
	tag  string // of the last call that got through
}

func (g *guarded) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	g.mu.Lock()
	g.tag = strings.Join(md["x-ratelimit-degraded"], ",")
	open, seen := g.open[strings.Join(md["x-hold"], "")], g.seen[strings.Join(md["x-hold"], "")]
	g.mu.Unlock()
	if open != nil {
		close(seen)
		<-open
	}
	return &healthpb.HealthCheckResponse{}, nil
}

type guardedAsker struct {
	way, scenario string
	server        *guarded
	client        healthpb.HealthClient
	limiter       *stint.Limiter
}

func (a *guardedAsker) in(sc string) { a.scenario = sc }

func (a *guardedAsker) reload(t *testing.T) {
	if err := a.limiter.Reload(); err != nil {
		t.Error(err)
	}
}

func (a *guardedAsker) ask(t *testing.T, q query) reply {
	pairs := []string{"x-path", q.target(a.scenario), "x-cost", strconv.FormatInt(q.tokens(), 10)}
	for _, f := range q.header(a.way, a.scenario) {
		pairs = append(pairs, strings.ToLower(f[0]), f[1])
	}
	if q.ip != "" {
		pairs = append(pairs, "x-forwarded-for", q.ip)
	}
	if !q.hold {
		return a.call(t.Context(), pairs)
	}
	a.server.mu.Lock()
	a.server.next++
	id := strconv.Itoa(a.server.next)
	open, seen := make(chan struct{}), make(chan struct{})
	a.server.open[id], a.server.seen[id] = open, seen
	a.server.mu.Unlock()
	done := make(chan reply, 1)
	ctx := context.WithoutCancel(t.Context())
	go func() { done <- a.call(ctx, append(pairs, "x-hold", id)) }()
	select {
	case r := <-done:
		return r
	case <-seen:
		r := reply{retry: -1, permit: id}
		r.allowed, r.remaining = true, -1
		return r
	}
}

func (a *guardedAsker) call(ctx context.Context, pairs []string) reply {
	var header metadata.MD
	_, err := a.client.Check(metadata.AppendToOutgoingContext(ctx, pairs...), &healthpb.HealthCheckRequest{}, grpc.Header(&header))
	h := http.Header{}
	for name, values := range header {
		h[http.CanonicalHeaderKey(name)] = values
	}
	h["RateLimit"] = header["ratelimit"]
	r := reply{retry: -1}
	r.remaining, r.limit = remainingOf(http.Header{"Ratelimit": header["ratelimit"]})
	r.warning = unquoted(strings.Join(header["x-ratelimit-warning"], ","))
	r.location, r.field = h.Get("Location"), [2]string{"X-Reason", h.Get("X-Reason")}
	if err == nil {
		r.allowed = true
		a.server.mu.Lock()
		r.tag = [2]string{"X-RateLimit-Degraded", a.server.tag}
		a.server.mu.Unlock()
		return r
	}
	st := grpcstatus.Convert(err)
	if st.Code() != codes.ResourceExhausted && st.Code() != codes.Unavailable {
		r.err = err
		return r
	}
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.RetryInfo:
			r.retry = d.RetryDelay.AsDuration().Seconds()
		case *errdetails.QuotaFailure:
			for _, v := range d.Violations {
				r.limit = v.Subject
			}
		}
	}
	if r.limit == "" {
		r.err = err
	}
	return r
}

func (a *guardedAsker) settle(_ *testing.T, _ action, _ query, r reply) {
	a.server.mu.Lock()
	defer a.server.mu.Unlock()
	close(a.server.open[r.permit])
}

func openGuarded(t *testing.T, s *site) asker {
	limiter, err := stint.Open(s.config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = limiter.Close() })
	of := func(ctx context.Context, name string) string {
		md, _ := metadata.FromIncomingContext(ctx)
		return strings.Join(md[name], "")
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(grpclimit.UnaryServerInterceptor(limiter,
		grpclimit.WithTrustedProxies(netip.MustParsePrefix("127.0.0.0/8")),
		grpclimit.WithAttributes(func(ctx context.Context, _ string) []limit.Attribute {
			return []limit.Attribute{{Name: "path", Value: of(ctx, "x-path")}}
		}),
		grpclimit.WithCost(func(ctx context.Context, _ string) int64 {
			n, _ := strconv.ParseInt(of(ctx, "x-cost"), 10, 64)
			return n
		}))))
	g := &guarded{open: map[string]chan struct{}{}, seen: map[string]chan struct{}{}}
	healthpb.RegisterHealthServer(server, g)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return &guardedAsker{way: "grpclimit", server: g, client: healthpb.NewHealthClient(dial(t, l.Addr().String())), limiter: limiter}
}

var rlsLacks = with(asGiven,
	each(stringsAreUTF8, bytes),
	each("RateLimitResponse has no status: the proxy answers with its filter's", status),
	each("RateLimitResponse has no reason", reason),
	each("the proxy waits 20 ms for an answer", waits),
	each("the proxy does not tell when a request ends", finishes),
	each("hits_addend 0 is refused above the limit and not at it, as by Envoy's service", peeks),
)

// grpcWays are the ways over gRPC, and Envoy's messages as JSON.
func grpcWays() []way {
	return []way{
		{
			name: "grpclimit",
			lacks: with(asGiven,
				each("a gRPC status has a code in place of an HTTP status", status),
				each("a gRPC status has no body", body),
				each("QuotaFailure has a text for people and no reason", reason),
				each("metadata values are printable ASCII", bytes),
				each("a middleware asks once for each call", reserves),
			),
			notShared: map[string]string{
				"file":   "stint.Open keeps counters in memory or in Redis; only the service keeps them in a file",
				"leases": "stint.Open has no coordinator; client.Keyed spends leases in a program",
			},
			open: openGuarded,
		},
		{
			name:  "Envoy RLS",
			lacks: with(rlsLacks, each("the call has no reservations", reserves)),
			open: func(t *testing.T, s *site) asker {
				c := rlspb.NewRateLimitServiceClient(dial(t, s.service.GRPC))
				return &rlsAsker{way: "Envoy RLS", call: func(ctx context.Context, req *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
					return c.ShouldRateLimit(ctx, req)
				}}
			},
		},
		{
			name:  "POST /json",
			lacks: with(rlsLacks, each("the call has no reservations", reserves), each(jsonIsUTF8, bytes)),
			open: func(t *testing.T, s *site) asker {
				return &rlsAsker{way: "POST /json", call: func(_ context.Context, req *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
					return askJSON("http://"+s.service.HTTP+"/json", req)
				}}
			},
		},
		{
			name: "Kuadrant",
			lacks: without(peeks, rlsLacks,
				each("CheckRateLimit counts nothing, and Report has no answer to show", remaining),
			),
			open: func(t *testing.T, s *site) asker {
				return &kuadrantAsker{way: "Kuadrant", client: kuadrantpb.NewRateLimitServiceClient(dial(t, s.service.GRPC))}
			},
		},
		{
			name:  "stint.limits.v1",
			lacks: with(asGiven, each(stringsAreUTF8, bytes), each(mapHasOne, twice)),
			open: func(t *testing.T, s *site) asker {
				return &limitsAsker{way: "stint.limits.v1", client: stintpb.NewLimitsClient(dial(t, s.service.GRPC))}
			},
		},
	}
}

// askJSON asks by POST /json.
func askJSON(url string, req *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
	text, err := protojson.Marshal(req)
	if err != nil {
		return nil, err
	}
	res, err := http.Post(url, "application/json", strings.NewReader(string(text)))
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var raw json.RawMessage
	if err := json.NewDecoder(res.Body).Decode(&raw); err != nil {
		return nil, err
	}
	resp := &rlspb.RateLimitResponse{}
	if err := protojson.Unmarshal(raw, resp); err != nil {
		return nil, err
	}
	return resp, nil
}
