package answer

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/stint-io/stint/limit"
)

// admitted and refused build results as an engine does.
func admitted(name string, quota int64, window time.Duration, remaining int64, reset time.Duration) limit.Result {
	return limit.Result{
		Limit: name, Algorithm: limit.FixedWindow, Quota: quota, Window: window, Cost: 1,
		Verdict: limit.Verdict{Allowed: true, Remaining: remaining, ResetAfter: reset},
	}
}

func refused(name string, quota int64, window time.Duration, reason limit.Reason, retry time.Duration) limit.Result {
	return limit.Result{
		Limit: name, Quota: quota, Window: window, Cost: 1,
		Verdict: limit.Verdict{Reason: reason, RetryAfter: retry, ResetAfter: max(retry, window)},
	}
}

// bucket is a bucket with remaining and a part of the next token.
func bucket(quota int64, window time.Duration, remaining int64, reset time.Duration) limit.Result {
	r := admitted("bucket", quota, window, remaining, reset)
	r.Algorithm = limit.TokenBucket
	return r
}

func places(quota int64, v limit.Verdict) limit.Result {
	return limit.Result{Limit: "places", Algorithm: limit.Concurrency, Quota: quota, Cost: 1, Verdict: v}
}

func allow(rs ...limit.Result) *limit.Decision { return &limit.Decision{Allowed: true, Results: rs} }

func refuse(rs ...limit.Result) *limit.Decision {
	return &limit.Decision{Status: 429, Results: rs}
}

func TestHeader(t *testing.T) {
	soft := admitted("api", 200, 2*time.Second, 20, 1800*time.Millisecond)
	soft.Soft = true
	shadow := refused("secret-trial", 1, time.Second, limit.ReasonRate, time.Hour)
	shadow.Shadow = true
	unlimited := admitted("free", math.MaxInt64, 0, math.MaxInt64, 0)

	for _, tt := range []struct {
		name string
		d    *limit.Decision
		o    Options
		want string
	}{
		{"no limit applies", allow(), Options{XRateLimit: true}, ""},
		{"admitted", allow(admitted("permin", 50, time.Minute, 12, 59*time.Second+1)), Options{}, `
Ratelimit: "permin";r=12;t=60
Ratelimit-Policy: "permin";q=50;w=60`},
		{"two limits, refused by the first", refuse(
			refused("permin", 50, time.Minute, limit.ReasonRate, 6100*time.Millisecond),
			admitted("perhr", 1000, time.Hour, 399, 2402*time.Second)), Options{XRateLimit: true}, `
Ratelimit: "permin";r=0;t=7, "perhr";r=399;t=2402
Ratelimit-Policy: "permin";q=50;w=60, "perhr";q=1000;w=3600
Retry-After: 7
X-Ratelimit-Limit: 50
X-Ratelimit-Remaining: 0
X-Ratelimit-Reset: 60
X-Ratelimit-Retry-After: 7`},
		{"full window about to end invites no rush", allow(
			admitted("hourly", 10000, time.Hour, 10000, time.Second)), Options{}, `
Ratelimit: "hourly";r=10000;t=3600
Ratelimit-Policy: "hourly";q=10000;w=3600`},
		{"what remains for a cheaper request is true, and no time is named in which to spend it", refuse(limit.Result{
			Limit: "bytes", Quota: 1000, Window: 100 * time.Second, Cost: 700,
			Verdict: limit.Verdict{Reason: limit.ReasonRate, Remaining: 650, RetryAfter: 5 * time.Second},
		}), Options{}, `
Ratelimit: "bytes";r=650
Ratelimit-Policy: "bytes";q=1000;w=100
Retry-After: 5`},
		{"a wait of a nanosecond is a second", refuse(refused("fast", 5, time.Millisecond, limit.ReasonRate, 1)), Options{}, `
Ratelimit: "fast";r=0;t=1
Ratelimit-Policy: "fast";q=5;w=1
Retry-After: 1`},
		{"an unknown wait is a second", refuse(refused("inflight", 5, 0, limit.ReasonConcurrency, 0)), Options{}, `
Ratelimit: "inflight";r=0;t=1
Ratelimit-Policy: "inflight";q=5
Retry-After: 1`},
		{"no wait helps", refuse(refused("c", 5, time.Second, limit.ReasonCost, limit.Never)), Options{XRateLimit: true}, `
Ratelimit: "c";r=0
Ratelimit-Policy: "c";q=5;w=1
X-Ratelimit-Limit: 5
X-Ratelimit-Remaining: 0`},
		{"off", refuse(refused("c", 5, time.Second, limit.ReasonRate, time.Second)), Options{RateLimitFields: Off}, `
Retry-After: 1`},
		{"soft", allow(soft), Options{RateLimitFields: Off}, `
X-Ratelimit-Warning: "api"`},
		{"shadow and unlimited are not shown", allow(shadow, unlimited), Options{XRateLimit: true}, ""},
		{"the zero decision", &limit.Decision{}, Options{XRateLimit: true}, `
Retry-After: 1
X-Ratelimit-Retry-After: 1`},
		{"odd names", allow(admitted("a\"b\\c\n\xffé", 1e18, time.Second, 1e17, 0)), Options{}, `
Ratelimit: "a\"b\\c????";r=100000000000000000;t=1
Ratelimit-Policy: "a\"b\\c????";q=999999999999999;w=1`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := strings.TrimPrefix(tt.want, "\n")
			want = strings.ReplaceAll(want, "r=100000000000000000", "r=999999999999999")
			h := http.Header{}
			Header(h, tt.d, tt.o)
			if got := text(h); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// A bucket fills evenly, so it has more when the next token comes.
func TestHeaderOfBuckets(t *testing.T) {
	for want, d := range map[string]*limit.Decision{
		`"bucket";r=0;t=12`: allow(bucket(5, time.Minute, 0, 60*time.Second)),
		`"bucket";r=0;t=6`:  allow(bucket(5, time.Minute, 0, 54*time.Second)),
		`"bucket";r=4;t=48`: allow(bucket(5, time.Minute, 4, 12*time.Second)),
		`"bucket";r=3`:      allow(bucket(5, 0, 3, limit.Never)),
	} {
		h := http.Header{}
		Header(h, d, Options{})
		if got := h.Get("RateLimit"); got != want {
			t.Errorf("RateLimit is %s, want %s", got, want)
		}
	}
}

// text writes the fields of h sorted by name.
func text(h http.Header) string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, v := range h[name] {
			lines = append(lines, name+": "+v)
		}
	}
	return strings.Join(lines, "\n")
}

// Places come free when requests end: their time-out is never named as the moment
// to wait for.
func TestHeaderOfPlaces(t *testing.T) {
	for want, d := range map[string]*limit.Decision{
		`Ratelimit: "places";r=0
Ratelimit-Policy: "places";q=2
X-Ratelimit-Limit: 2
X-Ratelimit-Remaining: 0`: allow(places(2, limit.Verdict{Allowed: true, ResetAfter: time.Hour})),
		`Ratelimit: "places";r=0;t=1
Ratelimit-Policy: "places";q=2
Retry-After: 1
X-Ratelimit-Limit: 2
X-Ratelimit-Remaining: 0
X-Ratelimit-Reset: 1
X-Ratelimit-Retry-After: 1`: refuse(places(2, limit.Verdict{Reason: limit.ReasonConcurrency, RetryAfter: time.Second, ResetAfter: time.Hour})),
	} {
		h := http.Header{}
		Header(h, d, Options{XRateLimit: true})
		if got := text(h); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
}

func TestHeaderKeepsOuterMembers(t *testing.T) {
	h := http.Header{}
	Header(h, allow(admitted("outer", 5, time.Second, 1, 0)), Options{XRateLimit: true})
	Header(h, allow(admitted("inner", 9, time.Second, 3, 0)), Options{XRateLimit: true})
	if got, want := strings.Join(h["Ratelimit"], ", "), `"outer";r=1;t=1, "inner";r=3;t=1`; got != want {
		t.Errorf("RateLimit is %s, want %s", got, want)
	}
	if got := h["X-Ratelimit-Limit"]; !slices.Equal(got, []string{"9"}) {
		t.Errorf("X-RateLimit-Limit is %q, want the last one only", got)
	}
}

func TestHeaderShowsAtMostEight(t *testing.T) {
	d := refuse()
	for i := range 20 {
		d.Results = append(d.Results, admitted(fmt.Sprintf("l%d", i), 5, time.Second, 1, 0))
	}
	d.Results = append(d.Results, refused("last", 5, time.Second, limit.ReasonRate, time.Second))
	h := http.Header{}
	Header(h, d, Options{})
	list, err := httpsfv.UnmarshalList(h["Ratelimit"])
	if err != nil || len(list) != maxMembers {
		t.Fatalf("%d members, %v, want %d", len(list), err, maxMembers)
	}
	if last := list[maxMembers-1].(httpsfv.Item).Value; last != "last" {
		t.Errorf("last member is %v, want the limit that refused", last)
	}
}

func TestHeaderAllocations(t *testing.T) {
	d := refuse(
		refused("per-minute", 50, time.Minute, limit.ReasonRate, 7*time.Second),
		admitted("per-hour", 1000, time.Hour, 399, 2402*time.Second))
	h := http.Header{}
	n := testing.AllocsPerRun(200, func() {
		clear(h)
		Header(h, d, Options{XRateLimit: true})
	})
	// One for the text of all values, one for the slice they stand in.
	if n > 2 {
		t.Errorf("%v allocations, want at most 2", n)
	}
}

// FuzzFields holds that whatever a decision says, its fields parse, have the
// types that the draft asks for, and promise no more than the limit's own rate.
func FuzzFields(f *testing.F) {
	f.Add("a", int64(10), int64(time.Second), int64(3), int64(time.Millisecond), true)
	f.Add("b\"\\\x00é", int64(math.MaxInt64), int64(0), int64(-1), int64(math.MaxInt64), false)
	f.Add("", int64(1e18), int64(1), int64(1e18), int64(1), false)
	f.Fuzz(func(t *testing.T, name string, quota, window, remaining, wait int64, allowed bool) {
		r := limit.Result{
			Limit: name, Quota: max(quota, 0), Window: time.Duration(max(window, 0)),
			Verdict: limit.Verdict{
				Allowed: allowed, Remaining: max(remaining, 0),
				RetryAfter: time.Duration(max(wait, 0)), ResetAfter: time.Duration(max(wait, 0)),
			},
		}
		d := &limit.Decision{Allowed: allowed, Results: []limit.Result{r, r}}
		h := http.Header{}
		Header(h, d, Options{XRateLimit: true})
		if r.Quota == math.MaxInt64 {
			if h["Ratelimit"] != nil {
				t.Fatalf("an unlimited policy is shown: %q", h)
			}
			return
		}
		policies, err := httpsfv.UnmarshalList(h["Ratelimit-Policy"])
		if err != nil || len(policies) != 2 {
			t.Fatalf("RateLimit-Policy %q: %d members, %v", h["Ratelimit-Policy"], len(policies), err)
		}
		states, err := httpsfv.UnmarshalList(h["Ratelimit"])
		if err != nil || len(states) != 2 {
			t.Fatalf("RateLimit %q: %d members, %v", h["Ratelimit"], len(states), err)
		}
		if _, ok := states[0].(httpsfv.Item).Value.(string); !ok {
			t.Fatalf("the name in %q is no string", h["Ratelimit"])
		}
		left := parameter(t, states[0], "r", true)
		last := parameter(t, states[0], "t", false)
		parameter(t, policies[0], "q", true)
		// Only whole seconds are sent, so only clamped figures can differ.
		if r.Window > 0 && last > 0 && r.Quota < maxInteger && float64(left) > float64(r.Quota)/r.Window.Seconds()*float64(last)*(1+1e-9) {
			t.Fatalf("%q promises more than %d per %v", h["Ratelimit"], r.Quota, r.Window)
		}
		if retry := h.Get("Retry-After"); !allowed && last > 0 && retry != fmt.Sprint(last) {
			t.Fatalf("Retry-After is %q, t is %d", retry, last)
		} else if allowed && retry != "" {
			t.Fatalf("Retry-After %q on an admitted request", retry)
		}
		var doc map[string]any
		if err := json.Unmarshal(Problem(nil, d), &doc); err != nil {
			t.Fatalf("problem: %v", err)
		}
	})
}

func parameter(t *testing.T, m httpsfv.Member, name string, required bool) int64 {
	t.Helper()
	v, ok := m.(httpsfv.Item).Params.Get(name)
	if !ok {
		if required {
			t.Fatalf("parameter %s is missing", name)
		}
		return 0
	}
	n, ok := v.(int64)
	if !ok || n < 0 {
		t.Fatalf("parameter %s is %v", name, v)
	}
	return n
}

func TestProblem(t *testing.T) {
	shadow := refused("trial", 1, time.Second, limit.ReasonBanned, time.Hour)
	shadow.Shadow = true
	unavailable := refuse(refused("db", 5, 0, limit.ReasonConcurrency, 0))
	unavailable.Status = 503
	for _, tt := range []struct {
		name string
		d    *limit.Decision
		want string
	}{
		{
			"quota", refuse(shadow, refused("a<b", 5, time.Second, limit.ReasonRate, 6100*time.Millisecond)),
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,` +
				`"detail":"limit 'a<b' refused the request: its rate is used up; retry after 7 s","violated-policies":["a<b"],"reason":"rate_exceeded","retry_after":6.1}`,
		},
		{
			"banned by the second", refuse(refused("x", 5, time.Second, limit.ReasonRate, time.Second), refused("y", 5, time.Second, limit.ReasonBanned, time.Minute)),
			`{"type":"https://iana.org/assignments/http-problem-types#abnormal-usage-detected","title":"Abnormal usage detected","status":429,` +
				`"detail":"limit 'x' refused the request: its rate is used up; retry after 60 s","violated-policies":["x","y"],"reason":"rate_exceeded","retry_after":60}`,
		},
		{
			"concurrency with 503", unavailable,
			`{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Temporary reduced capacity","status":503,` +
				`"detail":"limit 'db' refused the request: too many requests are in flight; retry after 1 s","violated-policies":["db"],"reason":"concurrency_exceeded","retry_after":1}`,
		},
		{
			"never", refuse(refused("x", 5, time.Second, limit.ReasonCost, limit.Never)),
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,` +
				`"detail":"limit 'x' refused the request: the request costs more than it can ever admit","violated-policies":["x"],"reason":"cost_exceeds_limit"}`,
		},
		{
			"zero", &limit.Decision{},
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,` +
				`"detail":"the request was refused; retry after 1 s","violated-policies":[],"retry_after":1}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got, want any
			if err := json.Unmarshal(Problem(nil, tt.d), &got); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(tt.want), &want); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %s\nwant %s", Problem(nil, tt.d), tt.want)
			}
		})
	}
}

func TestWriteRefusal(t *testing.T) {
	for _, tt := range []struct {
		status, want int
	}{{0, 429}, {429, 429}, {503, 503}, {403, 403}, {200, 429}, {302, 429}, {9999, 429}, {-1, 429}} {
		d := refuse(refused("x", 5, time.Second, limit.ReasonRate, time.Second))
		d.Status = tt.status
		rec := httptest.NewRecorder()
		WriteRefusal(rec, d, Options{})
		got := rec.Result()
		if got.StatusCode != tt.want {
			t.Errorf("status %d is answered as %d, want %d", tt.status, got.StatusCode, tt.want)
		}
		if ct, cc := got.Header.Get("Content-Type"), got.Header.Get("Cache-Control"); ct != "application/problem+json" || cc != "no-store" {
			t.Errorf("Content-Type %q, Cache-Control %q", ct, cc)
		}
		if rec.Body.String() != string(Problem(nil, d)) {
			t.Errorf("body is %s", rec.Body)
		}
	}
}

func TestWriteErrors(t *testing.T) {
	rec := httptest.NewRecorder()
	WriteUnavailable(rec)
	if rec.Code != 503 || !strings.Contains(rec.Body.String(), "#temporary-reduced-capacity") || rec.Header().Get("Retry-After") != "1" {
		t.Errorf("unavailable: %d %v %s", rec.Code, rec.Header(), rec.Body)
	}
	rec = httptest.NewRecorder()
	WriteErrorAs(rec, 403, 400, "no \"such\" thing")
	if want := `{"type":"about:blank","title":"Bad Request","status":400,"detail":"no \"such\" thing"}` + "\n"; rec.Code != 403 || rec.Body.String() != want {
		t.Errorf("error: %d %s, want %s", rec.Code, rec.Body, want)
	}
}

func TestParseDraft(t *testing.T) {
	for name, want := range map[string]Draft{"": Draft10, "draft-10": Draft10, "draft-11": Draft11, "draft-07": Draft07, "draft-06": Draft06, "draft-03": Draft03, "off": Off} {
		if got, err := ParseDraft(name); got != want || err != nil {
			t.Errorf("ParseDraft(%q) = %q, %v, want %q", name, got, err, want)
		}
	}
	if _, err := ParseDraft("draft-6"); err == nil || !strings.Contains(err.Error(), "draft-10") {
		t.Errorf("draft-6: error %v, want one that names the choices", err)
	}
}
