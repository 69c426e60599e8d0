package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stint-io/stint/rules"
)

// TestInit: the file that stint init writes is good and has no warnings, one that is there stays as it is, and serve
// takes it by its name alone.
func TestInit(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new.yaml")
	if code, out, errOut := call(t, nil, "init", path); code != exitOK || !strings.Contains(out, "stint serve "+path) {
		t.Fatalf("exit code %d: %s%s", code, out, errOut)
	}
	set, err := rules.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if doubts := append(set.Warnings(), set.Unprovided()...); len(doubts) > 0 || len(set.Limits()) < 3 {
		t.Errorf("%d limits, warnings %v", len(set.Limits()), doubts)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errOut := call(t, nil, "init", path); code != exitNo || !strings.Contains(errOut, "stays as it is") {
		t.Errorf("exit code %d: %s", code, errOut)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "mine" {
		t.Errorf("it was written over: %q, %v", text, err)
	}
	code, out, _ := call(t, nil, "init", "-")
	if code != exitOK || out != firstFile {
		t.Errorf("exit code %d: %s", code, out)
	}
	p := serveProcess(t, nil, file(t, "first.yaml", out))
	if !strings.Contains(p.greeting, "first.yaml)\n") || !strings.Contains(p.greeting, "\n  ui      "+p.admin+"/ui\n") {
		t.Errorf("it says %s", p.greeting)
	}
}

// TestUsageFaults: what is wrong with a command line is said without words of Go, and with what to write.
func TestUsageFaults(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{
		"serve --port 8080":                {"unknown flag: --port", "hint: write --http 127.0.0.1:8080"},
		"serve -p 8080":                    {"'p' in -p", "hint: write --http 127.0.0.1:8080"},
		"serve --redis-url x":              {"unknown flag: --redis-url", "hint: write --store redis://127.0.0.1:6379"},
		"serve --grace 10":                 {`"10" of --grace has no unit`, "hint: write --grace 10s"},
		"serve --grace soon":               {`"soon" of --grace is no duration`, "hint: write it as 500ms"},
		"serve --rls-near-limit x":         {`"x" of --rls-near-limit is no number`, "hint: write a number"},
		"serve --pprof=maybe":              {`"maybe" of --pprof is neither true nor false`, "hint: write --pprof"},
		"take --cost 1.5 ip=1":             {`"1.5" of --cost is no whole number`, "hint: write a whole number"},
		"take --cost 99999999999999999999": {`of --cost is no whole number in its range`, "hint: write a whole number"},
		"serve --no-such-flag":             {"unknown flag: --no-such-flag", "hint: see stint serve --help"},
		"proxy --target http://x":          {"unknown flag: --target", "hint: write --upstream URL"},
		"check --port 1":                   {"unknown flag: --port", "hint: see stint check --help"},
		"replay --config " + file(t, "l.yaml", firstFile) + " no.log": {"no.log", "hint: name the access logs"},
	} {
		code, out, errOut := call(t, nil, strings.Fields(line)...)
		if code != exitUsage || out != "" || strings.Contains(errOut, "strconv") {
			t.Errorf("%s: exit code %d: %s%s", line, code, out, errOut)
		}
		for _, text := range want {
			if !strings.Contains(errOut, text) {
				t.Errorf("%s: no %q in %s", line, text, errOut)
			}
		}
	}
}

// TestStrictCheck: warnings are faults where that is asked for, and only there.
func TestStrictCheck(t *testing.T) {
	t.Parallel()
	doubtful := file(t, "doubtful.yaml", "limits: [{name: a, key: [client_ip], rate: 5/m}]\n")
	good := file(t, "good.yaml", firstFile)
	for _, tt := range []struct {
		args []string
		want int
	}{
		{[]string{"check", doubtful}, exitOK},
		{[]string{"check", "--strict", doubtful}, exitNo},
		{[]string{"check", "--strict", "--json", doubtful}, exitNo},
		{[]string{"check", "--strict", good}, exitOK},
	} {
		if code, out, errOut := call(t, nil, tt.args...); code != tt.want {
			t.Errorf("%v: exit code %d, want %d: %s%s", tt.args, code, tt.want, out, errOut)
		}
	}
}
