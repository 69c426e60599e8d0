package main

import (
	"strings"
	"testing"
)

// TestKeyCommands: the counter of a key, shown and changed from the command line.
func TestKeyCommands(t *testing.T) {
	config := file(t, "stint.yaml", `
limits:
  - {name: month, key: [customer], rate: 100/month, algorithm: fixed_window, overrides: [{when: {plan: gold}, rate: 1000/month}]}
`)
	p := serveProcess(t, nil, "--config", config, "--state-dir", t.TempDir())
	env := []string{"STINT_ADMIN=" + strings.TrimPrefix(p.admin, "http://"), "STINT_ADDR=" + p.http}
	call(t, env, "take", "customer=acme", "--cost", "60")
	run := func(want int, contains string, args ...string) {
		t.Helper()
		code, out, errOut := call(t, env, append([]string{"key"}, args...)...)
		if out += errOut; code != want || !strings.Contains(out, contains) {
			t.Errorf("key %q: exit code %d, want %d and %q in\n%s", args, code, want, contains, out)
		}
	}
	run(exitOK, "month (plan=gold)  0     1000", "get", "month", "customer=acme")
	run(exitOK, `"used": 60`, "get", "month", "customer=acme", "--json")
	run(exitNo, `did you mean "month"?`, "get", "mont", "customer=acme")
	run(exitUsage, "no part of a key", "get", "month", "acme")
	run(exitUsage, "did you mean customer?", "get", "month", "custmer=acme")
	run(exitOK, "gave back 20", "refund", "month", "customer=acme", "20", "--request-id", "r1")
	run(exitOK, "it was done before", "refund", "month", "customer=acme", "20", "--request-id", "r1")
	run(exitUsage, "used for something else", "refund", "month", "customer=acme", "21", "--request-id", "r1")
	run(exitOK, `"used": 40`, "get", "month", "customer=acme", "--json")
	run(exitUsage, "last argument is the amount", "refund", "month", "customer=acme")
	run(exitUsage, "last argument is the amount", "grant", "month", "customer=acme", "5x")
	run(exitUsage, "above the cap", "grant", "month", "customer=acme", "101")
	run(exitOK, "granted 50", "grant", "month", "customer=acme", "50")
	run(exitOK, `"quota": 150`, "get", "month", "customer=acme", "--json")
	run(exitOK, "dropped 40", "reset", "month", "customer=acme")
	run(exitOK, `"quota": 100`, "get", "month", "customer=acme", "--json")
}
