package proxy_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stint-io/stint/proxy"
)

// A client cannot choose under which of two keys it is counted and under which it is served: what limits read is there
// once, or the request is refused.
func TestDuplicatesAreRefused(t *testing.T) {
	const limits = "limits:\n  - {name: key, key: ['header:x-api-key'], rate: 100/hour}\n  - {name: cookie, key: ['cookie:s'], rate: 100/hour}\n  - {name: query, key: ['query:q'], rate: 100/hour}\n"
	a, _ := service(t, limits)
	r := record(t, okAnswer)
	remote := proxy.Service{URL: "http://" + a.HTTP.String(), OnFailure: proxy.FailureReject, Attributes: []string{"header:x-api-key", "cookie:s", "query:q"}}
	for name, p := range map[string]*running{
		"--config":  start(t, limits, proxy.Options{Upstreams: []string{r.url}}),
		"--service": start(t, "", proxy.Options{Upstreams: []string{r.url}, Service: remote}),
	} {
		for text, want := range map[string]int{
			"GET / HTTP/1.1\r\nHost: a\r\nX-Api-Key: a\r\nX-Api-Key: b\r\n":                                            400,
			"GET / HTTP/1.1\r\nHost: a\r\nX_Api_Key: b\r\n":                                                            400,
			"GET / HTTP/1.1\r\nHost: a\r\nCookie: s=1; s=2\r\n":                                                        400,
			"GET /?q=1&q=2 HTTP/1.1\r\nHost: a\r\n":                                                                    400,
			"GET /?q=1 HTTP/1.1\r\nHost: a\r\nX-Api-Key: a\r\nCookie: s=1\r\nAccept: a\r\nAccept: b\r\nX_Other: c\r\n": 200,
		} {
			c := dial(t, p)
			if _, err := io.WriteString(c, text+"Connection: close\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			if res.StatusCode != want {
				t.Errorf("%s: %q: %d, want %d", name, text, res.StatusCode, want)
			}
		}
		if m := p.metrics(t); !strings.Contains(m, `stint_proxy_refused_requests_total{reason="duplicate"} 4`) {
			t.Errorf("%s: the metrics do not have 4 refused requests", name)
		}
	}
	lax := start(t, limits, proxy.Options{Upstreams: []string{r.url}, AllowDuplicates: true})
	q, err := http.NewRequest(http.MethodGet, lax.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Header["X-Api-Key"] = []string{"a", "b"}
	res, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("with --allow-duplicates: %d", res.StatusCode)
	}
}
