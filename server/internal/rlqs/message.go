package rlqs

import (
	"slices"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stint-io/stint/limit"
)

// Bounds on what one report may hold. Envoy builds a bucket of a handful of pairs.
const (
	MaxPairs       = 32
	MaxKeyBytes    = 256
	MaxDomainBytes = 256
	// MaxIDBytes bounds all keys and values of a bucket. One that is longer is left out of its report, and has no
	// assignment: values may be header fields, and what one client sends must not end the stream. Not larger: it is
	// kept for each bucket. Not smaller: tokens are some hundred bytes.
	MaxIDBytes = 2 << 10
)

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, "rlqs: "+format, args...)
}

// reader translates the reports of one stream.
type reader struct {
	domain string
	long   uint64 // buckets that were left out
}

// read returns what a report says, or what is wrong with it; then nothing of it counts.
func (r *reader) read(m *pb.RateLimitQuotaUsageReports) ([]Usage, error) {
	switch domain := m.GetDomain(); {
	case domain == "" && r.domain == "":
		return nil, invalid("the first report of a stream has no domain: set it")
	case len(domain) > MaxDomainBytes:
		return nil, invalid("the domain has %d bytes, at most %d are taken", len(domain), MaxDomainBytes)
	case domain != "" && r.domain != "" && domain != r.domain:
		return nil, invalid("the domain changed within a stream, from %.64q to %.64q: open a stream for each", r.domain, domain)
	}
	// Without usages it is of an Envoy whose buckets were all abandoned: it goes on to report.
	usages := make([]Usage, 0, len(m.BucketQuotaUsages))
	for i, u := range m.BucketQuotaUsages {
		pairs := u.GetBucketId().GetBucket()
		if len(pairs) == 0 {
			return nil, invalid("usage %d has no bucket_id, or one without pairs", i)
		}
		if len(pairs) > MaxPairs {
			return nil, invalid("the bucket_id of usage %d has %d pairs, at most %d are taken", i, len(pairs), MaxPairs)
		}
		if e := u.GetTimeElapsed(); e != nil && (e.CheckValid() != nil || e.AsDuration() < 0) {
			return nil, invalid("time_elapsed of usage %d is no duration of at least 0", i)
		}
		name, key, err := bucketName(i, pairs)
		if err != nil {
			return nil, err
		}
		if len(key) > MaxIDBytes {
			r.long++
			continue
		}
		usages = append(usages, Usage{Bucket: name, Key: key, Allowed: u.GetNumRequestsAllowed(), Denied: u.GetNumRequestsDenied()})
	}
	if r.domain == "" {
		r.domain = m.Domain
	}
	for i := range usages {
		usages[i].Bucket.Domain = r.domain
	}
	return usages, nil
}

// bucketName returns the name of a bucket, and its canonical key: the order of pairs means nothing.
func bucketName(i int, pairs map[string]string) (*BucketName, string, error) {
	name := &BucketName{Pairs: make([]limit.Attribute, 0, len(pairs))}
	size := 0
	for k, v := range pairs {
		if k == "" || v == "" {
			return nil, "", invalid("the bucket_id of usage %d has an empty key or value", i)
		}
		if len(k) > MaxKeyBytes {
			return nil, "", invalid("the bucket_id of usage %d has a key of %d bytes, at most %d are taken", i, len(k), MaxKeyBytes)
		}
		name.Pairs = append(name.Pairs, limit.Attribute{Name: k, Value: v})
		size += len(k) + len(v) + 16
	}
	slices.SortFunc(name.Pairs, func(a, b limit.Attribute) int { return strings.Compare(a.Name, b.Name) })
	key := make([]byte, 0, size)
	for _, p := range name.Pairs {
		key = appendString(appendString(key, p.Name), p.Value)
	}
	return name, string(key), nil
}

// appendString appends a string after its length, so that no two lists of strings are one.
func appendString(dst []byte, s string) []byte {
	n := len(s)
	return append(append(dst, byte(n>>24), byte(n>>16), byte(n>>8), byte(n)), s...)
}

// response is the message that says actions.
func response(actions []Action) *pb.RateLimitQuotaResponse {
	m := &pb.RateLimitQuotaResponse{BucketAction: make([]*pb.RateLimitQuotaResponse_BucketAction, 0, len(actions))}
	for i := range actions {
		m.BucketAction = append(m.BucketAction, actions[i].message())
	}
	return m
}

func (a *Action) message() *pb.RateLimitQuotaResponse_BucketAction {
	id := &pb.BucketId{Bucket: make(map[string]string, len(a.Bucket.Pairs))}
	for _, p := range a.Bucket.Pairs {
		id.Bucket[p.Name] = p.Value
	}
	out := &pb.RateLimitQuotaResponse_BucketAction{BucketId: id}
	if a.Abandon {
		out.BucketAction = &pb.RateLimitQuotaResponse_BucketAction_AbandonAction_{AbandonAction: &pb.RateLimitQuotaResponse_BucketAction_AbandonAction{}}
		return out
	}
	out.BucketAction = &pb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{
		QuotaAssignmentAction: &pb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{
			AssignmentTimeToLive: durationpb.New(a.TTL), RateLimitStrategy: a.strategy.message(),
		},
	}
	return out
}

func (s strategy) message() *typev3.RateLimitStrategy {
	switch s.rule {
	case ruleAllow:
		return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: typev3.RateLimitStrategy_ALLOW_ALL}}
	case ruleTokens:
		return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_TokenBucket{TokenBucket: &typev3.TokenBucket{
			MaxTokens: s.MaxTokens, TokensPerFill: wrapperspb.UInt32(s.Tokens),
			FillInterval: durationpb.New(time.Duration(s.Interval) * time.Second),
		}}}
	}
	return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: typev3.RateLimitStrategy_DENY_ALL}}
}
