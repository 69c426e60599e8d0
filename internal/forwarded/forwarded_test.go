package forwarded

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func trust(t testing.TB, list ...string) *Trusted {
	t.Helper()
	set, err := ParseTrusted(list)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// header builds a header of alternating names and values; a name again is
// another line.
func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestClientIP(t *testing.T) {
	const peer = "10.0.0.1:4711"
	for _, tt := range []struct {
		name   string
		remote string
		h      http.Header
		want   string
		trust  bool
	}{
		{"no header", peer, header(), "10.0.0.1", true},
		{"untrusted peer", "203.0.113.9:1", header("X-Forwarded-For", "192.0.2.7", "X-Real-Ip", "192.0.2.8", "Forwarded", "for=192.0.2.9"), "203.0.113.9", false},
		{"one hop", peer, header("X-Forwarded-For", "192.0.2.7"), "192.0.2.7", true},
		{"the client's own part is not read", peer, header("X-Forwarded-For", "1.1.1.1, 2.2.2.2, 192.0.2.7"), "192.0.2.7", true},
		{"through trusted hops", peer, header("X-Forwarded-For", "1.1.1.1, 192.0.2.7 , 10.0.0.3,10.0.0.2"), "192.0.2.7", true},
		{"all lines count", peer, header("X-Forwarded-For", "1.1.1.1", "X-Forwarded-For", "192.0.2.7", "X-Forwarded-For", "10.0.0.2"), "192.0.2.7", true},
		{"all trusted", peer, header("X-Forwarded-For", "10.0.0.9, 10.0.0.2"), "10.0.0.9", true},
		{"garbage stops", peer, header("X-Forwarded-For", "192.0.2.7, unknown, 10.0.0.2"), "10.0.0.2", true},
		{"garbage alone", peer, header("X-Forwarded-For", "<script>"), "10.0.0.1", true},
		{"empty elements", peer, header("X-Forwarded-For", "192.0.2.7, , ,10.0.0.2,"), "192.0.2.7", true},
		{"ports", peer, header("X-Forwarded-For", "192.0.2.7:1234"), "192.0.2.7", true},
		{"bad port", peer, header("X-Forwarded-For", "192.0.2.7:x"), "10.0.0.1", true},
		{"IPv6", peer, header("X-Forwarded-For", "2001:db8::1"), "2001:db8::1", true},
		{"IPv6 with port", peer, header("X-Forwarded-For", "[2001:db8::1]:443"), "2001:db8::1", true},
		{"zones are dropped", peer, header("X-Forwarded-For", "fe80::1%evil"), "fe80::1", true},
		{"mapped", "[::ffff:10.0.0.1]:1", header("X-Forwarded-For", "::ffff:192.0.2.7"), "192.0.2.7", true},
		{"leading zeros are no address", peer, header("X-Forwarded-For", "192.0.02.7"), "10.0.0.1", true},
		{"trusted IPv6 peer", "[fd00::5]:1", header("X-Forwarded-For", "192.0.2.7"), "192.0.2.7", true},
		{"RFC 7239", peer, header("Forwarded", `for=1.1.1.1, For="[2001:db8::9]:4711";proto=https, for=10.0.0.2;by=10.0.0.1`), "2001:db8::9", true},
		{"RFC 7239 over lines", peer, header("Forwarded", "for=192.0.2.7", "Forwarded", "for=10.0.0.2"), "192.0.2.7", true},
		{"RFC 7239 with a quote left open by the client", peer, header("Forwarded", `for="1.1.1.1, for=192.0.2.7`), "192.0.2.7", true},
		{"RFC 7239 hidden", peer, header("Forwarded", "for=192.0.2.7, for=_hidden"), "10.0.0.1", true},
		{"RFC 7239 without for", peer, header("Forwarded", "for=192.0.2.7, proto=https"), "10.0.0.1", true},
		{"RFC 7239 twice for", peer, header("Forwarded", "for=192.0.2.7;for=192.0.2.8"), "10.0.0.1", true},
		{"RFC 7239 junk behind a quote", peer, header("Forwarded", `for="192.0.2.7"x`), "10.0.0.1", true},
		{"X-Forwarded-For comes first", peer, header("Forwarded", "for=1.1.1.1", "X-Real-Ip", "1.1.1.2", "X-Forwarded-For", "192.0.2.7"), "192.0.2.7", true},
		{"X-Real-IP", peer, header("X-Real-Ip", "192.0.2.7"), "192.0.2.7", true},
		{"X-Real-IP twice", peer, header("X-Real-Ip", "192.0.2.7", "X-Real-Ip", "192.0.2.8"), "10.0.0.1", true},
		{"no address", "pipe", header("X-Forwarded-For", "192.0.2.7"), "invalid IP", false},
		{"unix socket", "@", header("X-Forwarded-For", "192.0.2.7"), "192.0.2.7", true},
		{"a chain without end", peer, header("X-Forwarded-For", "192.0.2.7"+strings.Repeat(",10.0.0.2", maxHops)), "10.0.0.2", true},
		{"commas without end", peer, header("X-Forwarded-For", "192.0.2.7"+strings.Repeat(",", 1<<16)), "10.0.0.1", true},
		{"an element without end", peer, header("Forwarded", "for="+strings.Repeat("1", 1<<16)), "10.0.0.1", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, trusted := trust(t, "10.0.0.0/8", "fd00::/8", "unix").ClientIP(tt.remote, tt.h)
			if got.String() != tt.want || trusted != tt.trust {
				t.Errorf("got %v, %v, want %s, %v", got, trusted, tt.want, tt.trust)
			}
		})
	}
}

func TestClientIPFromOneSource(t *testing.T) {
	set, err := ParseTrusted([]string{"10.0.0.1"}, XRealIP)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := set.ClientIP("10.0.0.1:1", header("X-Forwarded-For", "1.1.1.1", "X-Real-Ip", "192.0.2.7"))
	if got.String() != "192.0.2.7" {
		t.Errorf("got %v, want what X-Real-IP says", got)
	}
}

func TestZeroTrustsNobody(t *testing.T) {
	h := header("X-Forwarded-For", "192.0.2.7")
	for name, set := range map[string]*Trusted{"nil": nil, "zero": {}, "empty": trust(t)} {
		for _, remote := range []string{"127.0.0.1:1", "@", ""} {
			if _, trusted := set.ClientIP(remote, h); trusted {
				t.Errorf("%s trusts %q", name, remote)
			}
		}
	}
}

func TestParseTrusted(t *testing.T) {
	set := trust(t, " 192.0.2.0/24", "::ffff:198.51.100.0/120", "2001:db8::7")
	for addr, want := range map[string]bool{
		"192.0.2.255": true, "192.0.3.0": false, "::ffff:192.0.2.1": true,
		"198.51.100.3": true, "2001:db8::7": true, "2001:db8::8": false,
	} {
		if got := set.Contains(netip.MustParseAddr(addr)); got != want {
			t.Errorf("contains %s: %v, want %v", addr, got, want)
		}
	}
	_, err := ParseTrusted([]string{"10.0.0.0/8", "10.0.0.0/33", "proxy.local", "fe80::1%eth0"})
	if err == nil {
		t.Fatal("bad entries are accepted")
	}
	for _, want := range []string{`"10.0.0.0/33"`, `"proxy.local"`, `"fe80::1%eth0"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not name %s", err, want)
		}
	}
}

func TestClientIPAllocations(t *testing.T) {
	set := trust(t, "10.0.0.0/8")
	h := header("X-Forwarded-For", "1.1.1.1, 192.0.2.7, 10.0.0.3")
	if n := testing.AllocsPerRun(100, func() { set.ClientIP("10.0.0.1:4711", h) }); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func TestOriginal(t *testing.T) {
	for _, tt := range []struct {
		name string
		from Family
		h    http.Header
		want Origin
	}{
		{"nothing", AnyFamily, header(), Origin{}},
		{
			"Traefik and Caddy", AnyFamily, header("X-Forwarded-Method", "POST", "X-Forwarded-Proto", "https", "X-Forwarded-Host", "Shop.Example:8443", "X-Forwarded-Uri", "/a?b=c"),
			Origin{Method: "POST", Scheme: "https", Host: "shop.example", Authority: "Shop.Example:8443", URI: "/a?b=c"},
		},
		{"nginx", AnyFamily, header("X-Original-Method", "PUT", "X-Original-Uri", "/a?b"), Origin{Method: "PUT", URI: "/a?b"}},
		{
			"ingress-nginx", AnyFamily, header("X-Original-Method", "GET", "X-Original-Url", "https://user@shop.example/a?b"),
			Origin{Method: "GET", Scheme: "https", Host: "shop.example", URI: "/a?b"},
		},
		{"an absolute URL without path", AnyFamily, header("X-Original-Url", "http://shop.example?x"), Origin{Scheme: "http", Host: "shop.example", URI: "/?x"}},
		{"they agree", AnyFamily, header("X-Original-Uri", "/a", "X-Original-Url", "http://h/a", "X-Forwarded-Uri", "/a"), Origin{Scheme: "http", Host: "h", URI: "/a"}},
		{"the client adds the other family", AnyFamily, header("X-Original-Uri", "/login", "X-Forwarded-Uri", "/free"), Origin{URI: "/free", Conflict: true}},
		{"the client adds a line", AnyFamily, header("X-Forwarded-Method", "GET", "X-Forwarded-Method", "POST"), Origin{Method: "GET", Conflict: true}},
		{"pinned to one", XOriginal, header("X-Original-Uri", "/login", "X-Forwarded-Uri", "/free", "X-Forwarded-Host", "evil"), Origin{URI: "/login"}},
		{"pinned to the other", XForwarded, header("X-Original-Uri", "/login", "X-Forwarded-Uri", "/free"), Origin{URI: "/free"}},
		{"lists: the nearest proxy's", AnyFamily, header("X-Forwarded-Host", "evil, shop.example", "X-Forwarded-Proto", "ftp, HTTPS"), Origin{Scheme: "https", Host: "shop.example", Authority: "shop.example"}},
		{"nonsense", AnyFamily, header("X-Forwarded-Method", "GET /", "X-Forwarded-Proto", "gopher", "X-Forwarded-Host", strings.Repeat("a", 256)), Origin{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := OriginalFrom(tt.h, tt.from); got != tt.want {
				t.Errorf("got %+v\nwant %+v", got, tt.want)
			}
		})
	}
	// Nothing is cut off: a client must not push what it asks for out of sight.
	padded := "/" + strings.Repeat("./", 20<<10) + "login"
	if got := OriginalFrom(header("X-Forwarded-Uri", padded), AnyFamily); got.URI != padded || Path(got.URI) != "/login" || got.Conflict {
		t.Errorf("a padded URI has %d bytes and the path %.10q", len(got.URI), Path(got.URI))
	}
	if got := OriginalFrom(header("X-Forwarded-Uri", "/login?"+strings.Repeat("x", 1<<20)), AnyFamily); !got.Conflict || got.URI != "" {
		t.Errorf("a URI of 1 MiB passes: %.10q", got.URI)
	}
}

func TestIP(t *testing.T) {
	for _, tt := range []struct {
		addr string
		bits int
		want string
	}{
		{"192.0.2.7", 64, "192.0.2.7"},
		{"::ffff:192.0.2.7", 64, "192.0.2.7"},
		{"64:ff9b::192.0.2.7", 64, "192.0.2.7"},
		{"64:ff9b::192.0.2.7", 0, "192.0.2.7"},
		{"64:ff9b:1::192.0.2.7", 0, "64:ff9b:1::c000:207"},
		{"2001:db8:0:1:ffff::9", SubscriberBits, "2001:db8:0:1::/64"},
		{"2001:db8:0:1:ffff::9", 48, "2001:db8::/48"},
		{"2001:db8::9", 128, "2001:db8::9"},
		{"2001:db8::9", 0, "2001:db8::9"},
		{"2001:db8::9", 999, "2001:db8::9"},
		{"::1", 64, "::1"},
		{"fe80::1%eth0", 64, "fe80::/64"},
	} {
		if got := Network(netip.MustParseAddr(tt.addr), tt.bits); got != tt.want {
			t.Errorf("Network(%s, %d) = %s, want %s", tt.addr, tt.bits, got, tt.want)
		}
	}
	if got := IP(netip.Addr{}); got != "" {
		t.Errorf("no address is %q", got)
	}
}

func TestHostPathQuery(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "A.Example": "a.example", "a:80": "a", "a.": "a", "[2001:DB8::1]:80": "2001:db8::1", "2001:db8::1": "2001:db8::1", "a.:80": "a",
	} {
		if got := Host(in); got != want {
			t.Errorf("Host(%q) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"": "", "*": "*", "/": "/", "/a": "/a", "/a/": "/a/", "/a?b": "/a", "/a#b": "/a", "?x": "", "a": "/a",
		"//a///b": "/a/b", "/a/../b": "/b", "/a/./b/": "/a/b/", "/a/..": "/", "/a/b/..": "/a/", "/../../a": "/a",
		"/%6cogin": "/login", "/%6cogin/%zz": "/login/%zz", "/%61pi/%": "/api/%", "/%61pi/%4": "/api/%4", "/a%2F..%2Flogin": "/login", "/%zz/a//b": "/%zz/a/b", "/a%3Fb": "/a?b", "/.well-known": "/.well-known",
	} {
		if got := Path(in); got != want {
			t.Errorf("Path(%q) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{"/a": "", "/a?": "", "/a?b=c?d": "b=c?d", "/a?b#c?d": "b"} {
		if got := Query(in); got != want {
			t.Errorf("Query(%q) = %q, want %q", in, got, want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { Path("/api/users/17?page=2") }); n > 0 {
		t.Errorf("a clean path allocates %v times", n)
	}
}

// FuzzClientIP holds that what stands left of the first untrusted hop changes
// nothing: the answer is that hop, however the client filled the rest.
func FuzzClientIP(f *testing.F) {
	f.Add("1.1.1.1", "evil", false)
	f.Add(`for="`, "10.0.0.1\\", true)
	f.Add("10.0.0.2, 10.0.0.3", "for=10.0.0.9;", true)
	f.Add(",,,,", "\x00", false)
	set := trust(f, "10.0.0.0/8")
	client := netip.MustParseAddr("192.0.2.7")
	f.Fuzz(func(t *testing.T, sameLine, otherLine string, rfc7239 bool) {
		name, hop, proxy := "X-Forwarded-For", "192.0.2.7", "10.0.0.2"
		if rfc7239 {
			name, hop, proxy = "Forwarded", `for="192.0.2.7:80";proto=http`, "for=10.0.0.2;by=10.0.0.3"
		}
		h := http.Header{name: {otherLine, sameLine + ", " + hop, proxy}}
		if got, _ := set.ClientIP("10.0.0.1:1", h); got != client {
			t.Fatalf("%q: client is %v, want %v", h, got, client)
		}
		// The client's own text alone must not crash, nor matter to others.
		got, trusted := set.ClientIP("10.0.0.1:1", http.Header{name: {otherLine, sameLine}})
		if !got.IsValid() || !trusted || got.Zone() != "" || got.Is4In6() {
			t.Fatalf("%q, %q: client is %v, %v", otherLine, sameLine, got, trusted)
		}
		if got, trusted := set.ClientIP("192.0.2.7:1", h); got != client || trusted {
			t.Fatalf("an untrusted peer is %v, %v", got, trusted)
		}
	})
}

// FuzzOriginal holds that what a client adds in the other family either agrees
// or is found out, and that everything stays within its bounds.
func FuzzOriginal(f *testing.F) {
	f.Add("/free", "POST", "http://x/free", "a.example:80")
	f.Add("", "", "", "")
	f.Fuzz(func(t *testing.T, uri, method, url, host string) {
		h := http.Header{
			"X-Forwarded-Uri": {"/login?a=b"}, "X-Forwarded-Method": {"GET"},
			"X-Original-Uri": {uri}, "X-Original-Method": {method}, "X-Original-Url": {url},
		}
		if got := OriginalFrom(h, AnyFamily); !got.Conflict && (got.URI != "/login?a=b" || got.Method != "GET") {
			t.Fatalf("%q: %+v", h, got)
		}
		h["X-Forwarded-Host"] = []string{host}
		got := OriginalFrom(h, XOriginal)
		if len(got.URI) > maxURI || len(got.Method) > maxMethod || len(got.Host) > maxHost || !slices.Contains([]string{"", "http", "https", "ws", "wss"}, got.Scheme) {
			t.Fatalf("out of bounds: %+v", got)
		}
		if p := Path(uri); p != "" && p != "*" && (p[0] != '/' || strings.Contains(p, "//") || strings.Contains(p, "/../")) {
			t.Fatalf("path of %q is %q", uri, p)
		}
		if Path(uri) != CleanPath(Path(uri)) {
			t.Fatalf("cleaning the path of %q again changes it", uri)
		}
	})
}
