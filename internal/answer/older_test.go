package answer

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/stint-io/stint/limit"
)

// Each version as its draft has it.
func TestVersions(t *testing.T) {
	two := allow(bucket(5, time.Minute, 4, 12*time.Second), admitted("hour", 1000, time.Hour, 900, time.Hour))
	flight := allow(places(2, limit.Verdict{Allowed: true, Remaining: 1, ResetAfter: time.Hour}))
	full := refuse(places(2, limit.Verdict{Reason: limit.ReasonConcurrency, RetryAfter: time.Second}))
	known := refuse(failed(refused("closed", 10, time.Minute, limit.ReasonStoreFailure, time.Second)), bucket(5, time.Minute, 4, 12*time.Second))
	for _, tt := range []struct {
		version Draft
		d       *limit.Decision
		want    string
	}{
		{Draft11, two, `
Ratelimit: "bucket";r=4;t=48, "hour";r=900;t=3600
Ratelimit-Policy: "bucket";q=5;w=60, "hour";q=1000;w=3600`},
		{Draft11, flight, `
Ratelimit: "places";r=1
Ratelimit-Policy: "places";q=2;qu="concurrent-requests"`},
		{Draft10, flight, `
Ratelimit: "places";r=1
Ratelimit-Policy: "places";q=2`},
		{Draft07, two, `
Ratelimit: limit=5, remaining=4, reset=12
Ratelimit-Policy: 5;w=60, 1000;w=3600`},
		{Draft06, two, `
Ratelimit-Limit: 5
Ratelimit-Policy: 5;w=60, 1000;w=3600
Ratelimit-Remaining: 4
Ratelimit-Reset: 12`},
		{Draft03, two, `
Ratelimit-Limit: 5, 5;w=60, 1000;w=3600
Ratelimit-Remaining: 4
Ratelimit-Reset: 12`},
		{Draft03, flight, ""},
		{Draft07, flight, ""},
		{Draft06, full, `
Ratelimit-Limit: 2
Ratelimit-Remaining: 0
Ratelimit-Reset: 1
Retry-After: 1`},
		{Draft07, known, `
Ratelimit: limit=5, remaining=4, reset=12
Ratelimit-Policy: 5;w=60
Retry-After: 1`},
		{Draft06, allow(), ""},
	} {
		h := http.Header{}
		Header(h, tt.d, Options{RateLimitFields: tt.version})
		if got, want := text(h), strings.TrimPrefix(tt.want, "\n"); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.version, got, want)
		}
	}
}

// What an independent parser of structured fields makes of draft 11, with the types that the draft wants: a String with an
// Integer q of at least 0, a w above 0, and a String qu that is registered; r and t of at least 0.
func TestDraft11IsWhatTheDraftWants(t *testing.T) {
	odd := admitted("a\"b\\c\n\xff", 1<<62, time.Nanosecond, 1<<61, 0)
	d := refuse(odd, bucket(5, time.Minute, 4, 12*time.Second), places(9, limit.Verdict{Allowed: true, Remaining: 3}),
		refused("no", 1, time.Hour, limit.ReasonRate, time.Minute), admitted("ever", 7, 0, 7, limit.Never))
	h := http.Header{}
	Header(h, d, Options{RateLimitFields: Draft11})
	for field, wanted := range map[string][]string{"Ratelimit": {"r", "t", "pk"}, "Ratelimit-Policy": {"q", "w", "qu", "pk"}} {
		list, err := httpsfv.UnmarshalList(h[field])
		if err != nil || len(list) != len(d.Results) {
			t.Fatalf("%s: %v in %q", field, err, h[field])
		}
		for _, m := range list {
			item := m.(httpsfv.Item)
			if _, ok := item.Value.(string); !ok {
				t.Errorf("%s: %v is no String", field, item.Value)
			}
			if _, ok := item.Params.Get(wanted[0]); !ok {
				t.Errorf("%s: %v lacks %s", field, item.Value, wanted[0])
			}
			for _, name := range item.Params.Names() {
				v, _ := item.Params.Get(name)
				n, number := v.(int64)
				switch {
				case !slices.Contains(wanted, name):
					t.Errorf("%s: the draft has no %s", field, name)
				case name == "qu" && v != "concurrent-requests":
					t.Errorf("%s: the unit %v", field, v)
				case name != "qu" && (!number || n < 0 || name == "w" && n == 0):
					t.Errorf("%s: %s is %v", field, name, v)
				}
			}
		}
	}
}
