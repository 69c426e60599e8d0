package coordinator

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// keep has an instance report each second that it holds all of its first lease, a part of which was
// revoked, and others what they are asked for. It returns until when the instance may use its lease by the
// grants of that session.
func (d *desk) keep(seconds int, m lease.Member, keeps func() lease.Demand, others func()) (until limit.Time) {
	first := d.c.sessions[m]
	for range seconds {
		others()
		d.report(m, keeps())
		if s := d.c.sessions[m]; s == first {
			until = limit.Time(s.stamp).Add(d.c.opts.Lease)
		}
		d.after(time.Second)
	}
	return until
}

// TestRevokedAndKept: an instance that keeps what is revoked has it for two leases, and not as long as it
// reports, whether it acknowledges the cap or no grant at all.
func TestRevokedAndKept(t *testing.T) {
	for name, acknowledges := range map[string]bool{"acknowledged": true, "ignored": false} {
		for what, demand := range map[string]lease.Demand{"rate": asks(100), "demand for nothing": asks(0)} {
			t.Run(name+" "+what, func(t *testing.T) {
				d := newDesk(t, hundred)
				d.report(anna, asks(100))
				d.report(bert, asks(100))
				keeps := func() lease.Demand {
					k := demand
					if k.Resource, k.Lease = (lease.ResourceID{}), d.leases[0]; acknowledges {
						k.AckedGrant = d.acked[anna]
					}
					return k
				}
				until := d.keep(5, anna, keeps, func() { d.report(bert, asks(100)) })
				if d.lent(anna).Rate != 100*fixed.Token {
					t.Fatalf("anna holds %+v within a lease: she may be late", d.lent(anna))
				}
				until = max(until, d.keep(6, anna, keeps, func() { d.report(bert, asks(100)) }))
				if got := d.lent(bert); got.Rate < 50*fixed.Token || got.Burst < 50*fixed.Token {
					t.Errorf("bert holds %+v after 11 s, of 50/s that were revoked then", got)
				}
				if d.now <= until {
					t.Errorf("bert has what anna may use for %v", time.Duration(until-d.now))
				}
				// She begins anew, with what is hers.
				d.report(anna, lease.Demand{Handle: 2, Resource: theLimit, Rate: amount(100)})
				d.keep(20, anna, func() lease.Demand { return lease.Demand{Handle: 2, Rate: amount(100)} }, func() { d.report(bert, asks(100)) })
				if got := d.lent(anna); got.Rate > 50*fixed.Token {
					t.Errorf("anna holds %+v in her next session", got)
				}
			})
		}
	}
}

// TestRevokedAndReturnedLate: an instance that returns what is revoked, however late, has its session, and
// its leases are renewed from then on.
func TestRevokedAndReturnedLate(t *testing.T) {
	d := newDesk(t, hundred)
	d.report(anna, asks(100))
	d.report(bert, asks(100))
	kept := func() lease.Demand { return d.holds(anna, 1, 100, lease.Capacity{}) }
	d.keep(8, anna, kept, func() { d.report(bert, asks(100)) })
	if s := d.c.sessions[anna]; s.receivedAt > d.now.Add(-2*time.Second) {
		t.Errorf("a session that keeps what is revoked was renewed at %v", d.now-s.receivedAt)
	}
	d.report(anna, d.holds(anna, 1, 100, capacity(50, 50, 0)))
	if s := d.c.sessions[anna]; s.receivedAt < d.now.Add(-time.Second) {
		t.Errorf("what was revoked was returned, and nothing is renewed")
	}
	d.pass(20*time.Second, anna, bert)
	if d.lent(anna) != capacity(50, 50, 0) || d.lent(bert) != capacity(50, 50, 0) {
		t.Errorf("anna holds %+v, bert %+v", d.lent(anna), d.lent(bert))
	}
}

// TestPermitsInUseAreKept: permits of requests in flight are returned when these have ended, however long
// that takes.
func TestPermitsInUseAreKept(t *testing.T) {
	d := newDesk(t, lease.Terms{Burst: 10 * fixed.Token, Semaphore: true})
	wants := lease.Demand{Handle: 1, Resource: theLimit, Shortfall: 10 * fixed.Token}
	d.report(anna, wants)
	d.report(bert, wants)
	uses := func() lease.Demand {
		return lease.Demand{Handle: 1, Lease: d.leases[0], Shortfall: 10 * fixed.Token, AckedGrant: d.acked[anna]}
	}
	d.keep(30, anna, uses, func() { d.report(bert, wants) })
	if got := d.lent(anna).Burst; got != 10*fixed.Token {
		t.Errorf("%v permits of 10 are left of those in use", got)
	}
	if s := d.c.sessions[anna]; s.receivedAt < d.now.Add(-2*time.Second) {
		t.Error("an instance with requests in flight is not renewed")
	}
}

// TestHonestInstancesAreRenewed: in a fleet whose load and limit move all the time, over a network that
// delays, loses and doubles, no instance comes near to a session that is not renewed.
func TestHonestInstancesAreRenewed(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	longest := time.Duration(0)
	for seed := range seeding.Draw(t, 30) {
		f := newFleet(t, seed, 6, lease.Terms{Rate: 300 * fixed.Token, Burst: 60 * fixed.Token})
		f.delay = time.Duration(f.rand.Int64N(int64(200 * time.Millisecond)))
		f.jitter, f.loss, f.duplicate, f.poisson = f.delay, 0.1*f.rand.Float64(), 0.1, true
		for range 60 {
			in := f.instances[f.rand.IntN(len(f.instances))]
			f.load(in, 200*f.rand.Float64()*f.rand.Float64())
			f.run(time.Duration(f.rand.Int64N(int64(time.Second))))
			for _, s := range f.coord.sessions {
				for _, a := range s.cuts {
					if !a.obeys() {
						longest = max(longest, time.Duration(f.now-a.cut.since))
					}
				}
			}
		}
	}
	if longest > 3*time.Second {
		t.Errorf("one has kept what was revoked for %v", longest)
	}
	t.Log(longest)
}
