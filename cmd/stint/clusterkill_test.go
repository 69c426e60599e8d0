package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/etcdtest"
)

// takeOf asks a process for a cost of a customer and returns the status, and what the answer says.
func (p *process) takeOf(customer string, cost int) (status int, body string) {
	p.t.Helper()
	resp, err := http.Post(p.http+"/v1/take", "application/json", strings.NewReader(fmt.Sprintf(`{"attributes":{"customer":%q},"cost":%d}`, customer, cost)))
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// kill ends a process as kill -9 does.
func (p *process) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	_ = p.cmd.Wait() // it was killed
}

// usedOf is what a process says that a customer has used of the month.
func (p *process) usedOf(customer string) int64 {
	p.t.Helper()
	resp, err := http.Get(p.admin + "/v1/admin/keys?limit=month&key=customer%3D" + customer)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	var reply struct{ Counters []struct{ Used int64 } }
	if err := json.NewDecoder(resp.Body).Decode(&reply); err != nil || len(reply.Counters) != 1 {
		p.t.Fatal(err, reply)
	}
	return reply.Counters[0].Used
}

// TestMemberKeepsLongCounts: a member of a cluster that is killed while it counts a month, and started again with its
// folder, lacks at most what it counted within the bound of --sync; with --sync always it lacks nothing. A start after a
// kill waits until nobody has the name any more, so that more of them are for STINT_KILLS:
//
//	STINT_KILLS=20 go test ./cmd/stint -run TestMemberKeepsLongCounts -timeout 20m -v
func TestMemberKeepsLongCounts(t *testing.T) {
	t.Parallel()
	url := "etcd://" + etcdtest.Start(t).Addr() + "/months"
	limits := file(t, "stint.yaml", rowLimits)
	kills := 1
	if n, err := strconv.Atoi(os.Getenv("STINT_KILLS")); err == nil && n > 0 {
		kills = n
	}
	for _, c := range []struct {
		sync  string
		bound time.Duration
	}{{"200ms", 200 * time.Millisecond}, {"always", 0}} {
		t.Run(c.sync, func(t *testing.T) {
			t.Parallel()
			folder, all := t.TempDir(), int64(0)
			begin := func() *process {
				return serveProcess(t, nil, "--config", limits, "--cluster", url, "--node", "of-"+c.sync, "--state-dir", folder, "--sync", c.sync)
			}
			p := begin()
			for range kills {
				base := p.usedOf("anna")
				called := countFor(p, 3*max(c.bound, 50*time.Millisecond))
				p.kill()
				p = begin()
				has := p.usedOf("anna") - base
				all += has
				lost := int64(len(called)) - has
				t.Logf("%d were taken, %d of them are lost", len(called), lost)
				if lost < 0 || lost > 0 && c.bound == 0 {
					t.Errorf("%d were taken, and %d are counted", len(called), has)
				} else if lost > 1 && called[len(called)-1].Sub(called[has+1]) > c.bound { // the first was answered by then
					t.Errorf("what is lost was counted within %v", called[len(called)-1].Sub(called[has+1]))
				}
			}
			if all == 0 {
				t.Error("nothing was counted")
			}
		})
	}
}

// countFor takes one after the other of a customer's month for so long, and returns when each was called.
func countFor(p *process, long time.Duration) (called []time.Time) {
	p.t.Helper()
	for begun := time.Now(); time.Since(begun) < long; {
		called = append(called, time.Now())
		if status, body := p.takeOf("anna", 1); status != http.StatusOK {
			p.t.Fatalf("%d %s", status, body)
		}
	}
	return called
}

const leasedDay = "limits: [{name: day, key: [customer], rate: 2400/day, burst: 2400, sharing: leased, on_store_failure: reject}]\n"

// decides asks for a cost until a lease decides, and returns whether it was admitted.
func (p *process) decides(cost int) bool {
	p.t.Helper()
	body := ""
	for begun := time.Now(); time.Since(begun) < time.Minute; <-time.After(50 * time.Millisecond) {
		var status int
		if status, body = p.takeOf("anna", cost); status == http.StatusOK || strings.Contains(body, `"reason":"rate_exceeded"`) {
			return status == http.StatusOK
		}
	}
	p.t.Fatalf("no lease decides: %s", body)
	return false
}

// TestLeasedDayAfterAKillOfAll: a leased limit whose bucket takes a day to fill begins empty when every member is killed
// at once, so that no more is admitted than the limit says, and what was left is lost.
func TestLeasedDayAfterAKillOfAll(t *testing.T) {
	t.Parallel()
	limits, folder := file(t, "stint.yaml", leasedDay), t.TempDir()
	url := "etcd://" + etcdtest.Start(t).Addr() + "/leased"
	var members []*process
	begin := func() {
		members = nil
		for _, name := range []string{"m1", "m2"} {
			members = append(members, serveProcess(t, nil, "--config", limits, "--state-dir", filepath.Join(folder, name), "--cluster", url, "--cluster-ttl", "5s", "--node", name)) // a busy machine ends no term
		}
	}
	begin()
	if !members[0].decides(100) {
		t.Fatal("the first bucket is not full")
	}
	for _, m := range members {
		m.kill()
	}
	begin()
	if members[0].decides(100) {
		t.Error("after a kill of all the bucket has what nobody knows that it has")
	}
}

// TestLeasedDayAlone: a leased bucket of a day of a server that is alone begins empty after a kill, and as it was after an
// end in order.
func TestLeasedDayAlone(t *testing.T) {
	t.Parallel()
	args := []string{"--config", file(t, "stint.yaml", leasedDay), "--state-dir", t.TempDir()}
	p := serveProcess(t, nil, args...)
	for ready := false; !ready; <-time.After(50 * time.Millisecond) { // leases of a former coordinator could be in use
		resp, err := http.Get(p.admin + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		ready = resp.StatusCode == http.StatusOK
		resp.Body.Close()
	}
	for i, want := range []bool{true, true, false} { // of 2,400
		if got := p.decides(1000); got != want {
			t.Errorf("start %d: 1000 are admitted: %v", i, got)
		}
		p.end(syscall.SIGTERM)
		p = serveProcess(t, nil, args...)
	}
	if !p.decides(300) {
		t.Error("what was left at the end is lost")
	}
	p.kill()
	p = serveProcess(t, nil, args...)
	if p.decides(100) {
		t.Error("after a kill the bucket has what nobody knows that it has")
	}
	p.kill()
}
