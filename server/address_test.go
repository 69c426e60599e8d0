package server_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stint-io/stint"
	"github.com/stint-io/stint/internal/accesslog"
	"github.com/stint-io/stint/internal/replay"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/httplimit"
	"github.com/stint-io/stint/rules"
)

// An address is matched whole and counted by its prefix, and the IPv4 address inside an IPv4-mapped or NAT64 one is the
// client: the middleware, the gateways' endpoint, /v1/take and a replay decide each request alike.
func TestAddressesAreOneEverywhere(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 15))
	const yaml = `
limits:
  - {name: deny, match: {ip: [192.0.2.66, "198.51.100.0/25", "2001:db8:0:1::bad", "2001:db8:0:2::/96", "64:ff9b::203.0.113.0/120"]}, rate: 0/s}
  - {name: each, key: [ip], ipv6_prefix: 120, rate: 1/h}
`
	denied := []netip.Prefix{
		netip.MustParsePrefix("192.0.2.66/32"), netip.MustParsePrefix("198.51.100.0/25"), netip.MustParsePrefix("203.0.113.0/24"),
		netip.MustParsePrefix("2001:db8:0:1::bad/128"), netip.MustParsePrefix("2001:db8:0:2::/96"),
	}
	v4 := func() netip.Addr {
		return netip.AddrFrom4([][4]byte{{192, 0, 2, 60}, {198, 51, 100, 120}, {203, 0, 113, 0}, {8, 8, 8, 8}}[r.IntN(4)])
	}
	near := func(a netip.Addr) netip.Addr {
		for range r.IntN(8) {
			a = a.Next()
		}
		return a
	}
	var addresses []string
	var want []bool
	seen := map[netip.Prefix]bool{}
	for range 300 {
		var addr netip.Addr // as limits see it
		text := ""
		switch r.IntN(4) {
		case 0:
			addr = near(v4())
			text = addr.String()
		case 1:
			addr = near(v4())
			text = "::ffff:" + addr.String()
		case 2:
			addr = near(v4())
			a := addr.As4()
			text = fmt.Sprintf("64:ff9b::%x:%x", int(a[0])<<8|int(a[1]), int(a[2])<<8|int(a[3]))
		default:
			addr = near(netip.MustParseAddr([]string{"2001:db8:0:1::bab", "2001:db8:0:2::5", "2001:db8:0:2:0:1::", "2001:db8:0:9::fc", "64:ff9a:ffff:ffff:ffff:ffff:ffff:fffd"}[r.IntN(5)]))
			text = addr.String()
			if strings.HasPrefix(text, "64:ff9b::") { // the next of the last
				continue
			}
		}
		admit := true
		for _, net := range denied {
			admit = admit && !net.Contains(addr)
		}
		bits := 32
		if addr.Is6() {
			bits = 120
		}
		bucket := netip.PrefixFrom(addr, bits).Masked()
		if admit {
			admit, seen[bucket] = !seen[bucket], true
		}
		addresses, want = append(addresses, text), append(want, admit)
	}

	limiter, err := stint.Parse(yaml)
	if err != nil {
		t.Fatal(err)
	}
	defer limiter.Close()
	handler := httplimit.New(limiter)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	behind, gate := start(t, yaml), start(t, yaml)
	ways := map[string]func(ip string) bool{
		"middleware": func(ip string) bool {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = "[" + ip + "]:1"
			if !strings.Contains(ip, ":") {
				r.RemoteAddr = ip + ":1"
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			return w.Code == 200
		},
		"take": func(ip string) bool { return behind.post("/v1/take", `{"attributes":{"ip":"`+ip+`"}}`).status == 200 },
		"gate": func(ip string) bool {
			return gate.do("GET", gate.http+"/v1/gate/forward-auth", "", "X-Forwarded-For", ip, "X-Forwarded-Method", "GET", "X-Forwarded-Uri", "/").status == 200
		},
	}
	var log bytes.Buffer
	for i, ip := range addresses {
		fmt.Fprintf(&log, "%s - - [26/Nov/2026:10:%02d:%02d +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"x\"\n", ip, i/60, i%60)
		for way, ask := range ways {
			if got := ask(ip); got != want[i] {
				t.Fatalf("request %d of %s by %s: admitted %v, want %v", i, ip, way, got, want[i])
			}
		}
	}
	set, err := (rules.Options{}).Compile(rules.File{Name: "l.yaml", Text: []byte(yaml)})
	if err != nil {
		t.Fatal(err)
	}
	i := 0
	_, err = replay.Run(context.Background(), replay.Options{
		Set:  set,
		Logs: []replay.Log{{Name: "log", Open: func() (io.ReadCloser, error) { return io.NopCloser(&log), nil }}},
		OnDecision: func(_ *accesslog.Line, d *limit.Decision) {
			if d.Allowed != want[i] {
				t.Errorf("request %d of %s by replay: admitted %v, want %v", i, addresses[i], d.Allowed, want[i])
			}
			i++
		},
	})
	if err != nil || i != len(addresses) {
		t.Errorf("%d of %d lines are decided: %v", i, len(addresses), err)
	}
}
