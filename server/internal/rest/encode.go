package rest

import (
	"encoding/json"
	"math"
	"strconv"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/limit"
)

// appendDecision appends what [json.Marshal] makes of newDecision(d), without reflection: it is the
// answer to every request that is let through.
func appendDecision(to []byte, d *limit.Decision) []byte {
	to = append(to, `{"allowed":`...)
	to = strconv.AppendBool(to, d.Allowed)
	to = appendTrue(to, `,"repeated":true`, d.Repeated)
	if d.Permit != 0 {
		to = append(to, `,"permit":`...)
		to = strconv.AppendUint(to, d.Permit, 10)
	}
	if d.PermitFor > 0 {
		to = append(to, `,"permit_for":`...)
		to = answer.AppendSeconds(to, d.PermitFor)
	}
	if d.Delay > 0 {
		to = append(to, `,"delay":`...)
		to = answer.AppendSeconds(to, d.Delay)
	}
	to = appendResults(to, d)
	if len(d.Tags) > 0 {
		to = appendPairs(append(to, `,"tags":`...), d.Tags)
	}
	return append(to, '}')
}

func appendResults(to []byte, d *limit.Decision) []byte {
	to = append(to, `,"limits":[`...)
	for i := range d.Results {
		if i > 0 {
			to = append(to, ',')
		}
		to = appendResult(to, &d.Results[i])
	}
	return append(to, ']')
}

// appendRefusal appends what a caller that answers in place of the service has to know of a refusal beside the problem
// document: how every limit stands, and what the refusing one wants its clients to be answered.
func appendRefusal(to []byte, d *limit.Decision, a *limit.Action) []byte {
	to = appendTrue(appendResults(to, d), `,"repeated":true`, d.Repeated)
	if a == nil {
		return to
	}
	to = append(to, `,"action":{"status":`...)
	to = strconv.AppendInt(to, int64(a.Status), 10)
	if a.Location != "" {
		to = append(to, `,"location":`...)
		to = appendText(to, a.Location)
	}
	if a.HasBody {
		to = append(to, `,"content_type":`...)
		to = appendText(to, a.ContentType)
		to = append(to, `,"body":`...)
		to = appendText(to, a.Body)
	}
	if len(a.Header) > 0 {
		to = append(to, `,"header":`...)
		to = appendPairs(to, a.Header)
	}
	return append(to, '}')
}

// appendPairs appends a list of names with values.
func appendPairs(to []byte, list []limit.Attribute) []byte {
	for i, p := range list {
		to = append(to, "[,"[min(i, 1)])
		to = append(to, `{"name":`...)
		to = appendText(to, p.Name)
		to = append(to, `,"value":`...)
		to = appendText(to, p.Value)
		to = append(to, '}')
	}
	return append(to, ']')
}

func appendResult(to []byte, r *limit.Result) []byte {
	quota, remaining := r.Quota, r.Remaining
	to = append(to, `{"name":`...)
	to = appendText(to, r.Limit)
	to = append(to, `,"algorithm":"`...)
	to = append(to, r.Algorithm.String()...)
	to = append(to, `","allowed":`...)
	to = strconv.AppendBool(to, r.Allowed)
	if reason := r.Reason.String(); reason != "" {
		to = append(to, `,"reason":`...)
		to = appendText(to, reason)
	}
	if r.Quota == math.MaxInt64 {
		to = append(to, `,"unlimited":true`...)
		quota, remaining = 0, 0
	}
	to = appendNumber(to, `,"quota":`, quota)
	if r.Nominal != r.Quota && r.Nominal != 0 {
		to = appendNumber(to, `,"nominal":`, r.Nominal)
	}
	to = append(to, `,"window":`...)
	to = answer.AppendSeconds(to, r.Window)
	to = appendNumber(to, `,"cost":`, r.Cost)
	to = appendNumber(to, `,"remaining":`, remaining)
	to = append(to, `,"retry_after":`...)
	to = answer.AppendSeconds(to, r.RetryAfter)
	to = append(to, `,"reset_after":`...)
	to = answer.AppendSeconds(to, answer.ResetAfter(r))
	to = appendTrue(to, `,"soft":true`, r.Soft)
	to = appendTrue(to, `,"shadow":true`, r.Shadow)
	to = appendTrue(to, `,"store_failed":true`, r.StoreFailed)
	to = appendTrue(to, `,"tagged":true`, r.Tagged)
	if r.Purpose != "" {
		to = append(to, `,"purpose":`...)
		to = appendText(to, r.Purpose)
	}
	if r.Detail != "" {
		to = append(to, `,"detail":`...)
		to = appendText(to, r.Detail)
	}
	return append(to, '}')
}

func appendNumber(to []byte, member string, n int64) []byte {
	return strconv.AppendInt(append(to, member...), n, 10)
}

func appendTrue(to []byte, member string, is bool) []byte {
	if is {
		return append(to, member...)
	}
	return to
}

// appendText appends a string as json.Marshal does, which escapes what HTML would understand.
func appendText(to []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c > 0x7e || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			text, err := json.Marshal(s)
			if err != nil {
				panic(err) // a string always encodes
			}
			return append(to, text...)
		}
	}
	to = append(to, '"')
	to = append(to, s...)
	return append(to, '"')
}
