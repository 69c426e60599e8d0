package rest_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
)

// randomLimit writes one limit of any algorithm.
func randomLimit(r *rand.Rand) string {
	algorithm := []string{"token_bucket", "leaky_bucket", "fixed_window", "sliding_window_counter", "sliding_window_log"}[r.IntN(5)]
	period := []string{"s", "minute", "hour", strconv.Itoa(1+r.IntN(90)) + "s", strconv.Itoa(1+r.IntN(5000)) + "ms"}[r.IntN(5)]
	text := fmt.Sprintf("rate: %d/%s, algorithm: %s", 1+r.IntN(30), period, algorithm)
	if strings.HasSuffix(algorithm, "bucket") && r.IntN(3) > 0 {
		text += fmt.Sprintf(", burst: %d", 1+r.IntN(40))
	}
	return "limits:\n  - {name: a, " + text + "}\n"
}

// member reads the parameters of the one member of a list field.
func member(t *testing.T, h http.Header, name string) map[string]int64 {
	t.Helper()
	list, err := httpsfv.UnmarshalList(h[http.CanonicalHeaderKey(name)])
	if err != nil || len(list) != 1 {
		t.Fatalf("%s: %q: %v", name, h[http.CanonicalHeaderKey(name)], err)
	}
	item := list[0].(httpsfv.Item)
	out := map[string]int64{}
	for _, p := range item.Params.Names() {
		v, _ := item.Params.Get(p)
		out[p] = v.(int64)
	}
	return out
}

// up returns d in whole seconds, rounded up, at least 1: what Retry-After says.
func up(d time.Duration) int64 { return max(1, int64((d+time.Second-1)/time.Second)) }

// All figures of one answer come from one state, and the next answer finds it so:
// whatever the algorithm, the policy and the times. What remains is one number in the
// body and in the fields; it falls by the cost, and waiting raises it. Who waits for
// Retry-After is admitted when nobody else takes, and who waits for less than
// retry_after is not. When nothing remains nobody is admitted before t has been named
// as the time until there is more, and whoever waits for it is.
func TestFiguresAgree(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	refusals, exhausted := 0, 0
	first := rand.Uint64()
	t.Logf("first seed %d", first)
	for n := range uint64(200) {
		seed := first + n
		r := rand.New(rand.NewPCG(seed, 0xa6ee))
		yaml := randomLimit(r)
		s := newService(t, yaml)
		fail := func(format string, args ...any) {
			t.Helper()
			t.Fatalf("seed %d: %s\n%s", seed, fmt.Sprintf(format, args...), yaml)
		}
		ask := func(path string, cost int64) answerJSON {
			return s.call(path, fmt.Sprintf(`{"cost":%d}`, cost))
		}
		for range 30 {
			s.advance(time.Duration(r.Int64N(int64(2 * time.Second))))
			cost := 1 + r.Int64N(4)
			before := ask("/v1/explain", cost)
			was := before.Limits[0]
			a := ask("/v1/take", cost)
			now := ask("/v1/explain", cost).Limits[0]
			fields := member(t, a.header, "RateLimit")
			if (a.code == 200) != before.Allowed {
				fail("explain said %v, take answered %d", before.Allowed, a.code)
			}
			if fields["r"] != now.Remaining || a.header.Get("X-RateLimit-Remaining") != itoa(now.Remaining) {
				fail("%d remain, r is %d, X-RateLimit-Remaining %s", now.Remaining, fields["r"], a.header.Get("X-RateLimit-Remaining"))
			}
			if policy := member(t, a.header, "RateLimit-Policy"); policy["q"] != now.Quota || policy["w"] != up(seconds(t, now.Window)) {
				fail("the policy is %v, quota %d in %v s", policy, now.Quota, now.Window)
			}
			if last, ok := fields["t"]; ok && fields["r"]*int64(seconds(t, now.Window)) > last*int64(time.Second)*now.Quota {
				fail("r=%d;t=%d promises more than %d in %v s", fields["r"], last, now.Quota, now.Window)
			}
			if a.code == 200 {
				got := a.Limits[0]
				if got.Remaining != was.Remaining-cost || got.Remaining != now.Remaining || got.Cost != cost {
					fail("%d remained, %d were taken, %d remain, then %d", was.Remaining, cost, got.Remaining, now.Remaining)
				}
				reset := seconds(t, *got.ResetAfter)
				if x := a.header.Get("X-RateLimit-Reset"); x != itoa(int64((reset+time.Second-1)/time.Second)) {
					fail("reset_after is %v, X-RateLimit-Reset %s", reset, x)
				}
				if got.Remaining == 0 {
					exhausted++
					checkExhausted(t, s, fields, reset, fail)
				}
				continue
			}
			refusals++
			if a.Detail == "" || a.Violated[0] != "a" {
				fail("%+v", a)
			}
			checkRefusal(t, s, cost, a, now, fields, fail)
		}
	}
	if refusals < 300 || exhausted < 50 {
		t.Fatalf("%d refusals, %d emptied: the histories try nothing", refusals, exhausted)
	}
}

// checkExhausted looks at the answer that left nothing: t is what the next refusal
// says, or, where the state does not tell, later.
func checkExhausted(t *testing.T, s *service, fields map[string]int64, reset time.Duration, fail func(string, ...any)) {
	t.Helper()
	next := s.call("/v1/take", `{}`)
	if next.code != 429 {
		fail("nothing remained, and the next is answered %d", next.code)
	}
	retry, _ := strconv.ParseInt(next.header.Get("Retry-After"), 10, 64)
	switch {
	case fields["t"] < retry:
		fail("r=0;t=%d, then Retry-After %d", fields["t"], retry)
	case fields["t"] > up(reset):
		fail("r=0;t=%d, but all is there again in %v", fields["t"], reset)
	case strings.Contains(s.call("/v1/explain", `{}`).Limits[0].Algorithm, "bucket") && fields["t"] != retry:
		fail("r=0;t=%d, then Retry-After %d", fields["t"], retry)
	}
}

// checkRefusal looks at a refusal, and at what comes after the wait that it names.
func checkRefusal(t *testing.T, s *service, cost int64, a answerJSON, now limitJSON, fields map[string]int64, fail func(string, ...any)) {
	t.Helper()
	retry := a.header.Get("Retry-After")
	if now.RetryAfter == nil {
		if retry != "" || a.RetryAfter != nil || a.Reason != "cost_exceeds_limit" {
			fail("no wait helps, and Retry-After is %q, %+v", retry, a)
		}
		return
	}
	wait := seconds(t, *now.RetryAfter)
	if retry != itoa(up(wait)) || *a.RetryAfter != *now.RetryAfter || a.header.Get("X-RateLimit-Retry-After") != retry {
		fail("retry_after is %v, Retry-After %s, in the document %v", wait, retry, a.RetryAfter)
	}
	if last, ok := fields["t"]; ok && itoa(last) != retry || !ok && fields["r"] == 0 {
		fail("Retry-After is %s, t %d (%v), r %d", retry, last, ok, fields["r"])
	}
	body := fmt.Sprintf(`{"cost":%d}`, cost)
	start := s.now.Load()
	s.advance(wait - 1)
	if s.call("/v1/explain", body).Allowed {
		fail("cost %d is admitted before retry_after, %v, is over", cost, wait)
	}
	s.now.Store(start + up(wait)*int64(time.Second))
	if !s.call("/v1/explain", body).Allowed {
		fail("cost %d is refused after Retry-After, %s s", cost, retry)
	}
	s.now.Store(start + int64(wait))
	if !s.call("/v1/explain", body).Allowed {
		fail("cost %d is refused after retry_after, %v", cost, wait)
	}
	s.now.Store(start)
}
