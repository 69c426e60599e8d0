//go:build linux

package client_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// formerVersion is a commit whose clients speak the lease protocol of before the elections.
const formerVersion = "b62f33a"

// buildWorker builds testdata/worker with the client of the module in root.
func buildWorker(t *testing.T, root, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	build := exec.Command("go", "build", "-buildvcs=false", "-o", path, "./client/testdata/worker")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the worker %s: %v\n%s", name, err, out)
	}
	return path
}

// formerWorker builds it with the former version, from the history.
func formerWorker(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	out, err := exec.Command("sh", "-c", fmt.Sprintf("git -C .. archive %s | tar -x -C %s && mkdir -p %[2]s/client/testdata && cp -r testdata/worker %[2]s/client/testdata/", formerVersion, root)).CombinedOutput()
	if err != nil {
		t.Fatalf("taking version %s out of the history: %v\n%s", formerVersion, err, out)
	}
	return buildWorker(t, root, "former")
}

// TestRollingDeploy: three servers and twenty instances of a former version are replaced one at a
// time, by SIGTERM and a new process, while they demand twice the limit.
func TestRollingDeploy(t *testing.T) {
	if testing.Short() {
		t.Skip("processes of their own: nothing for the race detector")
	}
	t.Parallel()
	const rate, burst = 1000, 500
	present := buildWorker(t, "..", "present")
	former, size, demand := present, 6, "400"
	if *failOverLong {
		former, size, demand = formerWorker(t), 20, "100"
	}
	n := newNodes(t, fmt.Sprintf("limits: [{name: messages, rate: %d/s, burst: %d, sharing: leased}]\n", rate, burst))
	n.start()
	f := &fleet{t: t}
	var watching sync.WaitGroup
	work := func(path string, i, life int) *process {
		p := launchProgram(t, exec.Command(path, strings.Join(n.addresses(), ","), fmt.Sprintf("worker-%d-%d", i, life), demand))
		watching.Go(func() { f.book.copyOf(p) })
		return p
	}
	all := make([]*process, size)
	for i := range all {
		all[i] = work(former, i, 0)
	}
	f.settle(rate)
	from := time.Now()
	for i := range all {
		all[i].term()
		all[i] = work(present, i, 1)
		f.settle(rate)
		if every := size / 3; i%every == every-1 && i/every < len(n.all) {
			m := n.all[i/every]
			m.term()
			m.begin(t)
			m.ready(t)
			f.settle(rate)
		}
	}
	to := time.Now()
	least, at := f.book.least(from, to)
	t.Logf("3 servers and %d instances replaced in %v: the least second has %.3f of the limit, %v after the begin; in all %.3f", size, to.Sub(from), least/rate, at, f.book.rate(from, to)/rate)
	if *failOverLong && least < 0.5*rate { // beside other tests a machine runs some of them late
		t.Errorf("the least second has %.3f of the limit", least/rate)
	}
	f.book.back(t, time.Now(), 0.9*rate)
	for _, p := range all {
		p.kill()
	}
	watching.Wait()
	f.neverOver(rate, burst)
}
