package leaseservice

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/limit"
)

// TestSharedTerms: what a file says of suppression and of split is what the coordinator
// works by. What the file may say at the ends of its ranges the machines take.
func TestSharedTerms(t *testing.T) {
	x := newIndex(limits(t, `limits:
  - {name: usual, rate: 10/s, burst: 3, sharing: suppressed}
  - {name: described, rate: 10/s, sharing: suppressed, suppress: {report: 2s, window: 24s, interval: 6s, average: admitted, ramp: linear, full: 4, draws: independent}}
  - {name: fast, rate: 10/s, sharing: suppressed, suppress: {report: 10ms, window: 640ms, interval: 10ms, ramp: linear, full: 2}}
  - {name: slow, rate: 10/s, sharing: suppressed, suppress: {report: 1m, window: 1h, interval: 1m, ramp: linear, full: 1000}}
  - {name: free, unlimited: true, sharing: suppressed}
  - {name: members, rate: 10/s, sharing: split}
  - {name: part, rate: 10/s, burst: 7, sharing: split, split: {instances: 4, weight: 2}}
  - {name: places, algorithm: concurrency, max_in_flight: 7, sharing: split, split: {instances: 3}}
`))
	ten, all := 10*fixed.Token, fixed.Whole(10)
	for name, want := range map[string]lease.Terms{
		"usual":     {Rate: ten, Burst: fixed.Whole(3), Suppress: &lease.Suppress{}},
		"described": {Rate: ten, Burst: all, Suppress: &lease.Suppress{Report: 2 * time.Second, Window: 24 * time.Second, Intervals: 4, Ramp: lease.RampLinear, Full: 4, Admitted: true, Independent: true}},
		"fast":      {Rate: ten, Burst: all, Suppress: &lease.Suppress{Report: 10 * time.Millisecond, Window: 640 * time.Millisecond, Intervals: 64, Ramp: lease.RampLinear, Full: 2}},
		"slow":      {Rate: ten, Burst: all, Suppress: &lease.Suppress{Report: time.Minute, Window: time.Hour, Intervals: 60, Ramp: lease.RampLinear, Full: 1000}},
		"free":      {Rate: unlimited, Burst: unlimited, Allocation: fairshare.None},
		"members":   {Rate: ten, Burst: all, Allocation: fairshare.Equal},
		"part":      {Rate: 5 * fixed.Token, Burst: fixed.Whole(3), Allocation: fairshare.Equal},
		"places":    {Burst: fixed.Whole(2), Semaphore: true, Allocation: fairshare.Equal},
	} {
		got, status := x.resolve(lease.ResourceID{Limit: name})
		if status != lease.StatusOK || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v %+v %v, want %+v %+v", name, got, got.Suppress, status, want, want.Suppress)
		}
		if got.Suppress != nil && got.Suppress.Validate() != nil {
			t.Errorf("%s: %v", name, got.Suppress.Validate())
		}
	}
}

// TestReloadComesFirst: a report that the loop finds waiting beside a Reload is answered by
// the limits of that, since it may have been sent on account of it.
func TestReloadComesFirst(t *testing.T) {
	for range 50 {
		set := limits(t, "limits: [{name: l, rate: 10/s, sharing: leased}]")
		s := New(Options{Limits: set, State: State{Epoch: 1}})
		ctx, cancel := context.WithCancel(t.Context())
		step, first := s.step, make(chan lease.Event, 1)
		s.step = func(now limit.Time, e lease.Event) []lease.Grant {
			switch e.(type) {
			case *lease.Report, coordinator.Reconfigure:
				select {
				case first <- e:
				default:
				}
			}
			return step(now, e)
		}
		p, err := s.Pipe(ctx)
		if err != nil {
			t.Fatal(err)
		}
		s.Reload(set)
		s.events <- event{stream: p.stream, report: &lease.Report{Member: lease.Member{Instance: "a", Session: 1}, Number: 1, Stamp: 1}}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.Run(ctx)
		}()
		if e := <-first; e != (coordinator.Reconfigure{}) {
			t.Errorf("the first is %T", e)
		}
		<-p.stream.taken
		cancel()
		<-ended
	}
}

// A key of other attributes than the limit's is refused as such, whatever its values are; of
// the limit's own, or where an instance does not say of which, it counts.
func TestAttributesOfAKey(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	x := newIndex(limits(t, `limits:
  - {name: shared, rate: 100/s, sharing: leased}
  - {name: per-user, key: [user, ip], rate: 10/s, sharing: leased}
  - {name: by-ip, key: [ip], rate: 10/s, sharing: leased}
  - {name: exact, key: [user], rate: 10/s}
`))
	for _, c := range []struct {
		limit      string
		attributes []string
		want       lease.Status
	}{
		{"per-user", nil, lease.StatusOK},
		{"per-user", []string{}, lease.StatusOK},
		{"per-user", []string{"user", "ip"}, lease.StatusOK},
		{"per-user", []string{"ip", "user"}, lease.StatusWrongAttributes},
		{"per-user", []string{"user"}, lease.StatusWrongAttributes},
		{"per-user", []string{"user", "ip", "more"}, lease.StatusWrongAttributes},
		{"exact", []string{"ip"}, lease.StatusNotLeased},
		{"nobody", []string{"ip"}, lease.StatusUnknownLimit},
	} {
		key, err := leasewire.EncodeKey("u", "192.0.2.7")
		if err != nil {
			t.Fatal(err)
		}
		r := lease.Report{Demands: []lease.Demand{{Resource: lease.ResourceID{Limit: c.limit, Key: key}, Attributes: c.attributes}}}
		x.canonical(&r)
		terms, status := x.resolve(r.Demands[0].Resource)
		if status != c.want || (terms.Rate > 0) != (c.want == lease.StatusOK) {
			t.Errorf("%s by %q: %v, want %v", c.limit, c.attributes, status, c.want)
		}
	}
	// What is no list of values is no key, though it reads as one of the machines'.
	for _, raw := range []string{"\xfd\xc0\x00\x02\x07", "\xfe", "\xff" + strings.Repeat("x", 32), "\x05a"} {
		r := lease.Report{Demands: []lease.Demand{{Resource: lease.ResourceID{Limit: "by-ip", Key: raw}}}}
		x.canonical(&r)
		if _, status := x.resolve(r.Demands[0].Resource); status != lease.StatusBadKey {
			t.Errorf("the key %q: %v", raw, status)
		}
	}
	shared := lease.Report{Demands: []lease.Demand{{Resource: lease.ResourceID{Limit: "shared"}, Attributes: []string{"user"}}}}
	if x.canonical(&shared); shared.Demands[0].Resource.Key != otherAttributes {
		t.Errorf("a limit without a key takes %q", shared.Demands[0].Resource.Key)
	}
}
