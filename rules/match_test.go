package rules

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/limit"
)

// attrs reads "name=value name=value".
func attrs(text string) []limit.Attribute {
	var out []limit.Attribute
	for _, pair := range strings.Fields(text) {
		name, value, _ := strings.Cut(pair, "=")
		out = append(out, limit.Attribute{Name: name, Value: value})
	}
	return out
}

// matched writes what Match finds: variant, key and marks.
func matched(s *Set, domain, request string) string {
	found, _ := s.Match(domain, attrs(request), nil, nil)
	var out []string
	for _, m := range found {
		text := m.Variant.ID
		if key := m.Limit.KeyText(m.Key); key != "" {
			text += "[" + key + "]"
		}
		if m.Shadow {
			text += " shadow"
		}
		if m.Missing {
			text += " missing"
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

func TestMatch(t *testing.T) {
	s := mustParse(t, `
limits:
  - {name: login, match: {method: POST, path: /login}, key: ip, rate: 5/minute}
  - {name: api, match: {path: /api/*}, key: [user], rate: 5/s, overrides: [{when: {user: acme}, rate: 50/s}, {when: {user: "a*"}, rate: 9/s}]}
  - {name: images, match: {path: ["/img/*.png", "/img/*.jpg", /favicon.ico]}, rate: 5/s}
  - {name: hosts, match: {host: "*.example.com"}, key: host, rate: 5/s}
  - {name: nets, match: {ip: [10.0.0.0/8, "2001:db8::/32"]}, rate: 5/s}
  - {name: tenant, match: {"header:X-Tenant": "*"}, key: "header:x-tenant", rate: 5/s}
  - {name: edge, match: {domain: edge}, when: domain == "edge", rate: 5/s}
  - {name: all, match: {kind: k}, key: [a, b], missing: all, rate: 5/s}
  - {name: must, match: {kind: k}, key: [a], missing: reject, rate: 5/s, shadow: true}
  - {name: big, when: 'request.size > 1000', rate: 5/s}
  - {name: plan, match: {kind: p}, when: 'attributes["plan"] in ["free", "trial"] && request.headers["x-a"] == "1"', rate: 5/s}
`)
	for _, tt := range []struct{ domain, request, want string }{
		{"", "", ""},
		{"", "method=POST path=/login ip=192.0.2.7", "login[ip=192.0.2.7]"},
		{"", "method=POST path=/login ip=::ffff:192.0.2.7", "login[ip=192.0.2.7]"},
		{"", "method=POST path=/login ip=2001:DB8:0:1::ff", "login[ip=2001:db8:0:1::/64]; nets"},
		{"", "method=POST path=/login ip=fe80::1%eth0", "login[ip=fe80::/64]"},
		{"", "method=POST path=/login ip=unknown", `login[ip="unknown"]`},
		{"", "method=POST path=/login", ""},
		{"", "method=GET path=/login ip=192.0.2.7", ""},
		{"", "path=/login method=POST method=GET ip=192.0.2.7", "login[ip=192.0.2.7]"},
		{"", "path=/login method=GET method=POST ip=192.0.2.7", ""},
		{"", "path=/api/ user=u1", `api[user="u1"]`},
		{"", "path=/api/x/y user=acme", `api!"user"="acme"[user="acme"]`},
		{"", "path=/api/x/y user=abc", `api!"user"="a*"[user="abc"]`},
		{"", "path=/api user=u1", ""},
		{"", "path=/img/a/b.png", "images"},
		{"", "path=/img/.jpg", "images"},
		{"", "path=/favicon.ico", "images"},
		{"", "path=/img/a.gif", ""},
		{"", "host=a.example.com", `hosts[host="a.example.com"]`},
		{"", "host=example.com", ""},
		{"", "ip=10.255.0.1", "nets"},
		{"", "ip=::ffff:10.255.0.1", "nets"},
		{"", "ip=11.0.0.1", ""},
		{"", "header:X-TENANT=t", `tenant[header:x-tenant="t"]`},
		{"", "header:x-tenant=", ""}, // as if it were not there
		{"edge", "", "edge"},
		{"", "domain=edge", "edge"},
		{"other", "domain=edge", ""},
		{"", "kind=k a=1 b=2", `all[a="1" b="2"]; must[a="1"] shadow`},
		{"", "kind=k b=2", `all[a=(missing) b="2"]; must[a=(missing)] shadow missing`},
		{"", "size=1001", "big"},
		{"", "size=1000", ""},
		{"", "size=many", "big"}, // cannot be evaluated
		{"", "kind=none", ""},    // has no size
		{"", "kind=p plan=free header:X-A=1", "plan"},
		{"", "kind=p plan=gold header:X-A=1", ""},
		{"", "kind=p plan=free", ""},
		{"", "kind=p", ""},
	} {
		if got := matched(s, tt.domain, tt.request); got != tt.want {
			t.Errorf("%s %q: got %s, want %s", tt.domain, tt.request, got, tt.want)
		}
	}
	want := "a b header:x-a header:x-tenant host ip kind method path plan size user"
	if got := strings.Join(s.Attributes(), " "); got != want {
		t.Errorf("attributes: got %s, want %s", got, want)
	}
}

func TestMatchKeepsTheOrderOfTheConfiguration(t *testing.T) {
	s := mustParse(t, `
limits:
  - {name: a, match: {x: "p*"}, rate: 5/s}
  - {name: b, rate: 5/s}
  - {name: c, match: {y: q}, rate: 5/s}
  - {name: d, match: {x: [p, pq*, "pqr"]}, rate: 5/s}
  - {name: e, match: {x: pqr}, rate: 5/s}
`)
	if got := matched(s, "", "y=q x=pqr"); got != "a; b; c; d; e" {
		t.Errorf("got %s", got)
	}
	if found, _ := new(Set).Match("", attrs("x=pqr"), nil, nil); len(found) != 0 {
		t.Errorf("the zero Set matches %v", found)
	}
	before := []Matched{{}}
	found, _ := s.Match("", attrs("x=pqr"), before, nil)
	if len(found) != 5 || found[0].Limit != nil {
		t.Errorf("what dst held was touched: %v", found)
	}
}

func TestAPatternIsARegularExpressionWithStarsOnly(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := seeding.Rand(t)
	word := func(letters string) string {
		var b strings.Builder
		for range r.IntN(7) {
			b.WriteByte(letters[r.IntN(len(letters))])
		}
		return b.String()
	}
	for range 20_000 {
		text, value := word("ab*"), word("ab")
		p := newPattern("x", text)
		re := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(text), `\*`, ".*") + "$")
		if got, want := p.matches(value), re.MatchString(value); got != want {
			t.Fatalf("%q on %q: got %v, want %v", text, value, got, want)
		}
	}
}

// randomSet has limits and overrides that share names and prefixes.
func randomSet(t *testing.T, r *rand.Rand) *Set {
	names := []string{"x", "y", "header:Z", "domain"}
	letter := func() string { return string("ab*"[r.IntN(3)]) }
	values := func() string {
		var list []string
		for range 1 + r.IntN(3) {
			list = append(list, `"`+letter()+letter()+letter()[:r.IntN(2)]+`"`)
		}
		return "[" + strings.Join(list, ", ") + "]"
	}
	conditions := func(n int) string {
		var out []string
		for _, i := range r.Perm(len(names))[:n] {
			out = append(out, fmt.Sprintf("%q: %s", names[i], values()))
		}
		return "{" + strings.Join(out, ", ") + "}"
	}
	var b strings.Builder
	b.WriteString("limits:\n")
	for i := range r.IntN(40) {
		fmt.Fprintf(&b, "  - name: l%d\n    rate: 5/s\n    key: x\n    missing: all\n", i)
		if n := r.IntN(3); n > 0 {
			fmt.Fprintf(&b, "    match: %s\n", conditions(n))
		}
		overrides := r.IntN(6)
		if overrides > 0 {
			b.WriteString("    overrides:\n")
		}
		for j := range overrides {
			// The number makes each condition another.
			fmt.Fprintf(&b, "      - {when: {%q: [\"%d!\", %s, rate: 1/s}\n", names[j%len(names)], j, values()[1:]+"}")
		}
	}
	if b.Len() == len("limits:\n") {
		return mustParse(t, "limits: []\n")
	}
	return mustParse(t, b.String())
}

func TestTheIndexFindsWhatAScanFinds(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := seeding.Rand(t)
	some := func() string { return []string{"", "a", "b", "ab", "ba", "aba", "bb", "0!", "abab"}[r.IntN(9)] }
	hits := 0
	for range 150 {
		s := randomSet(t, r)
		for range 20 {
			domain := some()
			var request []limit.Attribute
			for range r.IntN(6) {
				request = append(request, limit.Attribute{
					Name: []string{"x", "y", "header:z", "HEADER:Z", "domain", "w"}[r.IntN(6)], Value: some(),
				})
			}
			var want []*Variant
			sub := subject{domain: domain, attrs: request, set: s}
			for _, l := range s.limits {
				if !l.clause.holds(&sub) {
					continue
				}
				v := &l.Base
				if i := slices.IndexFunc(l.Overrides, func(o Override) bool { return o.clause.holds(&sub) }); i >= 0 {
					v = &l.Overrides[i].Variant
				}
				want = append(want, v)
			}
			found, _ := s.Match(domain, request, nil, nil)
			var got []*Variant
			for _, m := range found {
				got = append(got, m.Variant)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s %v: got %v, want %v", domain, request, got, want)
			}
			hits += len(got)
		}
	}
	if hits < 1000 {
		t.Errorf("only %d matches: the test tests nothing", hits)
	}
}

// manyLimits has n limits of several kinds, few of which match any one request.
func manyLimits(t testing.TB, n int) *Set {
	var b strings.Builder
	b.WriteString("limits:\n")
	for i := range n {
		switch i % 5 {
		case 0:
			fmt.Fprintf(&b, "- {name: l%d, match: {path: /svc%d/*}, key: ip, rate: 5/s}\n", i, i)
		case 1:
			fmt.Fprintf(&b, "- {name: l%d, match: {tenant: t%d}, key: [user], rate: 5/s}\n", i, i)
		case 2:
			fmt.Fprintf(&b, "- {name: l%d, match: {method: POST, path: /form%d}, key: [ip, user], rate: 5/s}\n", i, i)
		case 3:
			fmt.Fprintf(&b, "- {name: l%d, match: {host: '*.c%d.example.com'}, key: ip, rate: 5/s}\n", i, i)
		case 4:
			fmt.Fprintf(&b, "- {name: l%d, match: {plan: [p%d, q%d]}, key: user, rate: 5/s, overrides: [{when: {user: u1}, rate: 6/s}]}\n", i, i, i)
		}
	}
	return mustParse(t, b.String())
}

var benchRequest = attrs("method=POST path=/form2 ip=2001:db8::7 user=u1 tenant=t1 host=www.c3.example.com plan=q4")

func TestMatchDoesNotAllocate(t *testing.T) {
	s := manyLimits(t, 100)
	envoy := mustParse(t, "domain: d\ndescriptors: [{key: a, descriptors: [{key: b, value: 'x*', rate_limit: {unit: day, requests_per_unit: 5}}]}]\n")
	dst, scratch := make([]Matched, 0, 16), make([]byte, 0, 4096)
	long := attrs("plan=q4 user=" + strings.Repeat("u", 1000))
	pair := attrs("a=1 b=xyz")
	for _, tt := range []struct {
		set    *Set
		domain string
		attrs  []limit.Attribute
		want   int
	}{{s, "", benchRequest, 4}, {s, "", long, 1}, {envoy, "d", pair, 1}} {
		found := 0
		if n := testing.AllocsPerRun(100, func() {
			m, _ := tt.set.Match(tt.domain, tt.attrs, dst, scratch)
			found = len(m)
		}); n != 0 || found != tt.want {
			t.Errorf("%d matches, %v allocations, want %d and 0", found, n, tt.want)
		}
	}
}

// Many limits cost about as much as a few, because few are evaluated.
func TestTheIndexLooksAtFewLimits(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := manyLimits(t, 10_000)
	looked := 0
	for _, list := range s.index.candidates(&subject{attrs: benchRequest, set: s}, nil) {
		looked += len(list)
	}
	if looked != 4 {
		t.Errorf("looked at %d of 10000 limits, want the 4 that match", looked)
	}
}

func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := manyLimits(b, n)
			dst, scratch := make([]Matched, 0, 16), make([]byte, 0, 4096)
			b.ReportAllocs()
			for b.Loop() {
				if m, _ := s.Match("", benchRequest, dst, scratch); len(m) != 4 {
					b.Fatalf("%d matches, want 4", len(m))
				}
			}
		})
	}
}

func TestTheShareEnforcedIsStableAndEven(t *testing.T) {
	s := mustParse(t, "limits: [{name: a, key: user, rate: 5/s, enforce: 10%}, {name: b, key: user, rate: 5/s, enforce: 0%}]\n")
	enforced := 0
	for i := range 10_000 {
		m, _ := s.Match("", []limit.Attribute{{Name: "user", Value: fmt.Sprint("u", i)}}, nil, nil)
		if !m[0].Shadow {
			enforced++
		}
		if !m[1].Shadow {
			t.Fatal("0% enforces")
		}
	}
	if enforced < 900 || enforced > 1100 {
		t.Errorf("%d of 10000 keys are enforced, want about 1000", enforced)
	}
	// These values may never change: the same keys must stay enforced on every
	// host and in every version.
	for key, want := range map[string]int{"": 2981, "u1": 8531, "u2": 1997} {
		if got := permyriad(hashName("a"), appendPart(nil, key)); got != want {
			t.Errorf("place of %q: got %d, want %d", key, got, want)
		}
	}
}

func TestExpressionFailuresAreCounted(t *testing.T) {
	s := mustParse(t, `limits: [{name: a, rate: 5/s, when: 'attributes["x"].matches("^(a+)+$")'}]`)
	for _, tt := range []struct {
		request, want string
		failures      int64
	}{
		{"x=aaa", "a", 0},
		{"x=aab", "", 0},
		{"y=1", "", 1},
		{"x=" + strings.Repeat("a", 600_000), "a", 2}, // above the cost bound
	} {
		if got := matched(s, "", tt.request); got != tt.want || s.ExpressionErrors() != tt.failures {
			t.Errorf("%.20s: got %q and %d failures, want %q and %d", tt.request, got, s.ExpressionErrors(), tt.want, tt.failures)
		}
	}
}

func TestExpressionsSayWhatTheyRead(t *testing.T) {
	for src, want := range map[string]string{
		`attributes["a"] == "x" && attributes.b == "y"`:        "a b",
		`"a" in attributes`:                                    "a",
		`has(attributes.a)`:                                    "a",
		`attributes.exists(k, k == "x")`:                       "*",
		`attributes[path] == "x"`:                              "* path",
		`request.headers["x"] == "1"`:                          "header:x",
		`request.headers.exists(k, k == "x") && user == "u"`:   "header:* user",
		`request.size > 5 || request.method == "PUT"`:          "method size",
		`domain == "d"`:                                        "",
		`["ip", "user"].exists(x, x == host)`:                  "host",
		`attributes["header:x-a"] == "1"`:                      "header:x-a",
		`attributes["a"] == "x" && attributes.exists(k, true)`: "* a",
	} {
		s, err := Parse("x", []byte("limits:\n- name: a\n  rate: 5/s\n  when: |\n    "+src+"\n"))
		if err != nil {
			t.Error(err)
			continue
		}
		if got := strings.Join(s.Attributes(), " "); got != want {
			t.Errorf("%s: got %q, want %q", src, got, want)
		}
	}
}
