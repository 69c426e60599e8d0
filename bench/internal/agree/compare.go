package agree

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// Deviation is a kind of difference that is known and meant.
type Deviation struct{ Name, Reason string }

// The kinds of differences that are meant. What is said here of a difference is
// checked of each one.
var (
	OneCounter = Deviation{
		"two descriptors of one request meet one counter",
		"there, one comes after the other; here they are decided together, so that both are told what the last of them is told there",
	}
	TwoLimits = Deviation{
		"two limits of one request on one counter",
		"there, each is held to its own number, one after the other; here both are decided together, by the smaller number",
	}
	JoinedCounters = Deviation{
		"two counters here, one there",
		"there, a limit of the request shares the counter of a rule or of another unit, and keys and values are joined by underscores",
	}
	StarWithin = Deviation{
		"a star before the end of a value",
		"there, a pattern since March 2026 (#1085); the version that is built here takes it as it is written",
	}
	RetryAfter   = Deviation{"`Retry-After` among the headers of a refusal", "added here"}
	NamesLimits  = Deviation{"`stint` in the metadata", "added here where a limit is over: it names those that refuse, and those that would but are in shadow"}
	QuotaField   = Deviation{"`quotaModeEnabled` in the metadata", "this version of that service adds it to each answer, whatever the rules"}
	ErrorCodes   = Deviation{"an error to both, of another code", "there, all errors are `Unknown`"}
	TurnOfWindow = Deviation{"asked across the turn of a window", "the services were asked in different windows; not compared until the next"}
)

// Deviations are all of them, in the order to print.
func Deviations() []Deviation {
	return []Deviation{OneCounter, TwoLimits, JoinedCounters, StarWithin, ErrorCodes, TurnOfWindow, RetryAfter, NamesLimits, QuotaField}
}

// Ledger compares the answers under one set of rules. It remembers which counters
// were met. Not safe for concurrent use.
type Ledger struct {
	set  Set
	met  map[string]map[string]bool // counters there, with those here that met them
	torn map[string]bool            // counters there that were met in different windows
}

// NewLedger returns a ledger that has seen nothing. Both services must have no
// counters.
func NewLedger(set Set) *Ledger {
	return &Ledger{set: set, met: map[string]map[string]bool{}, torn: map[string]bool{}}
}

// Answer is what a service said.
type Answer struct {
	Response *rls.RateLimitResponse
	Err      error
}

// Compare says how stint's answer to q differs from that of envoyproxy/ratelimit, in
// kinds that are known and in words for what is not. Both were asked between from
// and to.
func (l *Ledger) Compare(q *rls.RateLimitRequest, there, here Answer, from, to time.Time) (known []Deviation, unknown []string) {
	if there.Err != nil || here.Err != nil {
		if there.Err == nil || here.Err == nil {
			return nil, []string{fmt.Sprintf("error there: %v, here: %v", there.Err, here.Err)}
		}
		if status.Code(there.Err) != codes.Unknown || status.Code(here.Err) != codes.InvalidArgument {
			return nil, []string{fmt.Sprintf("error there: %v, here: %v", there.Err, here.Err)}
		}
		return []Deviation{ErrorCodes}, nil
	}
	r, o := there.Response, here.Response
	if len(r.Statuses) != len(q.Descriptors) || len(o.Statuses) != len(q.Descriptors) {
		return nil, []string{fmt.Sprintf("%d statuses there, %d here", len(r.Statuses), len(o.Statuses))}
	}
	meetings := l.remember(q, from, to)
	add := func(d Deviation) {
		if !slices.Contains(known, d) {
			known = append(known, d)
		}
	}
	differ := false
	for i := range r.Statuses {
		fault := statusFault(r.Statuses[i], o.Statuses[i])
		if fault == "" {
			continue
		}
		if d, ok := l.explain(r, o, meetings, i); ok {
			add(d)
			differ = true
			continue
		}
		unknown = append(unknown, fmt.Sprintf("descriptor %d: %s", i+1, fault))
	}
	if !differ && r.OverallCode != o.OverallCode || differ && o.OverallCode != overall(o) {
		unknown = append(unknown, fmt.Sprintf("overall %v there, %v here", r.OverallCode, o.OverallCode))
	}
	headers, extra := withoutRetryAfter(o)
	if extra {
		add(RetryAfter)
	}
	want := r.ResponseHeadersToAdd
	if differ { // they follow from the statuses, here as there
		want = headersOf(o)
	}
	if fault := headerFault(want, headers); fault != "" {
		unknown = append(unknown, fault)
	}
	fault, kinds := metadataFault(r, o)
	for _, d := range kinds {
		add(d)
	}
	if fault != "" {
		unknown = append(unknown, fault)
	}
	if len(r.RawBody)+len(o.RawBody)+len(r.RequestHeadersToAdd)+len(o.RequestHeadersToAdd) > 0 || o.Quota != nil || r.Quota != nil {
		unknown = append(unknown, "a field that neither should fill")
	}
	return known, unknown
}

// remember notes the counters of a request.
func (l *Ledger) remember(q *rls.RateLimitRequest, from, to time.Time) []meeting {
	meetings := make([]meeting, len(q.Descriptors))
	for i, d := range q.Descriptors {
		m := l.set.meets(q.Domain, d, from)
		meetings[i] = m
		if m.there == "" || m.within { // the latter has no counter there
			continue
		}
		if later := l.set.meets(q.Domain, d, to); later.there != m.there {
			l.torn[m.there], l.torn[later.there] = true, true
		}
		if l.met[m.there] == nil {
			l.met[m.there] = map[string]bool{}
		}
		l.met[m.there][m.here] = true
	}
	return meetings
}

// explain finds the kind of a difference in the status i.
func (l *Ledger) explain(r, o *rls.RateLimitResponse, meetings []meeting, i int) (d Deviation, ok bool) {
	m := meetings[i]
	switch {
	case m.there == "":
		return d, false
	case l.torn[m.there]:
		return TurnOfWindow, true
	case m.within:
		return StarWithin, r.Statuses[i].CurrentLimit == nil
	case len(l.met[m.there]) > 1:
		return JoinedCounters, true
	}
	last := i
	for j := range meetings {
		if meetings[j] == m {
			last = j
		}
	}
	for j := range meetings {
		if meetings[j] == m && !proto.Equal(r.Statuses[j].CurrentLimit, r.Statuses[i].CurrentLimit) {
			return TwoLimits, proto.Equal(r.Statuses[i].CurrentLimit, o.Statuses[i].CurrentLimit)
		}
	}
	// What the last is told there, all are told here.
	return OneCounter, last > i && statusFault(r.Statuses[last], o.Statuses[i]) == ""
}

func statusFault(there, here *rls.RateLimitResponse_DescriptorStatus) string {
	t, h := proto.CloneOf(there), proto.CloneOf(here)
	if a, b := t.DurationUntilReset, h.DurationUntilReset; a != nil && b != nil && a.Nanos == 0 && b.Nanos == 0 && near(a.Seconds, b.Seconds) {
		t.DurationUntilReset, h.DurationUntilReset = nil, nil
	}
	if proto.Equal(t, h) {
		return ""
	}
	return fmt.Sprintf("{%v} there, {%v} here", there, here)
}

// near allows for a second that turns between two answers.
func near(a, b int64) bool { return a-b <= 1 && b-a <= 1 }

// overall is the code that follows from the statuses, where no rule is a quota.
func overall(r *rls.RateLimitResponse) rls.RateLimitResponse_Code {
	for _, s := range r.Statuses {
		if s.Code == rls.RateLimitResponse_OVER_LIMIT {
			return rls.RateLimitResponse_OVER_LIMIT
		}
	}
	return rls.RateLimitResponse_OK
}

func withoutRetryAfter(r *rls.RateLimitResponse) (list []*core.HeaderValue, had bool) {
	for _, h := range r.ResponseHeadersToAdd {
		if h.Key == "Retry-After" && r.OverallCode == rls.RateLimitResponse_OVER_LIMIT {
			had = true
			continue
		}
		list = append(list, h)
	}
	return list, had
}

// headersOf are the headers that follow from the statuses: those of the last that is
// over, or else of the first with the least left.
func headersOf(r *rls.RateLimitResponse) []*core.HeaderValue {
	var of *rls.RateLimitResponse_DescriptorStatus
	for _, s := range r.Statuses {
		switch {
		case s.CurrentLimit == nil:
		case s.Code == rls.RateLimitResponse_OVER_LIMIT, of == nil, of.Code == rls.RateLimitResponse_OK && s.LimitRemaining < of.LimitRemaining:
			of = s
		}
	}
	if of == nil {
		return nil
	}
	return []*core.HeaderValue{
		{Key: "RateLimit-Limit", Value: fmt.Sprint(of.CurrentLimit.RequestsPerUnit)},
		{Key: "RateLimit-Remaining", Value: fmt.Sprint(of.LimitRemaining)},
		{Key: "RateLimit-Reset", Value: fmt.Sprint(of.DurationUntilReset.GetSeconds())},
	}
}

func headerFault(there, here []*core.HeaderValue) string {
	same := slices.EqualFunc(there, here, func(a, b *core.HeaderValue) bool {
		if a.Key == "RateLimit-Reset" && a.Key == b.Key {
			x, err1 := strconv.ParseInt(a.Value, 10, 64)
			y, err2 := strconv.ParseInt(b.Value, 10, 64)
			return err1 == nil && err2 == nil && near(x, y)
		}
		return proto.Equal(a, b)
	})
	if same {
		return ""
	}
	return fmt.Sprintf("headers %v there, %v here", there, here)
}

func metadataFault(r, o *rls.RateLimitResponse) (fault string, kinds []Deviation) {
	there, here := fieldsOf(r), fieldsOf(o)
	if v, ok := there["quotaModeEnabled"]; ok && !v.GetBoolValue() {
		if _, too := here["quotaModeEnabled"]; !too {
			delete(there, "quotaModeEnabled")
			kinds = append(kinds, QuotaField)
		}
	}
	if names, ok := here["stint"]; ok {
		_, shadow := names.GetStructValue().GetFields()["shadow"]
		if onlyShadow := shadow && len(names.GetStructValue().Fields) == 1; onlyShadow || o.OverallCode == rls.RateLimitResponse_OVER_LIMIT {
			delete(here, "stint")
			kinds = append(kinds, NamesLimits)
		}
	}
	if !proto.Equal(&structpb.Struct{Fields: there}, &structpb.Struct{Fields: here}) {
		fault = fmt.Sprintf("metadata %v there, %v here", there, here)
	}
	return fault, kinds
}

// fieldsOf returns the metadata. A limit in it is the text form of a message, whose
// spaces differ from one binary to another on purpose: they are made one.
func fieldsOf(r *rls.RateLimitResponse) map[string]*structpb.Value {
	fields := proto.CloneOf(r.DynamicMetadata).GetFields()
	for _, d := range fields["descriptors"].GetListValue().GetValues() {
		if limit, ok := d.GetStructValue().GetFields()["limit"]; ok {
			text := strings.Join(strings.Fields(limit.GetStringValue()), " ")
			d.GetStructValue().Fields["limit"] = structpb.NewStringValue(text)
		}
	}
	return fields
}
