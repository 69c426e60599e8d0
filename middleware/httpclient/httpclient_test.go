package httpclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/outgoing"
)

// backend is a transport that answers what a function says, and keeps what it was sent and when.
type backend struct {
	answer func(n int, req *http.Request) (*http.Response, error) // n from 1
	seen   []seen
	began  time.Time
}

type seen struct {
	after       time.Duration
	body        string
	criticality string
}

func (b *backend) RoundTrip(req *http.Request) (*http.Response, error) {
	if b.began.IsZero() {
		b.began = time.Now()
	}
	s := seen{after: time.Since(b.began), criticality: req.Header.Get("x-criticality")}
	if req.Body != nil {
		text, _ := io.ReadAll(req.Body)
		s.body = string(text)
		_ = req.Body.Close()
	}
	b.seen = append(b.seen, s)
	return b.answer(len(b.seen), req)
}

func respond(status int, fields ...string) *http.Response {
	resp := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("body"))}
	for i := 0; i < len(fields); i += 2 {
		resp.Header.Set(fields[i], fields[i+1])
	}
	return resp
}

// always answers the same.
func always(status int, fields ...string) *backend {
	return &backend{answer: func(int, *http.Request) (*http.Response, error) { return respond(status, fields...), nil }}
}

func transport(t testing.TB, next http.RoundTripper, p Policy, opts ...Option) *Transport {
	t.Helper()
	tr, err := New(next, p, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func get(t testing.TB, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// heldBack holds that a request is not sent, for a cause.
func heldBack(t testing.TB, tr *Transport, req *http.Request, cause outgoing.Cause) *Refusal {
	t.Helper()
	resp, err := tr.RoundTrip(req)
	var r *Refusal
	if !errors.As(err, &r) || r.Cause != cause {
		t.Fatalf("%v, %v, want a refusal: %v", resp, err, cause)
	}
	return r
}

func sent(t testing.TB, tr *Transport, req *http.Request, status int) {
	t.Helper()
	resp, err := tr.RoundTrip(req)
	if err != nil || resp.StatusCode != status {
		t.Fatalf("%v, %v, want status %d", resp, err, status)
	}
	_ = resp.Body.Close()
}

// retries is a policy whose first requests may be tried again.
var retries = Policy{Retry: outgoing.Retry{Reserve: 10}}

// TestRetryAfterGoesFirst: the server's time is waited for, and not one of our own that is shorter.
func TestRetryAfterGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{answer: func(n int, _ *http.Request) (*http.Response, error) {
			if n < 3 {
				return respond(503, "Retry-After", "2"), nil
			}
			return respond(200), nil
		}}
		tr := transport(t, b, retries)
		sent(t, tr, get(t, "http://a/"), 200)
		for i, s := range b.seen {
			if from := time.Duration(i) * 2 * time.Second; s.after < from || s.after > from+time.Duration(i)*100*time.Millisecond {
				t.Errorf("attempt %d after %v, want %v and at most 100ms for each more", i+1, s.after, from)
			}
		}
		if s := tr.Stats(); s.Sent != 3 || s.Retries != 2 || s.Accepted != 1 || s.Refused != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// TestBackoff: without a time of the server's the retries come within 100ms and 200ms more.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := always(503)
		sent(t, transport(t, b, retries), get(t, "http://a/"), 503)
		if len(b.seen) != 3 || b.seen[1].after > 100*time.Millisecond || b.seen[2].after-b.seen[1].after > 200*time.Millisecond {
			t.Errorf("%+v, want 3 attempts with full jitter", b.seen)
		}
	})
}

// TestWhatIsTriedAgain: only what can be sent twice, and only with its body.
func TestWhatIsTriedAgain(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for _, tt := range []struct {
		name, method string
		body         io.Reader
		key          bool // an Idempotency-Key
		err          error
		want         int // attempts
	}{
		{"GET", "GET", nil, false, nil, 3},
		{"POST", "POST", strings.NewReader("x"), false, nil, 1},
		{"POST with a key", "POST", strings.NewReader("x"), true, nil, 3},
		{"PUT", "PUT", strings.NewReader("x"), false, nil, 3},
		{"PUT whose body is gone", "PUT", io.MultiReader(strings.NewReader("x")), false, nil, 1},
		{"POST without connection", "POST", strings.NewReader("x"), false, dial, 3},
		{"POST on a connection that broke", "POST", strings.NewReader("x"), false, io.ErrUnexpectedEOF, 1},
		{"GET on a connection that broke", "GET", nil, false, io.ErrUnexpectedEOF, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &backend{answer: func(int, *http.Request) (*http.Response, error) {
					if tt.err != nil {
						return nil, tt.err
					}
					return respond(503), nil
				}}
				req, err := http.NewRequestWithContext(t.Context(), tt.method, "http://a/", tt.body)
				if err != nil {
					t.Fatal(err)
				}
				if tt.key {
					req.Header.Set("Idempotency-Key", "7")
				}
				resp, err := transport(t, b, retries).RoundTrip(req)
				if err == nil {
					_ = resp.Body.Close()
				}
				if len(b.seen) != tt.want || !errors.Is(err, tt.err) {
					t.Errorf("%d attempts, %v, want %d", len(b.seen), err, tt.want)
				}
				for _, s := range b.seen {
					if tt.body != nil && s.body != "x" {
						t.Errorf("the body is %q, want the same each time", s.body)
					}
				}
			})
		})
	}
}

// TestNeverAfterTheDeadline: a retry that would come too late is not waited for.
func TestNeverAfterTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, after := range []string{"5", "3600", "1000000000000"} {
			b := always(503, "Retry-After", after)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			began := time.Now()
			sent(t, transport(t, b, retries), get(t, "http://a/").WithContext(ctx), 503)
			if len(b.seen) != 1 || time.Since(began) > 0 {
				t.Errorf("Retry-After %s: %d attempts in %v, want one", after, len(b.seen), time.Since(began))
			}
		}
	})
}

// TestHeld: what the server said is obeyed by all requests to it, and by none to others.
func TestHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := always(429, "Retry-After", "1000000000000")
		tr := transport(t, b, Policy{Retry: outgoing.Retry{Attempts: 1}})
		sent(t, tr, get(t, "http://a/x"), 429)
		r := heldBack(t, tr, get(t, "http://A/y"), outgoing.Held)
		if r.RetryAfter() != 10*time.Minute || r.Host != "a" {
			t.Errorf("%v after %v, want 10m, the longest", r, r.RetryAfter())
		}
		if want := `outgoing: not sent to "a": the server asked to wait ("retry-after"); retry after 10m0s`; r.Error() != want {
			t.Errorf("the error is %q, want %q", r, want)
		}
		sent(t, tr, get(t, "http://b/x"), 429)
		time.Sleep(r.RetryAfter())
		sent(t, tr, get(t, "http://a/y"), 429)
		if len(b.seen) != 3 {
			t.Errorf("%d were sent, want 3", len(b.seen))
		}
	})
}

// TestHeldByPolicy: a policy with nothing remaining holds back the requests that it was seen with.
func TestHeldByPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{answer: func(_ int, req *http.Request) (*http.Response, error) {
			if strings.HasPrefix(req.URL.Path, "/v1/logins") {
				return respond(200, "RateLimit", `"logins";r=0;t=30`), nil
			}
			return respond(200, "RateLimit", `"all";r=99;t=1`), nil
		}}
		tr := transport(t, b, Policy{})
		sent(t, tr, get(t, "http://a/v1/logins/7"), 200)
		if r := heldBack(t, tr, get(t, "http://a/v1/logins/8?x=y"), outgoing.Held); r.Decision.Refused().Limit != "logins" {
			t.Errorf("%+v, want the policy's name", r.Decision)
		}
		sent(t, tr, get(t, "http://a/v1/users/8"), 200)
		time.Sleep(30 * time.Second)
		sent(t, tr, get(t, "http://a/v1/logins/8"), 200)
		deaf := transport(t, b, Policy{Deaf: true})
		sent(t, deaf, get(t, "http://a/v1/logins/7"), 200)
		sent(t, deaf, get(t, "http://a/v1/logins/7"), 200)
	})
}

// TestWaits: a request waits for what the server asked for if it may, and not if it cannot succeed.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := always(200, "RateLimit", `"all";r=0;t=3`)
		tr := transport(t, b, Policy{MaxWait: 5 * time.Second})
		sent(t, tr, get(t, "http://a/"), 200)
		sent(t, tr, get(t, "http://a/"), 200)
		if after := b.seen[1].after; after < 3*time.Second || after > 3100*time.Millisecond {
			t.Errorf("sent after %v, want 3 s", after)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		heldBack(t, tr, get(t, "http://a/").WithContext(ctx), outgoing.Held)
		if ctx.Err() != nil {
			t.Error("it waited for its deadline")
		}
	})
}

// TestOwnLimit: a limit of one's own refuses at once, or is waited for.
func TestOwnLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := func() limit.Taker { return taker(t, limit.PerSecond(1)) }
		b := always(200)
		tr := transport(t, b, Policy{Limit: own()})
		sent(t, tr, get(t, "http://a/"), 200)
		if r := heldBack(t, tr, get(t, "http://a/"), outgoing.Limited); r.RetryAfter() != time.Second {
			t.Errorf("%v, want a second", r)
		}
		b = always(200)
		tr = transport(t, b, Policy{Limit: own(), MaxWait: 2 * time.Second})
		for range 3 {
			sent(t, tr, get(t, "http://b/"), 200)
		}
		if after := b.seen[2].after; after != 2*time.Second {
			t.Errorf("the third is sent after %v, want 2s", after)
		}
		slow := transport(t, b, Policy{Limit: taker(t, limit.PerMinute(1)), MaxWait: time.Second})
		sent(t, slow, get(t, "http://b/"), 200)
		if r := heldBack(t, slow, get(t, "http://b/"), outgoing.Limited); r.RetryAfter() != time.Minute {
			t.Errorf("%v, want a minute", r)
		}
	})
}

// TestConnectionErrorsCountForNothing: a server that was never reached is not throttled, and one
// that breaks the connection is.
func TestConnectionErrorsCountForNothing(t *testing.T) {
	for _, tt := range []struct {
		err   error
		bound int64
	}{
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, 1000},
		{&net.DNSError{Err: "no such host"}, 1000},
		{io.ErrUnexpectedEOF, 12},
	} {
		synctest.Test(t, func(t *testing.T) {
			tr := transport(t, &backend{answer: func(int, *http.Request) (*http.Response, error) { return nil, tt.err }}, Policy{Retry: outgoing.Retry{Attempts: 1}})
			for range 1000 {
				_, _ = tr.RoundTrip(get(t, "http://a/"))
			}
			if s := tr.Stats(); s.Sent > tt.bound || s.Sent < tt.bound-2 || s.Sent+s.Throttled != 1000 {
				t.Errorf("%v: %+v, want %d sent", tt.err, s, tt.bound)
			}
		})
	}
}

// TestCancelledCountsForNothing: callers that give up do not close the throttle.
func TestCancelledCountsForNothing(t *testing.T) {
	var giveUp func()
	tr := transport(t, &backend{answer: func(_ int, req *http.Request) (*http.Response, error) {
		giveUp()
		return nil, req.Context().Err()
	}}, Policy{})
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		giveUp = cancel
		if _, err := tr.RoundTrip(get(t, "http://a/").WithContext(ctx)); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if s := tr.Stats(); s.Dropped != 100 || s.Throttled != 0 {
		t.Errorf("%+v, want 100 dropped", s)
	}
}

// TestCriticality: the class goes along, the request's own field first, and the request is not
// changed.
func TestCriticality(t *testing.T) {
	b := always(200)
	tr := transport(t, b, Policy{})
	req := get(t, "http://a/")
	sent(t, tr, req, 200)
	with := req.WithContext(outgoing.WithCriticality(req.Context(), outgoing.Sheddable))
	sent(t, tr, with, 200)
	if with.Header.Get("x-criticality") != "" {
		t.Error("the request was changed")
	}
	with.Header.Set("x-criticality", "critical_plus;level=42")
	sent(t, tr, with, 200)
	if got := fmt.Sprint(b.seen[0].criticality, ",", b.seen[1].criticality, ",", b.seen[2].criticality); got != ",sheddable,critical_plus;level=42" {
		t.Errorf("the classes sent are %s", got)
	}
}

// TestSheddableFirst: a server that refuses critical requests gets no sheddable ones.
func TestSheddableFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := transport(t, always(503), Policy{Retry: outgoing.Retry{Attempts: 1}})
		for range 10 {
			sent(t, tr, get(t, "http://a/"), 503)
		}
		low := get(t, "http://a/")
		low = low.WithContext(outgoing.WithCriticality(low.Context(), outgoing.Sheddable))
		resp, err := tr.RoundTrip(low) // a probe
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		heldBack(t, tr, low, outgoing.Throttled)
		high := get(t, "http://a/")
		sent(t, tr, high.WithContext(outgoing.WithCriticality(high.Context(), outgoing.CriticalPlus)), 503)
	})
}

// TestAnswers: who wants answers in place of errors gets the one that a server would give.
func TestAnswers(t *testing.T) {
	tr := transport(t, always(429, "Retry-After", "30"), Policy{Retry: outgoing.Retry{Attempts: 1}}, WithAnswers())
	sent(t, tr, get(t, "http://a/"), 429)
	resp, err := tr.RoundTrip(get(t, "http://a/"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != 429 || resp.Status != "429 Too Many Requests" || resp.Proto != "HTTP/1.1" || resp.Header.Get("Retry-After") != "30" || resp.Header.Get("Via") == "" || int64(len(text)) != resp.ContentLength {
		t.Errorf("%+v %s", resp, text)
	}
}

func TestNoURL(t *testing.T) {
	if resp, err := transport(t, always(200), Policy{}).RoundTrip(&http.Request{}); err == nil {
		t.Errorf("%v, want an error", resp)
	}
}

func TestScope(t *testing.T) {
	for path, want := range map[string]string{
		"/": "GET /", "": "GET ", "/v1": "GET /v1", "/v1/users": "GET /v1/users", "/v1/users/7/x": "GET /v1/users", "//a/b": "GET //a",
	} {
		if got := scope(get(t, "http://a"+path)); got != want {
			t.Errorf("the scope of %q is %q, want %q", path, got, want)
		}
	}
}

func TestPolicyFaults(t *testing.T) {
	for want, p := range map[string]Policy{
		"K is 1, want 1.1 to 100":         {Throttle: outgoing.Throttle{K: 1}},
		"Attempts is 11, want 1 to 10":    {Retry: outgoing.Retry{Attempts: 11}},
		"Percent is -1, want 0 to 100":    {Retry: outgoing.Retry{Percent: -1}},
		"MaxWait is -1s, want at least 0": {MaxWait: -time.Second},
		"MaxHosts is -1":                  {MaxHosts: -1},
		"LongestHold is 1ns":              {LongestHold: 1},
		"Base is 1m0s and Longest 10s":    {Retry: outgoing.Retry{Base: time.Minute}},
		"Reserve is 1001, want 0 to 1000": {Retry: outgoing.Retry{Reserve: 1001}},
	} {
		if _, err := New(nil, p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// taker is a limit of one.
func taker(t testing.TB, r limit.Rate) limit.Taker {
	t.Helper()
	l, err := limit.NewLimiter(limit.Policy{Rate: r, Burst: 1})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestFieldsOfProviders: an attempt after a refusal comes when the server's fields say, in the forms of large services.
func TestFieldsOfProviders(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for _, fields := range [][]string{
		{"Retry-After", "3"},
		{"Retry-After", "2.939"},
		{"Retry-After", "EPOCH"},
		{"Retry-After", "1, 3"},
		{"retry-after-ms", "3000"},
		{"X-Rate-Limit-Remaining", "0", "X-Rate-Limit-Reset", "EPOCH"},
		{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "EPOCH.12"},
		{"X-RateLimit-Remaining", "-1", "X-RateLimit-Reset", "3"},
		{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset-After", "3.0", "X-RateLimit-Bucket", "b"},
		{"x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "3s", "x-ratelimit-remaining-requests", "9"},
		{"anthropic-ratelimit-requests-remaining", "0", "anthropic-ratelimit-requests-reset", "TIME"},
		{"RateLimit", `"a";r=0;t=3`},
	} {
		synctest.Test(t, func(t *testing.T) {
			<-time.After(26 * 365 * 24 * time.Hour) // from the year 2000, in which seconds since 1970 are no dates yet
			b := &backend{answer: func(n int, _ *http.Request) (*http.Response, error) {
				if n > 1 {
					return respond(200), nil
				}
				fields := slices.Clone(fields)
				for i, text := range fields {
					end := time.Now().Add(3 * time.Second)
					text = strings.ReplaceAll(text, "EPOCH", fmt.Sprint(end.Unix()))
					fields[i] = strings.ReplaceAll(text, "TIME", end.UTC().Format(time.RFC3339))
				}
				status := 429
				if fields[0] == "Retry-After" && r.IntN(2) == 0 {
					status = 403
				}
				return respond(status, fields...), nil
			}}
			tr := transport(t, b, Policy{Retry: outgoing.Retry{Reserve: 1}, MaxWait: 10 * time.Second})
			resp, err := tr.RoundTrip(get(t, "http://a/v1/x"))
			if err != nil || resp.StatusCode != 200 || len(b.seen) != 2 {
				t.Fatalf("%v: %v, %v, %d attempts", fields, resp, err, len(b.seen))
			}
			if gap := b.seen[1].after; gap < 2900*time.Millisecond || gap > 3600*time.Millisecond {
				t.Errorf("%v: the next attempt came after %v, want 3 s", fields, gap)
			}
		})
	}
}

// TestNamedBudgets: a budget of a server that its answers name, and that is used up, holds back the requests that have met it
// and no other, for random servers.
func TestNamedBudgets(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			paths, budgets := 2+r.IntN(6), 2+r.IntN(3)
			of, left := map[string]int{}, make([]int, budgets)
			for i := range paths {
				of[fmt.Sprintf("/p%d", i)] = r.IntN(budgets)
			}
			for i := range left {
				left[i] = 1 + r.IntN(10)
			}
			form := r.IntN(3)
			<-time.After(26 * 365 * 24 * time.Hour)
			resets := time.Now().Add(time.Minute)
			b := &backend{answer: func(_ int, req *http.Request) (*http.Response, error) {
				i := of[req.URL.Path]
				if left[i] == 0 {
					t.Errorf("a request of a budget that is used up was sent: %s", req.URL.Path)
				}
				left[i]--
				n := fmt.Sprint(left[i])
				switch name := fmt.Sprint("b", i); form {
				case 0:
					return respond(200, "X-RateLimit-Resource", name, "X-RateLimit-Remaining", n, "X-RateLimit-Reset", fmt.Sprint(resets.Unix())), nil
				case 1:
					return respond(200, "x-ratelimit-remaining-"+name, n, "x-ratelimit-reset-"+name, time.Until(resets).String()), nil
				default:
					return respond(200, "vendor-ratelimit-"+name+"-remaining", n, "vendor-ratelimit-"+name+"-reset", resets.Format(time.RFC3339)), nil
				}
			}}
			tr := transport(t, b, Policy{})
			met := map[string]bool{}
			for range 100 {
				path := fmt.Sprintf("/p%d", r.IntN(paths))
				if left[of[path]] == 0 && !met[path] {
					continue // the client cannot know which budget it is
				}
				used := left[of[path]] == 0
				if _, err := tr.RoundTrip(get(t, "http://a"+path)); (err != nil) != used {
					t.Fatalf("form %d: a request to %s, whose budget is used up: %v, got %v", form, path, used, err)
				}
				met[path] = true
			}
		})
	}
}

// TestSlowPaths: requests that end by the caller's own deadline, of some paths of a server at random, hold back others of these
// paths and none of another one. Where requests to many paths are not answered the server is spared as a whole.
func TestSlowPaths(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			slow := 1 + r.IntN(20)
			b := &backend{answer: func(_ int, req *http.Request) (*http.Response, error) {
				if strings.HasPrefix(req.URL.Path, "/slow") {
					<-req.Context().Done()
					return nil, req.Context().Err()
				}
				return respond(200), nil
			}}
			tr := transport(t, b, Policy{Throttle: outgoing.Throttle{Probe: time.Minute}})
			polls := 0
			for range 600 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+r.IntN(50))*time.Millisecond)
				resp, err := tr.RoundTrip(get(t, fmt.Sprintf("http://a/slow%d", r.IntN(slow))).WithContext(ctx))
				cancel()
				if err == nil {
					t.Fatal(resp)
				}
				if errors.Is(err, context.DeadlineExceeded) {
					polls++
				}
			}
			sent := 0
			for range 20 {
				if _, err := tr.RoundTrip(get(t, "http://a/quick")); err == nil {
					sent++
				}
			}
			if slow <= 8 && sent != 20 {
				t.Errorf("%d slow paths: %d of 20 quick requests were sent: %+v", slow, sent, tr.Stats())
			}
			if most := 10*min(slow, 8) + 10; polls > most {
				t.Errorf("%d slow paths: %d requests that were not answered, want %d at most", slow, polls, most)
			}
			<-time.After(5 * time.Minute) // what was refused is forgotten
			for i := range min(slow, 8) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				if _, err := tr.RoundTrip(get(t, fmt.Sprintf("http://a/slow%d", i)).WithContext(ctx)); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%d slow paths: path %d is held back for ever: %v", slow, i, err)
				}
				cancel()
			}
		})
	}
}
