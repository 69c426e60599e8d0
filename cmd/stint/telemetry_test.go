package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracespb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	spanpb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// receiver is a receiver of OTLP, by gRPC and by HTTP.
type receiver struct {
	tracespb.UnimplementedTraceServiceServer

	mu      sync.Mutex
	spans   []*spanpb.Span
	names   map[string]bool // metrics
	service string
	raw     []byte
}

func (r *receiver) Export(_ context.Context, in *tracespb.ExportTraceServiceRequest) (*tracespb.ExportTraceServiceResponse, error) {
	raw, err := proto.Marshal(in)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.raw = append(r.raw, raw...)
	for _, all := range in.GetResourceSpans() {
		for _, a := range all.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				r.service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range all.GetScopeSpans() {
			r.spans = append(r.spans, scope.GetSpans()...)
		}
	}
	return &tracespb.ExportTraceServiceResponse{}, nil
}

// measures is the other service of the receiver: both have a method Export.
type measures struct {
	metricspb.UnimplementedMetricsServiceServer
	*receiver
}

func (m measures) Export(_ context.Context, in *metricspb.ExportMetricsServiceRequest) (*metricspb.ExportMetricsServiceResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, all := range in.GetResourceMetrics() {
		for _, scope := range all.GetScopeMetrics() {
			for _, one := range scope.GetMetrics() {
				m.names[one.GetName()] = true
			}
		}
	}
	return &metricspb.ExportMetricsServiceResponse{}, nil
}

// ServeHTTP is OTLP over HTTP.
func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	var traces tracespb.ExportTraceServiceRequest
	var metrics metricspb.ExportMetricsServiceRequest
	switch {
	case err == nil && q.URL.Path == "/v1/traces" && proto.Unmarshal(body, &traces) == nil:
		_, err = r.Export(q.Context(), &traces)
	case err == nil && q.URL.Path == "/v1/metrics" && proto.Unmarshal(body, &metrics) == nil:
		_, err = measures{receiver: r}.Export(q.Context(), &metrics)
	default:
		err = fmt.Errorf("a call of %s", q.URL.Path)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

// TestTelemetry: a real receiver gets the spans of a request, in the trace of its caller, with the names of
// the limits and the outcome, and the metrics; over gRPC and over HTTP. No key is in what it gets.
func TestTelemetry(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Run(strings.ReplaceAll(protocol, "/", " "), func(t *testing.T) {
			t.Parallel()
			r := &receiver{names: map[string]bool{}}
			url := ""
			if protocol == "grpc" {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				s := grpc.NewServer()
				tracespb.RegisterTraceServiceServer(s, r)
				metricspb.RegisterMetricsServiceServer(s, measures{receiver: r})
				served := make(chan error, 1)
				go func() { served <- s.Serve(l) }()
				t.Cleanup(func() { s.Stop(); <-served })
				url = "http://" + l.Addr().String()
			} else {
				s := httptest.NewServer(r)
				t.Cleanup(s.Close)
				url = s.URL
			}
			limits := file(t, "limits.yaml", "limits:\n  - {name: per-user, key: [user], rate: 1/hour, overrides: [{when: {user: secret-customer}, rate: 2/hour}]}\n")
			p := serveProcess(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + url, "OTEL_EXPORTER_OTLP_PROTOCOL=" + protocol, "OTEL_SERVICE_NAME=edge", "OTEL_METRIC_EXPORT_INTERVAL=200"}, "--config", limits)
			for range 3 {
				q, err := http.NewRequest(http.MethodPost, p.http+"/v1/take", strings.NewReader(`{"attributes":{"user":"secret-customer"}}`))
				if err != nil {
					t.Fatal(err)
				}
				q.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
				answer, err := http.DefaultClient.Do(q)
				if err != nil {
					t.Fatal(err)
				}
				_ = answer.Body.Close()
			}
			outcomes := r.await(t)
			if want := []string{"allowed", "allowed", "refused"}; !slices.Equal(outcomes, want) {
				t.Errorf("the spans say %q, want %q", outcomes, want)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.service != "edge" || !r.names["stint_decisions_total"] && !r.names["stint_decisions"] {
				t.Errorf("the service is called %q and has the metrics %v", r.service, r.names)
			}
			if bytes.Contains(r.raw, []byte("secret-customer")) {
				t.Errorf("the receiver got a key: %q", r.raw)
			}
		})
	}
}

// await returns the outcomes of three requests, once they and metrics have come.
func (r *receiver) await(t *testing.T) []string {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); <-time.After(20 * time.Millisecond) {
		r.mu.Lock()
		var outcomes []string
		parents := map[string]int{}
		for _, s := range r.spans {
			about := map[string]string{}
			for _, a := range s.GetAttributes() {
				about[a.GetKey()] = strings.Trim(a.GetValue().String(), `"`)
			}
			if hex.EncodeToString(s.GetTraceId()) != "0af7651916cd43dd8448eb211c80319c" {
				t.Errorf("a span of the trace %x", s.GetTraceId())
			}
			if s.GetName() == "stint http" {
				parents[hex.EncodeToString(s.GetParentSpanId())]++
				outcomes = append(outcomes, s.GetAttributes()[slices.IndexFunc(s.GetAttributes(), func(a *commonpb.KeyValue) bool { return a.GetKey() == "stint.outcome" })].GetValue().GetStringValue())
				if !strings.Contains(about["stint.limits"], "per-user") || strings.Contains(about["stint.limits"], "!") {
					t.Errorf("a span has the limits %s", about["stint.limits"])
				}
			}
		}
		enough := len(r.spans) == 6 && len(r.names) > 20
		r.mu.Unlock()
		if enough {
			if parents["b7ad6b7169203331"] != 3 {
				t.Errorf("the requests have the parents %v", parents)
			}
			slices.Sort(outcomes)
			return outcomes
		}
	}
	t.Fatalf("the receiver got %d spans and %d metrics", len(r.spans), len(r.names))
	return nil
}

// TestTelemetryHangs: with a receiver that takes connections and never answers, every request is answered
// as without one, spans above the queue's room are dropped and counted, and the service ends in time.
func TestTelemetryHangs(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	p := serveProcess(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + l.Addr().String(), "OTEL_METRICS_EXPORTER=none"})
	longest := time.Duration(0)
	for range 3000 {
		begun := time.Now()
		answer, err := http.Post(p.http+"/v1/take", "", strings.NewReader(`{"attributes":{"ip":"192.0.2.7"}}`))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		longest = max(longest, time.Since(begun))
	}
	if longest > 2*time.Second {
		t.Errorf("a request took %v", longest)
	}
	answer, err := http.Get(p.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	body := string(text)
	if !strings.Contains(body, `stint_otlp_spans_total{result="dropped"}`) || strings.Contains(body, `stint_otlp_spans_total{result="dropped"} 0`+"\n") {
		t.Errorf("no span was dropped: %s", regexp.MustCompile("stint_otlp.*|stint_decisions_total.*").FindAllString(body, -1))
	}
	begun := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, p.log)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the service ended with %v", err)
	}
	t.Logf("longest request %v, end after %v", longest, time.Since(begun))
	if took := time.Since(begun); took > 8*time.Second {
		t.Errorf("the service took %v to end", took)
	}
}

// TestTelemetryIsRefused: a protocol that there is not is an error at the start.
func TestTelemetryIsRefused(t *testing.T) {
	t.Parallel()
	code, _, text := call(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL=http/json"}, "serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	if code != exitUsage || !strings.Contains(text, `OTEL_EXPORTER_OTLP_PROTOCOL is "http/json", want grpc or http/protobuf`) {
		t.Errorf("got %d, %s", code, text)
	}
}

// TestTelemetryLog: a receiver that is away is told of in the form of the log, metrics too, and durations
// have a unit there.
func TestTelemetryLog(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	limits := file(t, "limits.yaml", "limits:\n  - {name: lent, rate: 10/s, sharing: leased}\n")
	p := serveProcess(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + nobody, "OTEL_METRIC_EXPORT_INTERVAL=100"}, "--config", limits, "--log", "json", "--state-dir", t.TempDir())
	for seen := ""; !strings.Contains(seen, "failed to upload metrics") || !strings.Contains(seen, `"for":"5`); {
		line, err := p.log.ReadString('\n')
		if err != nil {
			t.Fatalf("the log ended: %v\n%s", err, seen)
		}
		if !json.Valid([]byte(line)) {
			t.Fatalf("a line is not JSON: %s", line)
		}
		seen += line
	}
	if code := p.end(syscall.SIGTERM); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
