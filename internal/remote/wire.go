package remote

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/limit"
)

// appendQuestion appends the body of /v1/take, or of /v1/finish where there is a permit.
func appendQuestion(to []byte, req limit.Request, permit uint64) []byte {
	to = append(to, `{"attributes":{`...)
	for i, a := range req.Attributes {
		if indexOf(req.Attributes, a.Name) < i {
			continue // the first one counts
		}
		if to[len(to)-1] != '{' {
			to = append(to, ',')
		}
		to = appendText(to, a.Name)
		to = append(to, ':')
		to = appendText(to, a.Value)
	}
	to = append(to, '}')
	switch {
	case permit != 0:
		to = append(to, `,"permit":`...)
		to = strconv.AppendUint(to, permit, 10)
	case req.Peek:
		to = append(to, `,"cost":0`...)
	case req.Cost != 0:
		to = append(to, `,"cost":`...)
		to = strconv.AppendInt(to, req.Cost, 10)
	}
	if req.CountRefused {
		to = append(to, `,"count_refused":true`...)
	}
	return append(to, '}')
}

func indexOf(list []limit.Attribute, name string) int {
	for i := range list {
		if list[i].Name == name {
			return i
		}
	}
	return -1
}

// appendText appends a string of JSON. Text that is not UTF-8 gets replacement characters, which JSON wants, and its hash:
// two that differ stay two.
func appendText(to []byte, s string) []byte {
	if !utf8.ValidString(s) {
		sum := sha256.Sum256([]byte(s))
		s = strings.ToValidUTF8(s, "\uFFFD") + "...sha256:" + hex.EncodeToString(sum[:])
	}
	to = append(to, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			to = append(to, '\\', c)
		case c < ' ':
			to = append(to, `\u00`...)
			to = append(to, "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		default:
			to = append(to, c)
		}
	}
	return append(to, '"')
}

// isRefusal reports whether an answer is a refusal of limits, and no fault.
func isRefusal(h http.Header, body []byte) bool {
	return h.Get("Content-Type") == "application/problem+json" && bytes.Contains(body, []byte(`"violated-policies"`))
}

// detail is what an answer says is wrong: that of a problem document, or its beginning.
func detail(body []byte) string {
	var p struct {
		Detail string `json:"detail"`
	}
	if json.Unmarshal(body, &p) != nil || p.Detail == "" {
		p.Detail = strings.TrimSpace(string(body[:min(len(body), 200)]))
	}
	return p.Detail
}

// result is one limit in an answer.
type result struct {
	Name        string   `json:"name"`
	Algorithm   string   `json:"algorithm"`
	Allowed     bool     `json:"allowed"`
	Reason      string   `json:"reason"`
	Unlimited   bool     `json:"unlimited"`
	Quota       int64    `json:"quota"`
	Nominal     int64    `json:"nominal"`
	Window      *seconds `json:"window"`
	Cost        int64    `json:"cost"`
	Remaining   int64    `json:"remaining"`
	RetryAfter  *seconds `json:"retry_after"`
	ResetAfter  *seconds `json:"reset_after"`
	Soft        bool     `json:"soft"`
	Shadow      bool     `json:"shadow"`
	StoreFailed bool     `json:"store_failed"`
	Tagged      bool     `json:"tagged"`
	Purpose     string   `json:"purpose"`
	Detail      string   `json:"detail"`
}

// pair is a header field.
type pair struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// admission is an answer that lets a request through.
type admission struct {
	Allowed  *bool    `json:"allowed"`
	Repeated bool     `json:"repeated"`
	Permit   uint64   `json:"permit"`
	For      *seconds `json:"permit_for"`
	Delay    *seconds `json:"delay"`
	Limits   []result `json:"limits"`
	Tags     []pair   `json:"tags"`
}

// refusal is a problem document.
type refusal struct {
	Policies   []string `json:"violated-policies"`
	Reason     string   `json:"reason"`
	RetryAfter *seconds `json:"retry_after"`
	Status     int      `json:"status"`
	Repeated   bool     `json:"repeated"`
	Limits     []result `json:"limits"`
	Action     *struct {
		Status      int     `json:"status"`
		Location    string  `json:"location"`
		ContentType string  `json:"content_type"`
		Body        *string `json:"body"`
		Header      []pair  `json:"header"`
	} `json:"action"`
}

// seconds is a duration in seconds with a fraction. It is exact: a nanosecond more may be a second more in a header field.
type seconds time.Duration

// UnmarshalJSON implements [json.Unmarshaler].
func (s *seconds) UnmarshalJSON(text []byte) error {
	whole, fraction, _ := strings.Cut(string(text), ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n < 0 || strings.Trim(fraction, "0123456789") != "" {
		return fmt.Errorf("%.40s is no number of seconds", text)
	}
	nanoseconds, err := strconv.ParseInt((fraction + "000000000")[:9], 10, 64)
	if err != nil {
		return err
	}
	if n >= int64(limit.Never/time.Second) {
		*s = seconds(limit.Never)
		return nil
	}
	*s = seconds(n*int64(time.Second) + nanoseconds)
	return nil
}

// or returns the duration, or what a missing one means.
func (s *seconds) or(missing time.Duration) time.Duration {
	if s == nil {
		return missing
	}
	return time.Duration(*s)
}

// decision reads an answer of /v1/take.
func decision(status int, body []byte) (limit.Decision, error) {
	if status == http.StatusOK {
		return admitted(body)
	}
	var m refusal
	if err := json.Unmarshal(body, &m); err != nil || m.Policies == nil || m.Status < 400 || m.Status > 599 {
		return limit.Decision{}, fmt.Errorf("the service's answer is no decision (status %d)", status)
	}
	d := limit.Decision{Status: m.Status, Repeated: m.Repeated}
	if a := m.Action; a != nil {
		d.Status = a.Status
		d.Action = &limit.Action{Status: a.Status, Location: a.Location, ContentType: a.ContentType}
		if a.Body != nil {
			d.Action.Body, d.Action.HasBody = *a.Body, true
		}
		d.Action.Header = attributes(a.Header)
	}
	for i := range m.Limits {
		d.Results = append(d.Results, m.Limits[i].result())
	}
	if len(m.Limits) > 0 {
		return d, nil
	}
	// What is not known of a limit is not invented: StoreFailed leaves its figures out of header fields.
	for _, name := range m.Policies {
		d.Results = append(d.Results, limit.Result{
			Limit: name, StoreFailed: true, Verdict: limit.Verdict{Reason: reasonOf(m.Reason), RetryAfter: m.RetryAfter.or(limit.Never)},
		})
	}
	return d, nil
}

func admitted(body []byte) (limit.Decision, error) {
	var m admission
	if err := json.Unmarshal(body, &m); err != nil || m.Allowed == nil {
		return limit.Decision{}, fmt.Errorf("the service's answer is no decision: %.100q", body)
	}
	d := limit.Decision{Allowed: *m.Allowed, Repeated: m.Repeated, Permit: m.Permit, PermitFor: m.For.or(0), Delay: m.Delay.or(0), Tags: attributes(m.Tags)}
	for i := range m.Limits {
		d.Results = append(d.Results, m.Limits[i].result())
	}
	return d, nil
}

func attributes(list []pair) []limit.Attribute {
	var out []limit.Attribute
	for _, p := range list {
		out = append(out, limit.Attribute{Name: p.Name, Value: p.Value})
	}
	return out
}

func (r *result) result() limit.Result {
	algorithm, _ := limit.ParseAlgorithm(r.Algorithm) // of a later version: as a bucket
	out := limit.Result{
		Limit: r.Name, Algorithm: algorithm, Quota: r.Quota, Nominal: r.Nominal, Window: r.Window.or(limit.Never), Cost: r.Cost,
		Soft: r.Soft, Shadow: r.Shadow, Tagged: r.Tagged, StoreFailed: r.StoreFailed, Purpose: r.Purpose, Detail: r.Detail,
		Verdict: limit.Verdict{
			Allowed: r.Allowed, Reason: reasonOf(r.Reason), Remaining: r.Remaining,
			RetryAfter: r.RetryAfter.or(limit.Never), ResetAfter: r.ResetAfter.or(limit.Never),
		},
	}
	if r.Unlimited {
		out.Quota, out.Remaining = math.MaxInt64, math.MaxInt64
	}
	if out.Nominal == 0 {
		out.Nominal = out.Quota
	}
	return out
}

func reasonOf(name string) limit.Reason {
	for i := range limit.ReasonCount {
		if r := limit.Reason(i); r.String() == name {
			return r
		}
	}
	return limit.ReasonRate // of a later version
}

// refusalOf refuses the request whose question the service has refused. Clients are told that what they sent is at
// fault where that is what the service says, and else that there is no decision.
func refusalOf(fault *Fault) limit.Decision {
	status, text := http.StatusServiceUnavailable, "the rate limiter could not decide"
	switch fault.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong,
		http.StatusUnprocessableEntity, http.StatusRequestHeaderFieldsTooLarge:
		status, text = http.StatusBadRequest, "the rate limiter cannot read what describes the request"
	}
	return limit.Decision{
		Status:  status,
		Results: []limit.Result{{StoreFailed: true, Verdict: limit.Verdict{RetryAfter: limit.Never}}},
		Action:  &limit.Action{Status: status, HasBody: true, ContentType: answer.ProblemType, Body: string(answer.AppendError(nil, status, text))},
	}
}
