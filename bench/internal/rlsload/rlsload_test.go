package rlsload

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/stint-io/stint/bench/internal/process"
)

func encode(t *testing.T, r *rls.RateLimitResponse) []byte {
	t.Helper()
	b, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestReadAnswer(t *testing.T) {
	full := encode(t, &rls.RateLimitResponse{
		OverallCode: rls.RateLimitResponse_OVER_LIMIT,
		RawBody:     []byte("body"),
		Statuses: []*rls.RateLimitResponse_DescriptorStatus{
			{Code: rls.RateLimitResponse_OVER_LIMIT, CurrentLimit: &rls.RateLimitResponse_RateLimit{}},
			{Code: rls.RateLimitResponse_OK},
			{
				Code: rls.RateLimitResponse_OK, CurrentLimit: &rls.RateLimitResponse_RateLimit{RequestsPerUnit: 5},
				LimitRemaining: 300, DurationUntilReset: durationpb.New(time.Second),
			},
		},
	})
	got, ok := ReadAnswer(full)
	want := Answer{Code: rls.RateLimitResponse_OVER_LIMIT, Statuses: 3, OK: 1, Remaining: 300}
	if !ok || got != want {
		t.Errorf("got %+v %v, want %+v", got, ok, want)
	}
	if got, ok := ReadAnswer(nil); !ok || got != (Answer{}) {
		t.Errorf("an empty answer: %+v %v", got, ok)
	}
	for i := 1; i < len(full); i++ { // must not crash, whatever it says
		ReadAnswer(full[:i])
	}
	if _, ok := ReadAnswer([]byte{0xff}); ok {
		t.Error("took garbage for an answer")
	}
	if n := testing.AllocsPerRun(100, func() { ReadAnswer(full) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestRequestPeeks(t *testing.T) {
	for _, peek := range []bool{false, true} {
		var r rls.RateLimitRequest
		if err := proto.Unmarshal(Request("user", "u1", peek), &r); err != nil {
			t.Fatal(err)
		}
		d := r.Descriptors[0]
		if d.Entries[0].Key != "user" || d.Entries[0].Value != "u1" || (d.HitsAddend != nil) != peek || d.HitsAddend.GetValue() != 0 {
			t.Errorf("peek %v: %v", peek, &r)
		}
	}
}

// server counts and answers with one status, of the code that it is told.
type server struct {
	rls.UnimplementedRateLimitServiceServer
	code  atomic.Int32
	asked atomic.Int64
}

func (s *server) ShouldRateLimit(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	s.asked.Add(1)
	code := rls.RateLimitResponse_Code(s.code.Load())
	return &rls.RateLimitResponse{OverallCode: code, Statuses: []*rls.RateLimitResponse_DescriptorStatus{
		{Code: code, CurrentLimit: &rls.RateLimitResponse_RateLimit{RequestsPerUnit: 1}, LimitRemaining: 7},
	}}, nil
}

func serve(t *testing.T) (*server, *Client) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, g := &server{}, grpc.NewServer()
	s.code.Store(int32(rls.RateLimitResponse_OK))
	rls.RegisterRateLimitServiceServer(g, s)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	c, err := Dial(l.Addr().String(), 2, Security{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		g.Stop()
		<-served
	})
	return s, c
}

func TestRunCountsWhatTheServerSaw(t *testing.T) {
	s, c := serve(t)
	requests := [][]byte{Request("user", "a", false), Request("user", "b", false)}
	r, err := c.Run(t.Context(), requests, 8, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if r.Answers == 0 || r.Answers != s.asked.Load() {
		t.Errorf("%d answers, the server saw %d", r.Answers, s.asked.Load())
	}
	if lo, hi := r.Latency.Quantile(0.1), r.Latency.Quantile(0.99); lo <= 0 || hi < lo || r.PerSecond() <= 0 {
		t.Errorf("p10 %v, p99 %v, %.0f/s", lo, hi, r.PerSecond())
	}
}

func TestRunEndsAtAWrongAnswer(t *testing.T) {
	s, c := serve(t)
	s.code.Store(int32(rls.RateLimitResponse_OVER_LIMIT))
	_, err := c.Run(t.Context(), [][]byte{Request("user", "a", false)}, 4, time.Minute)
	if err == nil || !strings.Contains(err.Error(), "want OK") {
		t.Errorf("got %v", err)
	}
}

func TestEachAsksEverythingOnce(t *testing.T) {
	s, c := serve(t)
	requests := make([][]byte, 100)
	for i := range requests {
		requests[i] = Request("user", "u", true)
	}
	var seen [100]atomic.Int32
	err := c.Each(t.Context(), requests, 7, func(i int, a Answer) {
		if a.Remaining == 7 {
			seen[i].Add(1)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range seen {
		if seen[i].Load() != 1 {
			t.Errorf("request %d was answered %d times", i, seen[i].Load())
		}
	}
	if s.asked.Load() != 100 {
		t.Errorf("the server saw %d", s.asked.Load())
	}
}

func TestStartReportsAServerThatEnds(t *testing.T) {
	p, err := process.Start(nil, "/bin/sh", "-c", "echo port is taken; exit 1")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	addr, err := process.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Dial(addr, 1, Security{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Ready(t.Context(), p, nil); err == nil || !strings.Contains(err.Error(), "port is taken") {
		t.Errorf("got %v", err)
	}
}
