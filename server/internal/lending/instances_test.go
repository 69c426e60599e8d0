package lending

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// Of each instance what it wants and has adds up over the keys of a limit, what it decided is
// summed from its reports, limits stand apart, and those of nobody's configuration are left out.
func TestInstances(t *testing.T) {
	r := start(t, Options{lease: time.Minute})
	a, b := r.open("a", 1), r.open("b", 2)
	for range 2 {
		m := &leasepb.Report{Instance: "a", Session: 1, Version: 1, Number: a.number + 1, Stamp: 1e9 * int64(a.number+1), Demands: []*leasepb.Demand{
			demand(1, "shared", 30), demand(2, "per-user", 2, "u", "192.0.2.7"), demand(3, "per-user", 3, "v", "192.0.2.7"),
		}, Usage: []*leasepb.Usage{{Limit: "per-user", Admitted: 7, Refused: 1}, {Limit: "nobody", Admitted: 9}}}
		a.number++
		if err := a.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	b.report(demand(1, "shared", 20))
	b.share(1)
	var all []InstanceFigures
	r.eventually("both have what they want", func() bool {
		figures, others, ok := r.allInstances(t.Context())
		all = figures
		if !ok || others != 0 || len(all) != 3 {
			return false
		}
		for i, want := range []InstanceFigures{{"a", "per-user", 5, 5, 14, 2}, {"a", "shared", 30, 30, 0, 0}, {"b", "shared", 20, 20, 0, 0}} {
			got := all[i]
			if got.Lent < want.Lent {
				return false
			}
			if got.Lent = want.Lent; got != want {
				return false
			}
		}
		return true
	})
	r.stop()
	if _, _, ok := r.allInstances(t.Context()); ok {
		t.Errorf("after the end there are figures")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, ok := r.allInstances(ctx); ok {
		t.Errorf("without time there are figures")
	}
}

// There are at most 10,000 pairs, and the number of the others.
func TestInstancesAreBounded(t *testing.T) {
	r := start(t, Options{})
	var figures []InstanceFigures
	var others int
	r.inLoop(t.Context(), func(now limit.Time) {
		for i := range maxPageLeases/2 + 2 {
			m := r.loop.members.admit(now, newStream(t.Context(), nil), &lease.Report{Member: lease.Member{Instance: fmt.Sprint(i), Session: 1}}, r.loop.coordinator.Knows)
			m.decided = map[string]lease.Usage{
				"shared": {Limit: "shared", Admitted: uint64(i)}, "per-user": {Limit: "per-user", Admitted: uint64(i)}, "former": {Limit: "former", Admitted: 1},
			}
			m.stream = nil
		}
		figures, others = r.instances(now)
	})
	if len(figures) != maxPageLeases || others != 4 {
		t.Errorf("%d are shown and %d not", len(figures), others)
	}
	for _, f := range figures {
		if fmt.Sprint(f.Admitted) != f.Instance {
			t.Fatalf("of another one: %+v", f)
		}
	}
}
