package main

import (
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/etcdtest"
)

// TestConfigCommands walks through the versions of a configuration as an operator does.
func TestConfigCommands(t *testing.T) {
	t.Parallel()
	url := "etcd://" + etcdtest.Start(t).Addr() + "/shop"
	good := file(t, "limits.yaml", "limits:\n  - {name: a, key: [ip], rate: 5/minute}\n")
	more := file(t, "limits.yaml", "limits:\n  - {name: a, key: [ip], rate: 9/minute}\n  - {name: b, key: [ip], rate: 1/hour}\n")
	bad := file(t, "limits.yaml", "limits:\n  - {name: a, raet: 5/minute}\n")
	large := file(t, "limits.yaml", "limits:\n  - {name: a, rate: 1/s}\n"+strings.Repeat("# nothing but a comment\n", 10<<20/24))
	empty := file(t, "limits.yaml", "limits: []\n")
	for _, c := range []struct {
		args  string
		code  int
		wants []string
	}{
		{"history", exitNo, []string{"there is no configuration at etcd://"}},
		{"show", exitNo, []string{"push one, or correct the prefix"}},
		{"push " + bad, exitNo, []string{`unknown key "raet" in a limit`, "did you mean rate?", "2 faults"}},
		{"push " + empty, exitNo, []string{"has no limits"}},
		{"push " + large, exitNo, []string{"split it into several files"}},
		{"push /none.yaml", exitUsage, []string{"/none.yaml"}},
		{"push " + good + " --if-version 1", exitNo, []string{"conflict: version 1 is not the latest, as there is none"}},
		{"push " + good + " --if-version 0 --author anna -m first", exitOK, []string{"version 1: 1 limit\n"}},
		{"push " + good, exitOK, []string{"nothing to do: version 1 has this content"}},
		{"diff " + good, exitOK, nil},
		{"diff " + more, exitNo, []string{"-  - {name: a, key: [ip], rate: 5/minute}\n+  - {name: a, key: [ip], rate: 9/minute}\n+  - {name: b"}},
		{"diff", exitUsage, []string{"say what to compare"}},
		{"diff " + bad, exitNo, []string{"+  - {name: a, raet: 5/minute}\n", `unknown key "raet" in a limit`, "did you mean rate?", "a push of these files is refused"}},
		{"diff " + empty, exitNo, []string{"has no limits", "a push of these files is refused"}},
		{"push " + more + " --if-version 1", exitOK, []string{"version 2: 2 limits\n"}},
		{"push " + good + " --if-version 1", exitNo, []string{"conflict: version 1 is not the latest: ", "pushed version 2 at "}},
		{"diff --version 1", exitNo, []string{"+  - {name: b"}},
		{"rollback 1 -m back", exitOK, []string{"version 3: 1 limit, with the content of version 1"}},
		{"rollback 7", exitNo, []string{"there is no version 7, kept are versions from 1 to 3"}},
		{"rollback x", exitUsage, []string{`"x" is no version`}},
		{"show", exitOK, []string{"rate: 5/minute"}},
		{"show 2", exitOK, []string{"rate: 9/minute"}},
		{"show 2 --file other", exitNo, []string{`no file "other"`}},
		{"history", exitOK, []string{"VERSION", "(version 1 again) back", "anna", "first"}},
		{"history --json", exitOK, []string{`"rolled_back_to": 1`}},
		{"status", exitNo, []string{"latest: version 3", "stint: no service reads its configuration from here: start one with --config " + url + ", or compare"}},
		{"status --json", exitNo, []string{`"members": {}`, "no service reads its configuration from here"}},
	} {
		args := append([]string{"config"}, strings.Fields(c.args)...)
		code, out, errOut := call(t, []string{"STINT_TO=" + url}, args...)
		if code != c.code {
			t.Errorf("%s: exit code %d, want %d\n%s%s", c.args, code, c.code, out, errOut)
		}
		for _, want := range c.wants {
			if !strings.Contains(out+errOut, want) {
				t.Errorf("%s: no %q in\n%s%s", c.args, want, out, errOut)
			}
		}
		if strings.Contains(errOut, "STINT_TO") {
			t.Errorf("%s: %s", c.args, errOut)
		}
	}
	if code, _, errOut := call(t, nil, "config", "history"); code != exitUsage || !strings.Contains(errOut, "say where the configuration is with --to") {
		t.Errorf("without --to: %d %s", code, errOut)
	}
}

// TestOldMemberIsShown: the status says which member does not enforce the latest version, and why. A
// member that reads Envoy's files otherwise stands for one of another version.
func TestOldMemberIsShown(t *testing.T) {
	t.Parallel()
	addr := etcdtest.Start(t).Addr()
	url := "etcd://" + addr + "/old"
	to := []string{"STINT_TO=" + url}
	one, two := "domain: edge\ndescriptors:\n  - {key: a, rate_limit: {unit: hour, requests_per_unit: 5}}\n", "domain: edge\ndescriptors:\n  - {key: b, rate_limit: {unit: hour, requests_per_unit: 5}}\n"
	if code, _, errOut := call(t, to, "config", "push", file(t, "one.yaml", one)); code != exitOK {
		t.Fatal(errOut)
	}
	// Two hosts in one URL: a comma does not end it.
	members := []*process{
		serveProcess(t, nil, "--config", "etcd://"+addr+","+addr+"/old", "--node", "new", "--rls-merge-domains", "--state-dir", "none"),
		serveProcess(t, nil, "--config", url, "--node", "old", "--state-dir", "none"),
	}
	both := []string{file(t, "one.yaml", one), file(t, "two.yaml", two)}
	if code, _, errOut := call(t, to, append([]string{"config", "push", "--rls-merge-domains"}, both...)...); code != exitOK {
		t.Fatal(errOut)
	}
	members[0].await("version=2")
	members[1].await("configuration refused")
	seen := ""
	for begun := time.Now(); time.Since(begun) < 30*time.Second; <-time.After(50 * time.Millisecond) {
		code, out, errOut := call(t, to, "config", "status")
		seen = out + errOut
		if code == exitNo && strings.Contains(seen, "1 of 2 members not on version 2") &&
			regexp.MustCompile(`(?m)^new +2 +- `).MatchString(out) && regexp.MustCompile(`(?m)^old +1 +2 .*duplicate domain`).MatchString(out) {
			seen = ""
			break
		}
	}
	if seen != "" {
		t.Errorf("the status is\n%s", seen)
	}
	merged := append([]string{"config", "diff"}, both...)
	if code, out, errOut := call(t, to, append(merged, "--rls-merge-domains")...); code != exitOK {
		t.Errorf("a difference to itself: exit code %d\n%s%s", code, out, errOut)
	}
	if code, _, errOut := call(t, to, merged...); code != exitNo || !strings.Contains(errOut, "duplicate domain") {
		t.Errorf("without the flag of the push: exit code %d\n%s", code, errOut)
	}
	for _, p := range members {
		if code := p.end(syscall.SIGTERM); code != exitOK {
			t.Errorf("exit code %d", code)
		}
	}
}
