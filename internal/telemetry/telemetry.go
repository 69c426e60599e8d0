// Package telemetry sends traces of decisions and the service's metrics to a receiver of OpenTelemetry
// (OTLP), if the standard environment variables name one.
//
// It never holds up a decision: spans wait in a bounded queue, and those that find it full are
// dropped and counted. It sends names of limits, outcomes and waits; no key, no attribute of a request,
// no path and no address.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	api "go.opentelemetry.io/otel/trace"
)

// Telemetry sends what it is told of. Make it with [Open]. It is safe for concurrent use.
type Telemetry struct {
	log      *slog.Logger
	resource *resource.Resource

	spans    *queue // nil = no traces
	provider *trace.TracerProvider
	tracer   api.Tracer

	exporter metric.Exporter // nil = no metrics
	meters   struct {
		sync.Mutex
		provider *metric.MeterProvider // nil until Metrics was called
	}
}

// Open reads the standard variables by env, such as os.Getenv, and returns nil where they name no
// receiver: then nothing is sent. The exporters and the SDK read the variables that are theirs, such
// as headers, time-outs and the sampler, from the environment themselves.
func Open(ctx context.Context, env func(string) string, version string, log *slog.Logger) (*Telemetry, error) {
	wanted := func(signal, exporter string) bool {
		named := env("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || env("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != ""
		return named && env("OTEL_SDK_DISABLED") != "true" && env(exporter) != "none"
	}
	traces, metrics := wanted("TRACES", "OTEL_TRACES_EXPORTER"), wanted("METRICS", "OTEL_METRICS_EXPORTER")
	if !traces && !metrics {
		return nil, nil
	}
	t := &Telemetry{log: log}
	// The SDK's own handler writes lines of another form to standard error. Metrics that were not sent come here.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("OpenTelemetry reports a fault", "error", err)
	}))
	own := resource.NewSchemaless(attribute.String("service.name", "stint"), attribute.String("service.version", version))
	named, err := resource.New(ctx, resource.WithFromEnv(), resource.WithTelemetrySDK())
	if err == nil {
		t.resource, err = resource.Merge(own, named) // what the environment says wins
	}
	if err != nil {
		return nil, fmt.Errorf("telemetry: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	if traces {
		exporter, err := traceExporter(ctx, protocol(env, "TRACES"))
		if err != nil {
			return nil, err
		}
		t.spans = newQueue(exporter, log)
		t.provider = trace.NewTracerProvider(trace.WithSpanProcessor(t.spans), trace.WithResource(t.resource))
		t.tracer = t.provider.Tracer("github.com/stint-io/stint")
	}
	if metrics {
		if t.exporter, err = metricExporter(ctx, protocol(env, "METRICS")); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// protocol is how a signal is sent.
func protocol(env func(string) string, signal string) string {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_" + signal + "_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if p := env(name); p != "" {
			return p
		}
	}
	return "http/protobuf"
}

func unknownProtocol(p string) error {
	return fmt.Errorf("telemetry: OTEL_EXPORTER_OTLP_PROTOCOL is %q, want grpc or http/protobuf", p)
}

func traceExporter(ctx context.Context, protocol string) (*otlptrace.Exporter, error) {
	switch protocol {
	case "grpc":
		return otlptracegrpc.New(ctx)
	case "http/protobuf":
		return otlptracehttp.New(ctx)
	}
	return nil, unknownProtocol(protocol)
}

func metricExporter(ctx context.Context, protocol string) (metric.Exporter, error) {
	switch protocol {
	case "grpc":
		return otlpmetricgrpc.New(ctx)
	case "http/protobuf":
		return otlpmetrichttp.New(ctx)
	}
	return nil, unknownProtocol(protocol)
}

// Metrics has the metrics of g sent, each minute or as OTEL_METRIC_EXPORT_INTERVAL says. Call it once.
func (t *Telemetry) Metrics(g prometheus.Gatherer) {
	if t.exporter == nil {
		return
	}
	reader := metric.NewPeriodicReader(t.exporter, metric.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(g))))
	t.meters.Lock()
	defer t.meters.Unlock()
	t.meters.provider = metric.NewMeterProvider(metric.WithReader(reader), metric.WithResource(t.resource))
}

// Collectors are the metrics of what is sent.
func (t *Telemetry) Collectors() []prometheus.Collector {
	if t.spans == nil {
		return nil
	}
	return []prometheus.Collector{t.spans}
}

// Run sends spans until ctx ends, and then what is left, for as long as last allows. It returns when
// all that Open and Metrics have started has ended.
func (t *Telemetry) Run(ctx, last context.Context) error {
	if t.spans != nil {
		t.spans.run(ctx, last)
	} else {
		<-ctx.Done()
	}
	t.meters.Lock()
	defer t.meters.Unlock()
	var err error
	switch {
	case t.meters.provider != nil:
		err = t.meters.provider.Shutdown(last)
	case t.exporter != nil:
		err = t.exporter.Shutdown(last)
	}
	if t.spans != nil {
		err = errors.Join(err, t.spans.exporter.Shutdown(last))
	}
	return err
}
