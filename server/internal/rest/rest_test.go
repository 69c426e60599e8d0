package rest_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/rest"
	"github.com/stint-io/stint/store/memory"
)

// service is the API on a real engine and store, whose clock the test turns.
type service struct {
	http.Handler
	t   testing.TB
	now atomic.Int64
}

func newService(t testing.TB, yaml string) *service {
	t.Helper()
	set, err := rules.Parse("test.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	s := &service{t: t}
	s.now.Store(time.Date(2026, 5, 4, 12, 30, 30, 0, time.UTC).UnixNano())
	st := memory.New(memory.Options{Now: func() limit.Time { return limit.Time(s.now.Load()) }})
	e, err := engine.New(st, set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.Handler = rest.New(e, rest.Options{Answer: answer.Options{XRateLimit: true}})
	return s
}

func (s *service) advance(d time.Duration) { s.now.Add(int64(d)) }

// limitJSON is one limit in an answer, as a client reads it.
type limitJSON struct {
	Name        string            `json:"name"`
	Allowed     bool              `json:"allowed"`
	Reason      string            `json:"reason"`
	Unlimited   bool              `json:"unlimited"`
	Quota       int64             `json:"quota"`
	Window      json.Number       `json:"window"`
	Cost        int64             `json:"cost"`
	Remaining   int64             `json:"remaining"`
	RetryAfter  *json.Number      `json:"retry_after"`
	ResetAfter  *json.Number      `json:"reset_after"`
	Soft        bool              `json:"soft"`
	Shadow      bool              `json:"shadow"`
	StoreFailed bool              `json:"store_failed"`
	Detail      string            `json:"detail"`
	Algorithm   string            `json:"algorithm"`
	Rate        string            `json:"rate"`
	Used        int64             `json:"used"`
	Key         map[string]string `json:"key"`
	File        string            `json:"file"`
	Line        int               `json:"line"`
	Why         string            `json:"why"`
}

// metJSON is what a descriptor met.
type metJSON struct {
	Entries []string `json:"entries"`
	Rule    string   `json:"rule"`
	Applies bool     `json:"applies"`
	Why     string   `json:"why"`
}

// answerJSON is what take, explain and finish answer, problem documents included.
type answerJSON struct {
	Allowed        bool              `json:"allowed"`
	Permit         uint64            `json:"permit"`
	Delay          *json.Number      `json:"delay"`
	Limits         []limitJSON       `json:"limits"`
	Status         int               `json:"status"`
	RetryAfter     *json.Number      `json:"retry_after"`
	Detail         string            `json:"detail"`
	Reason         string            `json:"reason"`
	Violated       []string          `json:"violated-policies"`
	UnmatchedCount int               `json:"unmatched_count"`
	WhyNot         map[string]string `json:"why_not"`
	Descriptors    []metJSON         `json:"descriptors"`

	code   int
	header http.Header
}

// call posts a body and reads the answer.
func (s *service) call(path, body string) answerJSON {
	s.t.Helper()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
	a := answerJSON{code: w.Code, header: w.Header()}
	if w.Code == http.StatusNoContent {
		return a
	}
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
		s.t.Fatalf("%s %s: %v in %q", path, body, err, w.Body)
	}
	return a
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// A cost of 0 takes nothing, so what it says remains is what is there, in the body and
// in every header field, and the next request finds it so.
func TestCostZeroTellsWhatRemains(t *testing.T) {
	for name, kind := range map[string]string{
		"token bucket": "rate: 5/minute", "leaky bucket": "rate: 5/minute, burst: 5, algorithm: leaky_bucket",
		"fixed window": "rate: 5/minute, algorithm: fixed_window", "sliding window": "rate: 5/minute, algorithm: sliding_window_counter",
		"log": "rate: 5/minute, algorithm: sliding_window_log", "places": "algorithm: concurrency, max_in_flight: 5",
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, "limits:\n  - {name: a, "+kind+"}\n")
			total := s.call("/v1/take", `{"cost":0}`).Limits[0].Remaining
			if want := int64(5); total != want && name != "leaky bucket" {
				t.Fatalf("a new limit has %d remaining, want %d", total, want)
			}
			for left := total; left >= 1; left-- {
				for range 2 {
					a := s.call("/v1/take", `{"cost":0}`)
					if l := a.Limits[0]; a.code != 200 || l.Remaining != left || l.Cost != 0 || a.Permit != 0 {
						t.Fatalf("with %d left a cost of 0 is answered %d %+v", left, a.code, a)
					}
					if got := a.header.Get("X-RateLimit-Remaining"); got != itoa(left) {
						t.Fatalf("with %d left X-RateLimit-Remaining is %s", left, got)
					}
					if got := a.header.Get("RateLimit"); !strings.HasPrefix(got+";", `"a";r=`+itoa(left)+";") {
						t.Fatalf("with %d left RateLimit is %s", left, got)
					}
				}
				if a := s.call("/v1/take", `{}`); a.code != 200 || a.Limits[0].Remaining != left-1 || a.Limits[0].Cost != 1 {
					t.Fatalf("with %d left a cost of 1 is answered %d %+v", left, a.code, a)
				}
			}
			if a := s.call("/v1/take", `{"cost":0}`); a.code != 429 || a.header.Get("Retry-After") == "" {
				t.Fatalf("with nothing left a cost of 0 is answered %d %+v", a.code, a)
			}
		})
	}
}

// seconds reads a number of seconds, exactly.
func seconds(t testing.TB, n json.Number) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(n.String() + "s")
	if err != nil {
		t.Fatal(err)
	}
	return d
}
