package grpcthrottle

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/orca"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/throttle"
)

const ms = time.Millisecond

func newThrottle(t *testing.T, o throttle.Options) *throttle.Throttle {
	t.Helper()
	th, err := throttle.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return th
}

// none exempts no method: the service of these tests is gRPC's health service.
var none = func(string) bool { return false }

// service is a health service whose answers the test writes.
type service struct {
	*health.Server
	check func(context.Context) error
}

func (s *service) Check(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	return s.Server.Check(ctx, r)
}

func (s *service) Watch(r *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	if err := s.check(stream.Context()); err != nil {
		return err
	}
	return stream.Send(&healthpb.HealthCheckResponse{})
}

// serve returns a client of a throttled service.
func serve(t *testing.T, th *throttle.Throttle, check func(context.Context) error, opts ...Option) healthpb.HealthClient {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(UnaryServerInterceptor(th, opts...)),
		grpc.ChainStreamInterceptor(StreamServerInterceptor(th, opts...)),
		orca.CallMetricsServerOption(nil))
	healthpb.RegisterHealthServer(server, &service{health.NewServer(), check})
	var done sync.WaitGroup
	done.Go(func() { _ = server.Serve(listener) })
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		done.Wait()
	})
	return healthpb.NewHealthClient(conn)
}

func unary(ctx context.Context, c healthpb.HealthClient) error {
	_, err := c.Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

func stream(ctx context.Context, c healthpb.HealthClient) error {
	s, err := c.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return err
	}
	_, err = s.Recv()
	return err
}

// kinds are the two ways to call.
var kinds = map[string]func(context.Context, healthpb.HealthClient) error{"unary": unary, "stream": stream}

// reason returns the reason in the details of a refusal, and whether it names a time.
func reason(err error) (why string, retry bool) {
	for _, detail := range status.Convert(err).Details() {
		switch d := detail.(type) {
		case *errdetails.QuotaFailure:
			why = d.Violations[0].Description
		case *errdetails.RetryInfo:
			retry = d.RetryDelay.AsDuration() > 0
		}
	}
	return why, retry
}

// TestRefusals: a call that cannot run ends with RESOURCE_EXHAUSTED and its reason, and health
// checks pass by default.
func TestRefusals(t *testing.T) {
	ok := func(context.Context) error { return nil }
	for name, call := range kinds {
		th := newThrottle(t, throttle.Options{Concurrency: 1, MaxWait: ms})
		c := serve(t, th, ok, WithExempt(none))
		if err := call(t.Context(), c); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		busy, _, _ := th.Start(t.Context(), throttle.Request{})
		err := call(t.Context(), c)
		if why, retry := reason(err); status.Code(err) != codes.ResourceExhausted || why != "queue_timeout" || !retry {
			t.Errorf("%s: %v, %q, %v", name, err, why, retry)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if err := call(ctx, c); status.Code(err) != codes.DeadlineExceeded && status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s: %v by its deadline", name, err)
		}
		cancel()
		if err := call(t.Context(), serve(t, th, ok)); err != nil {
			t.Errorf("%s of health: %v", name, err)
		}
		busy.Done()
	}
}

// TestActualCost: what the handler says comes before gRPC's own ORCA report, and that before
// what is measured.
func TestActualCost(t *testing.T) {
	costs := make(chan time.Duration, 1)
	th := newThrottle(t, throttle.Options{
		Concurrency: 9, Meter: fixed(42 * ms),
		Hooks: throttle.Hooks{OnDone: func(_ throttle.Criticality, _, actual, _ time.Duration) { costs <- actual }},
	})
	report := func(ctx context.Context) {
		recorder := orca.CallMetricsRecorderFromContext(ctx)
		recorder.SetRequestCost("cpu", 12.5)
		recorder.SetCPUUtilization(0.5)
		recorder.SetNamedMetric("cpu", 99)
	}
	for _, tt := range []struct {
		name  string
		check func(ctx context.Context) error
		want  time.Duration
	}{
		{"nothing is said", func(context.Context) error { return nil }, 42 * ms},
		{"an ORCA report", func(ctx context.Context) error { report(ctx); return nil }, 12500 * time.Microsecond},
		{"an ORCA report of a failure", func(ctx context.Context) error { report(ctx); return errors.New("no") }, 12500 * time.Microsecond},
		{"SetCost", func(ctx context.Context) error { report(ctx); throttle.SetCost(ctx, 3*ms); return nil }, 3 * ms},
		{"as text", func(ctx context.Context) error {
			return grpc.SetTrailer(ctx, metadata.Pairs("endpoint-load-metrics", "TEXT request_cost.cpu=6"))
		}, 6 * ms},
		{"no message", func(ctx context.Context) error {
			return grpc.SetTrailer(ctx, metadata.Pairs("endpoint-load-metrics-bin", "\xff\xff"))
		}, 42 * ms},
	} {
		c := serve(t, th, tt.check, WithExempt(none))
		for name, call := range kinds {
			_ = call(t.Context(), c)
			if got := <-costs; got != tt.want {
				t.Errorf("%s, %s: it cost %v, want %v", tt.name, name, got, tt.want)
			}
		}
	}
}

// fixed is a Meter by which all calls cost the same.
type fixed time.Duration

func (fixed) Begin() time.Duration                   { return 0 }
func (fixed) SoFar(time.Duration) time.Duration      { return 0 }
func (f fixed) End(_, _ time.Duration) time.Duration { return time.Duration(f) }

// TestCancelled: a call that is cancelled while it runs ends once, with the reason; one that has
// its answer keeps it.
func TestCancelled(t *testing.T) {
	for name, call := range kinds {
		th := newThrottle(t, throttle.Options{Concurrency: 1})
		fails := true
		c := serve(t, th, func(ctx context.Context) error {
			if !th.Cancel(th.Running(1)[0].ID) {
				t.Error("nothing to cancel")
			}
			<-ctx.Done()
			if err := context.Cause(ctx); !errors.Is(err, throttle.ErrCancelled) {
				t.Errorf("%s: the cause is %v", name, err)
			}
			if fails {
				return ctx.Err()
			}
			return nil
		}, WithExempt(none))
		err := call(t.Context(), c)
		if why, retry := reason(err); status.Code(err) != codes.ResourceExhausted || why != "cancelled" || retry {
			t.Errorf("%s: %v, %q, %v", name, err, why, retry)
		}
		fails = false
		if err := call(t.Context(), c); err != nil {
			t.Errorf("%s: %v although the handler has answered", name, err)
		}
	}
}

// TestDescribe: strangers only lower their class; who calls and what is the options' choice.
func TestDescribe(t *testing.T) {
	trusted := WithTrustedPeers(netip.MustParsePrefix("127.0.0.0/8"))
	name := func(s string) func(context.Context, string) string {
		return func(context.Context, string) string { return s }
	}
	for _, tt := range []struct {
		said []string
		opts []Option
		want string // class, and level if it was said; then route, user
	}{
		{nil, nil, "sheddable_plus /grpc.health.v1.Health/Check 127.0.0.1"},
		{[]string{"critical_plus"}, nil, "sheddable_plus /grpc.health.v1.Health/Check 127.0.0.1"},
		{[]string{"sheddable;level=3"}, nil, "sheddable;level=3 /grpc.health.v1.Health/Check 127.0.0.1"},
		{[]string{"critical;level=3"}, []Option{trusted}, "critical;level=3 /grpc.health.v1.Health/Check 127.0.0.1"},
		{[]string{"critical", "critical"}, []Option{trusted}, "sheddable_plus /grpc.health.v1.Health/Check 127.0.0.1"},
		{[]string{"high"}, []Option{trusted}, "sheddable_plus /grpc.health.v1.Health/Check 127.0.0.1"},
		{[]string{strings.Repeat(" ", 300) + "critical"}, []Option{trusted}, "sheddable_plus /grpc.health.v1.Health/Check 127.0.0.1"},
		{[]string{"critical_plus"}, []Option{WithCriticality(throttle.Critical), WithUser(name("ann")), WithRoute(name("r"))}, "critical r ann"},
	} {
		th := newThrottle(t, throttle.Options{Concurrency: 1})
		var got string
		c := serve(t, th, func(ctx context.Context) error {
			importance := throttle.FromContext(ctx).Importance().String()
			if !slices.ContainsFunc(strings.Fields(tt.want), func(s string) bool { return strings.Contains(s, "level") }) {
				importance, _, _ = strings.Cut(importance, ";") // of the user
			}
			r := th.Running(1)[0]
			got = importance + " " + r.Route + " " + r.User
			return nil
		}, append(tt.opts, WithExempt(none))...)
		ctx := t.Context()
		for _, said := range tt.said {
			ctx = metadata.AppendToOutgoingContext(ctx, throttle.Header, said)
		}
		if err := unary(ctx, c); err != nil || got != tt.want {
			t.Errorf("%.40q: %q, %v, want %q", tt.said, got, err, tt.want)
		}
	}
	g := newGuard(nil, []Option{ByMethod(), WithCost(func(context.Context, string) time.Duration { return 5 * ms })})
	if q := g.describe(t.Context(), "/a/B"); q.Key != "/a/B" || q.Cost != 5*ms || q.User != "" {
		t.Errorf("%+v", q)
	}
}

// TestFarDeadlines: a call that waits for a place is served with any timeout from ten seconds on, also with
// those that gRPC's specification allows and a time.Duration does not hold.
func TestFarDeadlines(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	th := newThrottle(t, throttle.Options{Concurrency: 1, MaxWait: time.Hour})
	client := serve(t, th, func(context.Context) error {
		<-time.After(ms) // the work of a call
		return nil
	}, WithExempt(none))
	for range 20 {
		deadline := time.Unix(time.Now().Unix()+10+r.Int64N(1<<(34+r.IntN(24))), 0)
		if r.IntN(2) == 0 {
			deadline = time.Now().Add(math.MaxInt64 - time.Duration(r.Int64N(int64(3*time.Second))))
		}
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		var all sync.WaitGroup
		for _, call := range kinds {
			for range 3 {
				all.Go(func() {
					if err := call(ctx, client); err != nil {
						t.Errorf("until %v: %v", deadline, err)
					}
				})
			}
		}
		all.Wait()
		cancel()
	}
}
