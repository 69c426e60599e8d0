//go:build upgrade

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/etcdtest"
	"github.com/stint-io/stint/internal/redistest"
)

// previousVersion is the commit of the version from which and to which services are upgraded and rolled back.
const previousVersion = "d81fe30"

// buildPrevious builds the previous version from the history of the repository.
func buildPrevious(t *testing.T) (path string) {
	t.Helper()
	dir := t.TempDir()
	tree, err := exec.Command("git", "-C", "../..", "archive", previousVersion).Output()
	if err != nil {
		t.Fatalf("the previous version, commit %s, is not in this clone (git fetch --unshallow gets it): %v", previousVersion, err)
	}
	unpack := exec.Command("tar", "-x", "-C", dir)
	unpack.Stdin = bytes.NewReader(tree)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	path = filepath.Join(dir, "stint-previous")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", path, "./cmd/stint")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

const upgradeLimits = `limits:
  - {name: month, key: [customer], algorithm: fixed_window, rate: 4000000000000/month, on_store_failure: reject}
  - {name: few, key: [few], rate: 100/day, burst: 100, on_store_failure: reject}
  - {name: shared, key: [shared], rate: 24000/day, burst: 24000, sharing: leased, on_store_failure: reject}
  - {name: login, key: [ip], rate: 5/day, burst: 5, on_exceed: {ban: {for: 1h, after: 8/hour}}, on_store_failure: reject}
`

// TestRollingUpgrade (./scripts/soak TestRollingUpgrade, which wants the history of the repository): three services of the previous version, on one Redis or as members of one cluster with folders of their
// own, are replaced by this one and rolled back, one by one and in order, under load. No limit is exceeded, every request
// has a decision, and what was counted, reserved or banned by either version is known to the other.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	previous, now := buildPrevious(t), built.get(t)
	for name, flags := range map[string]func(t *testing.T) func(i int) []string{
		"redis": func(t *testing.T) func(int) []string {
			url := redistest.Start(t).URL() + "?timeout=30s"
			return func(int) []string { return []string{"--store", url} }
		},
		"cluster": func(t *testing.T) func(int) []string {
			url, folder := "etcd://"+etcdtest.Start(t).Addr()+"/upgrade", t.TempDir()
			return func(i int) []string {
				node := fmt.Sprint("m", i)
				return []string{"--cluster", url, "--cluster-ttl", "10s", "--node", node, "--state-dir", filepath.Join(folder, node)}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := &upgrade{t: t, shared: name == "redis", limits: file(t, "stint.yaml", upgradeLimits), flags: flags(t)}
			for i := range u.nodes {
				u.begin(i, previous)
			}
			u.run(previous, now)
		})
	}
}

// upgrade is three services, and what their callers were told.
type upgrade struct {
	t      *testing.T
	shared bool // exact limits are counted by all together
	limits string
	flags  func(i int) []string

	mu        sync.RWMutex // held while a service is replaced
	nodes     [3]*process
	addresses [3]atomic.Pointer[string]

	taken, unheard [3]atomic.Int64 // of the month, by the service that was asked
	few            [3]atomic.Int64
	lent           atomic.Int64
	last           atomic.Pointer[string] // answer of a refused leased limit
}

func (u *upgrade) begin(i int, binary string) {
	args := append([]string{"serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config", u.limits}, u.flags(i)...)
	cmd := exec.Command(binary, args...)
	cmd.Env = environment(u.t, nil)
	u.nodes[i] = start(u.t, cmd)
	u.addresses[i].Store(&u.nodes[i].http)
	// Whoever replaces services one by one waits until each is ready: leases of a former coordinator may be in use.
	for ready := false; !ready; <-time.After(10 * time.Millisecond) {
		resp, err := http.Get(u.nodes[i].admin + "/readyz")
		if err != nil {
			u.t.Fatal(err)
		}
		ready = resp.StatusCode == http.StatusOK
		resp.Body.Close()
	}
}

// take asks service i, which may be gone, and returns what it answers; 0 = it was not reached, or broke off.
func (u *upgrade) take(i int, attributes string, cost int) (status int, body string) {
	at := u.addresses[i].Load()
	if at == nil {
		return 0, ""
	}
	resp, err := http.Post(*at+"/v1/take", "application/json", strings.NewReader(fmt.Sprintf(`{"attributes":{%s},"cost":%d}`, attributes, cost)))
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

// load asks at random until done is closed.
func (u *upgrade) load(r *rand.Rand, done chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Millisecond):
		}
		i := r.IntN(len(u.nodes))
		switch r.IntN(3) {
		case 0:
			status, body := u.take(i, `"customer":"anna"`, 1)
			u.judge(status, body)
			switch status {
			case http.StatusOK:
				u.taken[i].Add(1)
			case 0:
				u.unheard[i].Add(1)
			}
		case 1:
			if status, body := u.take(i, `"few":"x"`, 1); status == http.StatusOK {
				u.few[i].Add(1)
			} else {
				u.judge(status, body)
			}
		case 2:
			if status, body := u.take(i, `"shared":"x"`, 1); status == http.StatusOK {
				u.lent.Add(1)
			} else {
				u.last.Store(&body)
				u.judge(status, body)
			}
		}
	}
}

// judge notes an answer that is no decision. A service that was told to end refuses connections, and callers go to another.
func (u *upgrade) judge(status int, body string) {
	if status != 0 && status != http.StatusOK && !strings.Contains(body, `"violated-policies"`) {
		u.t.Errorf("no decision: %d %s", status, body)
	}
}

func (u *upgrade) run(previous, now string) {
	t := u.t
	done := make(chan struct{})
	var wg sync.WaitGroup
	for caller := range 3 {
		wg.Go(func() { u.load(rand.New(rand.NewPCG(rand.Uint64(), uint64(caller))), done) })
	}
	stop := sync.OnceFunc(func() { close(done); wg.Wait() })
	defer stop()

	u.lends("at first")
	held := u.reserve(0)
	for range 20 {
		u.take(1, `"ip":"192.0.2.7"`, 1)
	}
	banned := func(when string) {
		t.Helper()
		who := []int{1}
		if u.shared {
			who = []int{0, 1, 2}
		}
		for _, i := range who {
			if status, body := u.take(i, `"ip":"192.0.2.7"`, 1); status != http.StatusTooManyRequests || !strings.Contains(body, "banned") {
				t.Errorf("%s: a key that is banned gets %d %s from service %d", when, status, body, i)
			}
		}
	}
	banned("at first")
	for _, to := range []struct{ name, binary string }{{"after the upgrade", now}, {"after the rollback", previous}} {
		for i := range u.nodes {
			u.addresses[i].Store(nil)
			u.nodes[i].end(syscall.SIGTERM)
			u.begin(i, to.binary)
			u.known(fmt.Sprintf("%s of %d services", to.name, i+1))
			u.lends(fmt.Sprintf("%s of %d services", to.name, i+1))
		}
		banned(to.name)
		if used := u.commit(0, held, 7); used != 7 {
			t.Errorf("%s: what was reserved before is committed as %d, want 7", to.name, used)
		}
		held = u.reserve(0)
	}
	stop()
	u.known("at the end")
	var few int64
	for i := range u.few {
		few += u.few[i].Load()
		if !u.shared && u.few[i].Load() > 101 {
			t.Errorf("service %d admitted %d of 100 a day", i, u.few[i].Load())
		}
	}
	if u.shared && few > 101 {
		t.Errorf("%d of 100 a day were admitted", few)
	}
	// What was not admitted of the bucket of the leases may be left, and no more than that.
	lent := u.lent.Load()
	left, found := 24000-lent, int64(0)
	for refused := 0; refused < 30; {
		if status, body := u.take(refused%3, `"shared":"x"`, 100); status == http.StatusOK {
			found, refused = found+100, 0
			continue
		} else if strings.Contains(body, `"reason":"rate_exceeded"`) {
			refused++
		}
		time.Sleep(100 * time.Millisecond)
	}
	if lent == 0 || found > left+30 {
		t.Errorf("of 24000, %d were admitted by leases under load, and %d after it", lent, found)
	}
	t.Logf("of 24000 of a bucket of a day that is lent, %d were admitted while services were replaced, and %d after it", lent, found)
}

// lends waits until another request is admitted by a lease.
func (u *upgrade) lends(when string) {
	u.t.Helper()
	before := u.lent.Load()
	for late := time.After(time.Minute); u.lent.Load() == before; {
		select {
		case <-late:
			u.t.Fatalf("%s: nothing is lent within a minute, and the last refusal is %s", when, *u.last.Load())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// known compares what services know of the month with what their callers were told.
func (u *upgrade) known(when string) {
	u.t.Helper()
	for i, n := range u.nodes {
		before, unheard := u.taken[i].Load(), int64(0)
		has := n.usedOf("anna")
		for j := range u.taken {
			unheard += u.unheard[j].Load()
		}
		after := u.taken[i].Load()
		if u.shared {
			before, after = 0, 0
			for j := range u.taken {
				after += u.taken[j].Load()
			}
			if i > 0 {
				continue
			}
			before = has // what others count at this moment is not compared
		}
		// Three callers may be between the service's count and their own.
		if has < before-14 || has > after+unheard+3+14 {
			u.t.Errorf("%s: service %d has counted %d, its callers were told of %d to %d, and %d were not answered", when, i, has, before, after, unheard)
		}
	}
}

// reserve reserves 7 of the month at a service and returns the ID.
func (u *upgrade) reserve(i int) (id string) {
	u.t.Helper()
	var reply struct{ ID string }
	u.call(i, "/v1/reserve", `{"attributes":{"customer":"anna"},"cost":10,"ttl":"1h"}`, &reply)
	return reply.ID
}

// commit commits a reservation at the service and returns what it says was used.
func (u *upgrade) commit(i int, id string, actual int64) int64 {
	u.t.Helper()
	var reply struct{ Actual int64 }
	u.call(i, "/v1/commit", fmt.Sprintf(`{"id":%q,"actual":%d}`, id, actual), &reply)
	return reply.Actual
}

func (u *upgrade) call(i int, path, body string, reply any) {
	u.t.Helper()
	resp, err := http.Post(u.nodes[i].http+path, "application/json", strings.NewReader(body))
	if err == nil {
		defer resp.Body.Close()
		var text []byte
		if text, err = io.ReadAll(resp.Body); err == nil {
			err = errors.Join(json.Unmarshal(text, reply))
		}
		if err != nil || resp.StatusCode != http.StatusOK {
			u.t.Fatalf("%s: %d %s: %v", path, resp.StatusCode, text, err)
		}
		return
	}
	u.t.Fatalf("%s: %v", path, err)
}
