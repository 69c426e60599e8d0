package main

import (
	"slices"
	"strings"
	"testing"
)

// A variable that no flag reads is named, with what was meant, and without its value.
func TestUnknownVariables(t *testing.T) {
	got := unknownVariables(newRoot(), []string{
		"PATH=/bin", "STINT_HTTP=:1", "STINT_ADDR=x", "STINT_X_RATELIMIT_HEADERS=1", "STINT_TOKEN=s3cret", "STINT_ADMIN_TOKEN=s3cret", "STINT_HELP=1", "stint_http=1", "STINT_=", "STINT_CONFG=a=b",
	})
	var names []string
	for _, u := range got {
		names = append(names, u.name)
		if strings.Contains(u.String(), "s3cret") {
			t.Errorf("a value is shown: %s", u)
		}
	}
	if want := []string{"STINT_", "STINT_ADMIN_TOKEN", "STINT_CONFG", "STINT_HELP", "STINT_TOKEN"}; !slices.Equal(names, want) {
		t.Errorf("unknown are %q, want %q", names, want)
	}
	if text := got[2].String(); !strings.HasSuffix(text, "did you mean STINT_CONFIG?") {
		t.Errorf("%s", text)
	}
	for name, want := range map[string]string{"STINT_PORT": "write STINT_HTTP=127.0.0.1:8080", "STINT_REDIS_URL": "write STINT_STORE=redis://127.0.0.1:6379"} {
		if got := unknownVariables(newRoot(), []string{name + "=x"}); len(got) != 1 || got[0].hint != want {
			t.Errorf("%s: %v, want %s", name, got, want)
		}
	}
	// Every flag of every command is known by the name that sets it.
	root := newRoot()
	for _, cmd := range root.Commands() {
		if n := len(unknownVariables(root, []string{variable("config") + "=x", "STINT_STORE=x"})); n > 0 {
			t.Errorf("%s: %d unknown", cmd.Name(), n)
		}
	}
}

// serve logs it, in the form of its log; other commands say it before their answer.
func TestUnknownVariablesAreSaid(t *testing.T) {
	env := []string{"STINT_LGO=json", "STINT_LOG=json"}
	p := serveProcess(t, env)
	p.await(`"msg":"the environment variable STINT_LGO is no flag of any command, and is ignored: did you mean STINT_LOG?"`)
	config := file(t, "stint.yaml", "limits: [{name: a, rate: 1/s}]\n")
	code, out, errOut := call(t, env, "check", config)
	if code != exitOK || strings.Count(errOut, "STINT_LGO") != 1 || out != "good: 1 limit\n" {
		t.Errorf("exit code %d\n%s%s", code, out, errOut)
	}
}
