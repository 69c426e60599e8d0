//go:build linux

package client_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/client"
)

// The limit of the root in these tests, and the cap of one site.
const (
	treeRate, treeBurst = 3000, 300
	treeCap             = 900

	treeLimits = `limits:
  - {name: messages, rate: 3000/s, burst: 300, sharing: leased, lease: {sites: {capped: 900/s}}}
`
)

// branch is a site of the tree: a service in a process of its own, the road from it to its parent,
// and instances with load.
type branch struct {
	*service
	up        *road
	instances []*client.Limiter
	rate      atomic.Int64 // wanted by all its instances together, per second
	asked     counts
	admitted  counts
}

// counts is how many were admitted in each 10 ms since the start of a test.
type counts struct{ slots [120_00]atomic.Int32 }

const slot = 10 * time.Millisecond

// between is how many were admitted in an interval.
func (c *counts) between(from, to time.Duration) (n int) {
	for i := from / slot; i < to/slot; i++ {
		n += int(c.slots[i].Load())
	}
	return n
}

// processTree is a root, a region and sites below it, all processes of their own.
type processTree struct {
	t            *testing.T
	began        time.Time
	root, region *branch
	sites        map[string]*branch
	loads        sync.WaitGroup
	ended        context.Context
}

func growProcessTree(t *testing.T, expiry string, sites ...string) *processTree {
	ctx, cancel := context.WithCancel(context.Background())
	tr := &processTree{t: t, sites: map[string]*branch{}, ended: ctx}
	config := filepath.Join(t.TempDir(), "tree.yaml")
	if err := os.WriteFile(config, []byte(treeLimits), 0o600); err != nil {
		t.Fatal(err)
	}
	grow := func(parent *branch, site string) *branch {
		b := &branch{service: &service{config: config, address: "127.0.0.1:0"}}
		b.env = []string{"STINT_TEST_PROCESS=serve", "STINT_TEST_CONFIG=" + config, "STINT_TEST_STATE=" + t.TempDir(), "STINT_TEST_EXPIRY=" + expiry}
		if parent != nil {
			b.up = newRoad(t, parent.address)
			b.env = append(b.env, "STINT_TEST_SITE="+site, "STINT_TEST_PARENT="+b.up.listener.Addr().String())
		}
		b.start(t)
		return b
	}
	tr.root = grow(nil, "")
	tr.region = grow(tr.root, "region")
	tr.began = time.Now()
	for _, name := range sites {
		b := grow(tr.region, name)
		tr.sites[name] = b
		for i := range 10 {
			c, _ := join(t, b.address, fmt.Sprintf("%s-%d", name, i))
			l, err := c.Limit("messages", client.LimitOptions{})
			if err != nil {
				t.Fatal(err)
			}
			b.instances = append(b.instances, l)
		}
		for i, l := range b.instances {
			tr.loads.Go(func() { tr.spend(b, l, i) })
		}
	}
	t.Cleanup(func() {
		cancel()
		tr.loads.Wait()
	})
	return tr
}

// spend asks for its part of what its site wants, in steps of 5 ms.
func (tr *processTree) spend(b *branch, l *client.Limiter, i int) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	owed, last := float64(i)/10, time.Now()
	for {
		select {
		case <-tr.ended.Done():
			return
		case <-tick.C:
			now := time.Now()
			owed += float64(b.rate.Load()) / float64(len(b.instances)) * min(now.Sub(last), 50*time.Millisecond).Seconds()
			last = now
			for ; owed >= 1; owed-- {
				b.asked.slots[time.Since(tr.began)/slot].Add(1)
				if l.Allow() {
					b.admitted.slots[time.Since(tr.began)/slot].Add(1)
				}
			}
		}
	}
}

func (tr *processTree) passed() time.Duration { return time.Since(tr.began) }

// all is how many all sites admitted in an interval.
func (tr *processTree) all(from, to time.Duration) (n int) {
	for _, b := range tr.sites {
		n += b.admitted.between(from, to)
	}
	return n
}

// uses waits until so many are admitted in a second that began at from or later. How long that
// takes is printed: beside other work it is a property of the machine.
func (tr *processTree) uses(what string, from time.Duration, least float64, count func(from, to time.Duration) int) {
	tr.t.Helper()
	begin := from
	await(tr.t, fmt.Sprintf("%s: %.0f in a second", what, least), func() bool {
		for ; begin+time.Second <= tr.passed(); begin += 4 * slot {
			if float64(count(begin, begin+time.Second)) >= least {
				return true
			}
		}
		return false
	})
	tr.t.Logf("%s: %.0f in a second from %v on", what, least, begin-from)
}

// atLength measures, with -fail-over, what is admitted from two seconds after the load moved on.
func (tr *processTree) atLength(what string, moved, d time.Duration, least float64) {
	tr.t.Helper()
	if *failOverLong {
		pass(moved + d - tr.passed())
		rate := float64(tr.all(moved+2*time.Second, moved+d)) / (d - 2*time.Second).Seconds()
		tr.t.Logf("%s: %.0f/s after two seconds", what, rate)
		if rate < least {
			tr.t.Errorf("%s: %.0f/s after two seconds, want %.0f", what, rate, least)
		}
	}
	tr.t.Logf("%s, by 250 ms: %s", what, tr.series(moved, tr.passed(), treeRate))
}

// livedOnLease fails if a site that lost its parent admitted less than 0.8 of what it was asked and
// the limit has, in the 1.5 seconds of which its lease covers all.
func (tr *processTree) livedOnLease(b *branch, lost time.Duration) {
	tr.t.Helper()
	const step = 100 * time.Millisecond
	could, admitted := 0.0, b.admitted.between(lost, lost+15*step)
	for at := lost; at < lost+15*step; at += step {
		could += min(float64(b.asked.between(at, at+step)), treeRate*step.Seconds())
	}
	if float64(admitted) < 0.8*could {
		tr.t.Errorf("a site without its parent admitted %d on its lease, of %.0f", admitted, could)
	}
}

// neverOver fails if what was admitted does not fit one bucket of that rate and burst. The moment
// of a decision is known to within a slot, and to what a busy machine takes between a decision and
// its count: slack.
func (tr *processTree) neverOver(what string, rate, burst float64, count func(from, to time.Duration) int) {
	tr.t.Helper()
	const slack = 0.05 // seconds
	level, worst := burst, 0.0
	for at := time.Duration(0); at < tr.passed(); at += slot {
		level = min(burst, level+rate*slot.Seconds()) - float64(count(at, at+slot))
		worst = min(worst, level)
	}
	tr.t.Logf("%s: at most %.0f above one bucket", what, max(0, -worst))
	if -worst > rate*slack {
		tr.t.Errorf("%s: %.0f more were admitted than one bucket of %v/s and %v holds", what, -worst, rate, burst)
	}
}

// series is the use of a limit in each 250 ms of an interval.
func (tr *processTree) series(from, to time.Duration, rate float64) string {
	var parts []string
	for at := from; at+250*time.Millisecond <= to; at += 250 * time.Millisecond {
		parts = append(parts, fmt.Sprintf("%.2f", float64(tr.all(at, at+250*time.Millisecond))/(rate/4)))
	}
	return strings.Join(parts, " ")
}

// TestProcessHierarchy: a root, a region and three sites of ten instances, each server a process of
// its own. All load goes to the smallest site, then to one with a cap, and then a site is cut off:
// it lives on its lease, then on its mode.
func TestProcessHierarchy(t *testing.T) {
	if testing.Short() {
		t.Skip("processes of their own: nothing for the race detector")
	}
	t.Parallel()
	tr := growProcessTree(t, "pessimistic", "large", "small", "capped")
	tr.sites["large"].rate.Store(4000)
	tr.sites["capped"].rate.Store(1000)
	tr.sites["small"].rate.Store(100)
	await(t, "the first grants", func() bool { return tr.all(0, tr.passed()) > treeRate })
	tr.uses("load of all sites", tr.passed(), 0.9*treeRate, tr.all)

	tr.sites["large"].rate.Store(0)
	tr.sites["capped"].rate.Store(0)
	tr.sites["small"].rate.Store(2 * treeRate)
	moved := tr.passed()
	tr.uses("all load to the smallest site", moved, 0.9*treeRate, tr.all)
	tr.atLength("all load to the smallest site", moved, 6*time.Second, 0.9*treeRate)

	tr.sites["small"].rate.Store(0)
	tr.sites["capped"].rate.Store(2 * treeRate)
	moved = tr.passed()
	tr.uses("all load to the site with a cap", moved, 0.85*treeCap, tr.sites["capped"].admitted.between)
	tr.atLength("all load to the site with a cap", moved, 4*time.Second, 0.85*treeCap)

	tr.sites["capped"].rate.Store(0)
	tr.sites["large"].rate.Store(2 * treeRate)
	tr.uses("all load to the largest site", tr.passed(), 0.9*treeRate, tr.all)
	up := tr.sites["large"].up
	up.set(func() { up.cut = true })
	up.sever()
	cut := tr.passed()
	pass(leasedLimit + 2*time.Second) // in the last second nothing is admitted
	up.set(func() { up.cut = false })
	healed := tr.passed()
	tr.uses("after healing", healed, 0.85*treeRate, tr.all)
	t.Logf("cut off: %s; healed: %s", tr.series(cut, healed, treeRate), tr.series(healed, tr.passed(), treeRate))
	if n := tr.all(cut+6*time.Second, healed-slot); n > 0 {
		t.Errorf("%d were admitted after the lease of the site was over", n)
	}
	tr.livedOnLease(tr.sites["large"], cut)

	tr.neverOver("the limit", treeRate, treeBurst, tr.all)
	tr.neverOver("the cap", treeCap, treeCap*treeBurst/treeRate, tr.sites["capped"].admitted.between)
}

// TestProcessParentStandsStill: the region is stopped and resumed. Its site lives on its lease, then
// spends nothing, and what was lent by the region before it stood still is not spent twice.
func TestProcessParentStandsStill(t *testing.T) {
	if testing.Short() {
		t.Skip("processes of their own: nothing for the race detector")
	}
	t.Parallel()
	tr := growProcessTree(t, "pessimistic", "large")
	tr.sites["large"].rate.Store(2 * treeRate)
	await(t, "the first grants", func() bool { return tr.all(0, tr.passed()) > treeRate })
	tr.uses("load of the site", tr.passed(), 0.9*treeRate, tr.all)
	tr.region.pause()
	still := tr.passed()
	pass(leasedLimit + 2*time.Second) // in the last second nothing is admitted
	tr.region.resume()
	healed := tr.passed()
	tr.uses("after the parent went on", healed, 0.8*treeRate, tr.all)
	t.Logf("still: %s; resumed: %s", tr.series(still, healed, treeRate), tr.series(healed, tr.passed(), treeRate))
	if n := tr.all(still+6*time.Second, healed-slot); n > 0 {
		t.Errorf("%d were admitted after the lease of the site was over", n)
	}
	tr.livedOnLease(tr.sites["large"], still)
	tr.neverOver("the limit", treeRate, treeBurst, tr.all)
}
