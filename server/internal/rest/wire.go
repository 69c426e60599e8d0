package rest

import (
	"math"
	"strconv"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/explain"
	"github.com/stint-io/stint/limit"
)

// seconds is a duration in seconds with up to nine decimals; null for a wait
// that does not end.
type seconds time.Duration

func (s seconds) MarshalJSON() ([]byte, error) {
	return answer.AppendSeconds(nil, time.Duration(s)), nil
}

type decision struct {
	Allowed   bool     `json:"allowed"`
	Repeated  bool     `json:"repeated,omitempty"`
	Permit    uint64   `json:"permit,omitempty"`
	PermitFor *seconds `json:"permit_for,omitempty"`
	Delay     *seconds `json:"delay,omitempty"`
	Limits    []result `json:"limits"`
	// Tags are header fields for whoever serves the request.
	Tags []tag `json:"tags,omitempty"`
}

type tag struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type result struct {
	Name       string  `json:"name"`
	Algorithm  string  `json:"algorithm"`
	Allowed    bool    `json:"allowed"`
	Reason     string  `json:"reason,omitempty"`
	Unlimited  bool    `json:"unlimited,omitempty"`
	Quota      int64   `json:"quota"`
	Nominal    int64   `json:"nominal,omitempty"` // where it is not the quota
	Window     seconds `json:"window"`
	Cost       int64   `json:"cost"`
	Remaining  int64   `json:"remaining"`
	RetryAfter seconds `json:"retry_after"`
	ResetAfter seconds `json:"reset_after"`
	Soft       bool    `json:"soft,omitempty"`
	Shadow     bool    `json:"shadow,omitempty"`
	// StoreFailed says that the figures are not how the limit stands.
	StoreFailed bool   `json:"store_failed,omitempty"`
	Tagged      bool   `json:"tagged,omitempty"`
	Purpose     string `json:"purpose,omitempty"`
	Detail      string `json:"detail,omitempty"`
}

func newDecision(d *limit.Decision) decision {
	out := decision{Allowed: d.Allowed, Repeated: d.Repeated, Permit: d.Permit, Limits: make([]result, len(d.Results))}
	if d.PermitFor > 0 {
		s := seconds(d.PermitFor)
		out.PermitFor = &s
	}
	if d.Delay > 0 {
		s := seconds(d.Delay)
		out.Delay = &s
	}
	for i := range d.Results {
		out.Limits[i] = newResult(&d.Results[i])
	}
	for _, t := range d.Tags {
		out.Tags = append(out.Tags, tag{t.Name, t.Value})
	}
	return out
}

func newResult(r *limit.Result) result {
	out := result{
		Name: r.Limit, Algorithm: r.Algorithm.String(), Allowed: r.Allowed, Reason: r.Reason.String(),
		Quota: r.Quota, Window: seconds(r.Window), Cost: r.Cost, Remaining: r.Remaining,
		RetryAfter: seconds(r.RetryAfter), ResetAfter: seconds(answer.ResetAfter(r)),
		Soft: r.Soft, Shadow: r.Shadow, StoreFailed: r.StoreFailed, Detail: r.Detail,
		Tagged: r.Tagged, Purpose: r.Purpose,
	}
	if r.Nominal != r.Quota {
		out.Nominal = r.Nominal
	}
	if r.Quota == math.MaxInt64 {
		// The largest number would only be misread.
		out.Unlimited, out.Quota, out.Remaining = true, 0, 0
	}
	return out
}

type explanation struct {
	Allowed        bool        `json:"allowed"`
	Status         int         `json:"status,omitempty"`
	RetryAfter     *seconds    `json:"retry_after,omitempty"`
	Limits         []explained `json:"limits"`
	Unmatched      []string    `json:"unmatched"`
	UnmatchedCount int         `json:"unmatched_count"`
	// WhyNot says of limits in Unmatched why they do not apply.
	WhyNot map[string]string `json:"why_not"`
	// Unlimited are the limits without which the request would be admitted.
	Unlimited []hole `json:"unlimited,omitempty"`
	// Descriptors are there for a request with a domain.
	Descriptors []met `json:"descriptors,omitempty"`
	// Estimate is what a reservation without a cost would take.
	Estimate *estimate `json:"estimate,omitempty"`
}

// hole is a limit without which a request would be admitted.
type hole struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// met is what a descriptor met of the rules in Envoy's format.
type met struct {
	Entries []string `json:"entries"`
	Rule    string   `json:"rule,omitempty"`
	Applies bool     `json:"applies"`
	Why     string   `json:"why,omitempty"`
}

func newMet(m *explain.Met) met {
	out := met{Rule: m.Rule, Applies: m.Applies, Why: m.Why, Entries: make([]string, len(m.Entries))}
	for i, a := range m.Entries {
		out.Entries[i] = a.Name + "=" + a.Value
	}
	return out
}

type explained struct {
	result
	Rate     string            `json:"rate,omitempty"`
	Used     int64             `json:"used"`
	Key      map[string]string `json:"key"`
	File     string            `json:"file,omitempty"`
	Line     int               `json:"line,omitempty"`
	Why      string            `json:"why"`
	OnExceed string            `json:"on_exceed,omitempty"`
	// Uncarried says where on_exceed means less.
	Uncarried []string `json:"uncarried,omitempty"`
	// Share says which share the tenant has.
	Share string `json:"share,omitempty"`
}

func newExplanation(x *explain.Explanation) explanation {
	d := &x.Decision
	out := explanation{
		Allowed: d.Allowed, Status: d.Status, Limits: make([]explained, len(x.Limits)),
		Unmatched: x.Unmatched, UnmatchedCount: x.UnmatchedCount, WhyNot: make(map[string]string, len(x.WhyNot)),
	}
	for i, text := range x.WhyNot {
		if text != "" {
			out.WhyNot[x.Unmatched[i]] = text
		}
	}
	if !d.Allowed {
		s := seconds(d.RetryAfter())
		out.RetryAfter = &s
	}
	for _, h := range x.Unlimited {
		out.Unlimited = append(out.Unlimited, hole{h.Limit, h.Why.String()})
	}
	for i := range x.Descriptors {
		out.Descriptors = append(out.Descriptors, newMet(&x.Descriptors[i]))
	}
	if out.Unmatched == nil {
		out.Unmatched = []string{}
	}
	for i := range x.Limits {
		l := &x.Limits[i]
		e := explained{
			result: newResult(&d.Results[i]), Used: l.Used,
			Key: make(map[string]string, len(l.Key)), File: l.File, Line: l.Line, Why: why(l, &d.Results[i]),
			OnExceed: l.OnExceed, Uncarried: l.Uncarried, Share: l.Share,
		}
		if l.Policy.Algorithm != limit.Concurrency && !l.Policy.Unlimited {
			e.Rate = l.Policy.Rate.String()
		}
		for _, a := range l.Key {
			name := a.Name
			for n := 2; ; n++ {
				if _, taken := e.Key[name]; !taken {
					break
				}
				// A descriptor may have a key twice.
				name = a.Name + " " + strconv.Itoa(n)
			}
			e.Key[name] = a.Value
		}
		out.Limits[i] = e
	}
	return out
}

// why says in a sentence how a limit came to its answer.
func why(l *explain.Explained, r *limit.Result) string {
	text := "applies to every request"
	if l.Condition != "" {
		text = "the request fulfils " + l.Condition
	}
	if l.ConditionFailed {
		text = "it cannot be found out whether the request fulfils " + l.Condition + ", and the limit applies then (on_condition_error)"
	}
	switch len(l.Key) {
	case 0:
		text += "; all such requests share one bucket"
	default:
		text += "; one bucket for each"
		for i, a := range l.Key {
			if i > 0 {
				text += ","
			}
			text += " " + a.Name
		}
	}
	if l.Override != "" {
		text += "; " + l.Override
	}
	switch {
	case l.Policy.Unlimited:
		text += "; unlimited"
	case r.Reason == limit.ReasonMissing:
		text += "; the request lacks a part of the key, and the limit refuses then"
	case r.StoreFailed:
		whose := "its store does not answer"
		if l.Lent {
			whose = "no coordinator lends of it"
		}
		text += "; " + whose + ", and on_store_failure is " + l.OnStoreFailure.String()
	case r.Allowed:
		text += "; " + strconv.FormatInt(l.Used, 10) + " of " + strconv.FormatInt(r.Quota, 10) + " used, " + strconv.FormatInt(r.Cost, 10) + " asked: fits"
	default:
		text += "; " + strconv.FormatInt(l.Used, 10) + " of " + strconv.FormatInt(r.Quota, 10) + " used, " + strconv.FormatInt(r.Cost, 10) + " asked: " + r.Reason.String()
	}
	if r.Tagged {
		text += "; let through, with a tag"
	} else if r.Shadow && l.Enforce != "" {
		text += "; not enforced for this key, for enforce is " + l.Enforce
	} else if r.Shadow {
		text += "; shadow, not enforced"
	}
	return text
}
