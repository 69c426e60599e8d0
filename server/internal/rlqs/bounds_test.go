package rlqs

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// TestRoomForBuckets: the buckets of all sessions have one bound; what has ended makes room.
func TestRoomForBuckets(t *testing.T) {
	var all atomic.Int64
	all.Store(MaxAllBuckets - 1)
	s := NewSession(SessionOptions{
		Instance: "i", Number: 1, Match: func(*BucketName) Targets { return Targets{} }, Send: func(Peer, *lease.Report) {}, Joined: func(Peer) {}, Buckets: &all,
	}, 1)
	usage := func(key string) []Usage { return []Usage{{Bucket: &BucketName{}, Key: key, Allowed: 1}} }
	s.Report(1, usage("a"))
	s.Report(1, usage("b"))
	if s.Buckets() != 1 || s.Stats().Crowded != 1 || all.Load() != MaxAllBuckets {
		t.Errorf("%d buckets, %+v, %d of all", s.Buckets(), s.Stats(), all.Load())
	}
	s.Lost(2)
	s.Advance(s.Next()) // it was touched
	s.Advance(s.Next() + limit.Time(housekeeping))
	if !s.Done() || all.Load() != MaxAllBuckets-1 {
		t.Errorf("done: %v, %d of all", s.Done(), all.Load())
	}
}

// TestRoomForStreams: streams have a bound as well.
func TestRoomForStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{MaxStreams: 1})
		s.running = t.Context()
		first, err := s.begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.begin(t.Context()); err != errFull {
			t.Errorf("a second stream: %v", err)
		}
		first.lose()
		s.wg.Wait()
		second, err := s.begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		second.lose()
		s.wg.Wait()
	})
}

// TestLongBucket: a bucket whose name is longer than the bound is rejected, and the others of its report count.
func TestLongBucket(t *testing.T) {
	r := &reader{}
	bucket := func(value string) *pb.RateLimitQuotaUsageReports_BucketQuotaUsage {
		return &pb.RateLimitQuotaUsageReports_BucketQuotaUsage{BucketId: &pb.BucketId{Bucket: map[string]string{"user": value}}, NumRequestsAllowed: 1}
	}
	usages, err := r.read(&pb.RateLimitQuotaUsageReports{Domain: "edge", BucketQuotaUsages: []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{
		bucket("a"), bucket(strings.Repeat("b", MaxIDBytes)), bucket(strings.Repeat("c", MaxIDBytes-12)),
	}})
	if err != nil || len(usages) != 3 || r.long != 1 || usages[0].Reject || !usages[1].Reject || usages[2].Reject || usages[2].Bucket.Domain != "edge" {
		t.Errorf("%d usages, %d too long, %v", len(usages), r.long, err)
	}
}

// TestNoRoom: where there is no room for the names of more buckets, they are abandoned at once, and idle ones sooner.
func TestNoRoom(t *testing.T) {
	s := NewSession(SessionOptions{Instance: "i", Number: 1, Match: func(*BucketName) Targets { return Targets{} }, Send: func(Peer, *lease.Report) {}, Joined: func(Peer) {}}, 1)
	now := limit.Time(1)
	abandoned := func() (n int) {
		for _, a := range s.Advance(now) {
			if a.Abandon {
				n++
			}
		}
		return n
	}
	pad := strings.Repeat("k", 1000)
	const most = maxStreamIDs / 1000
	for i := range most + 500 {
		s.Report(now, []Usage{{Bucket: &BucketName{}, Key: fmt.Sprintf("%07d", i) + pad[7:], Allowed: 1}})
	}
	if n := abandoned(); n != 500 || s.Buckets() != most || s.Stats().Crowded != 500 {
		t.Fatalf("%d abandoned at once, %d kept, %+v", n, s.Buckets(), s.Stats())
	}
	if now = now.Add(crowdedAfter + housekeeping); abandoned() != most {
		t.Errorf("%d are abandoned after a silence", s.Stats().Abandoned)
	}
	if now = now.Add(Delivery + housekeeping); abandoned() != 0 || s.Buckets() != 0 || s.names != 0 {
		t.Errorf("%d buckets and %d bytes are kept", s.Buckets(), s.names)
	}
}

// TestAbandonEvery: a bucket without requests is abandoned, whether a limit applies or none, and whether it can be
// assigned.
func TestAbandonEvery(t *testing.T) {
	for what, targets := range map[string]Targets{"unlimited": {}, "unassignable": {Unleased: true}, "limited": {IDs: []lease.ResourceID{{Limit: "l"}}, Rates: []fixed.Amount{fixed.Token}}} {
		s := NewSession(SessionOptions{Instance: "i", Number: 1, Match: func(*BucketName) Targets { return targets }, Send: func(Peer, *lease.Report) {}, Joined: func(Peer) {}}, 1)
		now := limit.Time(1)
		report := func(n uint64) { s.Report(now, []Usage{{Bucket: &BucketName{}, Key: "k", Allowed: n}}) }
		report(1)
		for ; now < limit.Time(AbandonAfter+2*housekeeping); now = now.Add(housekeeping) {
			s.Advance(now)
			if s.Stats().Abandoned > 0 && now < limit.Time(AbandonAfter) {
				t.Fatalf("%s: abandoned after %v", what, time.Duration(now))
			}
			if now%limit.Time(5*time.Second) == 1 {
				report(0)
			}
		}
		if s.Stats().Abandoned != 1 {
			t.Errorf("%s: not abandoned", what)
		}
		report(0) // it was on its way
		s.Advance(now.Add(Delivery + 2*housekeeping))
		if s.Buckets() != 0 {
			t.Errorf("%s: kept", what)
		}
	}
}

// TestOtherLimitsAtAReport: a bucket to which other limits have come to apply, as where its customer has another plan, is of
// those from its next report on, and nothing is left of the former ones.
func TestOtherLimitsAtAReport(t *testing.T) {
	targets := Targets{IDs: []lease.ResourceID{{Limit: "free"}}, Rates: []fixed.Amount{fixed.Token}}
	asked := map[string]bool{}
	s := NewSession(SessionOptions{
		Instance: "i", Number: 1, Match: func(*BucketName) Targets { return targets }, Joined: func(Peer) {},
		Send: func(_ Peer, r *lease.Report) {
			for _, d := range r.Demands {
				asked[d.Resource.Limit] = true
			}
		},
	}, 1)
	now := limit.Time(1)
	report := func() {
		s.Report(now, []Usage{{Bucket: &BucketName{}, Key: "k", Allowed: 1}})
		for p := range s.members {
			s.Connected(now, p)
		}
		for range 10 {
			s.Advance(now)
			now = now.Add(housekeeping)
		}
	}
	report()
	if !asked["free"] || asked["pro"] {
		t.Fatalf("asked for: %v", asked)
	}
	targets = Targets{IDs: []lease.ResourceID{{Limit: "pro"}}, Rates: []fixed.Amount{fixed.Token}}
	report()
	if !asked["pro"] || s.Buckets() != 1 || len(s.all) != 1 {
		t.Errorf("after the change: asked for %v, %d buckets, %d kept", asked, s.Buckets(), len(s.all))
	}
}
