package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stint-io/stint/internal/redistest"
)

// The greeting says where the counters are, and no password; a Redis that is not
// there stops nobody from starting.
func TestServeWithRedis(t *testing.T) {
	r := redistest.Start(t, "--requirepass", "s3cret")
	url := "redis://:s3cret@" + r.Addr()
	r.Kill()
	limits := "limits:\n  - {name: lenient, key: [user], rate: 3/hour}\n" +
		"  - {name: strict, match: {user: strict}, rate: 3/hour, on_store_failure: reject}\n"
	p := serveProcess(t, []string{"STINT_STORE=" + url}, "--config", file(t, "stint.yaml", limits))
	if !strings.Contains(p.greeting, "\n  store   redis://"+r.Addr()+"\n") || strings.Contains(p.greeting, "s3cret") {
		t.Errorf("the greeting:\n%s", p.greeting)
	}
	if strings.Contains(p.greeting, "\nready\n") {
		t.Errorf("the greeting says ready, and the store was not reached:\n%s", p.greeting)
	}
	p.await("the store does not answer")
	for args, want := range map[string]string{
		"user=u":      "allowed\n  lenient: the store or the coordinator did not answer; decided by on_store_failure\n",
		"user=strict": "refused by strict: ", // store_failure
	} {
		code, out, _ := call(t, []string{"STINT_ADDR=" + p.http}, "take", args)
		if !strings.Contains(out, want) || (code == exitOK) != strings.HasPrefix(want, "allowed") || code == exitNo && !strings.Contains(out, "store") {
			t.Errorf("take %s: exit code %d, want %q\n%s", args, code, want, out)
		}
	}
	r.Restart()
	p.await("the store answers")
	if code := p.end(syscall.SIGTERM); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestServeRefusesWrongStores(t *testing.T) {
	config := file(t, "stint.yaml", "store: redis://:s3cret@h:port\nlimits: [{name: a, rate: 1/s}]\n")
	for _, c := range []struct{ args, text string }{
		{"--store redis://:s3cret@h?timeuot=1s", "timeout"},
		{"--store redis:s3cret@h", `unknown store "redis"`},
		{"--config " + config, "store: in the files"},
	} {
		args := append([]string{"serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, strings.Fields(c.args)...)
		code, out, errOut := call(t, nil, args...)
		if code != exitUsage || !strings.Contains(errOut, c.text) || strings.Contains(out+errOut, "s3cret") {
			t.Errorf("%s: exit code %d, want %d with %q\n%s%s", c.args, code, exitUsage, c.text, out, errOut)
		}
	}
}

// TestDefaultStateDir: the folder that nobody has chosen is that of systemd, then that of the
// user; where there is none nothing is kept.
func TestDefaultStateDir(t *testing.T) {
	for want, env := range map[string]map[string]string{
		"/var/lib/stint":             {"STATE_DIRECTORY": "/var/lib/stint:/var/lib/more", "XDG_STATE_HOME": "/x", "HOME": "/home/a"},
		"/x/stint":                   {"XDG_STATE_HOME": "/x", "HOME": "/home/a"},
		"/home/a/.local/state/stint": {"XDG_STATE_HOME": "relative", "HOME": "/home/a"},
		"":                           {"STATE_DIRECTORY": "relative", "HOME": ""},
	} {
		if got := defaultStateDir(func(name string) string { return env[name] }); got != want {
			t.Errorf("%v: %q, want %q", env, got, want)
		}
	}
}

// TestServeKeepsState: by default what the next start must know is kept, a second service
// of the same user starts without, one that is given the same folder does not start, and
// none keeps nothing.
func TestServeKeepsState(t *testing.T) {
	home := t.TempDir()
	config := file(t, "stint.yaml", "limits: [{name: l, rate: 5/s, sharing: leased}]\n")
	dir := filepath.Join(home, "stint")
	first := serveProcess(t, []string{"XDG_STATE_HOME=" + home}, "--config", config)
	if !strings.Contains(first.greeting, "listening, ready in ") {
		t.Errorf("the first start greets with\n%s", first.greeting)
	}
	first.await("first start with this state directory")
	if _, err := os.Stat(filepath.Join(dir, "leases.json")); err != nil {
		t.Error(err)
	}
	second := serveProcess(t, []string{"XDG_STATE_HOME=" + home}, "--config", config)
	second.await("in use by another process")
	code, _, errOut := call(t, nil, "serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--state-dir", dir)
	if code != exitUsage || !strings.Contains(errOut, "counts.db is in use by another process: stop it") {
		t.Errorf("a second service with the same folder: exit code %d\n%s", code, errOut)
	}
	other := t.TempDir()
	third := serveProcess(t, []string{"XDG_STATE_HOME=" + other}, "--config", config, "--state-dir", "none")
	third.await("there is no state directory")
	if left, err := os.ReadDir(other); err != nil || len(left) != 0 {
		t.Errorf("with --state-dir none: %v, %v", left, err)
	}
}
