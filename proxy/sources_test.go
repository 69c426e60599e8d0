package proxy_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stint-io/stint/proxy"
)

// TestIdleConnectionsOfOneSource: a client that opens more idle connections than the proxy admits keeps no client elsewhere
// out.
func TestIdleConnectionsOfOneSource(t *testing.T) {
	u := upstream(t, func(http.ResponseWriter, *http.Request) {})
	const most = 50
	p := start(t, generous, proxy.Options{Upstreams: []string{u}, MaxConnections: most})
	served := 0
	for range most {
		idle, err := net.Dial("tcp", p.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer idle.Close()
		// After a request a connection may be idle for minutes.
		_, _ = io.WriteString(idle, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		if _, err := io.ReadFull(idle, make([]byte, 12)); err == nil {
			served++
		}
	}
	if served < most/2 || served >= most {
		t.Errorf("one source has %d of %d connections", served, most)
	}
	elsewhere := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	web := &http.Client{Transport: &http.Transport{DialContext: elsewhere.DialContext}, Timeout: 30 * time.Second}
	defer web.CloseIdleConnections()
	res, err := web.Get(p.url)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("a client elsewhere: %s", res.Status)
	}
}

// TestMadeUpFields: with --attribute header:* no fields that a client makes up push out the one that a limit of the service
// reads. A request with more fields than the service is told of is refused.
func TestMadeUpFields(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	a, _ := service(t, "limits:\n  - {name: per-key, key: [\"header:x-api-key\"], rate: 1/day}\n")
	u := upstream(t, func(http.ResponseWriter, *http.Request) {})
	p := start(t, "", proxy.Options{Upstreams: []string{u}, Service: proxy.Service{
		URL: "http://" + a.HTTP.String(), OnFailure: proxy.FailureAllow, Timeout: 10 * time.Second, Attributes: []string{"header:*"},
	}})
	eventually(t, "ready", func() bool { return p.ready(t) == "200 ready\n" })
	for user := range 30 {
		passed := 0
		for range 3 {
			r, err := http.NewRequest(http.MethodGet, p.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("X-Api-Key", fmt.Sprint("user ", user))
			made := random.IntN(320)
			if made > 250 && made <= 256 {
				made = 250 // every client sends some of its own
			}
			for i := range made {
				r.Header.Set(fmt.Sprintf("%c-%d", 'A'+random.IntN(26), i), "x")
			}
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			want := http.StatusOK
			switch {
			case made > 256:
				want = http.StatusRequestHeaderFieldsTooLarge
			case passed > 0:
				want = http.StatusTooManyRequests
			}
			if res.StatusCode != want {
				t.Fatalf("user %d, who has passed %d times, with %d fields made up: %s, want %d", user, passed, made, res.Status, want)
			}
			if want == http.StatusOK {
				passed++
			}
		}
	}
}
