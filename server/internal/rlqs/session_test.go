package rlqs

import (
	"math"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/protobuf/proto"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// TestAbandon: a bucket whose load is gone is abandoned at the first whole interval without requests, if others need the
// limit, its lease comes back, and the next request has an assignment again.
func TestAbandon(t *testing.T) {
	w := newWorld(t, 1, termsOf(100, 100))
	e := w.addEnvoy(20)
	other := w.addEnvoy(500)
	w.run(15 * time.Second)
	e.load(0)
	w.run(4 * time.Second)
	if !e.filter.Has(e.key) || e.filter.Assigned(e.key) == nil {
		t.Fatal("abandoned too soon")
	}
	w.run(7 * time.Second)
	if e.filter.Has(e.key) || e.session.Buckets() != 0 || e.session.Stats().Abandoned != 1 {
		t.Fatalf("not abandoned: %+v", e.session.Stats())
	}
	before := other.allowed
	w.run(10 * time.Second)
	if used := other.allowed - before; used < 950 {
		t.Errorf("the other Envoy has %d of 1000 of the limit", used)
	}
	e.load(20)
	w.run(time.Second)
	if e.filter.Assigned(e.key) == nil {
		t.Error("subscribed again, and not assigned")
	}
	w.check(1)
}

// TestAbandonAlone: a bucket that has most of its limit is kept for longer, since a load that comes back is served.
func TestAbandonAlone(t *testing.T) {
	w := newWorld(t, 1, termsOf(100, 100))
	e := w.addEnvoy(20)
	w.run(15 * time.Second)
	e.load(0)
	w.run(AbandonAfter - 6*time.Second)
	if e.filter.Assigned(e.key) == nil {
		t.Fatal("abandoned too soon")
	}
	e.load(200)
	before := e.allowed
	w.run(4 * time.Second)
	if used := e.allowed - before; used < 380 {
		t.Errorf("the load that came back has %d of 400", used)
	}
	e.load(0)
	w.run(AbandonAfter + 6*time.Second)
	if e.filter.Has(e.key) || e.session.Buckets() != 0 {
		t.Errorf("not abandoned: %+v", e.session.Stats())
	}
	w.check(1)
}

// TestStrategies: a token bucket never fills faster than the rate, is exact to a thousandth, and is never
// taken by Envoy for the one before.
func TestStrategies(t *testing.T) {
	former := strategy{}
	for _, rate := range []fixed.Amount{1, 7, 999_999, 1_000_000, 1_500_000, 33_333_333, 999_999_999, 1_000_000_000, 1e15, fixed.MaxAmount} {
		for _, size := range []int64{1, 2, 50, math.MaxInt64} {
			s := bucketOf(rate, size, former)
			if s.rule != ruleTokens || s.MaxTokens < 1 || s.Tokens < 1 || s.Interval < 1 {
				t.Fatalf("rate %v, size %d: %+v", rate, size, s)
			}
			// The slowest bucket of Envoy fills a token a year.
			if got := s.rate(); got > max(rate, 1) {
				t.Errorf("rate %v: %+v fills %v", rate, s, got)
			} else if rate >= fixed.Token/1000 && rate <= 4e15 && float64(got) < float64(rate)*0.998 {
				t.Errorf("rate %v: %+v fills %v only", rate, s, got)
			}
			if former.rule == ruleTokens && former.MaxTokens == s.MaxTokens && former.Tokens == s.Tokens && former.Interval != s.Interval {
				t.Errorf("Envoy takes %+v for %+v", s, former)
			}
			former = s
		}
	}
}

// FuzzReports: whatever a stream sends is an error and changes nothing, or is assigned within the limit.
func FuzzReports(f *testing.F) {
	seed := func(m *pb.RateLimitQuotaUsageReports) {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	id := &pb.BucketId{Bucket: map[string]string{"name": "web"}}
	seed(&pb.RateLimitQuotaUsageReports{Domain: "edge", BucketQuotaUsages: []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{{BucketId: id, NumRequestsAllowed: 1}}})
	seed(&pb.RateLimitQuotaUsageReports{Domain: "edge", BucketQuotaUsages: []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{{BucketId: id, NumRequestsAllowed: math.MaxUint64, NumRequestsDenied: math.MaxUint64}}})
	seed(&pb.RateLimitQuotaUsageReports{Domain: "edge", BucketQuotaUsages: []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{{}, nil}})
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(pb.RateLimitQuotaUsageReports)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		w := newWorld(t, 1, termsOf(100, 10))
		e := w.addEnvoy(0)
		e.open()
		for range 3 {
			usages, err := e.reader.read(m)
			if err != nil {
				if e.session.Buckets() != 0 {
					t.Fatal("a wrong report made a bucket")
				}
				return
			}
			e.session.Report(w.clock(), usages)
			w.run(5 * time.Second)
			rate := fixed.Amount(0)
			for _, q := range e.session.quotas {
				if use := q.inUse(w.clock()); use.Rate < 0 || use.Burst < 0 {
					t.Fatalf("in use: %v", use)
				} else {
					rate += use.Rate
				}
			}
			if rate > w.terms.Rate {
				t.Fatalf("%v of %v is in use", rate, w.terms.Rate)
			}
		}
	})
}

// TestFirstReportOfAStream: an Envoy that lost its stream reports what came meanwhile and in what time, and the new
// stream demands that from its first report on, not the whole limit.
func TestFirstReportOfAStream(t *testing.T) {
	w := newWorld(t, 1, termsOf(100, 100))
	envoys := map[*envoy]float64{w.addEnvoy(90): 90, w.addEnvoy(30): 30}
	w.run(20 * time.Second)
	for e := range envoys {
		e.lose()
	}
	before := map[*envoy]*Session{}
	for e := range envoys {
		before[e] = e.session
	}
	for range 60 {
		w.run(100 * time.Millisecond)
		for e, rate := range envoys {
			if e.session == nil || e.session == before[e] {
				continue
			}
			for _, q := range e.session.quotas {
				if q.heard == 0 {
					continue
				}
				if !q.demand.known || math.Abs(q.demand.rate-rate) > 0.4*rate {
					t.Errorf("after its first report an Envoy with %v/s demands %v/s, known is %v", rate, q.demand.rate, q.demand.known)
				}
				delete(envoys, e)
			}
		}
	}
	if len(envoys) > 0 {
		t.Errorf("%d Envoys did not report on a new stream", len(envoys))
	}
}

// TestChangeWaitsForTokens: an assignment that fills Envoy's bucket with tokens that the lease does not have waits for
// them, unless its higher rate brings as many soon.
func TestChangeWaitsForTokens(t *testing.T) {
	const now = limit.Time(time.Hour)
	for _, c := range []struct {
		what          string
		rate, size    int64
		lacks         int64
		worth, atOnce bool
	}{
		{"a little more, which the lease has", 102, 8, 0, true, false},
		{"a little more, which it does not have", 102, 8, 20, false, false},
		{"more, which it has", 110, 8, 0, true, true},
		{"more, which it does not have", 110, 8, 100, false, false},
		{"much more, which it does not have", 150, 8, 100, true, true},
		{"a larger bucket, which it has", 100, 20, 0, true, false},
		{"a larger bucket, which it does not have", 100, 20, 1, false, false},
	} {
		of := lease.Capacity{Rate: fixed.Whole(200), Burst: fixed.Whole(100)}
		q := &quota{current: bucketOf(fixed.Whole(100), 8, strategy{}), rate: fixed.Whole(100), ends: now.Add(TTL), denied: true, lacks: fixed.Whole(c.lacks)}
		q.parts = []*part{{of: q, held: of, ceiling: of}}
		for _, reported := range []bool{true, false} {
			want := c.atOnce
			if q.heard = now.Add(-time.Second); reported {
				q.heard, want = now, c.worth
			}
			s := bucketOf(fixed.Whole(c.rate), c.size, q.current)
			if got := q.differs(now, s, s.rate()); got != want {
				t.Errorf("%s, at a report: %v: worth a change: %v, want %v", c.what, reported, got, want)
			}
		}
	}
}
