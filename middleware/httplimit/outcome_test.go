package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/httplimit"
)

// oracle gives one answer and notes in what order it and the handler were called.
type oracle struct {
	decision limit.Decision
	err      error
	req      limit.Request     // that Take was asked about
	seen     []limit.Attribute // its attributes at that time
	calls    []string
}

func (o *oracle) Take(_ context.Context, req limit.Request) (limit.Decision, error) {
	o.calls, o.req, o.seen = append(o.calls, "take"), req, slices.Clone(req.Attributes)
	return o.decision, o.err
}

// handle is the handler.
func (o *oracle) handle(w http.ResponseWriter, _ *http.Request) {
	o.calls = append(o.calls, "handle")
	w.WriteHeader(http.StatusTeapot)
}

// finishing is an oracle that holds places.
type finishing struct{ *oracle }

func (o finishing) Finish(ctx context.Context, req limit.Request, permit uint64) error {
	left := "no deadline"
	if at, ok := ctx.Deadline(); ok {
		left = time.Until(at).String()
	}
	if !slices.Equal(req.Attributes, o.seen) || req.Cost != o.req.Cost {
		left += fmt.Sprintf(" of %v, which is not %v", req, o.req)
	}
	o.calls = append(o.calls, fmt.Sprintf("finish %d (%v, %v)", permit, ctx.Err(), left))
	return nil
}

// asking is an oracle whose limits read the attributes named.
type asking struct {
	*oracle
	names []string
}

func (a asking) Attributes() []string { return a.names }

// TestWhatBecomesOfARequest: the handler sees a request if and only if it was admitted, or
// nobody could decide and it is to pass then. A place is given back once, after the handler,
// with the request for which it was taken and a second to do it; of a request that holds
// none nothing is given back, whatever the taker is. Hooks hear what the client is told.
func TestWhatBecomesOfARequest(t *testing.T) {
	refused := limit.Decision{Results: []limit.Result{{Limit: "m", Verdict: limit.Verdict{Reason: limit.ReasonRate, RetryAfter: 1500 * time.Millisecond}}}}
	unusual := refused
	unusual.Status = http.StatusPaymentRequired
	const finish, first = "finish 7 (<nil>, 1s)", "finish 1 (<nil>, 1s)"
	for name, tt := range map[string]struct {
		decision limit.Decision
		err      error
		pass     bool // OnError is Allow
		denied   bool // WithDenied
		code     int
		retry    string
		told     string
		calls    []string // after take
	}{
		"admitted": {decision: limit.Decision{Allowed: true}, code: 418, told: "true", calls: []string{"handle"}},
		"admitted, and denied is for others": {
			decision: limit.Decision{Allowed: true}, denied: true, code: 418, told: "true", calls: []string{"handle"},
		},
		"admitted with a place":         {decision: limit.Decision{Allowed: true, Permit: 7}, code: 418, told: "true", calls: []string{"handle", finish}},
		"admitted with the first place": {decision: limit.Decision{Allowed: true, Permit: 1}, code: 418, told: "true", calls: []string{"handle", first}},
		"refused":                       {decision: refused, code: 429, retry: "2", told: "false"},
		"refused with a status":         {decision: unusual, code: 402, retry: "2", told: "false"},
		"refused, and denied answers":   {decision: unusual, denied: true, code: 451, retry: "2", told: "false", calls: []string{"denied 402"}},
		"nobody could decide":           {err: errors.New("gone"), code: 503, retry: "1", told: "gone"},
		"nobody could decide, not denied": {
			err: errors.New("gone"), denied: true, code: 503, retry: "1", told: "gone",
		},
		"nobody could decide, and allow": {err: errors.New("gone"), pass: true, code: 418, told: "gone", calls: []string{"handle"}},
	} {
		for _, holds := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, holds %v", name, holds), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					o := &oracle{decision: tt.decision, err: tt.err}
					taker := limit.Taker(o)
					want := append([]string{"take"}, tt.calls...)
					if holds {
						taker = finishing{o}
					} else {
						want = slices.DeleteFunc(want, func(call string) bool { return strings.HasPrefix(call, "finish") })
					}
					told := ""
					opts := []httplimit.Option{
						httplimit.WithCost(func(*http.Request) int64 { return 2 }),
						httplimit.WithHooks(limit.Hooks{
							OnDecision: func(_ context.Context, d *limit.Decision) { told += fmt.Sprint(d.Allowed) },
							OnError:    func(_ context.Context, err error) { told += err.Error() },
						}),
					}
					if tt.pass {
						opts = append(opts, httplimit.WithOnError(httplimit.Allow))
					}
					if tt.denied {
						opts = append(opts, httplimit.WithDenied(func(w http.ResponseWriter, _ *http.Request, d *limit.Decision) {
							o.calls = append(o.calls, fmt.Sprint("denied ", d.Status))
							w.WriteHeader(http.StatusUnavailableForLegalReasons)
						}))
					}
					rec := get(t, httplimit.New(taker, opts...)(http.HandlerFunc(o.handle)), nil)
					if rec.Code != tt.code || rec.Header().Get("Retry-After") != tt.retry || told != tt.told || !slices.Equal(o.calls, want) {
						t.Errorf("%d, retry after %q, told %q, calls %q; want %d, %q, %q and %q",
							rec.Code, rec.Header().Get("Retry-After"), told, o.calls, tt.code, tt.retry, tt.told, want)
					}
				})
			})
		}
	}
}

// TestDelayOfARequest: a request waits as long as a leaky bucket asks, and no longer than its
// client; one that is not to wait is served though its client has gone.
func TestDelayOfARequest(t *testing.T) {
	const nanosecond, second = time.Nanosecond, time.Second
	for _, tt := range []struct{ delay, lasts, took time.Duration }{
		{0, second, 0}, {nanosecond, second, nanosecond}, {second, 2 * second, second}, {2 * second, second, second}, {0, 0, 0}, {second, 0, 0},
	} {
		t.Run(fmt.Sprintf("%v of %v", tt.delay, tt.lasts), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &oracle{decision: limit.Decision{Allowed: true, Permit: 7, Delay: tt.delay}}
				ctx, cancel := context.WithTimeout(t.Context(), tt.lasts)
				defer cancel()
				begin := time.Now()
				rec := get(t, httplimit.New(finishing{o})(http.HandlerFunc(o.handle)), httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
				want, code := []string{"take", "handle", "finish 7 (<nil>, 1s)"}, http.StatusTeapot
				if tt.delay > tt.lasts {
					want, code = []string{"take", "finish 7 (<nil>, 1s)"}, http.StatusServiceUnavailable
				}
				if time.Since(begin) != tt.took || rec.Code != code || !slices.Equal(o.calls, want) {
					t.Errorf("%d after %v; calls %q, want %d after %v and %q", rec.Code, time.Since(begin), o.calls, code, tt.took, want)
				}
			})
		})
	}
}

// TestWhatARequestIsCalled: the attributes of a request are those that the program adds, the
// address of the client, method, path and host, and what was named or what the limits read:
// the size only where the client declares one and somebody reads it.
func TestWhatARequestIsCalled(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	named := func(list string) (attributes []limit.Attribute) {
		for one := range strings.FieldsSeq(list) {
			name, value, _ := strings.Cut(one, "=")
			attributes = append(attributes, limit.Attribute{Name: name, Value: value})
		}
		return attributes
	}
	const base = "ip=192.0.2.1 method=PUT path=/a host=example.com"
	program := httplimit.WithAttributes(func(r *http.Request) []limit.Attribute {
		return []limit.Attribute{{Name: "verb", Value: r.Method}}
	})
	for name, tt := range map[string]struct {
		remote string // "" = 192.0.2.1
		length int64
		reads  []string // nil = the taker does not say
		opts   []httplimit.Option
		want   string
	}{
		"as it is":       {"", 5, nil, nil, base},
		"no address":     {"@", 5, nil, nil, "method=PUT path=/a host=example.com"},
		"IPv6":           {"[2001:db8:1:2:3::4]:1", 5, nil, nil, "ip=2001:db8:1:2:3::4 method=PUT path=/a host=example.com"},
		"by the program": {"", 5, nil, []httplimit.Option{program}, "verb=PUT " + base},
		"one subscriber's IPv6": {
			"[2001:db8:1:2:3::4]:1", 5, nil, []httplimit.Option{httplimit.WithIPv6Prefix(64)}, "ip=2001:db8:1:2::/64 method=PUT path=/a host=example.com",
		},
		"named":              {"", 12345, nil, []httplimit.Option{httplimit.WithRequestAttributes("header:x-a", "size", "query:q", "header:absent")}, base + " size=12345 header:x-a=1 query:q=2"},
		"read":               {"", 12345, []string{"header:x-a", "ip", "size", "query:q", "header:absent"}, nil, base + " size=12345 header:x-a=1 query:q=2"},
		"nobody reads it":    {"", 12345, []string{"header:x-a"}, nil, base + " header:x-a=1"},
		"an empty body":      {"", 0, []string{"size"}, nil, base + " size=0"},
		"one byte":           {"", 1, []string{"size"}, nil, base + " size=1"},
		"of unknown size":    {"", -1, []string{"size"}, nil, base + " size=unknown"},
		"named and not told": {"", -1, nil, []httplimit.Option{httplimit.WithRequestAttributes("size")}, base + " size=unknown"},
	} {
		o := &oracle{decision: limit.Decision{Allowed: true}}
		taker := limit.Taker(o)
		if tt.reads != nil {
			taker = asking{o, tt.reads}
		}
		r := httptest.NewRequest(http.MethodPut, "/a?q=2", nil)
		r.Header.Set("X-A", "1")
		r.ContentLength = tt.length
		if tt.remote != "" {
			r.RemoteAddr = tt.remote
		}
		get(t, httplimit.New(taker, tt.opts...)(http.HandlerFunc(o.handle)), r)
		if want := named(tt.want); !slices.Equal(o.seen, want) || o.req.Cost != 0 || o.req.Peek {
			t.Errorf("%s: asked %v of cost %d, want %v and the cost that the taker takes for 1", name, o.seen, o.req.Cost, want)
		}
		// What a request says of itself, such as its credentials, is not kept.
		for _, kept := range o.req.Attributes {
			if kept != (limit.Attribute{}) {
				t.Errorf("%s: %v is there after the request", name, kept)
			}
		}
	}
}

// TestFieldsOfAnAnswer: an admitted request is told of its limits too, before the handler
// writes; the older fields and the newer ones are each sent when they are asked for.
func TestFieldsOfAnAnswer(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	result := limit.Result{Limit: "m", Algorithm: limit.FixedWindow, Quota: 5, Window: time.Minute, Verdict: limit.Verdict{Allowed: true, Remaining: 3, ResetAfter: time.Minute}}
	proxies := httplimit.WithTrustedProxies(netip.MustParsePrefix("192.0.2.0/24"))
	for name, tt := range map[string]struct {
		opts         []httplimit.Option
		newer, older string
	}{
		"default": {nil, `"m";r=3;t=60`, ""},
		"both":    {[]httplimit.Option{proxies, httplimit.WithXRateLimit()}, `"m";r=3;t=60`, "3"},
		"older":   {[]httplimit.Option{httplimit.WithXRateLimit(), httplimit.WithHeaders(httplimit.Off)}, "", "3"},
		"none":    {[]httplimit.Option{httplimit.WithHeaders(httplimit.Off)}, "", ""},
	} {
		o := &oracle{decision: limit.Decision{Allowed: true, Results: []limit.Result{result}}}
		h := get(t, httplimit.New(o, tt.opts...)(http.HandlerFunc(o.handle)), nil).Result().Header
		if h.Get("RateLimit") != tt.newer || h.Get("X-RateLimit-Remaining") != tt.older {
			t.Errorf("%s: RateLimit %q and X-RateLimit-Remaining %q, want %q and %q", name, h.Get("RateLimit"), h.Get("X-RateLimit-Remaining"), tt.newer, tt.older)
		}
	}
}
