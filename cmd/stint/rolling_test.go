package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/etcdtest"
	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/server"
)

// rollingBurst is the bucket of the limit that is lent.
const rollingBurst = 24000

const rollingLimits = `limits:
  - {name: month, key: [customer], algorithm: fixed_window, rate: 4000000000000/month, on_store_failure: reject}
  - {name: few, key: [few], rate: 100/day, burst: 100, on_store_failure: reject}
  - {name: shared, key: [shared], rate: 24000/day, burst: 24000, sharing: leased, on_store_failure: reject}
  - {name: login, key: [ip], rate: 5/day, burst: 5, on_exceed: {ban: {for: 1h, after: 8/hour}}, on_store_failure: reject}
`

// rollingStores are the ways in which three services share limits: one Redis, or as members of one cluster with folders of
// their own.
var rollingStores = map[string]func(t *testing.T) func(i int) []string{
	"redis": func(t *testing.T) func(int) []string {
		url := redistest.Start(t).URL() + "?timeout=30s"
		return func(int) []string { return []string{"--store", url} }
	},
	"cluster": func(t *testing.T) func(int) []string {
		url, folder := "etcd://"+etcdtest.Start(t).Addr()+"/rolling", t.TempDir()
		return func(i int) []string {
			node := fmt.Sprint("m", i)
			return []string{"--cluster", url, "--cluster-ttl", "10s", "--node", node, "--state-dir", filepath.Join(folder, node)}
		}
	},
}

// TestRollingRestart: three services are replaced one by one and in order, under load. No limit is exceeded, every request
// has a decision, what was counted, reserved or banned stays so, and of a bucket of a day that is lent nothing is lost.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	for name, flags := range rollingStores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lent, left := roll(t, name == "redis", flags(t), nil, built.get(t), built.get(t))
			if lent+left < rollingBurst*9/10 {
				t.Errorf("of %d, %d were admitted by leases while services were replaced, and only %d after it", rollingBurst, lent, left)
			}
		})
	}
}

// roll starts three services of the first version and replaces them by each of the others in turn. Sites are programs that
// lease from the services all the time. It returns what was admitted meanwhile of a bucket of a day that is lent, and what
// was left of it.
func roll(t *testing.T, shared bool, flags func(i int) []string, sites []string, versions ...string) (lent, left int64) {
	u := &rolling{t: t, shared: shared, limits: file(t, "stint.yaml", rollingLimits), flags: flags}
	for i := range u.nodes {
		u.ports[i] = fmt.Sprint("127.0.0.1:", redistest.ReservePort(t))
	}
	for i := range u.nodes {
		u.begin(i, versions[0])
	}
	u.sites = make([]site, len(sites))
	for i, binary := range sites {
		u.beginSite(i, binary)
	}
	return u.run(versions[1:])
}

// site is a service with a parent.
type site struct {
	*process
	lent atomic.Int64
}

// rolling is three services that are replaced, and what their callers were told.
type rolling struct {
	t      *testing.T
	shared bool // exact limits are counted by all together
	limits string
	flags  func(i int) []string

	nodes     [3]*process
	ports     [3]string // of gRPC
	sites     []site
	addresses [3]atomic.Pointer[string]

	taken, unheard [3]atomic.Int64 // of the month, by the service that was asked
	few            [3]atomic.Int64
	lent           atomic.Int64
	reserved       atomic.Int64           // of the month
	last           atomic.Pointer[string] // answer of a refused leased limit
}

func (u *rolling) begin(i int, binary string) {
	args := append([]string{"serve", "--http", "127.0.0.1:0", "--grpc", u.ports[i], "--admin", "127.0.0.1:0", "--config", u.limits}, u.flags(i)...)
	cmd := exec.Command(binary, args...)
	cmd.Env = environment(u.t, nil)
	u.nodes[i] = start(u.t, cmd)
	u.addresses[i].Store(&u.nodes[i].http)
	// A rollout waits until each service is ready: leases of a former coordinator may be in use.
	u.ready(u.nodes[i])
}

// beginSite starts a site below all services.
func (u *rolling) beginSite(i int, binary string) {
	limits := file(u.t, "site.yaml", "limits: [{name: shared, key: [shared], rate: 24000/day, burst: 24000, sharing: leased, on_store_failure: reject}]\n")
	args := []string{"serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config", limits, "--site", fmt.Sprint("site", i)}
	for _, port := range u.ports {
		args = append(args, "--parent", port)
	}
	cmd := exec.Command(binary, args...)
	cmd.Env = environment(u.t, nil)
	u.sites[i].process = start(u.t, cmd)
	u.ready(u.sites[i].process)
}

func (u *rolling) ready(p *process) {
	for ready := false; !ready; <-time.After(10 * time.Millisecond) {
		resp, err := http.Get(p.admin + "/readyz")
		if err != nil {
			u.t.Fatal(err)
		}
		ready = resp.StatusCode == http.StatusOK
		resp.Body.Close()
	}
}

// downgrade converts the counts of service i for the version before.
func (u *rolling) downgrade(i int) {
	u.t.Helper()
	flags := u.flags(i)
	at := slices.Index(flags, "--state-dir")
	if at < 0 {
		return // they are in Redis
	}
	counts := filepath.Join(flags[at+1], server.CountsFile)
	if out, err := exec.Command(built.get(u.t), "state", "downgrade", counts).CombinedOutput(); err != nil {
		u.t.Fatalf("%v: %s", err, out)
	}
}

// take asks service i, which may be gone, and returns what it answers; 0 = it was not reached, or broke off.
func (u *rolling) take(i int, attributes string, cost int) (status int, body string) {
	at := u.addresses[i].Load()
	if at == nil {
		return 0, ""
	}
	return u.takeAt(*at, attributes, cost)
}

func (u *rolling) takeAt(url, attributes string, cost int) (status int, body string) {
	resp, err := http.Post(url+"/v1/take", "application/json", strings.NewReader(fmt.Sprintf(`{"attributes":{%s},"cost":%d}`, attributes, cost)))
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
func (u *rolling) load(r *rand.Rand, done chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-time.After(4 * time.Millisecond):
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
			if n := r.IntN(len(u.nodes) + len(u.sites)); n >= len(u.nodes) {
				s := &u.sites[n-len(u.nodes)]
				status, body := u.takeAt(s.http, `"shared":"x"`, 1)
				if status == http.StatusOK {
					s.lent.Add(1)
					u.lent.Add(1)
				} else {
					u.judge(status, body)
				}
				continue
			}
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
func (u *rolling) judge(status int, body string) {
	if status != 0 && status != http.StatusOK && !strings.Contains(body, `"violated-policies"`) {
		u.t.Errorf("no decision: %d %s", status, body)
	}
}

func (u *rolling) run(versions []string) (lent, left int64) {
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
	for round, version := range versions {
		when := fmt.Sprintf("replaced %d times", round+1)
		for i := range u.nodes {
			u.addresses[i].Store(nil)
			u.nodes[i].end(syscall.SIGTERM)
			if version != built.get(t) {
				u.downgrade(i)
			}
			u.begin(i, version)
			u.known(fmt.Sprintf("%s, service %d", when, i))
			u.lends(fmt.Sprintf("%s, service %d", when, i))
			u.reaches(fmt.Sprintf("%s, service %d", when, i))
		}
		banned(when)
		if used := u.commit(0, held, 7); used != 7 {
			t.Errorf("%s: what was reserved before is committed as %d, want 7", when, used)
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
	// Take the rest of the leased bucket from all services until none has any.
	lent = u.lent.Load()
	for refused := 0; refused < 30; {
		var status int
		var body string
		if n := refused % (len(u.nodes) + len(u.sites)); n < len(u.nodes) {
			status, body = u.take(n, `"shared":"x"`, 100)
		} else {
			status, body = u.takeAt(u.sites[n-len(u.nodes)].http, `"shared":"x"`, 100)
		}
		switch {
		case status == http.StatusOK:
			left, refused = left+100, 0
			continue
		case strings.Contains(body, `"reason":"rate_exceeded"`):
			refused++
		}
		<-time.After(50 * time.Millisecond) // what is not used comes back little by little
	}
	if lent == 0 || lent+left > rollingBurst+30 {
		t.Errorf("of %d, %d were admitted by leases under load, and %d after it", rollingBurst, lent, left)
	}
	t.Logf("of %d of a bucket of a day that is lent, %d were admitted while services were replaced, and %d after it", rollingBurst, lent, left)
	return lent, left
}

// lends waits until another request is admitted by a lease.
func (u *rolling) lends(when string) {
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

// reaches waits until another request is admitted by each site.
func (u *rolling) reaches(when string) {
	u.t.Helper()
	for i := range u.sites {
		before := u.sites[i].lent.Load()
		for late := time.After(time.Minute); u.sites[i].lent.Load() == before; {
			select {
			case <-late:
				u.t.Fatalf("%s: site %d is lent nothing within a minute", when, i)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

// known compares what services know of the month with what their callers were told.
func (u *rolling) known(when string) {
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
		if has < before || has > after+unheard+3+u.reserved.Load() {
			u.t.Errorf("%s: service %d has counted %d, its callers were told of %d to %d, and %d were not answered", when, i, has, before, after, unheard)
		}
	}
}

// reserve reserves 10 of the month at a service and returns the ID.
func (u *rolling) reserve(i int) (id string) {
	u.t.Helper()
	var reply struct{ ID string }
	u.reserved.Add(10)
	u.call(i, "/v1/reserve", `{"attributes":{"customer":"anna"},"cost":10,"ttl":"1h"}`, &reply)
	return reply.ID
}

// commit commits a reservation at the service and returns what it says was used.
func (u *rolling) commit(i int, id string, actual int64) int64 {
	u.t.Helper()
	var reply struct{ Actual int64 }
	u.call(i, "/v1/commit", fmt.Sprintf(`{"id":%q,"actual":%d}`, id, actual), &reply)
	return reply.Actual
}

func (u *rolling) call(i int, path, body string, reply any) {
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
