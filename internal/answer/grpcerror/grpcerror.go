// Package grpcerror turns a refusing [limit.Decision] into the error that a gRPC
// client sees: RESOURCE_EXHAUSTED with google.rpc details.
//
// It decides nothing, and it never writes a key.
package grpcerror

import (
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stint-io/stint/limit"
)

// maxViolations bounds the details: status details travel in a trailer, and
// clients refuse header lists above some kilobytes.
const maxViolations = 8

// Of returns d's refusal as a gRPC status error with code RESOURCE_EXHAUSTED.
// QuotaFailure names each enforced limit that refused (subject and quota_id), the
// reason (description) and its quota. RetryInfo has the wait, to the nanosecond;
// it is left out when no wait helps, and it is one second where the limit cannot
// know, as when its places are all in flight. Of returns nil when d allows.
func Of(d *limit.Decision) error {
	if d.Allowed {
		return nil
	}
	text := "the request was refused"
	if r := d.Refused(); r != nil {
		text = fmt.Sprintf("limit %q refused the request: %s", r.Limit, r.Reason)
	}
	st := status.New(codes.ResourceExhausted, text)
	quota := &errdetails.QuotaFailure{}
	for i := range d.Results {
		r := &d.Results[i]
		if r.Shadow || r.Allowed || len(quota.Violations) == maxViolations {
			continue
		}
		// A string that is not UTF-8 would make the whole status unreadable.
		name := strings.ToValidUTF8(r.Limit, "\uFFFD")
		v := &errdetails.QuotaFailure_Violation{Subject: name, QuotaId: name, Description: r.Reason.String()}
		if r.Quota != math.MaxInt64 {
			v.QuotaValue = r.Quota
		}
		quota.Violations = append(quota.Violations, v)
	}
	wait := d.RetryAfter()
	if wait == limit.Never {
		return withDetails(st, quota, nil)
	}
	if wait <= 0 {
		wait = time.Second
	}
	return withDetails(st, quota, &errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
}

func withDetails(st *status.Status, quota *errdetails.QuotaFailure, retry *errdetails.RetryInfo) error {
	full, err := st.WithDetails(quota)
	if err == nil && retry != nil {
		full, err = full.WithDetails(retry)
	}
	if err != nil {
		// The details are a courtesy; the refusal stands without them.
		return st.Err()
	}
	return full.Err()
}

// RetryAfter returns the wait that a status error asks for in its RetryInfo, which [Of] writes, and
// whether it asks for one. A negative one is 0, and one above a year is a year.
func RetryAfter(err error) (time.Duration, bool) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok && info.GetRetryDelay() != nil {
			return min(max(info.GetRetryDelay().AsDuration(), 0), longestDelay), true
		}
	}
	return 0, false
}

// longestDelay bounds what a server can ask for.
const longestDelay = 365 * 24 * time.Hour
