package replay_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/accesslog"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/replay"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/httplimit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// limits of every algorithm, with bans, costs of keys and conditions.
const everyKind = `
limits:
  - {name: all, rate: 60/s, burst: 90}
  - {name: login, match: {method: POST, path: /login}, key: [ip], rate: 5/minute, algorithm: sliding_window_log, on_exceed: {reject: 403, ban: {for: 2m, after: 10/minute}}}
  - {name: api, match: {path: /api/*}, key: ["header:x-api-key"], rate: 20/10s, algorithm: fixed_window, missing: all}
  - {name: tenant, key: ["query:tenant"], rate: 3/s, algorithm: sliding_window_counter, missing: skip}
  - {name: leak, match: {path: /slow}, rate: 50/s, burst: 1, algorithm: leaky_bucket}
  - {name: month, key: [ip], rate: 200/day}
  - {name: shadow, key: [ip], rate: 1/s, shadow: true}
  - {name: agents, when: 'request.headers["user-agent"].startsWith("bad")', rate: 10/minute}
`

// live is an HTTP server whose handler is limited, with a clock that the test sets, and the access log
// that it writes.
type live struct {
	*httptest.Server
	now  atomic.Int64
	log  bytes.Buffer
	took []bool // what it decided, line by line
}

func newLive(t *testing.T, yaml string, write func(l *live, r *http.Request, status int)) *live {
	t.Helper()
	set, err := rules.Parse("stint.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	l := &live{}
	l.now.Store(time.Date(2026, 10, 10, 13, 55, 36, 0, time.UTC).UnixNano())
	st := memory.New(memory.Options{Now: func() limit.Time { return limit.Time(l.now.Load()) }})
	e, err := engine.New(st, set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	limited := httplimit.New(e, httplimit.WithTrustedProxies(netip.MustParsePrefix("127.0.0.1/32")))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }))
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := &recorder{ResponseWriter: w, status: 200}
		limited.ServeHTTP(seen, r)
		l.took = append(l.took, seen.status == 204)
		write(l, r, seen.status)
	}))
	t.Cleanup(l.Close)
	return l
}

type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) { r.status = status; r.ResponseWriter.WriteHeader(status) }

// ask sends one drawn request.
func (l *live) ask(t *testing.T, r *rand.Rand) {
	t.Helper()
	method, path := "GET", []string{"/api/orders", "/api//x/../y", "/slow", "/a%20b", "/login"}[r.IntN(5)]
	if path == "/login" {
		method = "POST"
	}
	if r.IntN(3) == 0 {
		path += fmt.Sprintf("?a=1&tenant=t%%20%d", r.IntN(3))
	}
	req, err := http.NewRequestWithContext(t.Context(), method, l.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Forwarded-For", []string{"192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2", "198.51.100.7"}[r.IntN(5)])
	if r.IntN(4) > 0 {
		req.Header.Set("X-Api-Key", fmt.Sprintf("k%d", r.IntN(4)))
	}
	req.Header.Set("User-Agent", []string{"good/1", `bad "1" \`}[r.IntN(2)])
	resp, err := l.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
}

// dash is what servers write for nothing.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// The replay of the log that a server wrote decides each request as the server did: drawn requests over
// HTTP, limits of every algorithm, in three formats.
func TestReplayEqualsLiveDecisions(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	nginx := strings.NewReplacer(`"`, `\x22`, `\`, `\x5C`)
	for name, c := range map[string]struct {
		format string
		write  func(l *live, r *http.Request, status int)
	}{
		"log_format": {`$msec $remote_addr "$request" $status "$http_user_agent" "$http_x_api_key"`, func(l *live, r *http.Request, status int) {
			at := l.now.Load()
			fmt.Fprintf(&l.log, "%d.%03d %s \"%s %s HTTP/1.1\" %d \"%s\" \"%s\"\n", at/1e9, at%1e9/1e6, r.Header.Get("X-Forwarded-For"), r.Method, r.RequestURI,
				status, nginx.Replace(r.UserAgent()), dash(nginx.Replace(r.Header.Get("X-Api-Key"))))
		}},
		"json": {"", func(l *live, r *http.Request, status int) {
			fmt.Fprintf(&l.log, `{"start_time":%q,"downstream_remote_address":"%s","method":%q,"path":%q,"response_code":%d,"user_agent":%q,"x-api-key":%q}`+"\n",
				time.Unix(0, l.now.Load()).UTC().Format(time.RFC3339Nano), r.Header.Get("X-Forwarded-For"), r.Method, r.RequestURI, status, r.UserAgent(), dash(r.Header.Get("X-Api-Key")))
		}},
		"csv": {"", func(l *live, r *http.Request, _ int) {
			if l.log.Len() == 0 {
				l.log.WriteString("time,ip,request,agent,header:x-api-key\n")
			}
			fmt.Fprintf(&l.log, "%d,%s,%s %s HTTP/1.1,\"%s\",%s\n", l.now.Load(), r.Header.Get("X-Forwarded-For"), r.Method, r.RequestURI,
				strings.ReplaceAll(r.UserAgent(), `"`, `""`), r.Header.Get("X-Api-Key"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLive(t, everyKind, c.write)
			r := rand.New(rand.NewPCG(7, uint64(len(name))))
			const n = 1500
			for range n {
				l.ask(t, r)
				// Mostly close together, now and then pauses; milliseconds, as nginx writes.
				step := r.Int64N(60)
				if r.IntN(50) == 0 {
					step = r.Int64N(60_000)
				}
				l.now.Add(step * int64(time.Millisecond))
			}
			var got []bool
			report := play(t, everyKind, &replay.Options{Format: c.format, OnDecision: func(_ *accesslog.Line, d *limit.Decision) { got = append(got, d.Allowed) }}, l.log.String())
			refused := 0
			for i, allowed := range l.took {
				if i < len(got) && got[i] != allowed {
					t.Fatalf("line %d: the server admitted it: %v, the replay: %v", i+1, allowed, got[i])
				}
				if !allowed {
					refused++
				}
			}
			if len(got) != n || refused < n/10 || refused > n*9/10 || report.Refused != int64(refused) || report.Bad != 0 {
				t.Fatalf("%d decisions of %d, %d refused by the server, %d by the replay, %d lines bad: %v", len(got), n, refused, report.Refused, report.Bad, report.Unread)
			}
		})
	}
}

// play replays texts as logs.
func play(t *testing.T, yaml string, o *replay.Options, texts ...string) *replay.Report {
	t.Helper()
	set, err := rules.Parse("stint.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	o.Set = set
	o.Logs = nil
	for i, text := range texts {
		o.Logs = append(o.Logs, replay.Log{Name: fmt.Sprintf("log%d", i), Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }})
	}
	report, err := replay.Run(context.Background(), *o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}
