package server_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

const quotas = `
limits:
  - name: api
    match: {name: api}
    key: [user]
    rate: 100/s
    burst: 100
    sharing: leased
  - name: web
    match: {name: web}
    rate: 100/s
    burst: 100
    sharing: leased
  - name: closed
    match: {name: closed}
    rate: 0/s
    sharing: leased
  - name: exact
    match: {name: exact}
    rate: 10/s
`

// quotaStream is one stream to the quota service, with what it was sent.
type quotaStream struct {
	pb.RateLimitQuotaService_StreamRateLimitQuotasClient
	t testing.TB
}

func (s *service) quotas() *quotaStream {
	s.t.Helper()
	conn, err := grpc.NewClient(s.Addrs().GRPC.String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	s.t.Cleanup(cancel)
	stream, err := pb.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	return &quotaStream{stream, s.t}
}

func usageOf(allowed, denied uint64, pairs ...string) *pb.RateLimitQuotaUsageReports_BucketQuotaUsage {
	id := &pb.BucketId{Bucket: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		id.Bucket[pairs[i]] = pairs[i+1]
	}
	return &pb.RateLimitQuotaUsageReports_BucketQuotaUsage{BucketId: id, NumRequestsAllowed: allowed, NumRequestsDenied: denied, TimeElapsed: durationpb.New(0)}
}

func (q *quotaStream) report(domain string, usages ...*pb.RateLimitQuotaUsageReports_BucketQuotaUsage) {
	q.t.Helper()
	if err := q.Send(&pb.RateLimitQuotaUsageReports{Domain: domain, BucketQuotaUsages: usages}); err != nil {
		q.t.Fatal(err)
	}
}

// answer returns the next action.
func (q *quotaStream) answer() *pb.RateLimitQuotaResponse_BucketAction {
	q.t.Helper()
	m, err := q.Recv()
	if err != nil {
		q.t.Fatal(err)
	}
	if len(m.BucketAction) == 0 {
		q.t.Fatal("a response without actions")
	}
	return m.BucketAction[0]
}

// ends returns the status that the stream ends with.
func (q *quotaStream) ends() codes.Code {
	q.t.Helper()
	for {
		if _, err := q.Recv(); err == io.EOF {
			return codes.OK
		} else if err != nil {
			return status.Code(err)
		}
	}
}

// TestQuotasOfEnvoy: the duties of a server of the protocol.
func TestQuotasOfEnvoy(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	s := leasing(t, quotas)
	q := s.quotas()
	begin := time.Now()
	q.report("edge", usageOf(1, 0, "name", "web"))
	a := q.answer()
	t.Logf("the first report was answered after %v", time.Since(begin))
	assigned := a.GetQuotaAssignmentAction()
	bucket := assigned.GetRateLimitStrategy().GetTokenBucket()
	if bucket == nil || bucket.MaxTokens < 1 || assigned.AssignmentTimeToLive.AsDuration() < time.Second {
		t.Fatalf("assigned %v", a)
	}
	if n := assigned.AssignmentTimeToLive.AsDuration(); n%time.Second != 0 {
		t.Errorf("a time to live of %v, of which Envoy ignores a part", n)
	}
	if bucket.FillInterval.AsDuration()%time.Second != 0 || bucket.FillInterval.AsDuration() == 0 {
		t.Errorf("a fill interval of %v", bucket.FillInterval.AsDuration())
	}
	// It is sent again before its time is over, without a report.
	received := time.Now()
	q.answer()
	if waited := time.Since(received); waited > assigned.AssignmentTimeToLive.AsDuration()-500*time.Millisecond {
		t.Errorf("refreshed after %v, of %v", waited, assigned.AssignmentTimeToLive.AsDuration())
	}
	// The domain may be left out later. The order of pairs means nothing, which a map has none of.
	q.report("", usageOf(1, 0, "name", "free"))
	for {
		a = q.answer()
		if a.BucketId.Bucket["name"] == "free" {
			break
		}
	}
	if a.GetQuotaAssignmentAction().GetRateLimitStrategy().GetBlanketRule() != typev3.RateLimitStrategy_ALLOW_ALL || a.GetQuotaAssignmentAction().AssignmentTimeToLive.AsDuration() < time.Second {
		t.Errorf("without a limit: %v", a)
	}
	closed := s.quotas()
	closed.report("edge", usageOf(1, 0, "name", "closed"))
	if a = closed.answer(); a.GetQuotaAssignmentAction().GetRateLimitStrategy().GetBlanketRule() != typev3.RateLimitStrategy_DENY_ALL {
		t.Errorf("with a limit of 0: %v", a)
	}
}

// TestQuotaInput: a wrong domain is a fault of the Envoy and ends the stream. A wrong usage can come from a request of
// a client: its bucket is abandoned and all others of the report are assigned. Absurd counts are bounded.
func TestQuotaInput(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	s := leasing(t, quotas)
	many := usageOf(1, 0)
	for i := range 33 {
		many.BucketId.Bucket[fmt.Sprint("k", i)] = "v"
	}
	negative := usageOf(1, 0, "name", "web")
	negative.TimeElapsed = durationpb.New(-time.Second)
	broken := usageOf(1, 0, "name", "web")
	broken.TimeElapsed = &durationpb.Duration{Seconds: math.MaxInt64, Nanos: -7}
	longKey := usageOf(1, 0, strings.Repeat("k", 257), "v")
	long := usageOf(1, 0, "name", strings.Repeat("u", 57_000))
	for what, wrong := range map[string]*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{
		"no bucket": {}, "nil usage": nil, "no pairs": usageOf(1, 0), "an empty key": usageOf(1, 0, "", "web"), "an empty value": usageOf(1, 0, "name", ""),
		"many pairs": many, "a long key": longKey, "a long value": long, "negative": negative, "no duration": broken,
	} {
		q := s.quotas()
		q.report("edge", wrong, usageOf(1, 0, "name", "api", "user", what))
		abandoned := false
		for assigned := false; !assigned || !abandoned && (wrong == many || wrong == longKey || wrong == long); {
			m, err := q.Recv()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			for _, a := range m.BucketAction {
				assigned = assigned || a.BucketId.Bucket["user"] == what && a.GetQuotaAssignmentAction() != nil
				abandoned = abandoned || a.GetAbandonAction() != nil && maps.Equal(a.BucketId.Bucket, wrong.BucketId.Bucket)
			}
		}
	}
	if text := s.do(http.MethodGet, s.admin+"/metrics", "").body; !strings.Contains(text, `stint_rlqs_unassigned_total{reason="wrong"} 7`) || !strings.Contains(text, `stint_rlqs_unassigned_total{reason="too_long"} 1`) {
		t.Errorf("not counted:\n%s", text)
	}
	nameless := s.quotas()
	nameless.report("", usageOf(1, 0, "name", "web"))
	if code := nameless.ends(); code != codes.InvalidArgument {
		t.Errorf("no domain: ended with %v", code)
	}
	other := s.quotas()
	other.report("edge", usageOf(1, 0, "name", "web"))
	other.answer()
	other.report("core", usageOf(1, 0, "name", "web"))
	if code := other.ends(); code != codes.InvalidArgument {
		t.Errorf("another domain: ended with %v", code)
	}
	// Counts that no sum holds.
	q := s.quotas()
	q.report("edge", usageOf(math.MaxUint64, math.MaxUint64, "name", "web"), usageOf(math.MaxUint64, 1, "name", "web"))
	q.report("edge", usageOf(math.MaxUint64, math.MaxUint64, "name", "web"))
	if a := q.answer(); a.GetQuotaAssignmentAction() == nil {
		t.Errorf("after absurd counts: %v", a)
	}
}

// TestLongReports: a report of as many long buckets as an Envoy may have been asked for while it had no stream is taken.
func TestLongReports(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	s := leasing(t, quotas)
	q := s.quotas()
	m := &pb.RateLimitQuotaUsageReports{Domain: "edge", BucketQuotaUsages: []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{usageOf(1, 0, "name", "web")}}
	pad := strings.Repeat("u", 57_000)
	const n = 500
	for i := range n {
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, usageOf(1, 0, "name", "api", "user", fmt.Sprint(pad, i)))
	}
	if err := q.Send(m); err != nil {
		t.Fatal(err)
	}
	for abandoned, assigned := 0, false; abandoned < n || !assigned; {
		m, err := q.Recv()
		if err != nil {
			t.Fatalf("%d of %d abandoned: %v", abandoned, n, err)
		}
		for _, a := range m.BucketAction {
			if a.GetAbandonAction() != nil {
				abandoned++
			}
			assigned = assigned || a.GetQuotaAssignmentAction() != nil
		}
	}
}

// TestTenThousandBucketsCrowd: one report of as many buckets as an Envoy with a bucket for each user sends
// after its stream was lost. All are answered.
func TestTenThousandBucketsCrowd(t *testing.T) {
	s := leasing(t, quotas)
	q := s.quotas()
	const n = 10_000
	m := &pb.RateLimitQuotaUsageReports{Domain: "edge"}
	for i := range n {
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, usageOf(1, 0, "name", "api", "user", fmt.Sprint("u", i)))
	}
	begin := time.Now()
	if err := q.Send(m); err != nil {
		t.Fatal(err)
	}
	answered := map[string]bool{}
	for len(answered) < n {
		m, err := q.Recv()
		if err != nil {
			t.Fatalf("after %d of %d: %v", len(answered), n, err)
		}
		for _, a := range m.BucketAction {
			if a.GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket() == nil {
				t.Fatalf("assigned %v", a)
			}
			answered[a.BucketId.Bucket["user"]] = true
		}
	}
	t.Logf("%d buckets were assigned after %v", n, time.Since(begin))
}

// TestQuotasEnd: a server that stops ends what it has assigned, and requests that it is asked about itself
// spend the same limit.
func TestQuotasEnd(t *testing.T) {
	s := leasing(t, quotas)
	if status, x := s.take(`{"name":"web"}`, 90); status != 200 || !x.Allowed {
		t.Fatalf("%d %+v", status, x)
	}
	q := s.quotas()
	q.report("edge", usageOf(1, 0, "name", "web"))
	if b := q.answer().GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket(); b.GetMaxTokens() > 20 {
		t.Errorf("90 tokens of 100 were spent, and the Envoy is given %d", b.GetMaxTokens())
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	for {
		m, err := q.Recv()
		if err != nil {
			t.Fatalf("the stream ended without a word: %v", err)
		}
		if ttl := m.BucketAction[0].GetQuotaAssignmentAction().GetAssignmentTimeToLive(); ttl != nil && ttl.AsDuration() == 0 {
			break
		}
	}
	if code := q.ends(); code != codes.Unavailable && code != codes.Canceled {
		t.Errorf("the stream ended with %v", code)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestQuotasGivenBack: a server that stops gives back what Envoys had, so the next one with its state directory lends at
// once.
func TestQuotasGivenBack(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	folder := stateIn(t.TempDir())
	for i := range 3 {
		s := start(t, quotas, folder)
		if log := s.log.String(); strings.Contains(log, "while something was lent") {
			t.Fatalf("start %d has to wait for leases:\n%s", i, log)
		}
		q := s.quotas()
		q.report("edge", usageOf(1, 0, "name", "web"))
		q.answer()
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
	}
}
