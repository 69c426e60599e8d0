package main

import (
	"strings"
	"syscall"
	"testing"
)

// TestBanCommands: bans of a running service, listed and lifted from the command line.
func TestBanCommands(t *testing.T) {
	config := file(t, "stint.yaml", `
limits:
  - {name: login, key: [user], rate: 1/h, on_exceed: {reject: 403, ban: {for: 2h, after: 1/h, from: now}}}
  - {name: all, match: {path: /all}, rate: 1/h, on_exceed: {ban: {for: 1h}}}
`)
	p := serveProcess(t, nil, "--config", config)
	env := []string{"STINT_ADMIN=" + strings.TrimPrefix(p.admin, "http://"), "STINT_ADDR=" + p.http}
	long := strings.Repeat("x", 200)
	for _, args := range [][]string{{"user=u1"}, {"user=a b\x1b[31m"}, {"user=" + long}, {"path=/all"}} {
		for range 2 {
			call(t, env, append([]string{"take"}, args...)...)
		}
	}
	run := func(want int, args ...string) string {
		t.Helper()
		code, out, errOut := call(t, env, append([]string{"ban"}, args...)...)
		if code != want {
			t.Errorf("ban %q: exit code %d, want %d\n%s%s", args, code, want, out, errOut)
		}
		if strings.Contains(out, "\x1b") {
			t.Errorf("ban %q prints control characters: %q", args, out)
		}
		return out + errOut
	}
	contains := func(out string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		}
	}
	out := run(exitOK, "ls")
	contains(out, "LIMIT", "ID", "user=u1", `user="a b\x1b[31m"`, "lift it by its ID", "(all)", "1h59m")
	if n := strings.Count(out, "\n"); n != 5 {
		t.Errorf("%d lines, want 5:\n%s", n, out)
	}
	contains(run(exitOK, "ls", "login", "--json"), `"more": false`, `\u001b[31m`, `"exact": false`)
	contains(run(exitOK, "ls", "--max", "1"), "and more")
	contains(run(exitNo, "ls", "logn"), `did you mean "login"?`)
	contains(run(exitUsage, "rm"), "say of which limit")
	contains(run(exitUsage, "rm", "login"), "user")
	contains(run(exitUsage, "rm", "login", "user"), "no part of a key")
	contains(run(exitUsage, "rm", "login", "user=u1", "--all"), "exclude")
	contains(run(exitUsage, "rm", "login", "usr=u1"), "did you mean user?")
	contains(run(exitNo, "rm", "login", "user=nobody"), "lifted 0 bans")
	contains(run(exitOK, "rm", "login", "user=u1"), "lifted 1 ban\n")
	contains(run(exitOK, "rm", "login", "user=a b\x1b[31m"), "lifted 1 ban\n")
	contains(run(exitOK, "rm", "login", "user="+long), "lifted 1 ban\n")
	contains(run(exitOK, "ls"), "(all)")
	contains(run(exitOK, "rm", "--all"), "lifted 1 ban\n")
	contains(run(exitOK, "ls"), "nobody is banned")
	if code := p.end(syscall.SIGTERM); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	code, _, errOut := call(t, env, "ban", "ls")
	if code != exitUsage || !strings.Contains(errOut, "--admin") {
		t.Errorf("without a service: %d %s", code, errOut)
	}
}

// TestEmptyConfiguration: no limits are taken only where that is asked for.
func TestEmptyConfiguration(t *testing.T) {
	empty := file(t, "stint.yaml", "limits: []\n")
	for args, want := range map[string]int{"check": exitOK, "serve": exitUsage} {
		all := []string{args, empty}
		if args == "serve" {
			all = []string{"serve", "--config", empty, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"}
		}
		code, out, errOut := call(t, nil, all...)
		if code != want || !strings.Contains(out+errOut, "no limits") {
			t.Errorf("%s: exit code %d, want %d\n%s%s", args, code, want, out, errOut)
		}
	}
	p := serveProcess(t, nil, "--config", empty, "--allow-empty")
	if code := p.end(syscall.SIGTERM); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
