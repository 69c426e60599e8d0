package rlqs

import (
	"errors"
	"fmt"
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
	// MaxIDBytes bounds all keys and values of a bucket, which may be header fields of clients. Not larger: it is
	// kept for each bucket. Not smaller: tokens are some hundred bytes.
	MaxIDBytes = 2 << 10
	// maxStreamIDs bounds the keys and values of all buckets of a stream, 256 bytes for each of MaxBuckets.
	maxStreamIDs = MaxBuckets << 8
	// MaxMessage bounds a report. A report has all buckets of an Envoy, and those that it has not been told to
	// abandon yet: a longer one would come again for ever, since Envoy never drops a bucket without an assignment.
	MaxMessage = 4 * maxStreamIDs
)

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, "rlqs: "+format, args...)
}

// reader translates the reports of one stream.
type reader struct {
	domain string
	long   uint64 // usages of buckets that are too long
	wrong  uint64 // usages of buckets without a valid name
	why    error  // of the latest of those
}

// read returns what a report says. An error is a fault of the Envoy's configuration. A usage that is wrong may come
// from a request of a client: it is left out, or has Reject set where Envoy can be told to abandon its bucket.
func (r *reader) read(m *pb.RateLimitQuotaUsageReports) ([]Usage, error) {
	switch domain := m.GetDomain(); {
	case domain == "" && r.domain == "":
		return nil, invalid("the first report of a stream has no domain: set it")
	case len(domain) > MaxDomainBytes:
		return nil, invalid("the domain has %d bytes, at most %d are taken", len(domain), MaxDomainBytes)
	case domain != "" && r.domain != "" && domain != r.domain:
		return nil, invalid("the domain changed within a stream, from %.64q to %.64q: open a stream for each", r.domain, domain)
	case r.domain == "":
		r.domain = domain
	}
	// Without usages it is of an Envoy whose buckets were all abandoned: it goes on to report.
	usages := make([]Usage, 0, len(m.BucketQuotaUsages))
	for _, u := range m.BucketQuotaUsages {
		name, key, err := bucketName(r.domain, u.GetBucketId().GetBucket())
		usage := Usage{Bucket: name, Key: key, Allowed: u.GetNumRequestsAllowed(), Denied: u.GetNumRequestsDenied()}
		if e := u.GetTimeElapsed(); e.IsValid() {
			usage.Elapsed = e.AsDuration()
		}
		switch {
		case err != nil:
			r.wrong, r.why = r.wrong+1, err
			usage.Reject = true
		case len(key) > MaxIDBytes:
			r.long, r.why = r.long+1, fmt.Errorf("its keys and values have %d bytes, at most %d are taken", len(key), MaxIDBytes)
			usage.Reject = true
		}
		if name != nil {
			usages = append(usages, usage)
		}
	}
	return usages, nil
}

// bucketName returns the name of a bucket, and its canonical key: the order of pairs means nothing. The name is nil
// where there are no pairs, which Envoy sends where the only one has an empty value.
func bucketName(domain string, pairs map[string]string) (_ *BucketName, key string, err error) {
	if len(pairs) == 0 {
		return nil, "", errors.New("it has no pair with a value")
	}
	name := &BucketName{Domain: domain, Pairs: make([]limit.Attribute, 0, len(pairs))}
	if len(pairs) > MaxPairs {
		err = fmt.Errorf("it has %d pairs, at most %d are taken", len(pairs), MaxPairs)
	}
	size := 0
	for k, v := range pairs {
		switch {
		case k == "" || v == "":
			err = errors.New("a pair has an empty key or value")
		case len(k) > MaxKeyBytes:
			err = fmt.Errorf("a key has %d bytes, at most %d are taken", len(k), MaxKeyBytes)
		}
		name.Pairs = append(name.Pairs, limit.Attribute{Name: k, Value: v})
		size += len(k) + len(v) + 16
	}
	if err != nil {
		return name, "", err
	}
	slices.SortFunc(name.Pairs, func(a, b limit.Attribute) int { return strings.Compare(a.Name, b.Name) })
	id := make([]byte, 0, size)
	for _, p := range name.Pairs {
		id = appendString(appendString(id, p.Name), p.Value)
	}
	return name, string(id), nil
}

// appendString appends a string after its length, so that no two lists of strings are one.
func appendString(dst []byte, s string) []byte {
	n := len(s)
	return append(append(dst, byte(n>>24), byte(n>>16), byte(n>>8), byte(n)), s...)
}

// size is about how many bytes an action has in a message.
func (a *Action) size() int {
	n := 64
	for _, p := range a.Bucket.Pairs {
		n += len(p.Name) + len(p.Value) + 16
	}
	return n
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
