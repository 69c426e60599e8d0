package server_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stint-io/stint/internal/gen/kuadrantpb"
	"github.com/stint-io/stint/stintpb"
)

// isCode fails unless a call ended with a status.
func isCode(t *testing.T, err error, want codes.Code, what string) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: %v (%v), want %v", what, got, err, want)
	}
}

// Over gRPC the verbs do what they do over HTTP, and the same reservations are known at both doors.
func TestReserveOverGRPC(t *testing.T) {
	s := start(t, tokenLimits)
	c := stintpb.NewLimitsClient(s.conn)
	acme := map[string]string{"tenant": "acme"}
	made, err := c.Reserve(t.Context(), &stintpb.ReserveRequest{Attributes: acme, Cost: 800, Ttl: durationpb.New(time.Minute)})
	if err != nil || made.Reservation.State != stintpb.Reservation_STATE_OPEN || made.Reservation.Reserved != 800 || made.Decision.Limits[0].Remaining != 200 {
		t.Fatalf("%v %v", made, err)
	}
	id := made.Reservation.Id
	if got, err := c.Reserve(t.Context(), &stintpb.ReserveRequest{Attributes: acme, Cost: 300}); err != nil || got.Reservation != nil || got.Decision.Allowed || got.Decision.RetryAfter.AsDuration() <= 0 || got.Decision.Limits[0].Reason != "rate_exceeded" || got.Decision.Status != 429 {
		t.Errorf("%v %v", got, err)
	}
	if got, err := c.Renew(t.Context(), &stintpb.RenewRequest{Id: id, Used: 900}); err != nil || !got.Extended || got.Reserved != 900 || got.Used != 900 {
		t.Errorf("%v %v", got, err)
	}
	for range 2 {
		if got, err := c.Commit(t.Context(), &stintpb.CommitRequest{Id: id, Actual: 100}); err != nil || got.State != stintpb.Reservation_STATE_COMMITTED || got.Actual != 100 {
			t.Errorf("%v %v", got, err)
		}
	}
	if got := s.post("/v1/commit", `{"id":"`+id+`","actual":101}`); got.status != 409 {
		t.Errorf("%+v", got)
	}
	zero := int64(0)
	if got, err := c.Take(t.Context(), &stintpb.TakeRequest{Attributes: acme, Cost: &zero}); err != nil || !got.Allowed || got.Limits[0].Remaining != 900 || got.Limits[0].Cost != 0 {
		t.Errorf("%v %v", got, err)
	}
	if got, err := c.Take(t.Context(), &stintpb.TakeRequest{Attributes: acme}); err != nil || !got.Allowed || got.Limits[0].Remaining != 899 {
		t.Errorf("%v %v", got, err)
	}
	big, err := c.Reserve(t.Context(), &stintpb.ReserveRequest{Attributes: map[string]string{"tenant": "other"}, Cost: 5000})
	if err != nil || !big.Reservation.Clamped || big.Reservation.Reserved != 1000 {
		t.Fatalf("%v %v", big, err)
	}
	for range 2 {
		if got, err := c.Release(t.Context(), &stintpb.ReleaseRequest{Id: big.Reservation.Id}); err != nil || got.State != stintpb.Reservation_STATE_RELEASED {
			t.Errorf("%v %v", got, err)
		}
	}
	_, err = c.Commit(t.Context(), &stintpb.CommitRequest{Id: big.Reservation.Id, Actual: 1})
	isCode(t, err, codes.FailedPrecondition, "committed after it was released")
	for _, bad := range []int64{-1, math.MaxInt64, math.MinInt64, 1<<62 + 1} {
		_, err = c.Commit(t.Context(), &stintpb.CommitRequest{Id: id, Actual: bad})
		isCode(t, err, codes.InvalidArgument, "actual")
		_, err = c.Renew(t.Context(), &stintpb.RenewRequest{Id: id, Used: bad})
		isCode(t, err, codes.InvalidArgument, "used")
		_, err = c.Reserve(t.Context(), &stintpb.ReserveRequest{Attributes: acme, Cost: bad})
		isCode(t, err, codes.InvalidArgument, "cost")
		_, err = c.Take(t.Context(), &stintpb.TakeRequest{Attributes: acme, Cost: &bad})
		isCode(t, err, codes.InvalidArgument, "cost of a take")
	}
	for _, ttl := range []*durationpb.Duration{{}, durationpb.New(-time.Second), durationpb.New(10 * 365 * 24 * time.Hour), {Seconds: math.MaxInt64}, {Seconds: 1, Nanos: -1}} {
		_, err = c.Reserve(t.Context(), &stintpb.ReserveRequest{Attributes: acme, Cost: 1, Ttl: ttl})
		isCode(t, err, codes.InvalidArgument, ttl.String())
		_, err = c.Renew(t.Context(), &stintpb.RenewRequest{Id: id, Used: 1, Ttl: ttl})
		isCode(t, err, codes.InvalidArgument, ttl.String())
	}
	for _, stranger := range []string{"", "stranger", id[1:], id + "A"} {
		_, err = c.Commit(t.Context(), &stintpb.CommitRequest{Id: stranger, Actual: 1})
		isCode(t, err, codes.NotFound, stranger)
		_, err = c.Renew(t.Context(), &stintpb.RenewRequest{Id: stranger, Used: 1})
		isCode(t, err, codes.NotFound, stranger)
		_, err = c.Release(t.Context(), &stintpb.ReleaseRequest{Id: stranger})
		isCode(t, err, codes.NotFound, stranger)
	}
	if got, err := c.Take(t.Context(), &stintpb.TakeRequest{Attributes: acme, Cost: &zero}); err != nil || got.Limits[0].Remaining != 899 {
		t.Errorf("after bad input: %v %v", got, err)
	}
}

const kuadrantLimits = `
domain: ns/gateway
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1000}}
`

// Kuadrant's filter asks before a request and reports afterwards, or reserves and commits.
func TestKuadrant(t *testing.T) {
	s := start(t, kuadrantLimits)
	c := kuadrantpb.NewRateLimitServiceClient(s.conn)
	on := []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "user", Value: "bob"}}}}
	left := func(want uint32) {
		t.Helper()
		got, err := c.CheckRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "ns/gateway", Descriptors: on})
		if err != nil || (got.OverallCode == pb.RateLimitResponse_OK) != (want > 0) || got.Statuses[0].LimitRemaining != want {
			t.Fatalf("%v %v, want %d left", got, err, want)
		}
	}
	report := func(n uint32) {
		t.Helper()
		got, err := c.Report(t.Context(), &pb.RateLimitRequest{Domain: "ns/gateway", Descriptors: on, HitsAddend: n})
		if err != nil || got.OverallCode != pb.RateLimitResponse_OK {
			t.Fatalf("%v %v", got, err)
		}
	}
	left(1000)
	left(1000)
	report(900)
	left(100)
	reserve := func(n uint64, ttl *durationpb.Duration) *kuadrantpb.ReserveResponse {
		t.Helper()
		got, err := c.Reserve(t.Context(), &kuadrantpb.ReserveRequest{Domain: "ns/gateway", Descriptors: on, Amount: n, Ttl: ttl})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	commit := func(id string, n uint64, released bool) {
		t.Helper()
		got, err := c.Commit(t.Context(), &kuadrantpb.CommitRequest{Domain: "ns/gateway", Descriptors: on, ReservationId: id, ActualAmount: n})
		if err != nil || got.ReservationReleased != released {
			t.Fatalf("%v %v", got, err)
		}
	}
	if got := reserve(0, nil); got.Code != pb.RateLimitResponse_OK || got.ReservationId != "" {
		t.Errorf("%v", got)
	}
	one := reserve(80, durationpb.New(24*time.Hour))
	if one.Code != pb.RateLimitResponse_OK || one.ReservationId == "" {
		t.Fatal(one)
	}
	left(20)
	if got := reserve(21, nil); got.Code != pb.RateLimitResponse_OVER_LIMIT || got.ReservationId != "" {
		t.Errorf("%v", got)
	}
	commit(one.ReservationId, 30, true)
	commit(one.ReservationId, 30, true)
	left(70)
	_, err := c.Commit(t.Context(), &kuadrantpb.CommitRequest{Domain: "ns/gateway", Descriptors: on, ReservationId: one.ReservationId, ActualAmount: 31})
	isCode(t, err, codes.FailedPrecondition, "another commit")
	commit("", 10, false)
	left(60)
	commit("forged", 10, false)
	left(50)
	report(5000) // it has been used: it counts, above the limit too
	left(0)
	if got := reserve(0, nil); got.Code != pb.RateLimitResponse_OVER_LIMIT {
		t.Errorf("%v", got)
	}
	for what, in := range map[string]*kuadrantpb.ReserveRequest{
		"no domain":      {Descriptors: on, Amount: 1},
		"no descriptors": {Domain: "ns/gateway", Amount: 1},
		"negative ttl":   {Domain: "ns/gateway", Descriptors: on, Amount: 1, Ttl: durationpb.New(-1)},
		"endless ttl":    {Domain: "ns/gateway", Descriptors: on, Amount: 1, Ttl: &durationpb.Duration{Seconds: math.MaxInt64}},
		"a refund":       {Domain: "ns/gateway", Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: on[0].Entries, IsNegativeHits: true}}, Amount: 1},
	} {
		_, err := c.Reserve(t.Context(), in)
		isCode(t, err, codes.InvalidArgument, what)
	}
	_, err = c.Commit(t.Context(), &kuadrantpb.CommitRequest{Domain: "ns/gateway", Descriptors: on, ActualAmount: math.MaxUint64})
	isCode(t, err, codes.InvalidArgument, "too much")
	if got := reserve(math.MaxUint64, nil); got.Code != pb.RateLimitResponse_OVER_LIMIT {
		t.Errorf("%v", got)
	}
}

// A gateway with Envoy's filter asks with hits_addend 0 and reports when the stream is done, from metadata, with
// apply_on_stream_done. With charge: after what it reports always counts, and the next stream is refused once nothing
// is left.
func TestChargeAfterOverRLS(t *testing.T) {
	s := start(t, "limits: [{name: tokens, key: [tenant], rate: 1000/hour, algorithm: fixed_window, charge: after}]\n")
	c := pb.NewRateLimitServiceClient(s.conn)
	send := func(n uint64) pb.RateLimitResponse_Code {
		t.Helper()
		got, err := c.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "any", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
			Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "tenant", Value: "acme"}}, HitsAddend: wrapperspb.UInt64(n),
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return got.OverallCode
	}
	for range 3 { // three streams begin while nothing is used
		if got := send(0); got != pb.RateLimitResponse_OK {
			t.Error(got)
		}
	}
	send(400)
	if got := send(0); got != pb.RateLimitResponse_OK {
		t.Error(got)
	}
	send(900) // above the limit, and it was used
	send(700)
	if got := send(0); got != pb.RateLimitResponse_OVER_LIMIT {
		t.Error(got)
	}
}

// A reservation without a cost is estimated over gRPC as it is over HTTP, and takes 1 where nothing is estimated.
func TestReserveOverGRPCIsEstimated(t *testing.T) {
	for limits, want := range map[string]int64{learnedLimits: 1000, tokenLimits: 1} {
		s := start(t, limits)
		c := stintpb.NewLimitsClient(s.conn)
		got, err := c.Reserve(t.Context(), &stintpb.ReserveRequest{Attributes: map[string]string{"model": "large", "tenant": "acme"}})
		if err != nil || got.Reservation.GetReserved() != want {
			t.Errorf("%v %v, want %d", got, err, want)
		}
		if a := s.post("/v1/reserve", `{"attributes":{"model":"large","tenant":"acme"}}`); a.status != 200 || !strings.Contains(a.body, fmt.Sprintf(`"reserved":%d`, want)) {
			t.Errorf("over HTTP: %d %s, want %d", a.status, a.body, want)
		}
	}
}
