package rlqs

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"

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
		first, err := s.begin()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.begin(); err != errFull {
			t.Errorf("a second stream: %v", err)
		}
		first.lose()
		s.wg.Wait()
		second, err := s.begin()
		if err != nil {
			t.Fatal(err)
		}
		second.lose()
		s.wg.Wait()
	})
}

// TestLongBucket: a bucket whose name is longer than the bound is left out of its report, and the others count.
func TestLongBucket(t *testing.T) {
	r := &reader{}
	bucket := func(value string) *pb.RateLimitQuotaUsageReports_BucketQuotaUsage {
		return &pb.RateLimitQuotaUsageReports_BucketQuotaUsage{BucketId: &pb.BucketId{Bucket: map[string]string{"user": value}}, NumRequestsAllowed: 1}
	}
	usages, err := r.read(&pb.RateLimitQuotaUsageReports{Domain: "edge", BucketQuotaUsages: []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{
		bucket("a"), bucket(strings.Repeat("b", MaxIDBytes)), bucket(strings.Repeat("c", MaxIDBytes-12)),
	}})
	if err != nil || len(usages) != 2 || r.long != 1 || usages[1].Bucket.Domain != "edge" {
		t.Errorf("%d usages, %d left out, %v", len(usages), r.long, err)
	}
}
