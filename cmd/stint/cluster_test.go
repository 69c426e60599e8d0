package main

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/etcdtest"
	"github.com/stint-io/stint/internal/redistest"
)

const clusterLimits = "limits:\n  - {name: day, key: [user], rate: 30/day, sharing: leased, on_store_failure: reject}\n"

// TestSecondProcessOfOneName: it ends with an error that says who has the name and what to do, and the
// first goes on. A process that was killed is no other one, and neither is one that has ended.
func TestSecondProcessOfOneName(t *testing.T) {
	t.Parallel()
	url := "etcd://" + etcdtest.Start(t).Addr() + "/names"
	args := []string{"--config", file(t, "stint.yaml", clusterLimits), "--cluster", url, "--node", "a"}
	first := serveProcess(t, nil, args...)
	first.await("this member coordinates")
	others := append([]string{"serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args...)
	code, out, errOut := call(t, nil, others...)
	if code != exitNo || out != "" {
		t.Errorf("exit code %d, want %d, and on standard output %q", code, exitNo, out)
	}
	for _, want := range []string{`another process is a member of this name: "a" at "127.0.0.1:`, "give each member a --node of its own"} {
		if !strings.Contains(errOut, want) {
			t.Errorf("the error has no %q:\n%s", want, errOut)
		}
	}
	// It may still wait for leases of a leader that the backend has forgotten.
	for begun := time.Now(); ; <-time.After(100 * time.Millisecond) {
		code, out, errOut := call(t, nil, "take", "user=u", "--addr", first.http)
		if code == exitOK {
			break
		}
		if !strings.Contains(out+errOut, "has just begun") || time.Since(begun) > 30*time.Second {
			t.Fatalf("the first was disturbed: exit code %d\n%s%s", code, out, errOut)
		}
	}
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	next := serveProcess(t, nil, args...)
	next.await("this member coordinates")
	if code := next.end(syscall.SIGTERM); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// TestStartLineIsTrue: standard output says ready where /readyz does, and otherwise what is missing; the log
// says when the service is ready.
func TestStartLineIsTrue(t *testing.T) {
	t.Parallel()
	limits := file(t, "stint.yaml", clusterLimits)
	etcd := etcdtest.Start(t)
	url := "etcd://" + etcd.Addr() + "/start"
	// become checks a service that may have become ready before it could say that it was not.
	become := func(missing string, args ...string) {
		t.Helper()
		p := serveProcess(t, nil, args...)
		if strings.Contains(p.greeting, "\nlistening, not ready yet: "+missing) {
			p.await("level=INFO msg=ready")
		} else if !strings.HasSuffix(p.greeting, "\nready\n") {
			t.Errorf("it says neither %q nor ready:\n%s", missing, p.greeting)
		}
		resp, err := http.Get(p.admin + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("it said that it is ready, and /readyz %s, %v", resp.Status, err)
		}
	}
	become("no member of the cluster coordinates", "--config", limits, "--cluster", url)
	become("store redis://", "--store", redistest.Start(t).URL())
	become("what a service without a backend never lacks")
	etcd.Kill()
	p := serveProcess(t, nil, "--config", limits, "--cluster", url)
	if want := "\nlistening, not ready yet: no member of the cluster coordinates"; !strings.Contains(p.greeting, want) {
		t.Errorf("without etcd it does not say %q:\n%s", want, p.greeting)
	}
}
