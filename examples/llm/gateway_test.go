package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// world is a gateway in front of a model, with a stint of its own.
type world struct {
	*testing.T
	stint   *service
	process *process
	model   *httptest.Server
	gateway *httptest.Server
	driver  *driver
}

// newWorld has budgets of 1050 tokens a minute and 1680 a month for each model, and of 6300 and 10500 micro-dollars.
func newWorld(t *testing.T, rate float64, ttl time.Duration) *world {
	t.Helper()
	return newWorldOf(t, limitsFor(byReserve, 0.07), rate, ttl)
}

func newWorldOf(t *testing.T, file string, rate float64, ttl time.Duration) *world {
	t.Helper()
	dir := t.TempDir()
	limits := filepath.Join(dir, "limits.yaml")
	if err := os.WriteFile(limits, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := start(t.Context(), dir, stintBinary, "serve", "--config", limits, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	w := &world{T: t, process: p, stint: &service{p.addr, new(http.Client)}, model: httptest.NewServer(newModel(1, rate).handler())}
	t.Cleanup(w.model.Close)
	g := &gateway{
		way: &reserving{w.stint, ttl}, stint: w.stint, upstream: w.model.URL, keep: ttl / 3,
		http: new(http.Client), log: slog.New(slog.DiscardHandler),
	}
	w.gateway = httptest.NewServer(g.handler())
	t.Cleanup(w.gateway.Close)
	w.driver = &driver{http: new(http.Client)}
	return w
}

// question has a prompt of 10 tokens.
func question(model string, seed uint64) *chatRequest {
	return &chatRequest{Model: model, MaxTokens: 600, Stream: true, Seed: seed, Messages: []message{{"user", "how long is it? really?"}}}
}

func (w *world) ask(ctx context.Context, ask *chatRequest) *http.Response {
	w.Helper()
	res, err := w.driver.post(ctx, w.gateway.URL, "acme", ask)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { res.Body.Close() })
	return res
}

// refusal reads an error.
func (w *world) refusal(res *http.Response, status int) chatError {
	w.Helper()
	var e chatError
	if err := json.NewDecoder(res.Body).Decode(&e); err != nil || res.StatusCode != status || e.Error.Message == "" {
		w.Fatalf("%d %+v, %v, want %d", res.StatusCode, e, err, status)
	}
	return e
}

// used is what counts of a budget, open reservations included.
func (w *world) used(model, unit, limit string) int64 {
	w.Helper()
	a, err := w.stint.post(w.Context(), "/v1/explain", about("acme", model, unit, 0))
	if err != nil {
		w.Fatal(err)
	}
	for _, l := range a.body.Limits {
		if l.Name == limit {
			return l.Used
		}
	}
	w.Fatalf("no limit %s", limit)
	return 0
}

// are holds what counts against what is expected.
func (w *world) are(model string, tokens, money int64, when string) {
	w.Helper()
	if t, m := w.used(model, unitTokens, "tokens/month"), w.used(model, unitMoney, "money/month"); t != tokens || m != money {
		w.Errorf("%s: %d tokens and %d micro-dollars count, want %d and %d", when, t, m, tokens, money)
	}
}

// seedOf returns a seed whose answer is of a length that suits.
func seedOf(t *testing.T, suits func(cached, length int64) bool) uint64 {
	t.Helper()
	m := newModel(1, 1)
	for seed := uint64(1); seed < 10_000; seed++ {
		if suits(m.plan(question("large", seed), 10)) {
			return seed
		}
	}
	t.Fatal("no seed suits")
	return 0
}

// A stream costs what the model says at its end, cached tokens less, and its answer says how the budget stands.
func TestStreamIsCharged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 20_000, time.Minute)
	seed := seedOf(t, func(cached, length int64) bool { return cached == 5 && length == 100 })
	res := w.ask(t.Context(), question("large", seed))
	// 610 of 1050 are reserved of the bucket, which is the tightest.
	for name, want := range map[string]string{"X-Ratelimit-Limit-Tokens": "1050", "X-Ratelimit-Remaining-Tokens": "440", "X-Ratelimit-Reset-Tokens": "35s"} {
		if got := res.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	text, err := io.ReadAll(res.Body) // it ends when the gateway has committed
	if err != nil {
		t.Fatal(err)
	}
	if n, whole := readStream(bufio.NewReader(bytes.NewReader(text))); n != 100 || !whole {
		t.Errorf("%d tokens came, to the end: %v", n, whole)
	}
	// 5 x 2.5 + 5 x 1.25 + 100 x 10 = 1018.75.
	w.are("large", 110, 1019, "after the stream")
}

// A refusal has OpenAI's shape, and names a model whose budgets would admit the request; it takes from none.
func TestRefusal(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, strings.Replace(limitsFor(byReserve, 0.07), "10500/month", "6300/month", 1), 20_000, time.Minute)
	take := func(model, unit string, n int64) {
		if _, err := w.stint.post(t.Context(), "/v1/take", about("acme", model, unit, n)); err != nil {
			t.Fatal(err)
		}
	}
	take("large", unitTokens, 1000)
	res := w.ask(t.Context(), question("large", 1))
	e := w.refusal(res, http.StatusTooManyRequests)
	if e.Error.Type != "tokens" || e.Error.Code != "rate_limit_exceeded" || e.Error.TryModel != "small" || !strings.Contains(e.Error.Message, "try model small") {
		t.Errorf("%+v", e.Error)
	}
	// 560 tokens more, at 17.5 a second.
	if after, err := strconv.Atoi(res.Header.Get("Retry-After")); err != nil || after < 1 || after > 32 {
		t.Errorf("Retry-After is %d, %v", after, err)
	}
	w.are("large", 1000, 0, "the minute has refused")
	take("small", unitMoney, 6000)
	e = w.refusal(w.ask(t.Context(), question("small", 1)), http.StatusTooManyRequests)
	if e.Error.Type != "insufficient_quota" || e.Error.Code != "insufficient_quota" || e.Error.TryModel != "" || !strings.Contains(e.Error.Message, "money") {
		t.Errorf("%+v", e.Error)
	}
	w.are("small", 0, 6000, "the money has refused")
	large := question("small", 1)
	large.MaxTokens = 5000
	w.refusal(w.ask(t.Context(), large), http.StatusBadRequest)
	w.are("small", 0, 6000, "more than the budget ever admits")
	for _, bad := range []func(*chatRequest){
		func(r *chatRequest) { r.Model = "huge" }, func(r *chatRequest) { r.Stream = false },
		func(r *chatRequest) { r.MaxTokens = -1 }, func(r *chatRequest) { r.Messages = nil },
	} {
		ask := question("small", 1)
		bad(ask)
		w.refusal(w.ask(t.Context(), ask), http.StatusBadRequest)
	}
	if res, err := w.driver.post(t.Context(), w.gateway.URL, "nobody", question("small", 1)); err != nil || w.refusal(res, http.StatusUnauthorized).Error.Code != "invalid_api_key" {
		t.Error(err)
	}
	w.are("small", 0, 6000, "bad requests")
}

// A budget that is missing in the configuration is not a budget without bounds.
func TestNoBudgetOfMoney(t *testing.T) {
	t.Parallel()
	file, _, found := strings.Cut(limitsFor(byReserve, 0.07), "  - name: money")
	if !found {
		t.Fatal("limits.yaml has no budget of money")
	}
	w := newWorldOf(t, file, 20_000, time.Minute)
	w.refusal(w.ask(t.Context(), question("large", 1)), http.StatusServiceUnavailable)
	if n := w.used("large", unitTokens, "tokens/month"); n != 0 {
		t.Errorf("%d tokens count", n)
	}
}

// Before the first byte an error gives everything back.
func TestModelIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 20_000, time.Minute)
	w.model.Close()
	w.refusal(w.ask(t.Context(), question("large", 1)), http.StatusBadGateway)
	w.are("large", 0, 0, "the model is gone")
}

// A client that leaves pays what was said ahead, and not what it had reserved.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 100, time.Minute)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	seed := seedOf(t, func(_, length int64) bool { return length == 600 })
	res := w.ask(ctx, question("large", seed))
	if _, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	w.are("large", 610, 6025, "in the middle")
	leave()
	w.eventually("the commit", func() bool { return w.used("large", unitTokens, "tokens/month") != 610 })
	if n := w.used("large", unitTokens, "tokens/month"); n < 10+ahead || n >= 610 {
		t.Errorf("%d tokens count, want the prompt and %d at least, and not what was reserved", n, ahead)
	}
}

// A stream in which nothing comes for longer than the ttl keeps what it has reserved.
func TestSlowModel(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1.6, time.Second) // a chunk every 2.5 seconds; reservations that are over are looked for each second
	seed := seedOf(t, func(_, length int64) bool { return length == 600 })
	in := bufio.NewReader(w.ask(t.Context(), question("large", seed)).Body)
	if _, err := in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	w.are("large", 610, 6025, "after the first chunk")
}

// Without stint no request begins, and a stream that it is not told of is cut.
func TestStintIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 200, time.Minute)
	seed := seedOf(t, func(_, length int64) bool { return length == 600 })
	in := bufio.NewReader(w.ask(t.Context(), question("large", seed)).Body)
	if _, err := in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	w.process.kill()
	text, err := io.ReadAll(in)
	if err != nil || !strings.Contains(string(text), "budget_unknown") || strings.Contains(string(text), "[DONE]") {
		t.Errorf("the stream ends with %q, %v", text[max(0, len(text)-300):], err)
	}
	if n, _ := readStream(bufio.NewReader(bytes.NewReader(text))); n >= 600 {
		t.Errorf("%d tokens came", n)
	}
	w.refusal(w.ask(t.Context(), question("large", seed)), http.StatusServiceUnavailable)
}

// eventually asks again and again until ok, for as long as a busy machine may take.
func (w *world) eventually(what string, ok func() bool) {
	w.Helper()
	tick, end := time.NewTicker(20*time.Millisecond), time.After(startWithin)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			w.Fatalf("waited in vain for %s", what)
		}
	}
}
