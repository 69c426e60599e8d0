package rls

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store/redis"
)

// brief writes a response as "OVER: a OVER 0/3 5s, - OK" and its header fields.
func brief(resp *pb.RateLimitResponse) string {
	code := func(c pb.RateLimitResponse_Code) string { return strings.TrimSuffix(c.String(), "_LIMIT") }
	var parts []string
	for _, st := range resp.Statuses {
		text := "- " + code(st.Code)
		if l := st.CurrentLimit; l != nil {
			text = fmt.Sprintf("%s %s %d/%d", l.Name, code(st.Code), st.LimitRemaining, l.RequestsPerUnit)
		} else if st.LimitRemaining != 0 {
			text += fmt.Sprintf(" %d", st.LimitRemaining)
		}
		if st.DurationUntilReset != nil {
			text += fmt.Sprintf(" %v", st.DurationUntilReset.AsDuration())
		}
		parts = append(parts, text)
	}
	out := code(resp.OverallCode) + ": " + strings.Join(parts, ", ")
	for _, h := range resp.ResponseHeadersToAdd {
		out += " " + h.Key + "=" + h.Value
	}
	return out
}

// sentence is one request and what it is answered.
type sentence struct {
	wait time.Duration
	req  *pb.RateLimitRequest
	want string
}

func converse(t *testing.T, opts Options, file string, talk ...sentence) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newServiceOf(t, opts, file)
		for i, c := range talk {
			time.Sleep(c.wait)
			if got := brief(s.must(t, c.req)); got != c.want {
				t.Errorf("request %d: got  %s\nwant %s", i+1, got, c.want)
			}
		}
	})
}

// The clock of a bubble begins at midnight.

// The tightest of a descriptor's limits speaks for it: a refusal before an admission,
// of refusals the one with the longest wait, else the one with the least left.
func TestTheTightestSpeaks(t *testing.T) {
	converse(t, Options{Headers: true}, `
limits:
  - {name: wide, key: [ip], rate: 10/hour, algorithm: fixed_window}
  - {name: narrow, key: [ip], rate: 3/minute, algorithm: fixed_window}
  - {name: trial, key: [ip], rate: 1/day, algorithm: fixed_window, shadow: true}
  - {name: path, key: [path], rate: 3/hour, algorithm: fixed_window}
`,
		sentence{0, asking(describing("ip=a")), "OK: narrow OK 2/3 1m0s RateLimit-Limit=3 RateLimit-Remaining=2 RateLimit-Reset=60"},
		sentence{15 * time.Second, asking(describing("ip=a")), "OK: narrow OK 1/3 45s RateLimit-Limit=3 RateLimit-Remaining=1 RateLimit-Reset=45"},
		sentence{500 * time.Millisecond, asking(describing("ip=a")), "OK: narrow OK 0/3 45s RateLimit-Limit=3 RateLimit-Remaining=0 RateLimit-Reset=45"},
		sentence{0, asking(describing("ip=a")), "OVER: narrow OVER 0/3 45s Retry-After=45 RateLimit-Limit=3 RateLimit-Remaining=0 RateLimit-Reset=45"},
		// What one limit refuses the others do not count.
		sentence{time.Minute, asking(describing("ip=a", "path=x")), "OK: narrow OK 2/3 45s RateLimit-Limit=3 RateLimit-Remaining=2 RateLimit-Reset=45"},
		sentence{0, asking(describing("path=x"), describing("path=x")), "OK: path OK 1/3 58m45s, path OK 1/3 58m45s RateLimit-Limit=3 RateLimit-Remaining=1 RateLimit-Reset=3525"},
		sentence{0, asking(describing("path=x"), describing("ip=a", "path=x")), "OK: path OK 0/3 58m45s, path OK 0/3 58m45s RateLimit-Limit=3 RateLimit-Remaining=0 RateLimit-Reset=3525"},
		// Of two refusals the one with the longer wait.
		sentence{0, asking(describing("ip=a")), "OK: narrow OK 0/3 45s RateLimit-Limit=3 RateLimit-Remaining=0 RateLimit-Reset=45"},
		sentence{0, asking(describing("path=x", "ip=a")), "OVER: path OVER 0/3 58m45s Retry-After=3525 RateLimit-Limit=3 RateLimit-Remaining=0 RateLimit-Reset=3525"},
		// A descriptor that fits keeps its status beside one that does not.
		sentence{0, asking(describing("ip=b"), describing("path=x"), describing("x=y")), "OVER: narrow OK 3/3 45s, path OVER 0/3 58m45s, - OK Retry-After=3525 RateLimit-Limit=3 RateLimit-Remaining=0 RateLimit-Reset=3525"},
	)
}

// A rule of Envoy's in shadow speaks where there is no other; a shadow in stint's own
// format never.
func TestShadowsSpeakLast(t *testing.T) {
	const rule = "domain: edge\ndescriptors: [{key: k, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1, name: rule}}]\n"
	converse(t, Options{}, rule,
		sentence{0, asking(describing("k=v")), "OK: rule OK 0/1 1h0m0s"},
		sentence{0, asking(describing("k=v")), "OK: rule OK 0/1 1h0m0s"},
	)
	converse(t, Options{}, "limits:\n  - {name: trial, key: [k], rate: 1/hour, shadow: true}\n",
		sentence{0, asking(describing("k=v")), "OK: - OK"},
		sentence{0, asking(describing("k=v")), "OK: - OK"},
	)
	converse(t, Options{}, "limits:\n  - {name: own, key: [k], rate: 1/hour, algorithm: fixed_window}\n  - {name: free, key: [x], unlimited: true}\n",
		sentence{0, asking(describing("k=v", "x=y")), "OK: own OK 0/1 1h0m0s"},
		sentence{0, asking(describing("x=y")), "OK: - OK 4294967295"},
		sentence{0, asking(describing("z=y")), "OK: - OK"},
	)
}

// A window that is empty ends when Envoy's service says it does; a bucket that is full
// has nothing to wait for; places in flight come free when nobody knows.
func TestUntilReset(t *testing.T) {
	peek := func(d *ratelimitv3.RateLimitDescriptor) *ratelimitv3.RateLimitDescriptor {
		d.HitsAddend = wrapperspb.UInt64(0)
		return d
	}
	converse(t, Options{}, "domain: edge\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 2}}]\n",
		sentence{0, asking(peek(describing("k=v"))), "OK:  OK 2/2 1h0m0s"},
		sentence{100 * time.Second, asking(peek(describing("k=v"))), "OK:  OK 2/2 58m20s"},
		sentence{time.Millisecond, asking(describing("k=v"), peek(describing("k=w"))), "OK:  OK 1/2 58m20s,  OK 2/2 58m20s"},
	)
	converse(t, Options{Headers: true}, `
limits:
  - {name: bucket, key: [b], rate: 60/minute, burst: 5}
  - {name: places, key: [p], algorithm: concurrency, max_in_flight: 2}
  - {name: first, key: [f], rate: 5/minute, algorithm: fixed_window, align: first_hit}
`,
		sentence{0, asking(peek(describing("b=v"))), "OK: bucket OK 5/60 0s RateLimit-Limit=60 RateLimit-Remaining=5 RateLimit-Reset=0"},
		sentence{0, asking(describing("b=v")), "OK: bucket OK 4/60 1s RateLimit-Limit=60 RateLimit-Remaining=4 RateLimit-Reset=1"},
		sentence{0, asking(describing("b=v")), "OK: bucket OK 3/60 2s RateLimit-Limit=60 RateLimit-Remaining=3 RateLimit-Reset=2"},
		sentence{0, asking(describing("p=v")), "OK: places OK 1/2 RateLimit-Limit=2 RateLimit-Remaining=1 RateLimit-Reset=0"},
		sentence{0, asking(peek(describing("f=v"))), "OK: first OK 5/5 0s RateLimit-Limit=5 RateLimit-Remaining=5 RateLimit-Reset=0"},
		sentence{0, asking(describing("p=v")), "OK: places OK 0/2 RateLimit-Limit=2 RateLimit-Remaining=0 RateLimit-Reset=0"},
		sentence{0, asking(describing("p=v")), "OVER: places OVER 0/2 Retry-After=1 RateLimit-Limit=2 RateLimit-Remaining=0 RateLimit-Reset=0"},
	)
}

// Retry-After is a whole number of seconds, at least one, never early.
func TestRetryAfterIsNeverEarly(t *testing.T) {
	converse(t, Options{}, "limits:\n  - {name: fast, key: [k], rate: 10/s, burst: 1}\n  - {name: slow, key: [s], rate: 2/3s, burst: 1}\n",
		sentence{0, asking(describing("k=v")), "OK: fast OK 0/10 1s"},
		sentence{0, asking(describing("k=v")), "OVER: fast OVER 0/10 1s Retry-After=1"},
		sentence{0, asking(describing("s=v")), "OK: slow OK 0/2 2s"},
		sentence{0, asking(describing("s=v")), "OVER: slow OVER 0/2 2s Retry-After=2"},
		sentence{500 * time.Millisecond, asking(describing("s=v")), "OVER: slow OVER 0/2 1s Retry-After=1"},
	)
}

// A client that waits for what a refusal says, in the header field or in the metadata, is not refused again; and neither
// says a second more than that.
func TestWhoWaitsIsAdmitted(t *testing.T) {
	for seed := range seeding.Draw(t, 30) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			algorithm := pickOf(r, "token_bucket", "fixed_window", "sliding_window_counter", "sliding_window_log")
			s := newServiceOf(t, Options{}, fmt.Sprintf("limits: [{name: l, key: [k], rate: %d/%ds, algorithm: %s}]\n", 1+r.IntN(4), 1+r.IntN(20), algorithm))
			for range 40 {
				time.Sleep(time.Duration(r.Int64N(int64(3 * time.Second))))
				resp := s.must(t, asking(describing("k=v")))
				if resp.OverallCode == pb.RateLimitResponse_OK {
					continue
				}
				var exact time.Duration
				q := engine.Query{Domain: "edge", Descriptors: []engine.Descriptor{{Attributes: []limit.Attribute{{Name: "k", Value: "v"}}, Cost: 1}}, Peek: true}
				if err := s.engine.Decide(t.Context(), &q); err != nil {
					t.Fatal(err)
				}
				exact = q.Decision.RetryAfter()
				field := ""
				for _, h := range resp.ResponseHeadersToAdd {
					if h.Key == headerRetryAfter {
						field = h.Value
					}
				}
				told := resp.DynamicMetadata.AsMap()["stint"].(map[string]any)["retry_after"].(float64)
				wait := time.Duration(told) * time.Second
				if field != fmt.Sprint(told) || wait < exact || wait >= exact+time.Second {
					t.Fatalf("seed %d, %s: Retry-After is %q and the metadata says %v, want %v, rounded up", seed, algorithm, field, told, exact)
				}
				time.Sleep(wait)
				if resp = s.must(t, asking(describing("k=v"))); resp.OverallCode != pb.RateLimitResponse_OK {
					t.Fatalf("seed %d, %s: refused again after %v: %v", seed, algorithm, wait, resp)
				}
			}
		})
	}
}

func about(resp *pb.RateLimitResponse) string {
	if resp.DynamicMetadata == nil {
		return ""
	}
	return fmt.Sprint(resp.DynamicMetadata.AsMap())
}

// The metadata names each limit that refused, would have refused or warns, once, and
// how long to hold a request back; an ordinary admission has none.
func TestMetadataNamesLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServiceOf(t, Options{}, `
limits:
  - {name: hard, key: [k], rate: 3/hour, algorithm: fixed_window}
  - {name: other, key: [k], rate: 3/day, algorithm: fixed_window}
  - {name: trial, key: [k], rate: 1/hour, shadow: true, algorithm: fixed_window}
  - {name: warns, key: [k], rate: 10/hour, soft: 20%, algorithm: fixed_window}
  - {name: paced, key: [p], rate: 4/s, burst: 3, algorithm: leaky_bucket}
  - {name: never, key: [n], rate: 3/hour}
`)
		ask := func(want string, ds ...*ratelimitv3.RateLimitDescriptor) {
			t.Helper()
			if got := about(s.must(t, asking(ds...))); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		}
		ask("", describing("k=v"))
		ask("map[stint:map[shadow:[trial]]]", describing("k=v"))
		ask("map[stint:map[shadow:[trial] soft:[warns]]]", describing("k=v"))
		ask("map[stint:map[limits:[hard other] reason:rate_exceeded retry_after:86400 shadow:[trial]]]", describing("k=v"))
		ask("map[stint:map[limits:[hard other] reason:rate_exceeded retry_after:86400 shadow:[trial]]]", describing("k=v"), describing("k=v", "p=x"), describing("k=v", "p=y"))
		ask("", describing("p=v"))
		ask("map[stint:map[delay:0.25]]", describing("p=v"))
		tooMuch := describing("n=v")
		tooMuch.HitsAddend = wrapperspb.UInt64(4)
		ask("map[stint:map[limits:[never] reason:cost_exceeds_limit]]", tooMuch)
		// The same limit twice, by two keys, is named once.
		ask("", describing("n=a"))
		four := func(v string) *ratelimitv3.RateLimitDescriptor {
			d := describing("n=" + v)
			d.HitsAddend = wrapperspb.UInt64(4)
			return d
		}
		ask("map[stint:map[limits:[never] reason:cost_exceeds_limit]]", four("a"), four("b"))
	})
}

// A quota that is over in a request that passes is named, and no reason is, as nothing
// is refused.
func TestMetadataOfAQuotaThatIsOver(t *testing.T) {
	s := newServiceOf(t, Options{}, "domain: edge\ndescriptors: [{key: q, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}, {key: r, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}]\n")
	if got := about(s.must(t, asking(describing("q=v"), describing("r=v")))); got != "map[stint:map[limits:[edge.q]]]" {
		t.Errorf("got %s", got)
	}
	if got := about(s.must(t, asking(describing("q=v")))); got != "map[stint:map[limits:[edge.q] reason:cost_exceeds_limit]]" {
		t.Errorf("got %s", got)
	}
}

// Negative hits give back, to rules and to limits in stint's own format.
func TestNegativeHits(t *testing.T) {
	back := describing("k=v")
	back.IsNegativeHits, back.HitsAddend = true, wrapperspb.UInt64(3)
	for _, file := range []string{
		"domain: edge\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 5, name: l}}]\n",
		"limits:\n  - {name: l, key: [k], rate: 5/hour, algorithm: fixed_window}\n",
	} {
		converse(t, Options{}, file,
			sentence{0, asking(describing("k=v")), "OK: l OK 4/5 1h0m0s"},
			sentence{0, &pb.RateLimitRequest{Domain: "edge", HitsAddend: 3, Descriptors: asking(describing("k=v")).Descriptors}, "OK: l OK 1/5 1h0m0s"},
			sentence{0, asking(back), "OK: l OK 4/5 1h0m0s"},
			sentence{0, asking(back), "OK: l OK 5/5 1h0m0s"},
		)
	}
}

// While the store does not answer a status has a code and no figures, and the
// metadata says so.
func TestWithoutTheStore(t *testing.T) {
	o, err := redis.ParseURL("redis://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	st, err := redis.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	s := newServiceOn(t, st, Options{Headers: true}, `
limits:
  - {name: open, key: [k], rate: 3/hour, on_store_failure: allow}
  - {name: closed, key: [c], rate: 3/hour, on_store_failure: reject}
  - {name: free, key: [u], unlimited: true}
`)
	resp := s.must(t, asking(describing("k=v"), describing("u=v")))
	if got := brief(resp); got != "OK: - OK, - OK 4294967295" || about(resp) != "map[stint:map[store_failed:[open]]]" {
		t.Errorf("%s, %s", got, about(resp))
	}
	resp = s.must(t, asking(describing("k=v", "c=v"), describing("x=y")))
	if got := brief(resp); got != "OVER: - OVER, - OK Retry-After=1" || about(resp) != "map[stint:map[limits:[closed] reason:store_failure retry_after:1 store_failed:[open closed]]]" {
		t.Errorf("%s, %s", got, about(resp))
	}
}

// tighter orders what limits say; the order is strict.
func TestTighter(t *testing.T) {
	ordered := []limit.Result{
		{Verdict: limit.Verdict{RetryAfter: limit.Never}},
		{Verdict: limit.Verdict{RetryAfter: 2}},
		{Verdict: limit.Verdict{RetryAfter: 1}},
		{StoreFailed: true, Verdict: limit.Verdict{RetryAfter: 3}},
		{Verdict: limit.Verdict{Allowed: true}},
		{Verdict: limit.Verdict{Allowed: true, Remaining: 5}},
		{StoreFailed: true, Verdict: limit.Verdict{Allowed: true}},
		{Shadow: true, Verdict: limit.Verdict{RetryAfter: limit.Never}},
		{Shadow: true, Verdict: limit.Verdict{Allowed: true}},
	}
	for i := range ordered {
		for j := range ordered {
			if got := tighter(&ordered[i], &ordered[j]); got != (i < j) {
				t.Errorf("%+v before %+v: %v", ordered[i], ordered[j], got)
			}
		}
	}
}

// The three header fields have the names that are chosen, and speak of what refuses by
// itself before what is only tight.
func TestHeaderNames(t *testing.T) {
	const file = `
domain: edge
descriptors:
  - {key: q, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: r, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 9}}
  - {key: k, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: o, rate_limit: {unit: day, requests_per_unit: 0}}
`
	names := Options{Headers: true, LimitHeader: "L", RemainingHeader: "M", ResetHeader: "R"}
	converse(t, names, file,
		sentence{0, asking(describing("k=v"), describing("q=v"), describing("r=v")), "OK:  OK 0/1 1h0m0s,  OVER 0/0 1h0m0s,  OK 8/9 1h0m0s L=1 M=0 R=3600"},
		sentence{0, asking(describing("r=v"), describing("q=v")), "OK:  OK 7/9 1h0m0s,  OVER 0/0 1h0m0s L=0 M=0 R=3600"},
		sentence{0, asking(describing("o=v"), describing("q=v"), describing("k=w")), "OVER:  OVER 0/0 24h0m0s,  OVER 0/0 1h0m0s,  OK 0/1 1h0m0s L=0 M=0 R=86400"},
		sentence{0, asking(describing("k=v"), describing("o=v")), "OVER:  OVER 0/1 1h0m0s,  OVER 0/0 24h0m0s L=0 M=0 R=86400"},
		sentence{0, asking(describing("o=v"), describing("k=v")), "OVER:  OVER 0/0 24h0m0s,  OVER 0/1 1h0m0s L=1 M=0 R=3600"},
		sentence{0, asking(describing("z=v")), "OK: - OK"},
	)
	// A limit that several descriptors share speaks where the last of them stands.
	converse(t, names, "limits:\n  - {name: a, key: [k], rate: 0/hour, algorithm: fixed_window}\n  - {name: b, key: [o], rate: 0/day, algorithm: fixed_window}\n",
		sentence{0, asking(describing("k=v"), describing("o=v")), "OVER: a OVER 0/0 1h0m0s, b OVER 0/0 24h0m0s L=0 M=0 R=86400"},
		sentence{0, asking(describing("k=v"), describing("o=v"), describing("k=v")), "OVER: a OVER 0/0 1h0m0s, b OVER 0/0 24h0m0s, a OVER 0/0 1h0m0s L=0 M=0 R=3600"},
	)
}

// Where the overall code is OK whatever the limits say, the statuses and the metadata
// say it, and the answer asks nobody to wait.
func TestShadowForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServiceOf(t, Options{Shadow: true}, "limits:\n  - {name: own, key: [k], rate: 1/hour, algorithm: fixed_window}\n")
		for i, want := range []string{"OK: own OK 0/1 1h0m0s", "OK: own OVER 0/1 1h0m0s"} {
			resp := s.must(t, asking(describing("k=v")))
			if got := brief(resp); got != want {
				t.Errorf("request %d: %s, want %s", i, got, want)
			}
			if text := about(resp); i == 1 && text != "map[stint:map[limits:[own] reason:rate_exceeded retry_after:3600]]" {
				t.Errorf("metadata %s", text)
			}
		}
		if n := s.Counts(); n.OK.Load() != 2 || n.Shadowed.Load() != 1 || n.OverLimit.Load() != 0 {
			t.Errorf("counted %d OK, %d of them shadowed, %d over", n.OK.Load(), n.Shadowed.Load(), n.OverLimit.Load())
		}
	})
}

// The dynamic metadata has the form of Envoy's service, a limit that came with a
// request among it.
func TestMetadataInEnvoysForm(t *testing.T) {
	s := newServiceOf(t, Options{Metadata: true}, "domain: edge\ndescriptors: [{key: k, metadata: {team: {a: 1, b: [x]}}, rate_limit: {unit: hour, requests_per_unit: 5}}, {key: k, value: w, metadata: {team: {a: 2, c: 3}}, rate_limit: {unit: hour, requests_per_unit: 5}}]\n")
	d := describing("k=v", "x=")
	d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: 2, UnitMultiplier: wrapperspb.UInt32(3)}
	zero := describing("k=v")
	zero.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{Unit: 3}
	zero.HitsAddend = wrapperspb.UInt64(0)
	req := asking(d, zero, describing("k=v"), describing("k=w"))
	req.HitsAddend = 2
	want := "map[descriptors:[map[entries:[k=v x=] limit:requests_per_unit:5 unit:MINUTE unit_multiplier:{value:3}] map[entries:[k=v] hitsAddend:0 limit:unit:HOUR] map[entries:[k=v]] map[entries:[k=w]]] domain:edge hitsAddend:2 metadata:map[team:map[a:1 b:[x] c:3]]]"
	if got := about(s.must(t, req)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := about(s.must(t, asking(describing("z=v")))); got != "map[descriptors:[map[entries:[z=v]]] domain:edge]" {
		t.Errorf("got %s", got)
	}
}

func TestNames(t *testing.T) {
	for d, want := range map[time.Duration]string{time.Second: "SECOND", time.Minute: "MINUTE", time.Hour: "HOUR", 24 * time.Hour: "DAY", 168 * time.Hour: "WEEK", 720 * time.Hour: "MONTH", 8760 * time.Hour: "YEAR", 0: "UNKNOWN", 2 * time.Hour: "UNKNOWN"} {
		if got := UnitName(d); got != want {
			t.Errorf("%v is called %s, want %s", d, got, want)
		}
	}
	for n, want := range map[int64]uint32{-1: 0, 0: 0, math.MaxUint32: math.MaxUint32, math.MaxUint32 + 1: math.MaxUint32, 7: 7} {
		if got := clamp(n); got != want {
			t.Errorf("%d becomes %d, want %d", n, got, want)
		}
	}
	for d, want := range map[time.Duration]int64{0: 0, 1: 1, time.Second: 1, time.Second + 1: 2} {
		if got := ceilSeconds(d); got != want {
			t.Errorf("%v is %d s, want %d", d, got, want)
		}
	}
}
