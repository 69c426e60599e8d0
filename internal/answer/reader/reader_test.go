package reader

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/limit"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func TestRead(t *testing.T) {
	for _, tt := range []struct {
		fields string // name: value, one to a line
		want   Standing
	}{
		{"", Standing{}},
		{"Retry-After: 7", Standing{RetryAfter: 7 * time.Second, Wait: true}},
		{"Retry-After:  7 ", Standing{RetryAfter: 7 * time.Second, Wait: true}},
		{"Retry-After: 0", Standing{Wait: true}},
		{"Retry-After: 999999999", Standing{RetryAfter: Longest, Wait: true}},
		{"Retry-After: 1795435260", Standing{RetryAfter: time.Minute, Wait: true}},
		{"Retry-After: 1795435260.5\nDate: Mon, 23 Nov 2026 12:00:30 GMT", Standing{RetryAfter: 30500 * time.Millisecond, Wait: true}},
		{"Retry-After: 1795435260250", Standing{RetryAfter: time.Minute + 250*time.Millisecond, Wait: true}},
		{"Retry-After: 1000000000000", Standing{Wait: true}},
		{"Retry-After: 99999999999999999999999999", Standing{RetryAfter: Longest, Wait: true}},
		{"Retry-After: -1", Standing{}},
		{"Retry-After: 1.5", Standing{RetryAfter: 1500 * time.Millisecond, Wait: true}},
		{"Retry-After: 2.0", Standing{RetryAfter: 2 * time.Second, Wait: true}},
		{"Retry-After: 1.939", Standing{RetryAfter: 1939 * time.Millisecond, Wait: true}},
		{"Retry-After: 0.0000000001", Standing{RetryAfter: 1, Wait: true}},
		{"Retry-After: .", Standing{}},
		{"Retry-After: 1e3", Standing{}},
		{"Retry-After: 5, 60", Standing{RetryAfter: time.Minute, Wait: true}},
		{"Retry-After: 60\nRetry-After: 5", Standing{RetryAfter: time.Minute, Wait: true}},
		{"Retry-After: Mon, 23 Nov 2026 12:01:00 GMT\nRetry-After: 5", Standing{RetryAfter: time.Minute, Wait: true}},
		{"Retry-After: Mon, 23 Nov 2026 12:01:00 +0000", Standing{RetryAfter: time.Minute, Wait: true}},
		{"Retry-After: 2026-11-23T12:01:00Z", Standing{RetryAfter: time.Minute, Wait: true}},
		{"Retry-After: Mon, 23 Nov 2026 12:01:00 GMT\nDate: Mon, 23 Nov 2026 12:00:30 GMT\nAge: 20", Standing{RetryAfter: 10 * time.Second, Wait: true}},
		{"X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1795435260\nDate: Mon, 23 Nov 2026 11:00:00 GMT\nAge: 3700", Standing{Quotas: []Quota{{}}}},
		{"Retry-After: 6m0s", Standing{RetryAfter: 6 * time.Minute, Wait: true}},
		{"Retry-After: -6m0s", Standing{}},
		{"Retry-After-Ms: 1500", Standing{RetryAfter: 1500 * time.Millisecond, Wait: true}},
		{"Retry-After: 1\nX-Ms-Retry-After-Ms: 1500.5", Standing{RetryAfter: 1500500 * time.Microsecond, Wait: true}},
		{"Retry-After: soon", Standing{}},
		{"Retry-After: " + strings.Repeat("9", 100), Standing{}},
		{"Retry-After: Mon, 23 Nov 2026 12:01:00 GMT", Standing{RetryAfter: time.Minute, Wait: true}},
		{"Retry-After: Mon, 23 Nov 2026 12:01:00 GMT\nDate: Mon, 23 Nov 2026 12:00:30 GMT", Standing{RetryAfter: 30 * time.Second, Wait: true}},
		{"Retry-After: Mon, 23 Nov 2020 12:01:00 GMT", Standing{Wait: true}},
		{"Retry-After: Fri, 31 Dec 9999 23:59:59 GMT", Standing{RetryAfter: Longest, Wait: true}},
		{"X-RateLimit-Retry-After: 7", Standing{RetryAfter: 7 * time.Second, Wait: true}},
		{"Retry-After: x\nX-RateLimit-Retry-After: 7", Standing{RetryAfter: 7 * time.Second, Wait: true}},
		{`RateLimit: "a";r=0;t=7, b;r=5, "c";r=1;t=0;pk=:dXNlcg==:`, Standing{Quotas: []Quota{
			{Policy: "a", Reset: 7 * time.Second}, {Policy: "b", Remaining: 5, Reset: limit.Never}, {Policy: "c", Remaining: 1, Partition: "user"},
		}}},
		{`RateLimit: "no remaining";t=7, "negative";r=-1, 5;r=1, ("inner" "list");r=0, "text";r="0", "good";r=2;t=-5`, Standing{Quotas: []Quota{
			{Policy: "good", Remaining: 2, Reset: limit.Never},
		}}},
		{`RateLimit: "a";r=0;t=999999999999999`, Standing{Quotas: []Quota{{Policy: "a", Reset: Longest}}}},
		{`RateLimit: "broken`, Standing{}},
		{`RateLimit: limit=100, remaining=50, reset=5`, Standing{Quotas: []Quota{{Remaining: 50, Reset: 5 * time.Second}}}},
		{`RateLimit: remaining=3, reset="soon"`, Standing{Quotas: []Quota{{Remaining: 3, Reset: limit.Never}}}},
		{`RateLimit: limit=100, remaining=-1, reset=5`, Standing{}},
		{`RateLimit: limit=100, remaining=(1 2), reset=5`, Standing{}},
		{`RateLimit-Limit: 5, 5;w=60` + "\nRateLimit-Remaining: 4\nRateLimit-Reset: 12", Standing{Quotas: []Quota{{Remaining: 4, Reset: 12 * time.Second}}}},
		{`RateLimit-Policy: "a";q=9;qu="concurrent-requests"` + "\n" + `RateLimit: "a";r=9;x-y=?1`, Standing{Quotas: []Quota{{Policy: "a", Remaining: 9, Reset: limit.Never}}}},
		{"RateLimit: \"broken\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 60", Standing{Quotas: []Quota{{Reset: time.Minute}}}},
		{"RateLimit-Remaining: 0\nRateLimit-Reset: 60\nX-RateLimit-Remaining: 9", Standing{Quotas: []Quota{{Reset: time.Minute}}}},
		{"X-RateLimit-Remaining: 3", Standing{Quotas: []Quota{{Remaining: 3, Reset: limit.Never}}}},
		{"X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1795435260", Standing{Quotas: []Quota{{Reset: time.Minute}}}},
		{"X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1795435260000", Standing{Quotas: []Quota{{Reset: time.Minute}}}},
		{"X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1500000000", Standing{Quotas: []Quota{{}}}},
		{"X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 99999999999999999999", Standing{Quotas: []Quota{{Reset: Longest}}}},
		{"X-RateLimit-Remaining: 12, 13", Standing{Quotas: []Quota{{Remaining: 12, Reset: limit.Never}}}},
		{"X-RateLimit-Remaining: 598.7\nX-RateLimit-Reset: 1795435203.12", Standing{Quotas: []Quota{{Remaining: 598, Reset: 3120 * time.Millisecond}}}},
		{"X-RateLimit-Remaining: -1\nX-RateLimit-Reset: 60", Standing{Quotas: []Quota{{Reset: time.Minute}}}},
		{"X-RateLimit-Remaining: none\nX-RateLimit-Reset: 60", Standing{}},
		{"X-Rate-Limit-Remaining: 0\nX-Rate-Limit-Reset: 1795435203", Standing{Quotas: []Quota{{Reset: 3 * time.Second}}}},
		{"X-RateLimit-Remaining: 0\nX-RateLimit-Reset-After: 3.5\nX-RateLimit-Reset: 1795435203\nX-RateLimit-Bucket: abcd", Standing{Quotas: []Quota{{Policy: "abcd", Reset: 3500 * time.Millisecond}}}},
		{"X-RateLimit-Resource: search\nX-RateLimit-Used: 30\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1795435203", Standing{Quotas: []Quota{{Policy: "search", Reset: 3 * time.Second}}}},
		{"x-ratelimit-remaining-requests: 59\nx-ratelimit-reset-requests: 1s\nx-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 6m0s", Standing{Quotas: []Quota{
			{Policy: "requests", Remaining: 59, Reset: time.Second}, {Policy: "tokens", Reset: 6 * time.Minute},
		}}},
		{"anthropic-ratelimit-input-tokens-remaining: 0\nanthropic-ratelimit-input-tokens-reset: 2026-11-23T12:00:03Z", Standing{Quotas: []Quota{{Policy: "input-tokens", Reset: 3 * time.Second}}}},
		{"RateLimit-Limit: 100;w=21600\nRateLimit-Remaining: 76;w=21600", Standing{Quotas: []Quota{{Remaining: 76, Reset: limit.Never}}}},
		{"X-Calibratelimit-Remaining: 0", Standing{}},
		{`RateLimit: "a";r=1;pk="text", "b";r=1;pk=7`, Standing{Quotas: []Quota{
			{Policy: "a", Remaining: 1, Reset: limit.Never, Partition: "text"}, {Policy: "b", Remaining: 1, Reset: limit.Never},
		}}},
		{"X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1500000000000", Standing{Quotas: []Quota{{}}}},
	} {
		h := http.Header{}
		for line := range strings.SplitSeq(tt.fields, "\n") {
			if name, value, ok := strings.Cut(line, ": "); ok {
				h.Add(name, value)
			}
		}
		if got := Read(h, noon); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s\ngot  %+v\nwant %+v", tt.fields, got, tt.want)
		}
	}
}

// TestLongest: what is above a year is a year.
func TestLongest(t *testing.T) {
	year := 365 * 24 * time.Hour
	for _, text := range []string{"31536000", "31536001", strings.Repeat("9", 64)} {
		if s := Read(http.Header{"Retry-After": {text}}, noon); s.RetryAfter != year {
			t.Errorf("%s is read as %v, want a year", text, s.RetryAfter)
		}
	}
}

// TestBounds: long fields and long lists are not followed to their end.
func TestBounds(t *testing.T) {
	long := http.Header{"Ratelimit": {`"a";r=0;t=7, "` + strings.Repeat("x", maxText) + `";r=0`}}
	if s := Read(long, noon); s.Quotas != nil {
		t.Errorf("a field of %d bytes is read: %d limits", maxText, len(s.Quotas))
	}
	many := http.Header{}
	for i := range 100 {
		many.Add("RateLimit", fmt.Sprintf(`"l%d";r=0`, i))
	}
	if s := Read(many, noon); len(s.Quotas) != maxQuotas {
		t.Errorf("%d limits are read, want %d", len(s.Quotas), maxQuotas)
	}
	named := http.Header{"Ratelimit": {`"` + strings.Repeat("n", 1000) + `";r=0`}}
	if s := Read(named, noon); len(s.Quotas) != 1 || len(s.Quotas[0].Policy) != maxName {
		t.Errorf("%+v, want a name of %d bytes", s, maxName)
	}
}

// FuzzRead: whatever a server sends, no wait is negative or longer than Longest, and no list longer
// than its bound.
func FuzzRead(f *testing.F) {
	f.Add("7", `"a";r=0;t=7`, "0", "60", "Mon, 23 Nov 2026 12:00:00 GMT")
	f.Add("Fri, 31 Dec 9999 23:59:59 GMT", `a;r=1;pk=:AA==:, "b"`, "1", "1795435260", "")
	f.Add("-9223372036854775808", `"a";r=999999999999999;t=999999999999999`, "9223372036854775807", "9223372036854775807", "x")
	f.Fuzz(func(t *testing.T, retry, list, remaining, reset, date string) {
		s := Read(http.Header{
			"Retry-After": {retry}, "Ratelimit": {list}, "X-Ratelimit-Remaining": {remaining},
			"X-Ratelimit-Reset": {reset}, "Date": {date},
		}, noon)
		if s.RetryAfter < 0 || s.RetryAfter > Longest || !s.Wait && s.RetryAfter != 0 || len(s.Quotas) > maxQuotas {
			t.Fatalf("%+v", s)
		}
		for _, q := range s.Quotas {
			if q.Remaining < 0 || q.Reset < 0 || q.Reset > Longest && q.Reset != limit.Never || len(q.Policy) > maxName || len(q.Partition) > maxName {
				t.Fatalf("%+v", q)
			}
		}
	})
}

// FuzzReadBack: what package answer writes about a decision is read back: each limit that it shows
// with what is left and the same wait, and the wait of a refusal.
func FuzzReadBack(f *testing.F) {
	f.Add("a", int64(10), int64(time.Second), int64(3), int64(time.Millisecond), true, "b", int64(7))
	f.Add("b\"\\\x00é", int64(1<<62), int64(0), int64(-1), int64(1<<62), false, "", int64(0))
	f.Add("", int64(1e18), int64(1), int64(1e18), int64(1), false, strings.Repeat("n", 300), int64(time.Hour))
	f.Fuzz(func(t *testing.T, name string, quota, window, remaining, wait int64, allowed bool, other string, otherWait int64) {
		one := limit.Result{
			Limit: name, Quota: max(quota, 0), Window: time.Duration(max(window, 0)),
			Verdict: limit.Verdict{Allowed: allowed, Remaining: max(remaining, 0), ResetAfter: time.Duration(max(wait, 0))},
		}
		two := limit.Result{Limit: other, Quota: 1, Verdict: limit.Verdict{Allowed: true, ResetAfter: time.Duration(max(otherWait, 0))}}
		if !allowed {
			one.RetryAfter = time.Duration(max(wait, 0))
		}
		d := &limit.Decision{Allowed: allowed, Results: []limit.Result{one, two}}
		h := http.Header{}
		answer.Header(h, d, answer.Options{})
		got := Read(h, noon)

		if retry := h.Get("Retry-After"); got.Wait != (retry != "") {
			t.Fatalf("Retry-After %q is read as %+v", retry, got)
		} else if got.Wait {
			want := max(1, whole(d.RetryAfter()))
			if got.RetryAfter != min(want*time.Second, Longest) {
				t.Fatalf("Retry-After %q is read as %v, want %d s", retry, got.RetryAfter, want)
			}
		}
		shown := strings.Count(strings.Join(h["Ratelimit"], ", "), ";r=") // at least: names may have it too
		if len(got.Quotas) > shown || len(got.Quotas) == 0 && len(h["Ratelimit"]) > 0 {
			t.Fatalf("%q is read as %+v", h["Ratelimit"], got.Quotas)
		}
		for i, q := range got.Quotas {
			r := d.Results[i+len(d.Results)-len(got.Quotas)] // an unlimited one is not shown
			if q.Policy != ascii(r.Limit) {
				t.Fatalf("limit %q is read as %q", r.Limit, q.Policy)
			}
			if want := min(r.Remaining, r.Quota, 999_999_999_999_999); q.Remaining != want {
				t.Fatalf("remaining %d is read as %d", want, q.Remaining)
			}
			if !r.Allowed && q.Reset != limit.Never && q.Reset != got.RetryAfter {
				t.Fatalf("%q: the wait of the limit that refused is %v, Retry-After %v", h["Ratelimit"], q.Reset, got.RetryAfter)
			}
		}
	})
}

func whole(d time.Duration) time.Duration {
	s := d / time.Second
	if d%time.Second != 0 {
		s++
	}
	return s
}

// ascii is a name as the field can hold it.
func ascii(name string) string {
	out := make([]byte, 0, maxName)
	for i := range min(len(name), maxName) {
		if c := name[i]; c < 0x20 || c > 0x7e {
			out = append(out, '?')
		} else {
			out = append(out, c)
		}
	}
	return string(out)
}

// TestForms: a wait is read whatever the name and the form in which it is told, and whatever shorter ones are told beside it;
// never as shorter than it is, and no more than the form rounds.
func TestForms(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 20_000 {
		d := time.Duration(r.Int64N(int64([]time.Duration{time.Second, time.Hour, 300 * 24 * time.Hour}[r.IntN(3)])))
		server := noon.Add(time.Duration(r.Int64N(int64(48*time.Hour))) - 24*time.Hour).Truncate(time.Second)
		end := server.Add(d)
		up := func(d, unit time.Duration) time.Duration { return (d + unit - 1).Truncate(unit) }
		forms := []struct {
			text string
			unit time.Duration
		}{
			{fmt.Sprint(int64(up(d, time.Second) / time.Second)), time.Second},
			{fmt.Sprintf("%d.%09d", d/time.Second, d%time.Second), 1},
			{d.String(), 1},
			{fmt.Sprint(end.Add(time.Second - 1).Unix()), time.Second},
			{fmt.Sprintf("%d.%09d", end.Unix(), end.Nanosecond()), 1},
			{fmt.Sprint(end.Add(time.Millisecond - 1).UnixMilli()), time.Millisecond},
			{end.Add(time.Second - 1).Format(http.TimeFormat), time.Second},
			{end.Add(time.Second - 1).Format(time.RFC1123Z), time.Second},
			{end.Format(time.RFC3339Nano), 1},
		}
		f := forms[r.IntN(len(forms))]
		cased := func(name string) string {
			return []func(string) string{strings.ToLower, strings.ToUpper, http.CanonicalHeaderKey}[r.IntN(3)](name)
		}
		h := http.Header{"Date": {server.Format(http.TimeFormat)}}
		shorter := fmt.Sprint(int64(d/time.Second) / 2)
		values := [][]string{{f.text}, {shorter, f.text}, {f.text, shorter}}
		if !strings.Contains(f.text, ",") {
			values = append(values, []string{shorter + ", " + f.text}, []string{f.text + "," + shorter})
		}
		value := values[r.IntN(len(values))]
		var got time.Duration
		if r.IntN(2) == 0 {
			h[cased([]string{"Retry-After", "X-RateLimit-Retry-After", "X-Retry-After"}[r.IntN(3)])] = value
			s := Read(h, noon)
			if got = s.RetryAfter; !s.Wait {
				t.Fatalf("%v is not read", h)
			}
		} else {
			names := [][3]string{
				{"x-ratelimit-remaining", "x-ratelimit-reset", ""},
				{"X-Rate-Limit-Remaining", "X-Rate-Limit-Reset", ""},
				{"X-RateLimit-Remaining-Tokens", "X-RateLimit-Reset-Tokens", "tokens"},
				{"RateLimit-Remaining", "RateLimit-Reset-After", ""},
				{"Anthropic-RateLimit-Output-Tokens-Remaining", "Anthropic-RateLimit-Output-Tokens-Reset", "output-tokens"},
			}[r.IntN(5)]
			h[cased(names[0])], h[cased(names[1])] = []string{"0"}, value
			s := Read(h, noon)
			if len(s.Quotas) != 1 || s.Quotas[0].Policy != names[2] || s.Wait {
				t.Fatalf("%v is read as %+v", h, s)
			}
			got = s.Quotas[0].Reset
		}
		if got < d || got >= d+f.unit {
			t.Fatalf("%v, %v is read as %v of %v", h, d, got, f)
		}
	}
}
