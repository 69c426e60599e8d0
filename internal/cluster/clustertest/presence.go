package clustertest

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/cluster"
)

// presence: members see each other, and one that leaves is gone.
func presence(t *testing.T, open func() cluster.Register) {
	const every = 100 * time.Millisecond
	var running sync.WaitGroup
	defer running.Wait()
	join := func(id string) (p *cluster.Presence, stop func()) {
		r := open()
		p = cluster.NewPresence(cluster.PresenceOptions{
			Register: r, Self: cluster.Member{ID: id, Address: id + ":8081"}, Every: every, Logger: slog.New(slog.DiscardHandler),
		})
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		running.Go(func() {
			defer close(over)
			p.Run(ctx)
			if err := r.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
		return p, func() {
			cancel()
			<-over
		}
	}
	a, stopA := join("a")
	defer stopA()
	b, stopB := join("b_/ä")
	_, stopC := join("c")
	await := func(what string, f func() bool) {
		t.Helper()
		for begun := time.Now(); !f(); <-time.After(every / 10) {
			if time.Since(begun) > patience {
				t.Fatalf("%s: not in %v", what, patience)
			}
		}
	}
	sees := func(p *cluster.Presence, ids ...string) func() bool {
		return func() bool {
			members := p.Members()
			if len(members) != len(ids) {
				return false
			}
			for i, m := range members {
				if m != (cluster.Member{ID: ids[i], Address: ids[i] + ":8081"}) {
					return false
				}
			}
			return true
		}
	}
	await("a sees all", sees(a, "a", "b_/ä", "c"))
	await("b sees all", sees(b, "a", "b_/ä", "c"))
	await("the members are stable", a.Stable)
	stopC()
	await("c is gone", sees(a, "a", "b_/ä"))
	stopB()
	await("b is gone", sees(a, "a"))
	await("a is stable alone", a.Stable)
}
