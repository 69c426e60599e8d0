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

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	grpctap "google.golang.org/grpc/tap"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/grpclimit"
)

// oracle gives one answer and notes in what order it and the handler were called.
type oracle struct {
	decision limit.Decision
	err      error
	req      limit.Request // that Take was asked about
	mu       sync.Mutex    // of calls: a tap ends a call when its context ends
	calls    []string
}

func (o *oracle) note(call string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = append(o.calls, call)
}

func (o *oracle) Take(_ context.Context, req limit.Request) (limit.Decision, error) {
	o.req = req
	o.note("take")
	return o.decision, o.err
}

// finishing is an oracle that holds places.
type finishing struct{ *oracle }

func (o finishing) Finish(ctx context.Context, req limit.Request, permit uint64) error {
	left := "no deadline"
	if at, ok := ctx.Deadline(); ok {
		left = time.Until(at).String()
	}
	if !slices.Equal(req.Attributes, o.req.Attributes) || req.Cost != o.req.Cost {
		left += fmt.Sprintf(" of %v, which is not %v", req, o.req)
	}
	o.note(fmt.Sprintf("finish %d (%v, %v)", permit, ctx.Err(), left))
	return nil
}

// transport notes the header metadata of a call.
type transport struct {
	grpc.ServerTransportStream
	header metadata.MD
}

func (s *transport) SetHeader(md metadata.MD) error {
	s.header = metadata.Join(s.header, md)
	return nil
}

type stream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s stream) Context() context.Context { return s.ctx }

// invoke makes one call by way of what protects the server, ends it and returns its error.
// The handler fails with an error of its own.
func invoke(ctx context.Context, way string, o *oracle, taker limit.Taker, opts ...grpclimit.Option) error {
	handle := func() error {
		o.note("handle")
		return errHandler
	}
	switch way {
	case "unary":
		_, err := grpclimit.UnaryServerInterceptor(taker, opts...)(ctx, nil, &grpc.UnaryServerInfo{FullMethod: checkMethod},
			func(context.Context, any) (any, error) { return nil, handle() })
		return err
	case "stream":
		return grpclimit.StreamServerInterceptor(taker, opts...)(nil, stream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: checkMethod},
			func(any, grpc.ServerStream) error { return handle() })
	default:
		md, _ := metadata.FromIncomingContext(ctx)
		ctx, cancel := context.WithCancel(ctx)
		got, err := grpclimit.ServerInHandle(taker, opts...)(ctx, &grpctap.Info{FullMethodName: checkMethod, Header: md})
		if err == nil {
			err = handle()
		}
		cancel()
		if got != ctx {
			return fmt.Errorf("the tap returns %v, which is not the call's context, and %v", got, err) //nolint:errorlint // it is not to be found
		}
		return err
	}
}

var errHandler = errors.New("of the handler")

// TestWhatBecomesOfACall: the handler sees a call if and only if it was admitted, or nobody
// could decide and it is to pass then. A place is given back once, after the handler, with
// the request for which it was taken and a second to do it; of a call that holds none
// nothing is given back, whatever the taker is.
func TestWhatBecomesOfACall(t *testing.T) {
	refused := []limit.Result{{Limit: "m", Verdict: limit.Verdict{Reason: limit.ReasonRate, RetryAfter: time.Second}}}
	const finish, first = "finish 7 (<nil>, 1s)", "finish 1 (<nil>, 1s)"
	for name, tt := range map[string]struct {
		decision limit.Decision
		err      error
		pass     bool // OnError is Allow
		code     codes.Code
		calls    []string // after take
	}{
		"admitted":                       {decision: limit.Decision{Allowed: true}, code: codes.Unknown, calls: []string{"handle"}},
		"admitted with a place":          {decision: limit.Decision{Allowed: true, Permit: 7}, code: codes.Unknown, calls: []string{"handle", finish}},
		"admitted with the first place":  {decision: limit.Decision{Allowed: true, Permit: 1}, code: codes.Unknown, calls: []string{"handle", first}},
		"refused":                        {decision: limit.Decision{Results: refused}, code: codes.ResourceExhausted},
		"refused, naming nothing":        {code: codes.ResourceExhausted},
		"nobody could decide":            {err: errors.New("gone"), code: codes.Unavailable},
		"nobody could decide, and allow": {err: errors.New("gone"), pass: true, code: codes.Unknown, calls: []string{"handle"}},
	} {
		for _, way := range []string{"unary", "stream", "tap"} {
			for _, holds := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, %s, holds %v", name, way, holds), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						o := &oracle{decision: tt.decision, err: tt.err}
						taker := limit.Taker(o)
						want := append([]string{"take"}, tt.calls...)
						if holds {
							taker = finishing{o}
						} else {
							want = slices.DeleteFunc(want, func(call string) bool { return strings.HasPrefix(call, "finish") })
						}
						opts := []grpclimit.Option{grpclimit.WithCost(func(context.Context, string) int64 { return 2 })}
						if tt.pass {
							opts = append(opts, grpclimit.WithOnError(grpclimit.Allow))
						}
						err := invoke(t.Context(), way, o, taker, opts...)
						synctest.Wait()
						if status.Code(err) != tt.code || slices.Contains(want, "handle") != errors.Is(err, errHandler) || !slices.Equal(o.calls, want) {
							t.Errorf("%v; calls %q, want %v and %q", err, o.calls, tt.code, want)
						}
					})
				})
			}
		}
	}
}

// TestDelayOfACall: an interceptor waits as long as a leaky bucket asks, and no longer than
// the call lasts; a call that is not to wait is handled though its context has ended, and a
// tap, in which the whole connection would wait, never does.
func TestDelayOfACall(t *testing.T) {
	const nanosecond, second = time.Nanosecond, time.Second
	for _, way := range []string{"unary", "stream", "tap"} {
		for _, tt := range []struct{ delay, lasts, took time.Duration }{
			{0, second, 0}, {nanosecond, second, nanosecond}, {second, 2 * second, second}, {2 * second, second, second}, {0, 0, 0}, {second, 0, 0},
		} {
			t.Run(fmt.Sprintf("%s, %v of %v", way, tt.delay, tt.lasts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					o := &oracle{decision: limit.Decision{Allowed: true, Permit: 7, Delay: tt.delay}}
					ctx, cancel := context.WithTimeout(t.Context(), tt.lasts)
					defer cancel()
					begin, took := time.Now(), tt.took
					if way == "tap" {
						took = 0
					}
					err := invoke(ctx, way, o, finishing{o})
					synctest.Wait()
					want, code := []string{"take", "handle", "finish 7 (<nil>, 1s)"}, codes.Unknown
					if way != "tap" && tt.delay > tt.lasts {
						want, code = []string{"take", "finish 7 (<nil>, 1s)"}, codes.DeadlineExceeded
					}
					if way == "tap" && tt.lasts == 0 {
						// It had ended before: it is handled and finished at once.
						slices.Sort(o.calls)
						slices.Sort(want)
					}
					if time.Since(begin) != took || status.Code(err) != code || !slices.Equal(o.calls, want) {
						t.Errorf("%v after %v; calls %q, want %v after %v and %q", err, time.Since(begin), o.calls, code, took, want)
					}
				})
			})
		}
	}
}

// TestMetadataOfAnAnswer: interceptors tell of the limits that applied, whether the call was
// admitted or refused, and of nothing where none applied or nobody could decide.
func TestMetadataOfAnAnswer(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	result := limit.Result{Limit: "m", Algorithm: limit.FixedWindow, Quota: 5, Window: time.Minute, Verdict: limit.Verdict{Allowed: true, Remaining: 3, ResetAfter: time.Minute}}
	refusal := result
	refusal.Verdict = limit.Verdict{Reason: limit.ReasonRate, RetryAfter: 1500 * time.Millisecond}
	for name, tt := range map[string]struct {
		decision limit.Decision
		err      error
		want     metadata.MD
	}{
		"admitted": {limit.Decision{Allowed: true, Results: []limit.Result{result}}, nil, metadata.MD{"ratelimit": {`"m";r=3;t=60`}, "ratelimit-policy": {`"m";q=5;w=60`}}},
		"refused": {limit.Decision{Results: []limit.Result{refusal}}, nil, metadata.MD{
			"ratelimit": {`"m";r=0;t=2`}, "ratelimit-policy": {`"m";q=5;w=60`}, "retry-after": {"2"},
		}},
		"refused by no limit": {limit.Decision{}, nil, nil},
		"no limit applied":    {limit.Decision{Allowed: true}, nil, nil},
		"nobody could decide": {limit.Decision{Results: []limit.Result{result}}, errors.New("gone"), nil},
	} {
		for _, way := range []string{"unary", "stream"} {
			o, sent := &oracle{decision: tt.decision, err: tt.err}, &transport{}
			_ = invoke(grpc.NewContextWithServerTransportStream(t.Context(), sent), way, o, o)
			if got, want := fmt.Sprint(map[string][]string(sent.header)), fmt.Sprint(map[string][]string(tt.want)); got != want { // an MD does not print its values
				t.Errorf("%s, %s: sends %s, want %s", name, way, got, want)
			}
		}
	}
}

// asking is an oracle whose limits read the attributes named.
type asking struct {
	*oracle
	names []string
}

func (a asking) Attributes() []string { return a.names }

// TestWhatACallIsCalled: the attributes of a call are those that the program adds, the
// address of the client, the method, and of the metadata what was named or what the limits
// read. Metadata is the client's: what it names ip or method is none of these.
func TestWhatACallIsCalled(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	md := metadata.MD{
		"ip": {"198.51.100.1"}, "method": {"/forged"}, "user": {"root"}, "x-a": {"a1", "a2"}, "x-b": {""}, "x-none": {},
	}
	ip, method := limit.Attribute{Name: "ip", Value: "192.0.2.7"}, limit.Attribute{Name: "method", Value: checkMethod}
	peerOf := func(address string) context.Context {
		ctx := metadata.NewIncomingContext(t.Context(), md)
		tcp := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))
		return peer.NewContext(ctx, &peer.Peer{Addr: tcp})
	}
	for name, tt := range map[string]struct {
		ctx   context.Context
		reads []string // nil = the taker does not say
		opts  []grpclimit.Option
		want  []limit.Attribute
	}{
		"as it is":   {peerOf("192.0.2.7:1"), nil, nil, []limit.Attribute{ip, method}},
		"no address": {peer.NewContext(metadata.NewIncomingContext(t.Context(), md), &peer.Peer{}), nil, nil, []limit.Attribute{method}},
		"no peer":    {metadata.NewIncomingContext(t.Context(), md), nil, nil, []limit.Attribute{method}},
		"IPv6": {peerOf("[2001:db8:1:2:3::4]:1"), nil, nil, []limit.Attribute{
			{Name: "ip", Value: "2001:db8:1:2:3::4"}, method,
		}},
		"by the program": {peerOf("192.0.2.7:1"), nil, []grpclimit.Option{grpclimit.WithAttributes(func(_ context.Context, m string) []limit.Attribute {
			return []limit.Attribute{{Name: "service", Value: m[:5]}}
		})}, []limit.Attribute{{Name: "service", Value: checkMethod[:5]}, ip, method}},
		"named metadata": {
			peerOf("192.0.2.7:1"), nil,
			[]grpclimit.Option{grpclimit.WithMetadata("X-A", "x-absent", "x-none"), grpclimit.WithMetadata("x-b")},
			[]limit.Attribute{ip, method, {Name: "header:x-a", Value: "a1"}, {Name: "header:x-b"}},
		},
		"what the limits read": {
			peerOf("192.0.2.7:1"),
			[]string{"ip", "user", "header:x-none", "header:x-absent", "method", "header:x-a"},
			nil,
			[]limit.Attribute{ip, method, {Name: "header:x-a", Value: "a1"}},
		},
	} {
		for _, way := range []string{"unary", "stream", "tap"} {
			o := &oracle{decision: limit.Decision{Allowed: true}}
			taker := limit.Taker(o)
			if tt.reads != nil {
				taker = asking{o, tt.reads}
			}
			_ = invoke(tt.ctx, way, o, taker, tt.opts...)
			if !slices.Equal(o.req.Attributes, tt.want) || o.req.Cost != 0 || o.req.Peek {
				t.Errorf("%s, %s: asked %v, want %v and the cost that the taker takes for 1", name, way, o.req, tt.want)
			}
		}
	}
}

// TestClientBehindAProxy: of a trusted proxy's metadata the first that is there counts, and
// where there is none the proxy is the client; that of others counts nothing.
func TestClientBehindAProxy(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	trust := grpclimit.WithTrustedProxies(netip.MustParsePrefix("10.0.0.0/8"))
	for _, tt := range []struct {
		peer string
		md   metadata.MD
		want string
	}{
		{"10.0.0.1:1", metadata.MD{"x-forwarded-for": {"192.0.2.1"}, "forwarded": {"for=192.0.2.2"}, "x-real-ip": {"192.0.2.3"}}, "192.0.2.1"},
		{"10.0.0.1:1", metadata.MD{"forwarded": {"for=192.0.2.2"}, "x-real-ip": {"192.0.2.3"}}, "192.0.2.2"},
		{"10.0.0.1:1", metadata.MD{"x-forwarded-for": {}, "x-real-ip": {"192.0.2.3"}}, "192.0.2.3"},
		{"10.0.0.1:1", nil, "10.0.0.1"},
		{"11.0.0.1:1", metadata.MD{"x-forwarded-for": {"192.0.2.1"}}, "11.0.0.1"},
	} {
		ctx := peer.NewContext(metadata.NewIncomingContext(t.Context(), tt.md), &peer.Peer{Addr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(tt.peer))})
		for _, way := range []string{"unary", "stream", "tap"} {
			o := &oracle{decision: limit.Decision{Allowed: true}}
			_ = invoke(ctx, way, o, o, trust)
			if got, _ := o.req.Get("ip"); got != tt.want {
				t.Errorf("%s with %v, %s: the client is %s, want %s", tt.peer, tt.md, way, got, tt.want)
			}
		}
	}
}

// TestCostOfACall: what the program says that a call costs is what is asked for. One that
// costs nothing only looks.
func TestCostOfACall(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, cost := range []int64{-1, 0, 1, 2} {
		for _, way := range []string{"unary", "stream", "tap"} {
			o := &oracle{decision: limit.Decision{Allowed: true}}
			_ = invoke(t.Context(), way, o, o, grpclimit.WithCost(func(context.Context, string) int64 { return cost }))
			if o.req.Cost != cost || o.req.Peek != (cost == 0) {
				t.Errorf("%s, cost %d: asked %+v", way, cost, o.req)
			}
		}
	}
}
