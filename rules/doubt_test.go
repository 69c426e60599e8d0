package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/document"
)

// TestDoubts: what loads and would yet never apply is warned of, once.
func TestDoubts(t *testing.T) {
	for _, tt := range []struct{ match, want string }{
		{`path: "^/api/.*$"`, `path.matches('...')`},
		{`path: /api/.*`, `path.matches('...')`},
		{`plan: ^gold`, `attributes["plan"].matches('...')`},
		{`path: api/*`, "write /api/*"},
		{`path: /search?q=*`, "query:NAME"},
		{`path: /a//b`, "without //"},
		{`path: /a/./b*`, "without //"},
		{`path: /a/..`, "without //"},
		{`path: /a%20b`, "what the escapes stand for"},
		{`path: "/a/.well-known/*"`, ""},
		{`path: "/a..b"`, ""},
		{`ip: "64:ff9b::/96"`, "IPv4 networks"},
		{`ip: "64:ff9b::192.0.2.0/120"`, ""},
		{`method: post`, "write POST"},
		{`method: GET|POST`, "write [GET, POST]"},
		{`method: "GET, POST"`, "write [GET, POST]"},
		{`Method: POST`, "write method"},
		{`request.path: /x`, "write path"},
		{`headers:x-plan: gold`, "write header:x-plan"},
		{`header.x-plan: gold`, "write header:x-plan"},
		{`ip: "10.*"`, "10.0.0.0/8"},
		{`ip: localhost`, "10.0.0.0/8"},
		{`host: https://example.com`, "without scheme"},
		{`host: example.com:8080`, "without scheme"},
		{`host: Example.com`, "in lower case"},

		{`path: "*"`, ""},
		{`path: /api/*`, ""},
		{`path: "*.html"`, ""},
		{`path: /$metadata`, ""},
		{`method: [GET, POST]`, ""},
		{`method: "*"`, ""},
		{`method: /grpc.health.v1.Health/*`, ""},
		{`ip: [10.0.0.0/8, "2001:db8::7", "*"]`, ""},
		{`host: ["*.example.com", "2001:db8::7", localhost]`, ""},
		{`header:X-Plan: gold`, ""},
		{`query:q: a?b`, ""},
		{`tenant: Some One`, ""},
	} {
		src := "limits:\n  - name: a\n    rate: 5/m\n    match:\n      " + tt.match + "\n"
		list := mustParse(t, src).Warnings()
		switch {
		case tt.want == "" && len(list) > 0:
			t.Errorf("%s: %v", tt.match, list)
		case tt.want != "" && (len(list) != 1 || list[0].Line != 5 || !strings.Contains(list[0].Error(), tt.want)):
			t.Errorf("%s: %v, want one warning with %s", tt.match, list, tt.want)
		}
	}
	for src, want := range map[string]string{
		"limits: [{name: a, rate: 5/m, key: [IP]}]":                                         "write ip",
		"store: redis://localhost\nlimits: [{name: a, rate: 5/m}]":                          "",
		"domain: d\ndescriptors: [{key: a, rate_limit: }]":                                  "limits nothing",
		"domain: d\ndescriptors: [{key: a, rate_limit: {unit: day}}]":                       "refuses everything",
		"domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true}}]":                 "",
		"domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 0}}]": "",
	} {
		list := mustParse(t, src).Warnings()
		if want == "" && len(list) > 0 || want != "" && (len(list) != 1 || !strings.Contains(list[0].Error(), want)) {
			t.Errorf("%s: %v, want %q", src, list, want)
		}
	}
}

func TestRateHints(t *testing.T) {
	for written, want := range map[string]string{
		"10r/s": "10/s", "100 M/month": "100M/month", "10 r/m": "10/m", "5 per minute": "5/minute", "5/60": "5/60s", "5/hr": "5/h",
		"1,000/s": "1000/s", "1_000/s": "1000/s", ".5/s": "0.5/s", "5 Per Hour": "5/hour",
		"unlimited": "unlimited: true",
		"":          rateForms, "-1/s": rateForms, "5": rateForms, "5/0": rateForms, "NaN/s": rateForms, "5/fortnight": rateForms,
	} {
		if got := rateHint(written); !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", written, got, want)
		}
	}
}

// TestAddressesThatTransportsCut: an IPv6 address that came as its network meets
// the limits that the address itself would, and the same bucket.
func TestAddressesThatTransportsCut(t *testing.T) {
	s := mustParse(t, `
limits:
  - {name: net, match: {ip: "2001:db8::/32"}, key: [ip], rate: 5/m}
  - {name: wide, key: [ip], ipv6_prefix: 48, rate: 5/m}
  - {name: one, match: {ip: "2001:db8:0:1::"}, rate: 5/m}
  - {name: four, match: {ip: 10.0.0.0/8}, rate: 5/m}
`)
	keys := func(ip string) string {
		matched, _ := s.Match("", attrs("ip="+ip), nil, nil)
		var out []string
		for _, m := range matched {
			out = append(out, m.Limit.Name+" "+string(m.Key))
		}
		return strings.Join(out, "|")
	}
	whole, cut := keys("2001:db8:0:1::7"), keys("2001:db8:0:1::/64")
	if whole != cut || !strings.HasPrefix(whole, "net ") || !strings.Contains(whole, "wide ") {
		t.Errorf("the address: %q, its network: %q", whole, cut)
	}
	if got := keys("2001:db8::/16"); strings.Contains(got, "net ") {
		t.Errorf("a network wider than the limit's: %q", got)
	}
	for _, text := range []string{"10.0.0.0/8", "::ffff:10.0.0.0/104", "2001:db8::/129", "/", "2001:db8::/64/64"} {
		if got := keys(text); got != "wide "+string(appendPart(nil, text)) {
			t.Errorf("%s counts as an address: %q", text, got)
		}
	}
	network := attrs("ip=2001:db8:0:1::/64")
	dst, scratch := make([]Matched, 0, 8), make([]byte, 0, 256)
	if n := testing.AllocsPerRun(100, func() { s.Match("", network, dst, scratch) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// A file in which nothing limits is noticed, in either format; one that only names the
// store is not meant to.
func TestFilesWithoutLimits(t *testing.T) {
	for src, warns := range map[string]bool{
		"limits: []":                     true,
		"defaults: {rate: 1/s}":          true,
		"store: memory\nlimits: []":      true,
		"domain: d\ndescriptors: []":     true,
		"domain: d":                      true,
		"store: memory":                  false,
		"limits: [{name: a, rate: 1/s}]": false,
		"domain: d\ndescriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 1}}]": false,
	} {
		w := mustParse(t, src).Warnings()
		if warns && (len(w) != 1 || !strings.Contains(w[0].Message, "no limits") || w[0].Line != 1) || !warns && len(w) > 0 {
			t.Errorf("%q: %v", src, w)
		}
	}
}

// An attribute that only the caller can provide is named once, where it is used first.
func TestUnprovidedAttributes(t *testing.T) {
	s := mustParse(t, `limits:
  - {name: good, match: {path: /x, "header:a": b}, key: [ip, "cookie:c", "query:q"], missing: skip, when: 'request.size > 1 && request.headers["x"] != ""', rate: 1/s}
  - {name: leased, key: [account], rate: 1/s, sharing: leased}
  - name: mine
    key: [user]
    match: {tenant: t}
    rate: 1/s
    overrides: [{when: {plan: gold}, rate: 2/s}]
  - {name: again, key: [user], when: 'attributes["region"] == "eu"', rate: 1/s}
`)
	var got []string
	for _, e := range s.Unprovided() {
		if e.File == "" || e.Hint == "" {
			t.Errorf("%+v", e)
		}
		got = append(got, fmt.Sprintf("%d %s", e.Line, strings.Split(e.Message, ",")[0]))
	}
	want := []string{`4 limit "mine" goes by "user"`, `4 limit "mine" goes by "tenant"`, `4 limit "mine" goes by "plan"`, `9 limit "again" goes by "region"`}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if len(s.Warnings()) > 0 {
		t.Errorf("loading warns as well: %v", s.Warnings())
	}
}

// The hint for a percentage is one that is in its range.
func TestPercentHint(t *testing.T) {
	for _, c := range []struct {
		low           int
		written, want string
	}{
		{0, "0.8", "did you mean 80%?"},
		{0, "80", "did you mean 80%?"},
		{0, "many", "write it as 80%"},
		{100, "250", "did you mean 250%?"},
		{100, "2.5", "did you mean 250%?"},
		{100, "50%", "write it as 100%"},
	} {
		if got := percentHint(&document.Node{Text: c.written}, c.low); got != c.want {
			t.Errorf("%q from %d%%: %q, want %q", c.written, c.low, got, c.want)
		}
	}
}

// What a limit does to requests over it, and to some of them by an override, is warned of where it cannot be meant.
func TestDoubtsOfActions(t *testing.T) {
	for limit, want := range map[string]string{
		"key: [ip], rate: 10/m, on_exceed: {ban: {for: 1h, after: 5/m}}":                                                           "within it",
		"key: [ip], rate: 10/m, on_exceed: {ban: {for: 1h, after: 599/h}}":                                                         "within it",
		"key: [ip], rate: 10/m, burst: 50, on_exceed: {ban: {for: 1h, after: 40/m}}":                                               "within it",
		"key: [ip], rate: 10/m, on_exceed: {ban: {for: 1h, after: 10/m}}":                                                          "",
		"key: [ip], rate: 10/m, on_exceed: {ban: {for: 1h, after: 600/h}}":                                                         "",
		"key: [ip], rate: 10/m, on_exceed: {ban: {for: 1h}}":                                                                       "",
		"key: [ip], rate: 10/m, overrides: [{when: {ip: 10.0.0.0/8}, rate: 100/m}], on_exceed: {ban: {for: 1h, after: 20/m}}":      "override when",
		"rate: 10/m, on_exceed: {ban: {for: 1h}}":                                                                                  "has all clients banned",
		`key: [user], rate: 1/m, overrides: [{when: {user: "*"}, rate: 2/m}, {when: {user: acme}, rate: 3/m}]`:                     "never reached",
		`key: [user], rate: 1/m, overrides: [{when: {user: "a*"}, rate: 2/m}, {when: {user: "ab*", path: /x}, rate: 3/m}]`:         "never reached",
		`key: [ip], rate: 1/m, overrides: [{when: {ip: 10.0.0.0/8}, rate: 2/m}, {when: {ip: [10.1.0.0/16, 10.2.3.4]}, rate: 3/m}]`: "never reached",
		`key: [user], rate: 1/m, overrides: [{when: {user: acme}, rate: 3/m}, {when: {user: "*"}, rate: 2/m}]`:                     "",
		`key: [user], rate: 1/m, overrides: [{when: {user: "*", path: /x}, rate: 2/m}, {when: {user: acme}, rate: 3/m}]`:           "",
		`key: [ip], rate: 1/m, overrides: [{when: {ip: 10.1.0.0/16}, rate: 2/m}, {when: {ip: 10.0.0.0/8}, rate: 3/m}]`:             "",
		"rate: 1/m, on_exceed: {redirect: /busy}":                                                                                  "from one redirect to the next",
		"match: {path: /api/*}, rate: 1/m, on_exceed: {redirect: /api/busy}":                                                       "from one redirect to the next",
		"match: {path: /api/*, method: GET}, rate: 1/m, on_exceed: {redirect: {location: /api/busy?x=1, status: 303}}":             "from one redirect to the next",
		"match: {path: /api/*, method: POST}, rate: 1/m, on_exceed: {redirect: {location: /api/busy, status: 303}}":                "",
		"match: {path: /api/*}, rate: 1/m, on_exceed: {redirect: /busy}":                                                           "",
		"rate: 1/m, on_exceed: {redirect: https://example.com/busy}":                                                               "",
	} {
		list := mustParse(t, "limits: [{name: a, "+limit+"}]").Warnings()
		if want == "" && len(list) > 0 || want != "" && (len(list) != 1 || !strings.Contains(list[0].Error(), want)) {
			t.Errorf("%s: %v, want %q", limit, list, want)
		}
	}
}
