//go:build linux

package client_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"
)

// TestProcessClusterChaos: three members and an etcd, all processes of their own, and instances at the end of proxies.
// At random, members are killed or stopped, also in the middle of an election, or lose their way to etcd; etcd
// comes back without its data; and instances are cut off. In no interval more than burst + rate x T is admitted, and
// afterwards the limit is used.
func TestProcessClusterChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("processes of their own: nothing for the race detector")
	}
	first := *processFirst
	if first == 0 {
		first = rand.Uint64N(1 << 40)
	}
	for seed := first; seed < first+*processSchedules; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			clusterChaos(t, seed)
		})
	}
}

func clusterChaos(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 6))
	n := newNodes(t, limits)
	n.start()
	f := newFleet(t, n, 5, "messages", true)
	demand(2*perSecond, f.workers)
	f.settle(perSecond)
	begin := time.Now()
	for time.Since(begin) < *processLast {
		pass(time.Duration(rng.Int64N(int64(2 * time.Second))))
		m := n.all[rng.IntN(3)]
		if rng.IntN(2) == 0 {
			m = n.leader(nil)
		}
		kind := rng.IntN(6)
		t.Logf("%v: fault %d, %s", time.Since(begin).Round(time.Millisecond), kind, m.name)
		switch kind {
		case 0:
			m.kill()
		case 1:
			m.term()
		case 2:
			// The next leader ends between its election and its first record.
			for _, one := range n.all {
				d := time.Duration(rng.IntN(60)) * time.Millisecond
				one.backend.set(func() { one.backend.delay = d })
			}
			leader := n.leader(nil)
			var before []int
			for _, one := range n.all {
				before = append(before, one.begun())
			}
			leader.kill()
			await(t, "an election", func() bool {
				for i, one := range n.all {
					if one != leader && one.alive() && one.begun() > before[i] {
						_ = one.cmd.Process.Signal(syscall.SIGTERM)
						return true
					}
				}
				return n.lives() == 0
			})
		case 3:
			m.backend.set(func() { m.backend.cut = true })
			m.backend.sever()
			pass(time.Duration(rng.Int64N(int64(3 * time.Second))))
			m.backend.set(func() { m.backend.cut = false })
		case 4:
			n.etcd.Kill()
			n.etcd.Forget()
			n.etcd.Restart()
		case 5:
			w := f.workers[rng.IntN(len(f.workers))]
			w.links.cut(true)
			defer w.links.cut(false)
		}
		if rng.IntN(2) == 0 {
			for _, w := range f.workers {
				w.links.cut(false)
			}
		}
		pass(time.Duration(rng.Int64N(int64(2 * time.Second))))
		for _, one := range n.all {
			if !one.alive() {
				n.restart(one)
			}
		}
	}
	for _, one := range n.all {
		one.backend.set(func() { one.backend.delay = 0 })
	}
	for _, w := range f.workers {
		w.links.cut(false)
	}
	t.Logf("whole again after %v", f.book.back(t, time.Now(), 0.95*perSecond))
	f.neverOver(perSecond, burst)
}

// begun counts the terms that it has begun.
func (p *process) begun() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Count(p.errOut.Bytes(), []byte("a term begins"))
}

// alive reports whether it was not killed and has not been asked to end.
func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// lives is how many members run.
func (n *nodes) lives() (count int) {
	for _, m := range n.all {
		if m.alive() {
			count++
		}
	}
	return count
}
