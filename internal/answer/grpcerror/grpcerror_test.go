package grpcerror

import (
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

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

// TestRetryAfter: what Of writes is read back, and what others write is bounded.
func TestRetryAfter(t *testing.T) {
	for wait, want := range map[time.Duration]time.Duration{
		1: 1, 1234567890: 1234567890, 0: time.Second, limit.Never - 1: longestDelay,
	} {
		err := Of(&limit.Decision{Results: []limit.Result{{Verdict: limit.Verdict{RetryAfter: wait}}}})
		if got, ok := RetryAfter(err); got != want || !ok {
			t.Errorf("a wait of %v is read as %v, %v, want %v", wait, got, ok, want)
		}
	}
	never := Of(&limit.Decision{Results: []limit.Result{{Verdict: limit.Verdict{RetryAfter: limit.Never}}}})
	for _, err := range []error{nil, never, status.Error(codes.Unavailable, "no")} {
		if got, ok := RetryAfter(err); got != 0 || ok {
			t.Errorf("%v asks for %v, want nothing", err, got)
		}
	}
	for _, delay := range []*durationpb.Duration{{Seconds: -5}, {Seconds: 1 << 60}, {Nanos: -7}, {Seconds: -1 << 60, Nanos: 7}} {
		st, err := status.New(codes.ResourceExhausted, "").WithDetails(&errdetails.RetryInfo{RetryDelay: delay})
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := RetryAfter(st.Err()); !ok || got < 0 || got > longestDelay {
			t.Errorf("%v is read as %v, %v", delay, got, ok)
		}
	}
}
