package gate

import (
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/limit"
)

// TestAbsoluteLocation: a redirect to a path becomes one to the host that the gateway says, or stays as it is where the
// gateway says none that is sound. It never leads elsewhere.
func TestAbsoluteLocation(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	parts := []string{"shop.example", ":8443", ":", "/", "\\", "@", "evil.example", "#", "?", "%2f", "[::1]", " ", "\t", "ö"}
	moved := 0
	for range 20_000 {
		host := pick("shop.example", "shop.example:8443", "[::1]:80", "127.0.0.1")
		sound := true
		for random.IntN(3) == 0 {
			host, sound = host+pick(parts...), false
		}
		proto := pick("http", "https", "ws", "wss", "", "javascript")
		h := http.Header{"X-Forwarded-Host": {host}, "X-Forwarded-Proto": {proto}, "X-Forwarded-Uri": {pick("", "/a/b?c=d", "/%zz", "*")}}
		o := forwarded.OriginalFrom(h, forwarded.XForwarded)
		path := pick("/busy.html", "/a?b=c#d", "/%2f")
		a := &limit.Action{Status: http.StatusFound, Location: path}
		got := absolute(limit.Decision{Action: a}, &o).Action
		if a.Location != path {
			t.Fatalf("%q: the action of the limit has become %q", h, a.Location)
		}
		if got.Location == path {
			if sound && proto != "" && proto != "javascript" {
				t.Fatalf("%q: the path stays", h)
			}
			continue
		}
		moved++
		u, err := url.Parse(got.Location)
		if err != nil || u.Host != o.Authority || u.User != nil || u.Scheme != strings.NewReplacer("ws", "http").Replace(proto) || !strings.HasSuffix(got.Location, path) {
			t.Fatalf("%q: sent to %q, %v", h, got.Location, err)
		}
		if strings.ContainsAny(u.Host, "/\\@?# \t") {
			t.Fatalf("%q: sent to %q", h, got.Location)
		}
	}
	if moved < 1000 {
		t.Errorf("only %d redirects were moved", moved)
	}
	d := limit.Decision{Action: &limit.Action{Location: "https://example.com/busy"}}
	if a := absolute(d, &forwarded.Origin{Authority: "shop.example", Scheme: "http"}).Action; a.Location != "https://example.com/busy" {
		t.Errorf("an address has become %s", a.Location)
	}
}
