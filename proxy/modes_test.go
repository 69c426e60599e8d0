package proxy_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/proxy"
	"github.com/stint-io/stint/server"
)

// pick returns one of a list at random.
func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// randomLimits is a limits file with one to four limits of any kind. Their periods are long, so that nothing changes
// while a test runs.
func randomLimits(r *rand.Rand) string {
	var b strings.Builder
	b.WriteString("limits:\n")
	for i := range 1 + r.IntN(4) {
		fmt.Fprintf(&b, "  - name: l%d\n    %s\n", i, pick(r,
			"match: {path: /a*}", "match: {path: [/a/b, '*c'], method: GET}", "match: {'header:x-key': [one, 'long*']}",
			"match: {host: example.com}", "when: 'size(request.headers) > 2 || request.path.startsWith(\"/a\")'", "soft: 1%"))
		if r.IntN(10) == 0 {
			b.WriteString("    unlimited: true\n")
			continue
		}
		fmt.Fprintf(&b, "    key: %s\n", pick(r, "[ip]", "[]", "['header:x-key']", "['query:q', ip]", "['cookie:c']", "[path]"))
		fmt.Fprintf(&b, "    missing: %s\n", pick(r, "reject", "skip"))
		algorithm := pick(r, "token_bucket", "leaky_bucket", "fixed_window", "sliding_window_counter", "sliding_window_log")
		fmt.Fprintf(&b, "    rate: %d/%s\n    algorithm: %s\n", 1+r.IntN(4), pick(r, "hour", "day"), algorithm)
		if r.IntN(4) == 0 {
			b.WriteString("    shadow: true\n")
		}
		switch r.IntN(7) {
		case 0:
			b.WriteString("    on_exceed: {reject: 503}\n")
		case 1:
			b.WriteString("    on_exceed: {reject: {status: 403, body: 'a <b> & \"c\" \u2028 é', content_type: text/plain, header: {X-Own: yes, X-Other: '1, 2'}}}\n")
		case 2:
			b.WriteString("    on_exceed: {redirect: {location: 'https://example.com/busy?a=b&c', status: 303}}\n")
		case 3:
			b.WriteString("    on_exceed: tag\n")
		case 4:
			b.WriteString("    on_exceed: {tag: {name: X-Serve, value: 'less & less'}}\n")
		case 5:
			b.WriteString("    on_exceed: {reject: 429, ban: {for: 3h, after: 5/hour}}\n")
		}
	}
	return b.String()
}

// randomRequest is a request as clients send them, and as they should not.
func randomRequest(r *rand.Rand, to string) *http.Request {
	path := pick(r, "/", "/a", "/a/b", "/a//b/../c", "/A", "/a%2Fb", "/a/%22%3C%3E%5C", "/%01%02%7f", "/a/%ff%fe", "/c",
		"/"+strings.Repeat("&", 10_950), "/a"+strings.Repeat("%01", 15_000), "//a/%2e/"+strings.Repeat("%01%22", 9_000), "/a%2f..%2fb", "/"+strings.Repeat("<", 300)+"c")
	query := pick(r, "", "q=1", "q=%26%3C%ff", "q=", "x=1;q=2", "q=1&q=2", "q[]=1")
	q, err := http.NewRequest(pick(r, "GET", "POST", "HEAD"), to+"/", nil)
	if err != nil {
		panic(err)
	}
	u, err := url.Parse(to)
	if err != nil {
		panic(err)
	}
	q.URL.Opaque = "//" + u.Host + path
	q.URL.RawQuery = query
	q.Host = pick(r, "example.com", "Example.com:80", "other")
	if key := pick(r, "", "", "one", "two", "longest", `"q\`, "caf\xe9", "\xff", "\xfe", strings.Repeat("k", 3000), strings.Repeat("k", 3000)+"2"); key != "" {
		q.Header.Set("X-Key", key)
	} else if r.IntN(2) == 0 {
		q.Header["X-Key"] = []string{""}
	}
	if r.IntN(3) == 0 {
		q.Header.Set("Cookie", pick(r, "c=1", "c=", `d=1; c="x"`))
	}
	q.Header.Set("X-Forwarded-For", pick(r, "192.0.2.7", "192.0.2.8", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "::ffff:192.0.2.7"))
	if r.IntN(8) == 0 {
		q.Header.Set("X-Ratelimit-Degraded", "mine")
	}
	if r.IntN(20) == 0 {
		for i := range 70 {
			q.Header.Set(fmt.Sprintf("X-Many-%02d", i), strings.Repeat("\xe9", 150))
		}
	}
	return q
}

// times are the figures of an answer that depend on when it was made.
var times = regexp.MustCompile(`(;t=|reset=|\nRatelimit-Reset: |retry after |"retry_after":|\nRetry-After: |\nX-Ratelimit-Reset: |\nX-Ratelimit-Retry-After: )([0-9.]+)`)

// outcome is all that a client, and the server behind, see of a request: its text without times, and the times.
func outcome(t *testing.T, q *http.Request, seen *string) (text string, waits []float64) {
	t.Helper()
	*seen = "nothing"
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintln(&b, res.StatusCode)
	var names []string
	for name := range res.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if name != "Date" && name != "Content-Length" { // the length of a wait is a part of it
			fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(res.Header[name], " | "))
		}
	}
	fmt.Fprintf(&b, "%s\nthe server saw %s", body, *seen)
	for _, m := range times.FindAllStringSubmatch(b.String(), -1) {
		n, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		waits = append(waits, n)
	}
	return times.ReplaceAllString(b.String(), "$1 T"), waits
}

// The same limits file gives the same answers whoever decides: this process, a service, or this process on leases of a
// coordinator. Whatever the limits, and whatever clients send.
func TestSameAnswersInEachMode(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	var seen string
	u := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		seen = fmt.Sprintf("%q %q", r.Header["X-Ratelimit-Degraded"], r.Header["X-Serve"])
		io.WriteString(w, "served")
	})
	refused := 0
	for range 12 {
		limits := randomLimits(r)
		a, stop := service(t, limits)
		decide := server.Options{TrustedProxies: []string{"127.0.0.1"}, XRateLimit: r.IntN(2) == 0, RateLimitHeaders: pick(r, "draft-10", "draft-11", "draft-07", "draft-06", "off")}
		modes := []string{"--config", "--service", "--coordinator"}
		first := start(t, limits, proxy.Options{Upstreams: []string{u}, Decide: decide})
		proxies := []*running{
			first,
			start(t, "", proxy.Options{Upstreams: []string{u}, Decide: decide, Service: proxy.Service{
				URL: "http://" + a.HTTP.String(), Timeout: 5 * time.Second, OnFailure: proxy.FailureReject,
				Attributes: first.Decider().Attributes(),
			}}),
			start(t, limits, proxy.Options{Upstreams: []string{u}, Decide: decide, Coordinators: []string{a.GRPC.String()}}),
		}
		hour := time.Now().Truncate(time.Hour)
		for i := range 60 {
			state := r.Uint64()
			var want string
			var waits []float64
			for j, p := range proxies {
				q := randomRequest(rand.New(rand.NewPCG(state, 2)), p.url)
				got, wait := outcome(t, q, &seen)
				if time.Now().Truncate(time.Hour) != hour {
					break // windows of the clock have ended
				}
				if j == 0 {
					want, waits = got, wait
					if strings.HasPrefix(got, "429") || strings.HasPrefix(got, "403") || strings.HasPrefix(got, "503") || strings.HasPrefix(got, "303") {
						refused++
					}
					continue
				}
				same := got == want && len(wait) == len(waits)
				for k := range wait {
					same = same && (wait[k]-waits[k] < 3 && waits[k]-wait[k] < 3)
				}
				if !same {
					t.Fatalf("request %d: %s %.100s %.200q\nwith %s:\n%.3000s\nwith %s:\n%.3000s\n%v %v\n%s", i, q.Method, q.URL.Opaque, q.Header, modes[0], want, modes[j], got, waits, wait, limits)
				}
			}
		}
		for _, p := range proxies {
			p.end(t)
		}
		stop()
	}
	if refused < 50 {
		t.Errorf("%d requests were refused: the limits are too wide", refused)
	}
}
