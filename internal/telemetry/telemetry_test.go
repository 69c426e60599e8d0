package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// kept is an exporter that keeps what it is given, and refuses while err is there.
type kept struct {
	mu    sync.Mutex
	sizes []int
	err   error
	bound []time.Duration // how long each send may take
	ended int
}

func (k *kept) ExportSpans(ctx context.Context, spans []trace.ReadOnlySpan) error {
	at, _ := ctx.Deadline()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sizes, k.bound = append(k.sizes, len(spans)), append(k.bound, time.Until(at))
	return k.err
}

func (k *kept) Shutdown(context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended++
	return k.err
}

// refuse has it refuse from here on; nil = take.
func (k *kept) refuse(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
}

// seen is what it was given: how many each time, and how long each send could take.
func (k *kept) seen() (sizes []int, bound []time.Duration, ended int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.sizes), slices.Clone(k.bound), k.ended
}

// world is a queue with a tracer before it, all of whose spans are sampled.
func world(k *kept, log *slog.Logger) (*queue, *Telemetry) {
	q := newQueue(k, log)
	return q, &Telemetry{log: log, spans: q, tracer: trace.NewTracerProvider(trace.WithSpanProcessor(q)).Tracer("")}
}

func (t *Telemetry) end(n int) {
	for range n {
		_, span := t.tracer.Start(context.Background(), "x")
		span.End()
	}
}

func counts(q *queue) string {
	return fmt.Sprintf("sent %d, failed %d, dropped %d", q.sent.Load(), q.failed.Load(), q.dropped.Load())
}

// A full batch is sent at once, a part of one after a second, and what is left at the end; nothing is sent where there is
// nothing. What finds the queue full is dropped, what a receiver refuses has failed, and the log says so once.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		k := &kept{}
		q, world := world(k, slog.New(slog.NewTextHandler(&said, nil)))
		world.end(queued + 7)
		if got := counts(q); got != "sent 0, failed 0, dropped 7" {
			t.Fatalf("a full queue: %s", got)
		}
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- world.Run(ctx, t.Context()) }()
		synctest.Wait()
		sizes, bound, _ := k.seen()
		if len(sizes) != 8 || slices.Max(sizes) != batch || slices.Min(sizes) != batch || bound[0] != patience {
			t.Errorf("sent at once: %v, each for at most %v", sizes, bound)
		}
		world.end(3)
		time.Sleep(interval - time.Millisecond)
		synctest.Wait()
		if sizes, _, _ = k.seen(); len(sizes) != 8 {
			t.Errorf("three spans did not wait: %v", sizes)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if sizes, _, _ = k.seen(); len(sizes) != 9 || sizes[8] != 3 {
			t.Errorf("after a second: %v", sizes)
		}
		time.Sleep(5 * interval)
		synctest.Wait()
		if sizes, _, _ = k.seen(); len(sizes) != 9 {
			t.Errorf("nothing was sent: %v", sizes)
		}
		k.refuse(errors.New("away"))
		for range 2 {
			world.end(2)
			time.Sleep(interval)
			synctest.Wait()
		}
		k.refuse(nil)
		for range 2 {
			world.end(1)
			time.Sleep(interval)
			synctest.Wait()
		}
		if a, b := strings.Count(said.String(), "cannot be sent"), strings.Count(said.String(), "sent again"); a != 1 || b != 1 {
			t.Errorf("said %d and %d times: %s", a, b, &said)
		}
		world.end(1)
		synctest.Wait() // the loop has it
		world.end(batch)
		stop()
		err := <-ran
		sizes, _, ended := k.seen()
		if err != nil || ended != 1 {
			t.Errorf("it ended %d times with %v", ended, err)
		}
		if got := counts(q); got != fmt.Sprintf("sent %d, failed 4, dropped 7", queued+3+2+batch+1) {
			t.Errorf("at the end: %s", got)
		}
		if slices.Max(sizes) > batch {
			t.Errorf("more than a batch at once: %v", sizes)
		}
	})
}

// With nothing left, and with a context that is over, the end still is one; what fails there is said.
func TestQueueEnds(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	k := &kept{}
	q, world := world(k, slog.New(slog.DiscardHandler))
	if err := world.Run(over, over); err != nil || len(k.sizes) != 0 || k.ended != 1 {
		t.Errorf("%v, sent %v", err, k.sizes)
	}
	k.err = errors.New("away")
	if err := world.Run(over, over); !errors.Is(err, k.err) {
		t.Error(err)
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(world.Collectors()...)
	q.dropped.Store(3)
	q.sent.Store(4)
	q.failed.Store(5)
	got := ""
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range families[0].GetMetric() {
		got += fmt.Sprintf("%s %g; ", m.GetLabel()[0].GetValue(), m.GetCounter().GetValue())
	}
	if got != "dropped 3; failed 5; sent 4; " {
		t.Error(got)
	}
	if list := (&Telemetry{}).Collectors(); list != nil {
		t.Errorf("without traces: %v", list)
	}
}

// ended returns what the spans that wait say, in the order in which they ended.
func (q *queue) ended() (list []string) {
	for len(q.waiting) > 0 {
		s := <-q.waiting
		text := s.Name() + " " + s.Status().Code.String()
		for _, a := range s.Attributes() {
			text += fmt.Sprintf(" %s=%v", a.Key, a.Value.AsInterface())
		}
		list = append(list, text)
	}
	return list
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A request's span has its status, and is an error from 500 on alone. A request that its caller does not sample has none, and is
// answered the same.
func TestHTTP(t *testing.T) {
	q, world := world(&kept{}, nil)
	parent := ""
	h := world.HTTP("gate", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/429" {
			w.WriteHeader(429)
		}
		if r.URL.Path == "/500" {
			w.WriteHeader(500)
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		_, _ = w.Write([]byte("x"))
	}))
	for _, path := range []string{"/", "/429", "/500"} {
		r, w := httptest.NewRequest(http.MethodGet, path, http.NoBody), httptest.NewRecorder()
		r.Header.Set("Traceparent", parent)
		h.ServeHTTP(w, r)
		if want := strings.Trim(path, "/"); want != "" && fmt.Sprint(w.Code) != want {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	expect(t, q.ended(), "stint gate Unset http.response.status_code=200", "stint gate Unset http.response.status_code=429", "stint gate Error http.response.status_code=500")
	r, w := httptest.NewRequest(http.MethodGet, "/500", http.NoBody), httptest.NewRecorder()
	r.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
	h.ServeHTTP(w, r)
	if w.Code != 500 || w.Body.String() != "x" {
		t.Errorf("unsampled: %d %q", w.Code, w.Body)
	}
	expect(t, q.ended())
}

// A call's span is of the services that are doors alone, in its caller's trace, with the method and the code.
func TestUnary(t *testing.T) {
	q, world := world(&kept{}, nil)
	call := world.Unary(map[string]string{"a.Service": "grpc"})
	for _, one := range []struct {
		method, parent string
		err            error
	}{
		{"/a.Service/Take", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", nil},
		{"/a.Service/Take", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", nil},
		{"/a.Service/Take", "", status.Error(codes.InvalidArgument, "no")},
		{"/grpc.health.v1.Health/Check", "", nil},
	} {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("traceparent", one.parent))
		if one.parent == "" {
			ctx = t.Context()
		}
		if answer, err := call(ctx, 1, &grpc.UnaryServerInfo{FullMethod: one.method}, func(_ context.Context, in any) (any, error) { return in, one.err }); answer != 1 || !errors.Is(err, one.err) {
			t.Errorf("%s: %v, %v", one.method, answer, err)
		}
	}
	if s := <-q.waiting; s.Parent().SpanID().String() != "b7ad6b7169203331" {
		t.Errorf("its parent is %v", s.Parent().SpanID())
	}
	expect(t, q.ended(), "stint grpc Error rpc.method=Take rpc.response.status_code=InvalidArgument")
}

// failing is a store that does not answer.
type failing struct{ store.BanKeeper }

func (failing) Take(context.Context, []store.Charge) (bool, error) {
	return false, errors.New("redis://user:password@10.0.0.1 is away")
}

// A decision's span names each limit once, without the condition of an override, and says the outcome, the longest wait
// of what refused, and whether it was made without the store. It never says why the store failed: that has addresses.
func TestTake(t *testing.T) {
	q, world := world(&kept{}, nil)
	ctx, request := world.tracer.Start(t.Context(), "request")
	st := memory.New(memory.Options{})
	bind := func(id string, p limit.Policy) store.Counters {
		c, err := st.Bind(store.Spec{ID: id, Policy: p})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	hour, day := limit.Policy{Rate: limit.PerHour(1), Burst: 1}, limit.Policy{Rate: limit.Rate{Count: 1, Period: 24 * time.Hour}, Burst: 1}
	charges := func() []store.Charge {
		return []store.Charge{
			{Counters: bind("a", hour), Key: []byte("k"), Cost: 1},
			{Counters: bind("a!user=secret", hour), Key: []byte("k"), Cost: 1},
			{Counters: bind("!ban b", hour), Key: []byte("k"), Cost: 1},
			{Counters: bind("watched", day), Key: []byte("k"), Cost: 1, Shadow: true},
		}
	}
	take := func(ctx context.Context, st store.Store, charges []store.Charge) error { // as the engine does
		answered := world.Take()(ctx)
		allowed, err := st.Take(ctx, charges)
		if answered != nil {
			answered(charges, allowed, err)
		}
		return err
	}
	for range 2 {
		if err := take(ctx, st, charges()); err != nil {
			t.Fatal(err)
		}
	}
	if err := take(ctx, failing{st}, charges()[:1]); err == nil {
		t.Error("no error")
	}
	got := q.ended()
	if len(got) == 3 {
		name, wait, ok := strings.Cut(got[1], "stint.wait_seconds=")
		var seconds float64
		if _, err := fmt.Sscan(wait, &seconds); !ok || err != nil || seconds < 3500 || seconds > 3600 {
			t.Errorf("the wait is %q", wait)
		}
		got[1] = name
	}
	expect(t, got, "store take Unset stint.limits=[a b watched] stint.outcome=allowed", "store take Unset stint.limits=[a b watched] stint.outcome=refused ", "store take Error stint.limits=[a] stint.outcome=error")
	request.End()
	if got := q.ended(); len(got) != 1 || !strings.Contains(got[0], "stint.outcome=error") {
		t.Errorf("the request's span: %v", got)
	}
	if err := take(t.Context(), st, charges()); err != nil || len(q.waiting) != 0 {
		t.Errorf("without a request's span: %v, %v", err, q.ended())
	}
	c := charges()[:1]
	c[0].Failed, c[0].Verdict = true, limit.Verdict{RetryAfter: limit.Never}
	if got := fmt.Sprint(describe(c, false, nil)); strings.Contains(got, "wait") || !strings.Contains(got, "store_failed") {
		t.Error(got)
	}
}

// What the variables ask for: nothing without an endpoint, one signal, or none when they say so. A signal's own variable
// comes before the common one.
func TestOpen(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, one := range []struct{ env, want string }{
		{"", "nothing"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "traces metrics"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1 OTEL_SDK_DISABLED=true", "nothing"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1 OTEL_TRACES_EXPORTER=none", "metrics"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1 OTEL_METRICS_EXPORTER=none", "traces"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:1", "traces"},
		{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://127.0.0.1:1", "metrics"},
		{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://127.0.0.1:1 OTEL_EXPORTER_OTLP_PROTOCOL=x OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=grpc", "metrics"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:1 OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=x", `"x", want grpc`},
		{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://127.0.0.1:1 OTEL_EXPORTER_OTLP_PROTOCOL=x", `"x", want grpc`},
	} {
		env := map[string]string{}
		for _, f := range strings.Fields(one.env) {
			name, value, _ := strings.Cut(f, "=")
			env[name] = value
		}
		got := "nothing"
		telemetry, err := Open(t.Context(), func(name string) string { return env[name] }, "v1", slog.New(slog.DiscardHandler))
		switch {
		case err != nil:
			got = err.Error()
		case telemetry != nil:
			got = strings.TrimSpace(map[bool]string{true: "traces "}[telemetry.tracer != nil] + map[bool]string{true: "metrics"}[telemetry.exporter != nil])
			if err := telemetry.Run(over, t.Context()); err != nil {
				t.Errorf("%s: the end: %v", one.env, err)
			}
			next := http.Handler(http.NewServeMux())
			if telemetry.tracer == nil && (telemetry.HTTP("http", next) != next || telemetry.Take() != nil) {
				t.Errorf("%s: spans are made of what has no receiver", one.env)
			}
		}
		if !strings.Contains(got, one.want) || one.want == "metrics" && got != one.want {
			t.Errorf("%s: %s, want %s", one.env, got, one.want)
		}
	}
}
