// Package envoyfilter behaves as Envoy's filter envoy.filters.http.rate_limit_quota does, as its source
// says: source/extensions/filters/http/rate_limit_quota/{filter,global_client_impl}.cc and
// source/common/common/token_bucket_impl.cc of envoyproxy/envoy, in the versions of mid-2026. Tests and
// measurements of the quota server use it, since they cannot run Envoy.
//
// It keeps the deviations of the source from the protocol: seconds of a time to live alone count and an
// unset one is 0; requests_per_time_unit and an unset strategy are ignored with their action; two token
// buckets that differ in the seconds of their interval alone are the same; reports come each 5 s, about
// all buckets; usage is dropped while there is no stream. Time is a parameter. It has no stream and no
// timer: who drives it calls Tick when Next says so.
package envoyfilter

import (
	"maps"
	"slices"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// ReportInterval is between two reports about all buckets: it is no setting.
const ReportInterval = 5 * time.Second

// minFillRate is the slowest fill of a token bucket: one token a year.
const minFillRate = 1.0 / (365 * 24 * 60 * 60)

// Options are the settings of the filter for all its buckets.
type Options struct {
	Domain string
	// NoAssignment is the behaviour of a bucket without assignment; nil = everything is allowed.
	NoAssignment *typev3.RateLimitStrategy
	// Expired is the behavior after an assignment has expired, for ExpiredFor, after which the bucket is dropped; nil =
	// NoAssignment.
	Expired    *typev3.RateLimitStrategy
	ExpiredFor time.Duration
	// Open opens the stream and says whether that worked. It is called when the first bucket is made, and at
	// a report while there is none.
	Open func() bool
	// Send sends a report.
	Send func(*pb.RateLimitQuotaUsageReports)
}

// Filter is the filter of one Envoy: its main thread and its workers as one. It is not safe for
// concurrent use. Make it with New.
type Filter struct {
	opts    Options
	buckets map[string]*bucket
	started bool
	open    bool
	report  time.Duration // when the next report is due
	stats   Stats
}

// Stats are running totals.
type Stats struct {
	Allowed, Denied uint64
	Refills         uint64 // token buckets that were made, full
	Refilled        uint64 // tokens in them
	Ignored         uint64 // actions that Envoy logs as errors
}

type bucket struct {
	id              map[string]string
	allowed, denied uint64
	reported        time.Duration
	action          *typev3.RateLimitStrategy // nil = there is no assignment
	tokens          *tokens
	expires         time.Duration // of action; never = there is none
	fallback        bool          // action is Options.Expired
}

const never = time.Duration(1<<63 - 1)

// tokens is Envoy's AtomicTokenBucketImpl: full at the beginning, filled continuously.
type tokens struct {
	most, rate float64
	empty      float64 // seconds, at which it was empty
}

func newTokens(now time.Duration, b *typev3.TokenBucket) *tokens {
	seconds := b.GetFillInterval().GetSeconds() + int64(b.GetFillInterval().GetNanos())/1_000_000_000
	rate := float64(b.GetTokensPerFill().GetValue()) / float64(seconds)
	t := &tokens{most: float64(b.GetMaxTokens()), rate: max(rate, minFillRate)}
	t.empty = now.Seconds() - t.most/t.rate
	return t
}

func (t *tokens) take(now time.Duration) bool {
	at := now.Seconds()
	level := min(t.most, (at-t.empty)*t.rate)
	if level < 1 {
		return false
	}
	t.empty = at - (level-1)/t.rate
	return true
}

// New returns a filter that has seen no request.
func New(o Options) *Filter { return &Filter{opts: o, buckets: map[string]*bucket{}} }

// Key is the canonical name of a bucket.
func Key(id map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(id)) {
		b.WriteString(k + "\x00" + id[k] + "\x00")
	}
	return b.String()
}

// Request decides one request of a bucket.
func (f *Filter) Request(now time.Duration, key string, id map[string]string) (allowed bool) {
	b := f.buckets[key]
	if b == nil {
		return f.create(now, key, id)
	}
	if f.allows(now, b) {
		b.allowed++
		f.stats.Allowed++
		return true
	}
	b.denied++
	f.stats.Denied++
	return false
}

// create makes a bucket: only a DENY_ALL denies its first request.
func (f *Filter) create(now time.Duration, key string, id map[string]string) (allowed bool) {
	if !f.started {
		f.started, f.report = true, now+ReportInterval
		f.open = f.opts.Open()
	}
	allowed = !isBlanket(f.opts.NoAssignment, typev3.RateLimitStrategy_DENY_ALL)
	b := &bucket{id: id, reported: now, expires: never}
	f.buckets[key] = b
	if allowed {
		b.allowed++
		f.stats.Allowed++
	} else {
		b.denied++
		f.stats.Denied++
	}
	f.send(&pb.RateLimitQuotaUsageReports{Domain: f.opts.Domain, BucketQuotaUsages: []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{b.usage(now)}})
	return allowed
}

func isBlanket(s *typev3.RateLimitStrategy, rule typev3.RateLimitStrategy_BlanketRule) bool {
	r, ok := s.GetStrategy().(*typev3.RateLimitStrategy_BlanketRule_)
	return ok && r.BlanketRule == rule
}

func (f *Filter) allows(now time.Duration, b *bucket) bool {
	s := b.action
	if s == nil {
		s = f.opts.NoAssignment
	}
	switch s := s.GetStrategy().(type) {
	case *typev3.RateLimitStrategy_BlanketRule_:
		return s.BlanketRule == typev3.RateLimitStrategy_ALLOW_ALL
	case *typev3.RateLimitStrategy_TokenBucket:
		return b.tokens != nil && b.tokens.take(now) // Envoy reads a null pointer where there is none
	}
	return true
}

// usage takes what was used since the latest report. Envoy leaves out parts of a second.
func (b *bucket) usage(now time.Duration) *pb.RateLimitQuotaUsageReports_BucketQuotaUsage {
	u := &pb.RateLimitQuotaUsageReports_BucketQuotaUsage{
		BucketId: &pb.BucketId{Bucket: maps.Clone(b.id)}, NumRequestsAllowed: b.allowed, NumRequestsDenied: b.denied,
		TimeElapsed: &durationpb.Duration{Seconds: int64((now - b.reported) / time.Second)},
	}
	b.allowed, b.denied, b.reported = 0, 0, now
	return u
}

func (f *Filter) send(m *pb.RateLimitQuotaUsageReports) {
	if f.open {
		f.opts.Send(m)
	}
}

// Closed says that the stream has ended.
func (f *Filter) Closed() { f.open = false }

// Next is when Tick is due.
func (f *Filter) Next() time.Duration {
	if !f.started {
		return never
	}
	next := f.report
	for _, b := range f.buckets {
		next = min(next, b.expires)
	}
	return next
}

// Tick ends assignments that have expired, and reports when it is time.
func (f *Filter) Tick(now time.Duration) {
	for _, b := range f.buckets {
		if now >= b.expires {
			f.expire(now, b)
		}
	}
	if !f.started || now < f.report {
		return
	}
	f.report = now + ReportInterval
	m := &pb.RateLimitQuotaUsageReports{Domain: f.opts.Domain}
	for _, key := range slices.Sorted(maps.Keys(f.buckets)) {
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, f.buckets[key].usage(now))
	}
	if !f.open {
		f.open = f.opts.Open()
	}
	f.send(m)
}

func (f *Filter) expire(now time.Duration, b *bucket) {
	b.expires = never
	switch {
	case b.fallback:
		delete(f.buckets, Key(b.id))
		return
	case f.opts.Expired == nil:
		b.action, b.tokens = nil, nil
		return
	}
	f.replaceTokens(now, b, f.opts.Expired)
	b.action, b.fallback, b.expires = f.opts.Expired, true, now+f.opts.ExpiredFor
}

// replaceTokens makes a token bucket unless the one that there is counts as the same.
func (f *Filter) replaceTokens(now time.Duration, b *bucket, s *typev3.RateLimitStrategy) {
	next := s.GetTokenBucket()
	former := b.action.GetTokenBucket()
	switch {
	case next == nil:
		b.tokens = nil
	case former == nil || b.tokens == nil || former.GetMaxTokens() != next.GetMaxTokens() ||
		former.GetTokensPerFill().GetValue() != next.GetTokensPerFill().GetValue() ||
		former.GetFillInterval().GetNanos() != next.GetFillInterval().GetNanos():
		b.tokens = newTokens(now, next)
		f.stats.Refills++
		f.stats.Refilled += uint64(next.GetMaxTokens())
	}
}

// Receive applies a response.
func (f *Filter) Receive(now time.Duration, m *pb.RateLimitQuotaResponse) {
	for _, a := range m.GetBucketAction() {
		key := Key(a.GetBucketId().GetBucket())
		b := f.buckets[key]
		if b == nil {
			f.stats.Ignored++
			continue
		}
		if a.GetAbandonAction() != nil {
			delete(f.buckets, key)
			continue
		}
		q := a.GetQuotaAssignmentAction()
		switch q.GetRateLimitStrategy().GetStrategy().(type) {
		case *typev3.RateLimitStrategy_BlanketRule_, *typev3.RateLimitStrategy_TokenBucket:
		default:
			f.stats.Ignored++
			continue
		}
		f.replaceTokens(now, b, q.GetRateLimitStrategy())
		b.action, b.fallback = q.GetRateLimitStrategy(), false
		b.expires = now + time.Duration(q.GetAssignmentTimeToLive().GetSeconds())*time.Second
	}
}

// Assigned is the strategy of a bucket's assignment; nil = it has none.
func (f *Filter) Assigned(key string) *typev3.RateLimitStrategy {
	if b := f.buckets[key]; b != nil && !b.fallback {
		return b.action
	}
	return nil
}

// Has says whether there is a bucket.
func (f *Filter) Has(key string) bool { return f.buckets[key] != nil }

// Stats returns the totals.
func (f *Filter) Stats() Stats { return f.stats }
