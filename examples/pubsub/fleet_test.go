package main

import (
	"context"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// TestMain is the command where a test starts it as a child.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"node", "coordinator"}, os.Args[1]) {
		main()
		return
	}
	os.Exit(m.Run())
}

// startFleet runs the service in processes until the test ends.
func startFleet(t *testing.T, nodes int) *fleet {
	t.Helper()
	f, err := newFleet(Options{Nodes: nodes, Limits: "limits.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	select {
	case <-f.ready:
	case err := <-ended:
		ended <- nil
		t.Fatalf("it ended: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("not ready after a minute")
	}
	return f
}

// publishers publish to one account through all nodes, and through one that was started again.
type publishers struct {
	all  *book
	each []*book // by node
	wg   sync.WaitGroup
}

func (f *fleet) publish(ctx context.Context, account string, perSecond float64) *publishers {
	p := &publishers{all: newBook()}
	const callers = 8 // of each node
	for k, n := range f.nodes {
		own := newBook()
		p.each = append(p.each, own)
		for i := range callers {
			name := channelName{account, "c" + strconv.Itoa(k*callers+i)}
			p.wg.Go(func() {
				for ctx.Err() == nil {
					c, err := dial(ctx, n.URL)
					if err != nil { // it is down
						<-time.After(50 * time.Millisecond)
						continue
					}
					_ = pace(ctx, func() float64 { return perSecond / float64(callers*len(f.nodes)) }, float64(i)/callers, func() error {
						a, err := c.publish(name, "x")
						if err == nil {
							own.note(a, nil)
							p.all.note(a, nil)
						}
						return err // the next connection is made then
					})
					_ = c.conn.Close()
				}
			})
		}
	}
	return p
}

// between is the cost that was admitted from then until then.
func (b *book) between(from, to time.Time) (sum int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.times {
		if a.at >= from.UnixNano() && a.at < to.UnixNano() {
			sum += a.cost
		}
	}
	return sum
}

func (b *book) reasons() map[string]int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[string]int64{}
	for name, n := range b.refused {
		all[name] = n
	}
	return all
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(time.Minute)
	for !done() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

// TestNodeKilled: three nodes in processes of their own. One account is limited by leases, another
// one by suppression, both at several times their limit, while a node is killed and started
// again. By leases the account is never above one bucket; suppression is near its limit when the
// demand is steady.
func TestNodeKilled(t *testing.T) {
	f := startFleet(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	loud, herd := f.publish(ctx, loudAccount, 600), f.publish(ctx, "herd", 400)
	defer herd.wg.Wait()
	defer loud.wg.Wait()
	defer cancel()
	eventually(t, "both accounts to publish at every node", func() bool {
		for k := range f.nodes {
			if loud.each[k].between(time.Time{}, time.Now()) == 0 || herd.each[k].between(time.Time{}, time.Now()) == 0 {
				return false
			}
		}
		return true
	})
	victim, _ := f.nodes[1].process()
	if err := victim.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	eventually(t, "the node to run again", func() bool { _, starts := f.nodes[1].process(); return starts == 2 })
	again := time.Now()
	eventually(t, "both accounts to publish there again", func() bool {
		return loud.each[1].between(again, time.Now()) > 0 && herd.each[1].between(again, time.Now()) > 0
	})
	served := time.Now()
	eventually(t, "three quarters of the leased limit to be used in a second", func() bool {
		return loud.all.between(time.Now().Add(-time.Second), time.Now()) >= 75 // a burst of 5 is spread thin over three nodes
	})
	whole := time.Now()
	eventually(t, "suppression to keep near its limit for two seconds", func() bool {
		n := herd.all.between(time.Now().Add(-2*time.Second), time.Now())
		return n >= 150 && n <= 2*100+50
	})
	cancel()
	loud.wg.Wait()
	herd.wg.Wait()
	t.Logf("killed; runs again after %v, publishes after %v, the leased limit is used after %v; leased: at most %d in a second, refused %v; suppressed: at most %d in a second, refused %v",
		again.Sub(killed), served.Sub(killed), whole.Sub(killed), loud.all.worstSecond(), loud.all.reasons(), herd.all.worstSecond(), herd.all.reasons())
	if n := loud.all.worstSecond(); n > loudLimit+loudBurst {
		t.Errorf("%d in a second by leases, want at most %d", n, loudLimit+loudBurst)
	}
	if loud.all.reasons()[messagesRate+" rate_exceeded"] == 0 || herd.all.reasons()[messagesIn+" suppressed"] == 0 {
		t.Errorf("refused for %v and %v", loud.all.reasons(), herd.all.reasons())
	}
}
