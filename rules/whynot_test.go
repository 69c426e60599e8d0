package rules

import (
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/seeding"
)

const whyNotLimits = `limits:
  - {name: login, match: {method: POST, path: [/login, /signin]}, key: [ip], rate: 1/s}
  - {name: user, key: [user], rate: 1/s}
  - {name: net, match: {ip: 10.0.0.0/8}, rate: 1/s}
  - {name: size, when: request.size > 1000, rate: 1/s}
  - {name: header, match: {"header:x-tier": gold}, key: ["header:x-key"], rate: 1/s}
  - {name: all, key: [user], missing: all, rate: 1/s}
`

func TestWhyNot(t *testing.T) {
	s := mustParse(t, whyNotLimits)
	for _, tt := range []struct{ request, limit, want string }{
		{"method=GET path=/x ip=1.2.3.4", "login", "method is GET, and match wants POST; path is /x, and match wants /login or /signin"},
		{"method=POST path=/login", "login", "the request has no ip, which is part of the key (missing: skip)"},
		{"METHOD=POST path=/login ip=::1", "login", `the request has no method (it has "METHOD"), and match wants POST`},
		{"usr=u1", "user", `the request has no user (it has "usr"), which is part of the key (missing: skip)`},
		{"user=u1", "user", ""},
		{"ip=192.0.2.7", "net", "ip is 192.0.2.7, and match wants 10.0.0.0/8"},
		{"size=10", "size", "when does not hold"},
		{"sise=10", "size", `when could not be evaluated: the request has no size (it has "sise")`},
		{"header:X-Tier=gold", "header", "the request has no header:x-key (it has \"header:X-Tier\"), which is part of the key (missing: skip)"},
		{"", "all", ""},
	} {
		for _, l := range s.Limits() {
			if l.Name != tt.limit {
				continue
			}
			if got := s.WhyNot(l, "", attrs(tt.request)); got != tt.want {
				t.Errorf("%s, %q: %q, want %q", tt.limit, tt.request, got, tt.want)
			}
		}
	}
}

// WhyNot has something to say exactly when the limit does not apply, and a limit that was
// meant for the request is skipped with its reason.
func TestWhyNotAgreesWithMatch(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := mustParse(t, whyNotLimits)
	r := seeding.Rand(t)
	values := map[string][]string{
		"method": {"GET", "POST"}, "path": {"/login", "/x"}, "ip": {"10.1.2.3", "192.0.2.7", "nonsense"},
		"user": {"u", ""}, "size": {"5000", "1", "x"}, "header:x-tier": {"gold", "tin"}, "header:X-Key": {"k"},
	}
	applied, skipped := 0, [SkipCondition + 1]int{}
	for range 3000 {
		var list []string
		for name, choices := range values {
			if r.IntN(2) == 0 {
				list = append(list, name+"="+choices[r.IntN(len(choices))])
			}
		}
		request := attrs(strings.Join(list, " "))
		meets := map[*Limit]bool{}
		found, _ := s.Match("", request, nil, nil)
		for _, m := range found {
			meets[m.Limit] = true
			if m.Skip != SkipNone {
				t.Fatalf("Match returns what is skipped: %+v", m)
			}
			applied++
		}
		all, _ := s.MatchAll("", request, request, nil, nil)
		for _, m := range all {
			if m.Skip == SkipNone != meets[m.Limit] {
				t.Fatalf("%q: %s is skipped (%v) and matched (%v)", list, m.Limit.Name, m.Skip, meets[m.Limit])
			}
			skipped[m.Skip]++
			why := s.WhyNot(m.Limit, "", request)
			if m.Skip == SkipMissingKey && !strings.Contains(why, "part of the key") || m.Skip == SkipCondition && !strings.Contains(why, "could not be evaluated") {
				t.Fatalf("%q: %s is skipped (%v): %s", list, m.Limit.Name, m.Skip, why)
			}
		}
		for _, l := range s.Limits() {
			if why := s.WhyNot(l, "", request); (why == "") != meets[l] {
				t.Fatalf("%q: %s applies: %v, and why not: %q", list, l.Name, meets[l], why)
			}
		}
	}
	if applied == 0 || skipped[SkipMissingKey] == 0 || skipped[SkipCondition] == 0 {
		t.Fatalf("%d applied, skipped %v: the requests try nothing", applied, skipped)
	}
}
