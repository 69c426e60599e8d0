package telemetry

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/sdk/trace"
)

const (
	// queued is how many spans wait at most. Not more: a span takes about 2 KiB, and a receiver that is away
	// takes none. Not fewer: a burst of requests between two sends fits.
	queued = 4096
	// batch is how many are sent at once at most, and interval how long the first of them waits.
	batch    = 512
	interval = time.Second
	// patience bounds one send.
	patience = 10 * time.Second
)

// queue is a span processor of a bounded number of spans. The SDK's own drops as well, and does not say
// how many.
type queue struct {
	exporter trace.SpanExporter
	log      *slog.Logger
	waiting  chan trace.ReadOnlySpan

	sent, dropped, failed atomic.Uint64
	failing               bool // of run alone: the last send failed
}

var (
	_ trace.SpanProcessor  = (*queue)(nil)
	_ prometheus.Collector = (*queue)(nil)
)

func newQueue(exporter trace.SpanExporter, log *slog.Logger) *queue {
	return &queue{exporter: exporter, log: log, waiting: make(chan trace.ReadOnlySpan, queued)}
}

// OnStart implements [trace.SpanProcessor].
func (*queue) OnStart(context.Context, trace.ReadWriteSpan) {}

// OnEnd never waits: a span for which there is no room is dropped.
func (q *queue) OnEnd(s trace.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	select {
	case q.waiting <- s:
	default:
		q.dropped.Add(1)
	}
}

// Shutdown implements [trace.SpanProcessor]; run ends with its context.
func (*queue) Shutdown(context.Context) error { return nil }

// ForceFlush implements [trace.SpanProcessor].
func (*queue) ForceFlush(context.Context) error { return nil }

// run sends until ctx ends, and then what waits, until last ends.
func (q *queue) run(ctx, last context.Context) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var spans []trace.ReadOnlySpan
	for {
		full := false
		select {
		case s := <-q.waiting:
			spans = append(spans, s)
			full = len(spans) == batch
		case <-tick.C:
			full = len(spans) > 0
		case <-ctx.Done():
			q.drain(last, spans)
			return
		}
		if full {
			q.send(ctx, spans)
			spans = nil
		}
	}
}

// drain sends what is left.
func (q *queue) drain(last context.Context, spans []trace.ReadOnlySpan) {
	for {
		select {
		case s := <-q.waiting:
			if spans = append(spans, s); len(spans) < batch {
				continue
			}
		default:
		}
		if len(spans) == 0 {
			return
		}
		q.send(last, spans)
		spans = nil
	}
}

func (q *queue) send(ctx context.Context, spans []trace.ReadOnlySpan) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := q.exporter.ExportSpans(ctx, spans)
	if err != nil {
		q.failed.Add(uint64(len(spans)))
	} else {
		q.sent.Add(uint64(len(spans)))
	}
	switch failing := err != nil; {
	case failing && !q.failing:
		q.log.Warn("traces cannot be sent: they are dropped until the receiver takes them", "error", err)
	case !failing && q.failing:
		q.log.Info("traces are sent again")
	}
	q.failing = err != nil
}

var descSpans = prometheus.NewDesc("stint_otlp_spans_total", "Spans that ended: sent, failed when the receiver did not take them, dropped when too many waited.", []string{"result"}, nil)

// Describe implements [prometheus.Collector].
func (*queue) Describe(to chan<- *prometheus.Desc) { to <- descSpans }

// Collect implements [prometheus.Collector].
func (q *queue) Collect(to chan<- prometheus.Metric) {
	for result, n := range map[string]uint64{"sent": q.sent.Load(), "failed": q.failed.Load(), "dropped": q.dropped.Load()} {
		to <- prometheus.MustNewConstMetric(descSpans, prometheus.CounterValue, float64(n), result)
	}
}
