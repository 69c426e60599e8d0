package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/grpclimit"
)

// budget admits size for each method, and places in flight.
type budget struct {
	size, places int64
	delay        time.Duration
	err          error
	ended        chan string

	mu       sync.Mutex
	used     map[string]int64
	inFlight int64
	seen     limit.Request
}

func (b *budget) Take(_ context.Context, req limit.Request) (limit.Decision, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen = req
	if b.err != nil {
		return limit.Decision{}, b.err
	}
	if b.used == nil {
		b.used = map[string]int64{}
	}
	cost := req.Cost
	if cost == 0 {
		cost = 1
	}
	method, _ := req.Get("method")
	v := limit.Verdict{Allowed: b.used[method]+cost <= b.size, ResetAfter: time.Minute}
	if !v.Allowed {
		v.Reason, v.RetryAfter = limit.ReasonRate, 6500*time.Millisecond
	} else if b.places > 0 && b.inFlight == b.places {
		v.Allowed, v.Reason = false, limit.ReasonConcurrency
	}
	d := limit.Decision{Allowed: v.Allowed}
	if v.Allowed && !req.Peek {
		d.Delay = b.delay
		b.used[method] += cost
		if b.places > 0 {
			b.inFlight++
			d.Permit = 7
		}
	}
	v.Remaining = b.size - b.used[method]
	d.Results = []limit.Result{{Limit: "per-method", Algorithm: limit.FixedWindow, Quota: b.size, Window: time.Minute, Cost: cost, Verdict: v, Soft: v.Allowed && v.Remaining == 0}}
	return d, nil
}

func (b *budget) Finish(ctx context.Context, req limit.Request, permit uint64) error {
	b.mu.Lock()
	b.inFlight--
	b.mu.Unlock()
	method, _ := req.Get("method")
	b.ended <- fmt.Sprint(method, " ", permit, " ", ctx.Err())
	return nil
}

const checkMethod, watchMethod = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"

// dial starts a real server with the health service and returns a client of it.
func dial(t *testing.T, opts ...grpc.ServerOption) healthpb.HealthClient {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(opts...)
	healthpb.RegisterHealthServer(srv, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		srv.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return healthpb.NewHealthClient(conn)
}

// interceptors and tap are the two ways to protect a server.
func interceptors(taker limit.Taker, opts ...grpclimit.Option) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.UnaryInterceptor(grpclimit.UnaryServerInterceptor(taker, opts...)),
		grpc.StreamInterceptor(grpclimit.StreamServerInterceptor(taker, opts...)),
	}
}

func tap(taker limit.Taker, opts ...grpclimit.Option) []grpc.ServerOption {
	return []grpc.ServerOption{grpc.InTapHandle(grpclimit.ServerInHandle(taker, opts...))}
}

var ways = map[string]func(limit.Taker, ...grpclimit.Option) []grpc.ServerOption{"interceptors": interceptors, "tap": tap}

// watch opens a stream and returns the error of its first message.
func watch(ctx context.Context, client healthpb.HealthClient) error {
	stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

func TestRefusal(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			client := dial(t, way(&budget{size: 2})...)
			for i := range 2 {
				if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
					t.Fatalf("call %d: %v", i, err)
				}
				if err := watch(t.Context(), client); err != nil {
					t.Fatalf("stream %d: %v", i, err)
				}
			}
			_, unary := client.Check(t.Context(), &healthpb.HealthCheckRequest{})
			for kind, err := range map[string]error{"unary": unary, "stream": watch(t.Context(), client)} {
				st := status.Convert(err)
				if st.Code() != codes.ResourceExhausted {
					t.Fatalf("%s: %v", kind, err)
				}
				var retry time.Duration
				var violations []*errdetails.QuotaFailure_Violation
				for _, d := range st.Details() {
					switch d := d.(type) {
					case *errdetails.RetryInfo:
						retry = d.RetryDelay.AsDuration()
					case *errdetails.QuotaFailure:
						violations = d.Violations
					}
				}
				if retry != 6500*time.Millisecond || len(violations) != 1 || violations[0].Subject != "per-method" {
					t.Errorf("%s: retry after %v, violations %v", kind, retry, violations)
				}
			}
		})
	}
}

func TestHeaderMetadata(t *testing.T) {
	client := dial(t, interceptors(&budget{size: 2})...)
	for i, want := range []string{
		`["per-method";r=1;t=60] ["per-method";q=2;w=60] [] []`,
		`["per-method";r=0;t=60] ["per-method";q=2;w=60] [] ["per-method"]`,
		`["per-method";r=0;t=7] ["per-method";q=2;w=60] [7] []`,
	} {
		var md metadata.MD
		_, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}, grpc.Header(&md))
		if got := fmt.Sprint(md["ratelimit"], md["ratelimit-policy"], md["retry-after"], md["x-ratelimit-warning"]); got != want {
			t.Errorf("call %d (%v): got %s, want %s", i, err, got, want)
		}
	}
	client = dial(t, interceptors(&budget{size: 2}, grpclimit.WithHeaders(grpclimit.Off))...)
	var md metadata.MD
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}, grpc.Header(&md)); err != nil || md["ratelimit"] != nil {
		t.Errorf("Off sends %v, %v", md, err)
	}
}

func TestAttributes(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			b := &budget{size: 100}
			custom := grpclimit.WithAttributes(func(_ context.Context, method string) []limit.Attribute {
				return []limit.Attribute{{Name: "route", Value: method[len(method)-5:]}}
			})
			ctx := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "k1", "x-api-key", "k2",
				"x-forwarded-for", "evil, 2001:db8::7")
			for _, tt := range []struct {
				proxies []netip.Prefix
				ip      string
			}{{nil, "127.0.0.1"}, {[]netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, "2001:db8::7"}} {
				key := grpclimit.WithKey(func(_ context.Context, method string) string { return method[1:5] })
				client := dial(t, way(b, custom, key, grpclimit.WithMetadata("X-Api-Key", "absent"), grpclimit.WithIPv6Prefix(128),
					grpclimit.WithTrustedProxies(tt.proxies...),
					grpclimit.WithCost(func(context.Context, string) int64 { return 3 }))...)
				if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
					t.Fatal(err)
				}
				want := []limit.Attribute{
					{Name: "route", Value: "Check"},
					{Name: "key", Value: "grpc"},
					{Name: "ip", Value: tt.ip},
					{Name: "method", Value: checkMethod},
					{Name: "header:x-api-key", Value: "k1"},
				}
				if !slices.Equal(b.seen.Attributes, want) || b.seen.Cost != 3 || b.seen.Peek {
					t.Errorf("got  %v\nwant %v and cost 3", b.seen, want)
				}
			}
		})
	}
}

func TestCostZeroPeeks(t *testing.T) {
	b := &budget{size: 1}
	client := dial(t, interceptors(b, grpclimit.WithCost(func(context.Context, string) int64 { return 0 }))...)
	for range 3 {
		if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if b.used[checkMethod] != 0 {
		t.Errorf("%d used, want 0", b.used[checkMethod])
	}
}

func TestOnError(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			b := &budget{err: errors.New("store at 10.9.8.7 is gone")}
			_, err := dial(t, way(b)...).Check(t.Context(), &healthpb.HealthCheckRequest{})
			if status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "10.9.8.7") {
				t.Errorf("the default answers %v", err)
			}
			if _, err := dial(t, way(b, grpclimit.WithOnError(grpclimit.Allow))...).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
				t.Errorf("Allow answers %v", err)
			}
		})
	}
}

// TestPlacesAreGivenBack holds a stream open, is refused a second one, and gets
// the place when the first has ended.
func TestPlacesAreGivenBack(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			b := &budget{size: 100, places: 1, ended: make(chan string, 1)}
			client := dial(t, way(b)...)
			if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
				t.Fatal(err)
			}
			if got := <-b.ended; got != checkMethod+" 7 <nil>" {
				t.Errorf("after a call: %s", got)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if err := watch(ctx, client); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); status.Code(err) != codes.ResourceExhausted {
				t.Errorf("with a stream in flight: %v", err)
			}
			cancel()
			if got := <-b.ended; got != watchMethod+" 7 <nil>" {
				t.Errorf("after a stream: %s", got)
			}
			if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
				t.Errorf("after all have ended: %v", err)
			}
			<-b.ended
		})
	}
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{size: 100, places: 9, delay: 2 * time.Second, ended: make(chan string, 9)}
		intercept := grpclimit.UnaryServerInterceptor(b)
		call := func(ctx context.Context) (any, error) {
			return intercept(ctx, nil, &grpc.UnaryServerInfo{FullMethod: checkMethod}, func(context.Context, any) (any, error) { return "ok", nil })
		}
		start := time.Now()
		if got, err := call(t.Context()); got != "ok" || err != nil || time.Since(start) != 2*time.Second {
			t.Errorf("%v, %v after %v", got, err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if _, err := call(ctx); status.Code(err) != codes.DeadlineExceeded || time.Since(start) != time.Second {
			t.Errorf("a caller that left: %v after %v", err, time.Since(start))
		}
		if b.inFlight != 0 {
			t.Errorf("%d in flight", b.inFlight)
		}
	})
}

// reading is a taker whose limits read the attributes named.
type reading struct {
	limit.Taker
	names []string
}

func (r reading) Attributes() []string { return r.names }

// What the taker's limits read is gathered without being named again.
func TestReadsWhatTheLimitsRead(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			b := &budget{size: 100}
			client := dial(t, way(reading{b, []string{"ip", "header:x-tenant", "header:absent"}})...)
			ctx := metadata.AppendToOutgoingContext(t.Context(), "x-tenant", "t1", "x-other", "o")
			if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
				t.Fatal(err)
			}
			want := limit.Attribute{Name: "header:x-tenant", Value: "t1"}
			if got := b.seen.Attributes; len(got) != 3 || got[2] != want {
				t.Errorf("attributes %v, want ip, method and %v", got, want)
			}
		})
	}
}

// Hooks hear each decision, and each call about which none could be made.
func TestHooks(t *testing.T) {
	var told []string
	hooks := limit.Hooks{
		OnDecision: func(_ context.Context, d *limit.Decision) {
			told = append(told, fmt.Sprint(d.Results[0].Limit, " ", d.Allowed))
		},
		OnError: func(_ context.Context, err error) { told = append(told, "error") },
	}
	client := dial(t, interceptors(&budget{size: 1}, grpclimit.WithHooks(hooks))...)
	for range 2 {
		_, _ = client.Check(t.Context(), &healthpb.HealthCheckRequest{})
	}
	client = dial(t, interceptors(&budget{err: errors.New("gone")}, grpclimit.WithHooks(hooks))...)
	_, _ = client.Check(t.Context(), &healthpb.HealthCheckRequest{})
	if got := fmt.Sprint(told); got != "[per-method true per-method false error]" {
		t.Errorf("told %s", got)
	}
}
