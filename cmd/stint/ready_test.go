package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/stint-io/stint/internal/redistest"
)

// TestReady: the exit code says whether a service should get requests, should not yet, or is not
// there; with --wait it is asked until it says yes.
func TestReady(t *testing.T) {
	r := redistest.Start(t)
	r.Kill()
	p := serveProcess(t, []string{"STINT_STORE=redis://" + r.Addr()}, "--config", file(t, "stint.yaml", "limits: [{name: a, rate: 5/s}]\n"))
	if code, out, errOut := call(t, nil, "ready", "--admin", p.admin); code != exitNo || out != "" || !strings.Contains(errOut, "was not reached yet") {
		t.Errorf("before the store was reached: exit code %d\n%s%s", code, out, errOut)
	}
	r.Restart()
	if code, out, errOut := call(t, nil, "ready", "--admin", p.admin, "--wait", "1m"); code != exitOK || out != "ready\n" || errOut != "" {
		t.Errorf("with the store: exit code %d\n%s%s", code, out, errOut)
	}
	if code, out, errOut := call(t, nil, "ready", "--admin", p.http); code != exitUsage || out != "" || !strings.Contains(errOut, "--admin is the address") {
		t.Errorf("at another port: exit code %d\n%s%s", code, out, errOut)
	}
	if code := p.end(syscall.SIGTERM); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if code, out, errOut := call(t, nil, "ready", "--admin", p.admin, "--wait", "1ms"); code != exitUsage || out != "" || !strings.Contains(errOut, "hint: is the service running") {
		t.Errorf("after its end: exit code %d\n%s%s", code, out, errOut)
	}
}
