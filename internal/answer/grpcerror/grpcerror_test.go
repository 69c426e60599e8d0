package grpcerror

import (
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/limit"
)

func TestOf(t *testing.T) {
	if err := Of(&limit.Decision{Allowed: true}); err != nil {
		t.Errorf("an allowed decision is %v, want no error", err)
	}
	for _, tt := range []struct {
		name  string
		wait  time.Duration
		retry time.Duration // 0: no RetryInfo
	}{
		{"exact", 1234567890, 1234567890},
		{"unknown", 0, time.Second},
		{"never", limit.Never, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := Of(&limit.Decision{Results: []limit.Result{
				{Limit: "trial", Shadow: true, Verdict: limit.Verdict{Reason: limit.ReasonRate, RetryAfter: time.Hour}},
				{Limit: "bad\xff", Quota: 5, Verdict: limit.Verdict{Reason: limit.ReasonRate, RetryAfter: tt.wait}},
				{Limit: "fine", Quota: 9, Verdict: limit.Verdict{Allowed: true}},
			}})
			st := status.Convert(err)
			if st.Code() != codes.ResourceExhausted || st.Message() != `limit "bad\xff" refused the request: rate_exceeded` {
				t.Errorf("status is %v", st)
			}
			var violations []*errdetails.QuotaFailure_Violation
			var retry time.Duration
			for _, detail := range st.Details() {
				switch detail := detail.(type) {
				case *errdetails.QuotaFailure:
					violations = detail.Violations
				case *errdetails.RetryInfo:
					retry = detail.RetryDelay.AsDuration()
				default:
					t.Errorf("detail %T: %v", detail, detail)
				}
			}
			if len(violations) != 1 || violations[0].Subject != "bad\uFFFD" || violations[0].Description != "rate_exceeded" || violations[0].QuotaValue != 5 {
				t.Errorf("violations are %v", violations)
			}
			if retry != tt.retry {
				t.Errorf("retry delay is %v, want %v", retry, tt.retry)
			}
		})
	}
}

func TestOfZeroDecision(t *testing.T) {
	if got := status.Code(Of(&limit.Decision{})); got != codes.ResourceExhausted {
		t.Errorf("code is %v, want ResourceExhausted", got)
	}
}
