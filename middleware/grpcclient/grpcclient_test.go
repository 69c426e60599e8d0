package grpcclient_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/grpcclient"
	"github.com/stint-io/stint/middleware/grpclimit"
	"github.com/stint-io/stint/middleware/outgoing"
)

// service answers what a function says.
type service struct {
	healthpb.UnimplementedHealthServer
	calls  atomic.Int64
	class  atomic.Value // the x-criticality of the last call
	answer func(ctx context.Context, n int64) error
	// serving says of which requests the answer has a byte; nil = of none.
	serving func(of string) bool
}

func (s *service) response(req *healthpb.HealthCheckRequest) *healthpb.HealthCheckResponse {
	if s.serving != nil && s.serving(req.Service) {
		return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}
	}
	return &healthpb.HealthCheckResponse{}
}

func (s *service) ask(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	s.class.Store(append(md.Get("x-criticality"), "")[0])
	return s.answer(ctx, s.calls.Add(1))
}

func (s *service) Check(ctx context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if err := s.ask(ctx); err != nil {
		return nil, err
	}
	return s.response(req), nil
}

func (s *service) Watch(req *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	if err := s.ask(stream.Context()); err != nil {
		return err
	}
	return stream.Send(s.response(req))
}

// dial starts a server with s and connects a client with a guard.
func dial(t testing.TB, s *service, p grpcclient.Policy, serverOptions []grpc.ServerOption, opts ...grpcclient.Option) (healthpb.HealthClient, *grpcclient.Guard) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(serverOptions...)
	healthpb.RegisterHealthServer(server, s)
	ended := make(chan error)
	go func() { ended <- server.Serve(lis) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return connect(t, lis.Addr().String(), p, opts...)
}

func connect(t testing.TB, target string, p grpcclient.Policy, opts ...grpcclient.Option) (healthpb.HealthClient, *grpcclient.Guard) {
	t.Helper()
	guard, err := grpcclient.New(p, opts...)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(target, append(guard.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return healthpb.NewHealthClient(conn), guard
}

func check(ctx context.Context, c healthpb.HealthClient) error {
	_, err := c.Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

func answers(err error) *service {
	return &service{answer: func(context.Context, int64) error { return err }}
}

// withRetry is a refusal that says when to try again.
func withRetry(t testing.TB, d time.Duration) error {
	t.Helper()
	st, err := status.New(codes.ResourceExhausted, "later").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(d)})
	if err != nil {
		t.Fatal(err)
	}
	return st.Err()
}

// TestThrottled: a server that refuses everything is spared, and the error has a status, details,
// and the refusal.
func TestThrottled(t *testing.T) {
	for code, refusal := range map[codes.Code]bool{
		codes.Unavailable: true, codes.ResourceExhausted: true,
		codes.Internal: false, codes.NotFound: false, codes.Aborted: false,
	} {
		s := answers(status.Error(code, "no"))
		c, guard := dial(t, s, grpcclient.Policy{Throttle: outgoing.Throttle{Probe: time.Minute}}, nil)
		var err error
		for range 50 {
			err = check(t.Context(), c)
		}
		if !refusal {
			if s.calls.Load() != 50 || status.Code(err) != code {
				t.Errorf("%v: %d calls, %v, want all", code, s.calls.Load(), err)
			}
			continue
		}
		if n := s.calls.Load(); n < 10 || n > 12 {
			t.Errorf("%v: %d calls reached the server, want the 10 to spare and a probe: %+v", code, n, guard.Stats())
		}
		var r *grpcclient.Refusal
		if st := status.Convert(err); !errors.As(err, &r) || r.Cause != outgoing.Throttled || st.Code() != codes.ResourceExhausted || len(st.Details()) != 2 {
			t.Errorf("%v: %v with %v, want a refusal with QuotaFailure and RetryInfo", code, err, st.Details())
		}
	}
}

// TestServerThatLimits: what package grpclimit answers is obeyed, until when it says.
func TestServerThatLimits(t *testing.T) {
	own, err := limit.NewLimiter(limit.Policy{Rate: limit.PerMinute(1), Burst: 2})
	if err != nil {
		t.Fatal(err)
	}
	s := answers(nil)
	c, guard := dial(t, s, grpcclient.Policy{}, []grpc.ServerOption{
		grpc.UnaryInterceptor(grpclimit.UnaryServerInterceptor(own)),
	})
	for range 2 {
		if err := check(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	// The second answer said that nothing remains.
	err = check(t.Context(), c)
	var r *grpcclient.Refusal
	if !errors.As(err, &r) || r.Cause != outgoing.Held || r.RetryAfter() < 50*time.Second || r.RetryAfter() > time.Minute {
		t.Errorf("%v, want a minute", err)
	}
	if n := s.calls.Load(); n != 2 || guard.Stats().Held != 1 {
		t.Errorf("%d calls, %+v", n, guard.Stats())
	}
}

// TestRetries: a unary call is sent again where the server says when to, or the method may be called
// twice, and not otherwise.
func TestRetries(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		opts []grpcclient.Option
		want int64
	}{
		"refused":         {status.Error(codes.Unavailable, "no"), nil, 1},
		"says when":       {withRetry(t, time.Millisecond), nil, 3},
		"says much later": {withRetry(t, time.Hour), nil, 1},
		"idempotent":      {status.Error(codes.Unavailable, "no"), []grpcclient.Option{grpcclient.WithIdempotent(func(string) bool { return true })}, 3},
		"not a refusal":   {status.Error(codes.Internal, "no"), []grpcclient.Option{grpcclient.WithIdempotent(func(string) bool { return true })}, 1},
	} {
		s := answers(tt.err)
		c, _ := dial(t, s, grpcclient.Policy{Retry: outgoing.Retry{Reserve: 10, Base: time.Millisecond}}, nil, tt.opts...)
		if err := check(t.Context(), c); status.Code(err) != status.Code(tt.err) || s.calls.Load() != tt.want {
			t.Errorf("%s: %d calls, %v, want %d", name, s.calls.Load(), err, tt.want)
		}
	}
}

// TestNoConnection: calls for which there is no connection count for nothing.
func TestNoConnection(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := lis.Addr().String()
	_ = lis.Close()
	c, guard := connect(t, gone, grpcclient.Policy{Retry: outgoing.Retry{Attempts: 1}})
	for range 100 {
		if err := check(t.Context(), c); status.Code(err) != codes.Unavailable {
			t.Fatal(err)
		}
	}
	if s := guard.Stats(); s.Dropped != 100 || s.Throttled != 0 {
		t.Errorf("%+v, want 100 dropped", s)
	}
}

// TestDeadline: a call that was sent and not answered in time is a refusal; one that its caller
// cancelled is not.
func TestDeadline(t *testing.T) {
	s := &service{answer: func(ctx context.Context, _ int64) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	c, guard := dial(t, s, grpcclient.Policy{}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := check(ctx, c); status.Code(err) != codes.DeadlineExceeded {
		t.Fatal(err)
	}
	if s := guard.Stats(); s.Refused != 1 {
		t.Errorf("%+v, want one refused", s)
	}
	ctx, cancel = context.WithCancel(t.Context())
	sent := s.calls.Load()
	go func() {
		for s.calls.Load() == sent { //nolint:revive // the server's own counter is the event
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Millisecond):
			}
		}
		cancel()
	}()
	if err := check(ctx, c); status.Code(err) != codes.Canceled {
		t.Fatal(err)
	}
	if s := guard.Stats(); s.Refused != 1 || s.Dropped != 1 {
		t.Errorf("%+v, want one dropped besides", s)
	}
}

// TestStreams: a stream is one call; its refusal counts, its answer as well, and permits in flight
// are held until it ends.
func TestStreams(t *testing.T) {
	own := &permits{}
	s := &service{answer: func(_ context.Context, n int64) error {
		if n == 2 {
			return withRetry(t, time.Minute)
		}
		return nil
	}}
	c, guard := dial(t, s, grpcclient.Policy{Limit: own}, nil)
	watch := func(ctx context.Context) error {
		stream, err := c.Watch(ctx, &healthpb.HealthCheckRequest{})
		for err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	if err := watch(t.Context()); err.Error() != "EOF" || own.held.Load() != 0 {
		t.Fatalf("%v, %d held", err, own.held.Load())
	}
	if err := watch(t.Context()); status.Code(err) != codes.ResourceExhausted || own.held.Load() != 0 {
		t.Fatalf("%v, %d held", err, own.held.Load())
	}
	var r *grpcclient.Refusal
	if err := watch(t.Context()); !errors.As(err, &r) || r.Cause != outgoing.Held {
		t.Errorf("%v, want what the server asked for", err)
	}
	if s := guard.Stats(); s.Accepted != 1 || s.Refused != 1 || s.Held != 1 || s.Sent != 2 {
		t.Errorf("%+v", s)
	}
}

// TestStreamGivenUp: one whose context is cancelled before an answer counts for nothing and gives
// its permit back.
func TestStreamGivenUp(t *testing.T) {
	own := &permits{ended: make(chan struct{})}
	s := &service{answer: func(ctx context.Context, _ int64) error {
		<-ctx.Done()
		return nil
	}}
	c, guard := dial(t, s, grpcclient.Policy{Limit: own}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := c.Watch(ctx, &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-own.ended
	if s := guard.Stats(); s.Dropped != 1 || own.held.Load() != 0 {
		t.Errorf("%+v, %d held", s, own.held.Load())
	}
}

type permits struct {
	held  atomic.Int64
	ended chan struct{}
}

func (p *permits) Take(context.Context, limit.Request) (limit.Decision, error) {
	p.held.Add(1)
	return limit.Decision{Allowed: true, Permit: 1}, nil
}

func (p *permits) Finish(context.Context, limit.Request, uint64) error {
	p.held.Add(-1)
	if p.ended != nil {
		close(p.ended)
	}
	return nil
}

// TestCriticality: the class of the context goes along, and metadata that are there go first.
func TestCriticality(t *testing.T) {
	s := answers(nil)
	c, _ := dial(t, s, grpcclient.Policy{}, nil)
	ctx := outgoing.WithCriticality(t.Context(), outgoing.SheddablePlus)
	for want, ctx := range map[string]context.Context{
		"": t.Context(), "sheddable_plus": ctx,
		"critical_plus": metadata.AppendToOutgoingContext(ctx, "x-criticality", "critical_plus"),
	} {
		if err := check(ctx, c); err != nil || s.class.Load() != want {
			t.Errorf("%v, class %q, want %q", err, s.class.Load(), want)
		}
	}
}

// TestOwnLimit: a limit of one's own is asked about the method and the host.
func TestOwnLimit(t *testing.T) {
	own := &recorder{}
	c, _ := dial(t, answers(nil), grpcclient.Policy{Limit: own}, nil, grpcclient.WithAttributes(
		func(context.Context, string) []limit.Attribute { return []limit.Attribute{{Name: "user", Value: "u1"}} }))
	if err := check(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	method, _ := own.seen.Get("method")
	user, _ := own.seen.Get("user")
	host, ok := own.seen.Get("host")
	if method != "/grpc.health.v1.Health/Check" || user != "u1" || !ok || host == "" {
		t.Errorf("%+v", own.seen)
	}
	own.err = errors.New("away")
	if err := check(t.Context(), c); status.Code(err) != codes.Unavailable {
		t.Errorf("%v, want UNAVAILABLE", err)
	}
}

type recorder struct {
	seen limit.Request
	err  error
}

func (r *recorder) Take(_ context.Context, req limit.Request) (limit.Decision, error) {
	r.seen = req
	return limit.Decision{Allowed: true}, r.err
}

// TestMessageTooLarge: calls whose message is larger than one of the sides allows, at random, are sent once at most, fail with
// their own error, and hold back no other call.
func TestMessageTooLarge(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 8 {
		bound := 100 + r.IntN(10_000)
		s := answers(nil)
		var serverOptions []grpc.ServerOption
		var callOptions []grpc.CallOption
		where := []string{"sent", "received", "received by the server", "sent by the server"}[r.IntN(4)]
		switch where {
		case "sent":
			callOptions = append(callOptions, grpc.MaxCallSendMsgSize(bound))
		case "received":
			callOptions = append(callOptions, grpc.MaxCallRecvMsgSize(1))
		case "received by the server":
			serverOptions = append(serverOptions, grpc.MaxRecvMsgSize(bound))
		default:
			serverOptions = append(serverOptions, grpc.MaxSendMsgSize(1))
		}
		c, guard := dial(t, s, grpcclient.Policy{Retry: outgoing.Retry{Reserve: 1000}}, serverOptions, grpcclient.WithIdempotent(func(string) bool { return true }))
		small := &healthpb.HealthCheckRequest{Service: "empty"}
		large := &healthpb.HealthCheckRequest{Service: strings.Repeat("x", bound+r.IntN(100_000))}
		if where == "received" || where == "sent by the server" {
			s.serving = func(of string) bool { return of != "empty" } // an empty answer has no byte
		}
		for i := range 30 {
			var err error
			if stream := r.IntN(2) == 0; stream {
				var w grpc.ServerStreamingClient[healthpb.HealthCheckResponse]
				if w, err = c.Watch(t.Context(), large, callOptions...); err == nil {
					_, err = w.Recv()
				}
			} else {
				_, err = c.Check(t.Context(), large, callOptions...)
			}
			var refusal *grpcclient.Refusal
			if status.Code(err) != codes.ResourceExhausted || errors.As(err, &refusal) {
				t.Fatalf("too large to be %s, call %d: %v", where, i, err)
			}
		}
		if n := s.calls.Load(); n > 30 {
			t.Errorf("too large to be %s: the server got %d calls of 30", where, n)
		}
		for i := range 20 {
			if _, err := c.Check(t.Context(), small, callOptions...); err != nil {
				t.Fatalf("after messages too large to be %s: small call %d: %v, %+v", where, i, err, guard.Stats())
			}
		}
		if st := guard.Stats(); st.Throttled != 0 || st.Refused != 0 || st.Retries != 0 {
			t.Errorf("too large to be %s: %+v", where, st)
		}
	}
}
