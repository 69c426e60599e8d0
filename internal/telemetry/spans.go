package telemetry

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	api "go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// HTTP makes a span of each request, which goes on with the caller's trace where it has a traceparent. Its name
// is the door: a path may have keys in it.
func (t *Telemetry) HTTP(door string, next http.Handler) http.Handler {
	if t.tracer == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := t.tracer.Start(ctx, "stint "+door, api.WithSpanKind(api.SpanKindServer))
		defer span.End()
		if !span.IsRecording() {
			next.ServeHTTP(w, r.WithContext(ctx))
			return
		}
		seen := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(seen, r.WithContext(ctx))
		span.SetAttributes(attribute.Int("http.response.status_code", seen.status))
		if seen.status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, "")
		}
	})
}

// statusWriter notes the status.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements [http.ResponseWriter].
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for [http.ResponseController].
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// incoming carries a trace in the metadata of a call.
type incoming metadata.MD

// Get implements [propagation.TextMapCarrier].
func (m incoming) Get(key string) string {
	if v := metadata.MD(m).Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// Set implements [propagation.TextMapCarrier].
func (m incoming) Set(key, value string) { metadata.MD(m).Set(key, value) }

// Keys implements [propagation.TextMapCarrier].
func (m incoming) Keys() []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}

// Unary makes a span of each call of the services in doors, as HTTP does.
func (t *Telemetry) Unary(doors map[string]string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		service, method, _ := strings.Cut(strings.TrimPrefix(info.FullMethod, "/"), "/")
		door := doors[service]
		if t.tracer == nil || door == "" {
			return next(ctx, req)
		}
		md, _ := metadata.FromIncomingContext(ctx)
		ctx = propagation.TraceContext{}.Extract(ctx, incoming(md))
		ctx, span := t.tracer.Start(ctx, "stint "+door, api.WithSpanKind(api.SpanKindServer))
		defer span.End()
		answer, err := next(ctx, req)
		if span.IsRecording() {
			span.SetAttributes(attribute.String("rpc.method", method), attribute.String("rpc.response.status_code", status.Code(err).String()))
			if err != nil {
				span.SetStatus(codes.Error, "")
			}
		}
		return answer, err
	}
}

// Take makes a span of each decision of the store, from the question to the answer. The limits, the outcome and the wait
// are attributes of that span and of the request's.
func (t *Telemetry) Take() func(ctx context.Context) (answered func(charges []store.Charge, allowed bool, err error)) {
	if t.tracer == nil {
		return nil
	}
	return func(ctx context.Context) func([]store.Charge, bool, error) {
		request := api.SpanFromContext(ctx)
		if !request.IsRecording() {
			return nil
		}
		_, span := t.tracer.Start(ctx, "store take")
		return func(charges []store.Charge, allowed bool, err error) {
			about := describe(charges, allowed, err)
			span.SetAttributes(about...)
			request.SetAttributes(about...)
			if err != nil {
				// Not its text: it may have an address in it.
				span.SetStatus(codes.Error, "the store did not decide")
			}
			span.End()
		}
	}
}

// describe is what is sent of a decision.
func describe(charges []store.Charge, allowed bool, err error) []attribute.KeyValue {
	names, wait, without := make([]string, 0, len(charges)), time.Duration(0), false
	for i := range charges {
		c := &charges[i]
		if name := limitName(c.Counters.Spec().ID); !slices.Contains(names, name) {
			names = append(names, name)
		}
		without = without || c.Failed
		if !c.Shadow && !c.Verdict.Allowed {
			wait = max(wait, c.Verdict.RetryAfter)
		}
	}
	outcome := "refused"
	switch {
	case err != nil:
		outcome = "error"
	case allowed:
		outcome = "allowed"
	}
	about := []attribute.KeyValue{attribute.StringSlice("stint.limits", names), attribute.String("stint.outcome", outcome)}
	if outcome == "refused" && wait != limit.Never {
		about = append(about, attribute.Float64("stint.wait_seconds", wait.Seconds()))
	}
	if without {
		about = append(about, attribute.Bool("stint.store_failed", true))
	}
	return about
}

// limitName is the name of the limit that counters belong to: behind it stands the condition of an override,
// which may name a user.
func limitName(id string) string {
	id = strings.TrimPrefix(id, "!ban ")
	name, _, _ := strings.Cut(id, "!")
	return name
}
