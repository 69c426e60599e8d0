package rules

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stint-io/stint/limit"
)

// However many limits there are, few are evaluated for a request: each is filed under the part
// of its match that the fewest others share, be it an exact value, a prefix or a suffix, also
// within a list.
func TestFewCandidates(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const limits = 300
	for name, c := range map[string]struct{ match, request string }{
		"exact":                    {"{method: POST, path: /p%[1]d}", "method=POST path=/p7"},
		"exact, the other first":   {"{path: /p%[1]d, zone: a}", "path=/p7 zone=a"},
		"a list":                   {"{path: [/p%[1]d, /q%[1]d], method: [GET, POST]}", "path=/q7 method=GET"},
		"a beginning":              {"{path: /p%[1]d/*, method: GET}", "path=/p7/x method=GET"},
		"a beginning, shared":      {"{path: /p/*, user: u%[1]d}", "path=/p/x user=u7"},
		"an end":                   {"{host: '*.h%[1]d.example', method: GET}", "host=a.h7.example method=GET"},
		"an end, a shared prefix":  {"{host: 'a.*.h%[1]d', method: GET}", "host=a.b.h7 method=GET"},
		"a beginning, shared end":  {"{host: 'h%[1]d.*.example', method: GET}", "host=h7.a.example method=GET"},
		"a list of two beginnings": {"{path: [/p%[1]d/*, /q%[1]d/*], method: GET}", "path=/q7/x method=GET"},
		"a list, one of a kind":    {"{path: [/p%[1]d, /q%[1]d/*], method: GET}", "path=/q7/x method=GET"},
		"a list with a common one": {"{path: [/p%[1]d, /all], user: u%[1]d}", "path=/all user=u7"},
		"a header":                 {"{\"header:x-key\": k%[1]d, method: GET}", "header:X-Key=k7 method=GET"},
		"a domain":                 {"{domain: d%[1]d, method: GET}", "domain=d7 method=GET"},
	} {
		var text strings.Builder
		text.WriteString("limits:\n")
		for i := range limits {
			fmt.Fprintf(&text, "  - {name: l%d, match: "+c.match+", rate: 1/s}\n", i)
		}
		s := mustParse(t, text.String())
		for _, domain := range []string{"", "d7"} {
			list := attrs(c.request)
			if domain != "" && name == "a domain" {
				list = list[1:]
			}
			sub := subject{domain: domain, attrs: list, set: s}
			looked := 0
			for _, numbers := range s.index.candidates(&sub, nil) {
				looked += len(numbers)
			}
			found, _ := s.Match(domain, list, nil, nil)
			if len(found) != 1 || found[0].Limit.Name != "l7" || looked > 2 {
				t.Errorf("%s, domain %q: %d of %d are looked at, %d apply", name, domain, looked, limits, len(found))
			}
		}
		// Another request has no candidates.
		sub := subject{attrs: attrs("method=GET path=/none zone=a host=a.example user=nobody"), set: s}
		looked := 0
		for _, numbers := range s.index.candidates(&sub, nil) {
			looked += len(numbers)
		}
		if looked > 0 {
			t.Errorf("%s: %d of %d are looked at for a request that meets none", name, looked, limits)
		}
	}
}

// Limits that cannot be filed are evaluated for each request; the others are not.
func TestCandidatesThatCannotBeFiled(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := mustParse(t, `limits:
  - {name: all, rate: 1/s}
  - {name: stars, match: {path: "*x*"}, rate: 1/s}
  - {name: net, match: {ip: 10.0.0.0/8}, rate: 1/s}
  - {name: when, when: request.size > 1, rate: 1/s}
  - {name: filed, match: {path: /x, ip: 10.0.0.0/8}, rate: 1/s}
  - {name: beside, match: {path: "*x*", user: u}, rate: 1/s}
`)
	for request, want := range map[string]int{"": 4, "path=/x": 5, "path=/x user=u": 6, "user=v ip=10.0.0.1": 4} {
		sub := subject{attrs: attrs(request), set: s}
		looked := 0
		for _, numbers := range s.index.candidates(&sub, nil) {
			looked += len(numbers)
		}
		if looked != want {
			t.Errorf("%q: %d are looked at, want %d", request, looked, want)
		}
	}
}

// Names of headers are the same in any case, and no others are; the first of several counts.
func TestNamesOfAttributes(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := mustParse(t, `limits: [{name: a, match: {"header:X-Key": k}, key: [User], rate: 1/s}, {name: b, match: {Header: k}, rate: 1/s}]
`)
	long := "header:x-" + strings.Repeat("y", 100)
	many := mustParse(t, "limits: [{name: long, match: {\""+long+"\": k}, rate: 1/s}]\n")
	for _, c := range []struct {
		set     *Set
		request []limit.Attribute
		want    string
	}{
		{s, attrs("header:x-key=k User=u"), "a"},
		{s, attrs("HEADER:X-KEY=k User=u"), "a"},
		{s, attrs("header:x-key=k user=u"), ""},
		{s, attrs("header:x-kez=k User=u"), ""},
		{s, attrs("Header=k"), "b"},
		{s, attrs("header=k"), ""},
		{s, attrs("headex:x-key=k User=u"), ""},
		{s, attrs("header:x-key=k header:X-KEY=other User=u"), "a"},
		{s, attrs("header:X-KEY=other header:x-key=k User=u"), ""},
		{many, attrs(long + "=k"), "long"},
		{many, attrs(strings.ToUpper(long) + "=k"), "long"},
		{many, attrs(long + "z=k"), ""},
	} {
		found, _ := c.set.Match("", c.request, nil, nil)
		got := ""
		for _, m := range found {
			got += m.Limit.Name
		}
		if got != c.want {
			t.Errorf("%v meets %q, want %q", c.request, got, c.want)
		}
	}
}
