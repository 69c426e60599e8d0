package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/etcdtest"
)

var (
	operatorChanges = flag.Int("operator-changes", 10, "how often TestOperatorChangesALimit changes the limits")
	operatorWithin  = flag.Duration("operator-within", 0, "fail TestOperatorChangesALimit where a change takes longer; 0 = the figures are printed alone")
)

// fleet are members of a cluster that have their configuration from etcd, and instances of their leases.
type fleet struct {
	t         *testing.T
	url       string
	members   []*process
	loads     []*loads
	instances []*client.Limiter
}

// change is one push, and how long after the start of its command something was the case.
type change struct {
	begun    time.Time
	returned time.Duration   // the command had ended
	loaded   []time.Duration // each member had put the version in force, by its own log
	ports    time.Duration   // the last member decided by it
	served   []time.Duration // each caller who had waited for it was let go
	still    time.Duration   // the longest time for which a goroutine of the test was not run meanwhile
}

// TestOperatorChangesALimit: three members and six instances of their leases enforce each version that is
// pushed. The log has how long that took, from the start of stint config push on: at the members' HTTP
// ports, and for callers who wait for the limit to be raised.
func TestOperatorChangesALimit(t *testing.T) {
	if testing.Short() {
		t.Skip("processes of their own: nothing for the race detector")
	}
	t.Parallel()
	const low, high = 10, 10 * 86_400_000
	f := newFleet(t, low)
	var all []change
	for version := uint64(2); len(all) < *operatorChanges; version += 2 {
		f.drain()
		c := f.raise(version, high)
		all = append(all, c)
		if slow := max(c.ports, slices.Max(c.served)); slow > 300*time.Millisecond || *operatorWithin > 0 && slow > *operatorWithin {
			t.Logf("version %d took %v: the command ended after %v, members had it in force after %v, all ports after %v, callers were served after %v; the test stood still for %v",
				version, slow, c.returned, c.loaded, c.ports, c.served, c.still)
		}
		f.push(low)
		f.enforce(low)
	}
	for _, figure := range []struct {
		name string
		of   func(*change) time.Duration
		hard bool
	}{
		{"command has ended", func(c *change) time.Duration { return c.returned }, false},
		{"in force at all members, by their logs", func(c *change) time.Duration { return slices.Max(c.loaded) }, false},
		{"all members decide by it", func(c *change) time.Duration { return c.ports }, true},
		{"callers who wait are served", func(c *change) time.Duration { return slices.Max(c.served) }, true},
		{"from the command's end: all members decide by it", func(c *change) time.Duration { return max(0, c.ports-c.returned) }, true},
		{"longest standstill of the test itself", func(c *change) time.Duration { return c.still }, false},
	} {
		var sorted []time.Duration
		for i := range all {
			sorted = append(sorted, figure.of(&all[i]).Round(time.Millisecond))
		}
		slices.Sort(sorted)
		longest := sorted[len(sorted)-1]
		t.Logf("%-50s median %6v, 9 in 10 %6v, longest of %d %6v", figure.name, sorted[len(sorted)/2], sorted[len(sorted)*9/10], len(sorted), longest)
		if figure.hard && *operatorWithin > 0 && longest > *operatorWithin {
			t.Errorf("%s: %v, want at most %v", figure.name, longest, *operatorWithin)
		}
	}
}

// newFleet starts everything with a limit of perDay, which is version 1.
func newFleet(t *testing.T, perDay int) *fleet {
	t.Helper()
	f := &fleet{t: t, url: "etcd://" + etcdtest.Start(t).Addr() + "/operator"}
	f.push(perDay)
	for i := range 3 {
		p := serveProcess(t, nil, "--config", f.url, "--cluster", f.url, "--node", fmt.Sprint("n", i))
		f.members, f.loads = append(f.members, p), append(f.loads, readLoads(p.log))
	}
	for _, p := range f.members { // the first leader lends nothing before it knows that nobody else does
		for begun := time.Now(); !strings.HasPrefix(p.readiness(), "ready"); <-time.After(50 * time.Millisecond) {
			if time.Since(begun) > time.Minute {
				t.Fatalf("a member is not ready: %s", p.readiness())
			}
		}
	}
	for i := range 6 {
		f.instances = append(f.instances, operatorsInstance(t, f.members[i%3], fmt.Sprint("i", i)))
	}
	return f
}

// readiness is what /readyz says.
func (p *process) readiness() string {
	p.t.Helper()
	reply, err := http.Get(p.admin + "/readyz")
	if err != nil {
		p.t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}

// push runs the command.
func (f *fleet) push(perDay int) {
	f.t.Helper()
	limits := fmt.Sprintf("limits:\n  - {name: exact, key: [ip], rate: %d/day}\n  - {name: leased, rate: %d/day, sharing: leased, burst: 100}\n", perDay, perDay)
	if out, err := exec.Command(built.get(f.t), "config", "push", file(f.t, "limits.yaml", limits), "--to", f.url).CombinedOutput(); err != nil {
		f.t.Errorf("%v: %s", err, out)
	}
}

// enforce waits until all members decide by a limit.
func (f *fleet) enforce(perDay int) {
	f.t.Helper()
	var asking sync.WaitGroup
	for _, p := range f.members {
		asking.Go(func() { p.shows(fmt.Sprintf("of %d used", perDay)) })
	}
	asking.Wait()
}

// raise pushes a higher limit while a caller of each instance waits for it.
func (f *fleet) raise(version uint64, perDay int) change {
	f.t.Helper()
	var waiting, pushing sync.WaitGroup
	var begun atomic.Bool // the change has
	ended := make([]time.Time, len(f.instances))
	for i, l := range f.instances {
		waiting.Go(func() {
			// Without a deadline: a caller who cannot be served by it is refused at once.
			ctx, cancel := context.WithCancel(f.t.Context())
			defer time.AfterFunc(time.Minute, cancel).Stop()
			defer cancel()
			// A caller who is served before was not waiting for the change: what others gave back has come late.
			for served := false; !served; {
				if err := l.Wait(ctx); err != nil {
					f.t.Errorf("instance %d was not served: %v", i, err)
					return
				}
				ended[i], served = time.Now(), begun.Load()
			}
		})
	}
	for i, l := range f.instances { // its caller is in the line, and the coordinator knows
		for begun := time.Now(); l.Lease().Demand == 0; <-time.After(time.Millisecond) {
			if time.Since(begun) > time.Minute {
				f.t.Fatalf("instance %d demands nothing: %+v", i, l.Lease())
			}
		}
	}
	longest := standstill()
	c := change{begun: time.Now()}
	begun.Store(true)
	pushing.Go(func() {
		f.push(perDay)
		c.returned = time.Since(c.begun)
	})
	f.enforce(perDay)
	c.ports = time.Since(c.begun)
	waiting.Wait()
	pushing.Wait()
	c.still = longest()
	for _, l := range f.loads {
		c.loaded = append(c.loaded, l.at(f.t, version).Sub(c.begun))
	}
	for i, at := range ended {
		c.served = append(c.served, at.Sub(c.begun).Round(time.Millisecond))
		if at.Before(c.begun) {
			f.t.Errorf("a caller of instance %d was served %v before the limit was changed", i, c.begun.Sub(at))
		}
	}
	return c
}

// drain takes until nothing is left, so that the next caller of each instance has to wait.
func (f *fleet) drain() {
	quiet := 0
	for begun := time.Now(); quiet < 20 && time.Since(begun) < 30*time.Second; <-time.After(10 * time.Millisecond) {
		quiet++
		for _, l := range f.instances {
			for l.Allow() {
				quiet = 0
			}
		}
	}
}

// standstill measures until the returned function is called how long a goroutine that wants to run every
// two milliseconds was not run: what the machine alone takes.
func standstill() (longest func() time.Duration) {
	done, result := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		most, last := time.Duration(0), time.Now()
		for {
			select {
			case <-done:
				result <- most
				return
			case <-time.After(2 * time.Millisecond):
				now := time.Now()
				most, last = max(most, now.Sub(last)), now
			}
		}
	}()
	return func() time.Duration { close(done); return <-result }
}

// loads are the times at which a member has put versions in force.
type loads struct {
	mu    sync.Mutex
	times map[string]time.Time // by version
}

// readLoads reads a member's log until its end.
func readLoads(log io.Reader) *loads {
	l := &loads{times: map[string]time.Time{}}
	line := regexp.MustCompile(`^time=(\S+) .*msg="configuration loaded" version=(\d+) `)
	go func() {
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if m := line.FindStringSubmatch(lines.Text()); m != nil {
				at, _ := time.Parse(time.RFC3339Nano, m[1])
				l.mu.Lock()
				l.times[m[2]] = at
				l.mu.Unlock()
			}
		}
	}()
	return l
}

// at waits for a version.
func (l *loads) at(t *testing.T, version uint64) time.Time {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < time.Minute; <-time.After(5 * time.Millisecond) {
		l.mu.Lock()
		at, ok := l.times[fmt.Sprint(version)]
		l.mu.Unlock()
		if ok {
			return at
		}
	}
	t.Fatalf("no member's log has version %d", version)
	return time.Time{}
}

// operatorsInstance is a client of one member, until the test ends.
func operatorsInstance(t *testing.T, p *process, name string) *client.Limiter {
	t.Helper()
	c, err := client.New(client.Options{
		Address:  regexp.MustCompile(`grpc +(\S+)`).FindStringSubmatch(p.greeting)[1],
		Instance: name, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	l, err := c.Limit("leased", client.LimitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// shows waits until the exact limit of a member says so.
func (p *process) shows(text string) {
	p.t.Helper()
	body := ""
	for begun := time.Now(); time.Since(begun) < time.Minute; <-time.After(5 * time.Millisecond) {
		reply, err := http.Post(p.http+"/v1/explain", "application/json", strings.NewReader(`{"attributes":{"ip":"192.0.2.7"}}`))
		if err != nil {
			p.t.Error(err)
			return
		}
		read, err := io.ReadAll(reply.Body)
		_ = reply.Body.Close()
		if body = string(read); err == nil && strings.Contains(body, text) {
			return
		}
	}
	p.t.Errorf("the member never showed %q: %s", text, body)
}
