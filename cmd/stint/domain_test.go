package main

import (
	"os"
	"strings"
	"testing"
)

// The commands ask rules in Envoy's format, and the line to paste at the start does.
func TestTakeAndExplainOfADomain(t *testing.T) {
	p := serveProcess(t, nil, "--config", file(t, "edge.yaml", `
domain: edge
descriptors:
  - {key: white}
  - {key: user, rate_limit: {unit: year, requests_per_unit: 3}, descriptors: [{key: path, value: "/a*", rate_limit: {unit: year, requests_per_unit: 2}}]}
`))
	if want := `-d '{"descriptors":[{"entries":[{"key":"user","value":"demo"}]}],"domain":"edge"}'`; !strings.Contains(p.greeting, want) {
		t.Errorf("the line to paste does not fit the limits, want %s:\n%s", want, p.greeting)
	}
	addr := []string{"STINT_ADDR=" + p.http}
	for i, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"take", "--domain", "edge", "user=u", "path=/ab"}, exitOK, "allowed\n  edge.user.path_/a*: 1 of 2 left"},
		{[]string{"take", "--domain", "edge", "path=/ab", "user=u"}, exitOK, "no limit applies"},
		{[]string{"take", "--domain", "edge", "user=u", "+", "user=u", "path=/ab"}, exitOK, "edge.user: 2 of 3 left"},
		{[]string{"take", "--domain", "edge", "user=u", "+", "user=u", "path=/ab"}, exitNo, "refused by edge.user.path_/a*"},
		{[]string{"explain", "--domain", "edge", "user=u", "path=/ab"}, exitNo, "would be refused"},
		{[]string{"explain", "--domain", "edge", "user=x", "+", "white=w", "+", "path=x"}, exitOK, "descriptor white=w: no limit, edge.white the rule has no rate_limit\ndescriptor path=x: no limit, no rule of the domain has these entries"},
		{[]string{"explain", "--domain", "egde", "user=u"}, exitOK, "no file in Envoy's format has the domain"},
		{[]string{"take", "user=u"}, exitOK, "no limit applies"},
		{[]string{"take", "--domain", "edge", "x=1", "x=2", "--json"}, exitOK, `"limits":[]`},
		{[]string{"take", "--domain", "edge"}, exitUsage, "user=u1"},
		{[]string{"take", "--domain", "edge", "+", "user=u"}, exitUsage, "no entry before a +"},
		{[]string{"take", "--domain", "edge", "user=u", "+"}, exitUsage, "user=u1"},
		{[]string{"take", "user=u", "+"}, exitUsage, `"+" is not an attribute`},
	} {
		code, out, errOut := call(t, addr, c.args...)
		if code != c.code || !strings.Contains(out+errOut, c.text) {
			t.Errorf("call %d, %v: exit code %d, want %d with %q\n%s%s", i+1, c.args, code, c.code, c.text, out, errOut)
		}
	}
	if code := p.end(os.Interrupt); code != exitOK {
		t.Fatalf("SIGINT: exit code %d", code)
	}
}
