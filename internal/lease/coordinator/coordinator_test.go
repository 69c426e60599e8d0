package coordinator

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// desk is a coordinator whose every message is spelled out. Reports are numbered as
// they are sent, unless they have a number.
type desk struct {
	t       testing.TB
	c       *Coordinator
	now     limit.Time
	terms   map[string]lease.Terms
	numbers map[lease.Member]uint64
	acked   map[lease.Member]uint64 // the last Grant that came
	leases  []uint64                // in the order of making, to give them short names
	tokens  map[uint64][]byte       // of leases
	seal    *Seal
	granted []lease.Grant // by the last step
	copy    copied        // what a replica knows
	most    fixed.Amount  // the largest burst that there was
}

func newDesk(t testing.TB, terms lease.Terms) *desk {
	d := &desk{
		t: t, now: limit.Time(time.Hour), terms: map[string]lease.Terms{"l": terms}, numbers: map[lease.Member]uint64{},
		acked: map[lease.Member]uint64{}, tokens: map[uint64][]byte{}, seal: NewSeal([]byte("secret")),
	}
	d.start(1, 0)
	return d
}

func (d *desk) resolve(id lease.ResourceID) (lease.Terms, lease.Status) {
	t, ok := d.terms[id.Limit]
	if !ok {
		return lease.Terms{}, lease.StatusUnknownLimit
	}
	return t, lease.StatusOK
}

// start begins with a coordinator, which knows nothing.
func (d *desk) start(epoch uint64, recovery time.Duration) {
	d.c = New(Options{Epoch: epoch, Recovery: recovery, Seal: d.seal, Resolve: d.resolve, MaxResources: 4}, d.now)
}

var (
	anna = lease.Member{Instance: "anna", Session: 11}
	bert = lease.Member{Instance: "bert", Session: 12}
	cleo = lease.Member{Instance: "cleo", Session: 13}
)

// report sends what m tells, lets the round happen, and returns what is answered.
func (d *desk) report(m lease.Member, demands ...lease.Demand) string {
	return d.send(lease.Report{Member: m, Epoch: d.c.opts.Epoch, Demands: demands})
}

func (d *desk) send(r lease.Report) string {
	if r.Number == 0 {
		d.numbers[r.Member]++
		r.Number = d.numbers[r.Member]
	}
	if r.Stamp == 0 {
		r.Stamp = time.Duration(d.now)
	}
	d.granted = slices.Clone(d.step(&r))
	return d.after(5 * time.Millisecond)
}

// after lets time pass and returns what was said in that time.
func (d *desk) after(pause time.Duration) string {
	for end := d.now.Add(pause); ; {
		next := min(end, d.c.Next())
		d.now = max(next, d.now)
		d.granted = append(d.granted, d.step(lease.Tick{})...)
		if d.now >= end {
			break
		}
	}
	said := d.spell(d.granted)
	d.granted = nil
	d.check()
	return said
}

// pass is after for an instance that keeps its session by reports without demands.
func (d *desk) pass(pause time.Duration, alive ...lease.Member) string {
	said := ""
	for end := d.now.Add(pause); d.now < end; {
		for _, m := range alive {
			if s := d.send(lease.Report{Member: m, Epoch: d.c.opts.Epoch}); strings.Contains(s, ":") {
				said += s
			}
		}
		said += d.after(min(time.Second, time.Duration(end-d.now)))
	}
	return said
}

// spell writes grants as text: the instance, and for each share the handle, the status if it
// is not ok, the lease, what was granted in all, the caps, and what else there is to know.
func (d *desk) spell(grants []lease.Grant) string {
	var b strings.Builder
	for _, g := range grants {
		d.acked[g.To] = g.Number
		if len(g.Shares) == 0 {
			fmt.Fprintf(&b, "%s renewed\n", g.To.Instance)
			continue
		}
		for _, s := range g.Shares {
			fmt.Fprintf(&b, "%s:", g.To.Instance)
			if s.Handle != 1 {
				fmt.Fprintf(&b, " handle %d", s.Handle)
			}
			if s.Status != lease.StatusOK {
				fmt.Fprintf(&b, " %v", s.Status)
			}
			if s.Lease != 0 {
				d.tokens[s.Lease] = s.Token
				fmt.Fprintf(&b, " lease %d %v/s burst %v tokens %v", d.short(s.Lease), s.Granted.Rate, s.Granted.Burst, s.Granted.Tokens)
			}
			if s.CapRate != fixed.MaxAmount {
				fmt.Fprintf(&b, " cap %v/s", s.CapRate)
			}
			if s.CapBurst != fixed.MaxAmount {
				fmt.Fprintf(&b, " cap burst %v", s.CapBurst)
			}
			for _, w := range []struct {
				word string
				is   bool
			}{{"contended", s.Contended}, {"saturated", s.Saturated}, {"recovering", s.Recovering}} {
				if w.is {
					b.WriteString(" " + w.word)
				}
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

func (d *desk) short(lease uint64) int {
	if i := slices.Index(d.leases, lease); i >= 0 {
		return i + 1
	}
	d.leases = append(d.leases, lease)
	return len(d.leases)
}

// check holds what is counted as lent against what there is.
func (d *desk) check() {
	for _, r := range d.c.list {
		sum := lease.Capacity{}
		for _, a := range r.accounts {
			h := a.Held()
			if h.Rate < 0 || h.Burst < 0 {
				d.t.Fatalf("%v holds %+v", a.session.Member, h)
			}
			sum = sum.Add(h)
		}
		sum = sum.Add(r.Frozen)
		if all := r.Terms.Lendable(); sum.Rate+r.Pool.Rate != all.Rate || sum.Burst+r.Pool.Burst != all.Burst {
			d.t.Fatalf("%+v: lent %+v and free %+v are not %+v", r.ID, sum, r.Pool, r.Terms)
		}
		// What was used of the pool is what its burst has above its level: nothing at
		// least, and no more than the largest burst that there was.
		if d.most = max(d.most, r.Terms.Lendable().Burst); r.Pool.Level > r.Pool.Burst || r.Pool.Burst-r.Pool.Level > d.most {
			d.t.Fatalf("%+v: %v tokens in a pool of burst %v, of %v", r.ID, r.Pool.Level, r.Pool.Burst, d.most)
		}
	}
}

// lent is what m is counted to hold of the one resource.
func (d *desk) lent(m lease.Member) lease.Capacity {
	for _, a := range d.c.list[0].accounts {
		if a.session.Member == m {
			h := a.Held()
			h.Tokens = 0
			return h
		}
	}
	return lease.Capacity{}
}

func (d *desk) want(got, want string) {
	d.t.Helper()
	want = strings.ReplaceAll(strings.TrimLeft(want, "\n"), "\t", "")
	if got != want {
		d.t.Errorf("said\n%swant\n%s", got, want)
	}
}

func amount(n float64) fixed.Amount { return fixed.Amount(n * float64(fixed.Token)) }

func capacity(rate, burst, in float64) lease.Capacity {
	return lease.Capacity{Rate: amount(rate), Burst: amount(burst), Tokens: amount(in)}
}

var theLimit = lease.ResourceID{Limit: "l"}

// asks is the first demand of an instance.
func asks(rate float64) lease.Demand {
	return lease.Demand{Handle: 1, Resource: theLimit, Rate: amount(rate)}
}

// holds is a demand of one that has acknowledged every grant and holds a lease of the desk.
func (d *desk) holds(m lease.Member, nth int, rate float64, returned lease.Capacity) lease.Demand {
	return lease.Demand{Handle: 1, Lease: d.leases[nth-1], Rate: amount(rate), Returned: returned, AckedGrant: d.acked[m]}
}

var hundred = lease.Terms{Rate: 100 * fixed.Token, Burst: 100 * fixed.Token}

func TestFirstGrant(t *testing.T) {
	d := newDesk(t, hundred)
	// All is wanted: all is lent, with all that is in the bucket.
	d.want(d.report(anna, asks(100)), "anna: lease 1 100/s burst 100 tokens 100 contended\n")
	// Nothing is sent twice without a reason, once it was acknowledged.
	d.want(d.report(anna, d.holds(anna, 1, 100, lease.Capacity{})), "anna: lease 1 100/s burst 100 tokens 100 contended\n")
	d.want(d.report(anna), "anna renewed\n")
	d.want(d.pass(time.Minute, anna), strings.Repeat("", 60))
}

func TestFirstGrantIsSentUntilAcknowledged(t *testing.T) {
	d := newDesk(t, hundred)
	d.report(anna, asks(100))
	// The renewals do not acknowledge it.
	said := d.pass(3*time.Second, anna)
	if n := strings.Count(said, "anna: lease 1 100/s burst 100 tokens 100 contended\n"); n < 3 || n > 12 {
		t.Errorf("a grant that was not acknowledged was sent %d times in 3 s", n)
	}
}

func TestLittleWantedLeavesHeadRoom(t *testing.T) {
	d := newDesk(t, hundred)
	// A quarter more than it wants, at most half of what is free; two tokens, the
	// burst of its rate (9 of 98, rounded down), and half of the burst that is left.
	d.want(d.report(anna, asks(10)), "anna: lease 1 17.5/s burst 55 tokens 55\n")
}

func TestShift(t *testing.T) {
	d := newDesk(t, hundred)
	d.report(anna, asks(100))
	// Bert gets nothing, for nothing is free; Anna is asked at once.
	d.want(d.report(bert, asks(100)), `
		anna: lease 1 100/s burst 100 tokens 100 cap 50/s cap burst 50 contended saturated
		bert: contended saturated
	`)
	if got := d.lent(bert); got != (lease.Capacity{}) {
		t.Fatalf("bert was lent %+v before anna had given anything back", got)
	}
	// Anna gives back half, with 20 tokens that no longer fit. It is lent to Bert
	// in the next round, 1.004 ms later, with the tokens that were refilled in between.
	d.want(d.report(anna, d.holds(anna, 1, 100, capacity(50, 50, 20))), `
		anna: lease 1 100/s burst 100 tokens 100 contended saturated
		bert: lease 2 50/s burst 50 tokens 20.0502 contended saturated
	`)
	if a, b := d.lent(anna), d.lent(bert); a != capacity(50, 50, 0) || b != capacity(50, 50, 0) {
		t.Errorf("anna holds %+v, bert %+v", a, b)
	}
}

func TestLateDoubledReordered(t *testing.T) {
	d := newDesk(t, hundred)
	first := lease.Report{Member: anna, Epoch: 1, Number: 1, Stamp: time.Second, Demands: []lease.Demand{asks(100)}}
	d.send(first)
	d.numbers[anna] = 1
	d.report(bert, asks(100))
	back := lease.Report{Member: anna, Epoch: 1, Number: 3, Stamp: 3 * time.Second, Demands: []lease.Demand{d.holds(anna, 1, 60, capacity(50, 50, 20))}}
	d.send(back)
	want, level := [2]lease.Capacity{d.lent(anna), d.lent(bert)}, d.c.list[0].Pool.Level
	less := d.holds(anna, 1, 60, capacity(10, 10, 0))
	late := lease.Report{Member: anna, Epoch: 1, Number: 2, Stamp: 2 * time.Second, Demands: []lease.Demand{less}}
	for _, r := range []lease.Report{first, back, late, first} {
		if said := d.send(r); said != "" {
			t.Errorf("report %d that came late was answered:\n%s", r.Number, said)
		}
	}
	if got := [2]lease.Capacity{d.lent(anna), d.lent(bert)}; got != want || d.c.list[0].Pool.Level != level {
		t.Errorf("late reports changed %+v to %+v", want, got)
	}
	if s := d.c.sessions[anna]; s.stamp != 3*time.Second {
		t.Errorf("late reports are echoed as %v: a lease must count from the latest", s.stamp)
	}
}

func TestExpiryIsLaterThanTheInstances(t *testing.T) {
	d := newDesk(t, hundred)
	begin := d.now
	d.report(anna, asks(100))
	d.report(bert, asks(100))
	// Bert renews; Anna sends no more. Her clock ends the lease 5 s after
	// her report; here it is counted for as long as a clock that runs slow by a
	// hundredth may need.
	for d.now < begin.Add(lease.DefaultLease+lease.DefaultLease/lease.DriftMargin)-limit.Time(10*time.Millisecond) {
		d.report(bert)
		if got := d.lent(anna); got != capacity(100, 100, 0) {
			t.Fatalf("after %v anna's lease counts as %+v", time.Duration(d.now-begin), got)
		}
	}
	d.want(d.after(300*time.Millisecond), "bert: lease 2 100/s burst 100 tokens 0.1002 contended\n")
	if n := d.c.Stats().Expired; n != 1 {
		t.Errorf("%d sessions expired", n)
	}
}

func TestLeaving(t *testing.T) {
	d := newDesk(t, hundred)
	d.report(anna, asks(100))
	d.report(bert, asks(100))
	// Tokens that she had are taken to be spent; some came until the round.
	d.want(d.send(lease.Report{Member: anna, Epoch: 1, Leaving: true}), "bert: lease 2 100/s burst 100 tokens 0.1002 contended\n")
	if s := d.c.Stats(); s.Instances != 1 || s.Expired != 0 {
		t.Errorf("%+v", s)
	}
	// Without anybody the resource is forgotten, and its bucket once it is full again.
	d.send(lease.Report{Member: bert, Epoch: 1, Leaving: true})
	d.after(900 * time.Millisecond)
	if s := d.c.Stats(); s.Resources != 0 || s.Unlent != 1 {
		t.Errorf("%d resources are kept that no instance uses, and %d buckets, want 1", s.Resources, s.Unlent)
	}
}

// TestCapacityCut: in Doorman's first version a cut capacity made leases negative.
func TestCapacityCut(t *testing.T) {
	d := newDesk(t, hundred)
	d.report(anna, asks(60))
	d.report(bert, asks(60))
	d.report(anna, d.holds(anna, 1, 60, capacity(50, 49, 0)))
	d.report(bert, d.holds(bert, 2, 60, lease.Capacity{}))
	d.terms["l"] = lease.Terms{Rate: 20 * fixed.Token, Burst: 20 * fixed.Token}
	d.granted = slices.Clone(d.c.Step(d.now, Reconfigure{}))
	said := d.after(5 * time.Millisecond)
	if strings.Contains(said, "-") || strings.Count(said, "cap 10/s cap burst 10") != 2 {
		t.Errorf("the cut was sent as\n%s", said)
	}
	// Cleo comes while more is out than there is.
	d.want(d.report(cleo, asks(60)), `
		anna: lease 1 `+d.granting(anna)+` cap 6.666666/s cap burst 6 contended saturated
		bert: lease 2 `+d.granting(bert)+` cap 6.666667/s cap burst 6 contended saturated
		cleo: contended saturated
	`)
	if got := d.lent(cleo); got != (lease.Capacity{}) {
		t.Errorf("cleo got %+v of a limit that is below zero", got)
	}
	if free := d.c.list[0].Pool; free.Rate >= 0 || free.Level != free.Burst {
		t.Errorf("free are %+v", free)
	}
	d.giveBack(anna, 1, capacity(6.666667, 7, 0))
	d.giveBack(bert, 2, capacity(6.666667, 7, 0))
	if got := d.lent(cleo); got.Rate != amount(6.666666) || got.Burst != amount(6) {
		t.Errorf("cleo holds %+v once there is something", got)
	}
	// A raise is lent at once.
	d.terms["l"] = lease.Terms{Rate: 180 * fixed.Token, Burst: 180 * fixed.Token}
	d.c.Step(d.now, Reconfigure{})
	d.after(5 * time.Millisecond)
	for _, m := range []lease.Member{anna, bert, cleo} {
		if got := d.lent(m); got.Rate != 60*fixed.Token || got.Burst != 60*fixed.Token {
			t.Errorf("%s holds %+v after the raise", m.Instance, got)
		}
	}
}

// TestCutToNothing: lent burst that the limit no longer has is returned as well.
func TestCutToNothing(t *testing.T) {
	d := newDesk(t, lease.Terms{Rate: 10 * fixed.Token, Burst: fixed.Token})
	d.report(anna, asks(100))
	d.terms["l"] = lease.Terms{Rate: 10 * fixed.Token}
	d.granted = slices.Clone(d.c.Step(d.now, Reconfigure{}))
	d.want(d.after(5*time.Millisecond), "anna: lease 1 10/s burst 1 tokens 1 cap burst 0 contended saturated\n")
}

// granting is what was granted to m in all, as spell writes it.
func (d *desk) granting(m lease.Member) string {
	for _, a := range d.c.list[0].accounts {
		if a.session.Member == m {
			return fmt.Sprintf("%v/s burst %v tokens %v", a.Granted.Rate, a.Granted.Burst, a.Granted.Tokens)
		}
	}
	return ""
}

// giveBack makes m return what it has above left.
func (d *desk) giveBack(m lease.Member, nth int, left lease.Capacity) {
	for _, a := range d.c.list[0].accounts {
		if a.session.Member == m {
			back := a.Granted.Sub(left)
			back.Tokens = a.Returned.Tokens
			d.report(m, d.holds(m, nth, a.Demand.Float(), back))
			return
		}
	}
}

func TestSilentKeepsAnEqualShare(t *testing.T) {
	d := newDesk(t, hundred)
	quiet := lease.Demand{Handle: 1, Resource: theLimit, Silent: true}
	d.want(d.report(cleo, quiet), "cleo: lease 1 100/s burst 100 tokens 100 contended\n")
	d.report(anna, asks(1000))
	d.report(bert, asks(1000))
	d.giveBack(cleo, 1, capacity(33.333333, 34, 0))
	for _, m := range []lease.Member{anna, bert, cleo} {
		if got := d.lent(m).Rate; got < amount(33.3) || got > amount(33.4) {
			t.Errorf("%s holds %v/s of 100 among 3", m.Instance, got)
		}
	}
}

func TestBadDemands(t *testing.T) {
	for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 1e300} {
		if a, err := fixed.AmountOf(x); err == nil {
			t.Errorf("AmountOf(%v) = %v", x, a)
		}
	}
	d := newDesk(t, hundred)
	d.report(anna, asks(50))
	before := d.lent(anna)
	for _, bad := range []lease.Demand{
		{Handle: 1, Resource: theLimit, Rate: -1},
		{Handle: 1, Resource: theLimit, Shortfall: -1},
		{Handle: 1, Resource: theLimit, Rate: math.MinInt64},
		{Handle: 1, Resource: theLimit, Rate: fixed.MaxAmount + 1},
		{Handle: 1, Resource: theLimit, Shortfall: math.MaxInt64},
	} {
		if said := d.report(bert, bad); !strings.HasPrefix(said, "bert: bad_demand") {
			t.Errorf("%+v was answered by\n%s", bad, said)
		}
	}
	// What was never granted can not be given back.
	for _, back := range []lease.Capacity{{Rate: 101 * fixed.Token}, {Burst: 101 * fixed.Token}, {Rate: -1}, {Burst: -1}, {Tokens: -1}, {Rate: math.MinInt64}, {Tokens: math.MinInt64}} {
		if said := d.report(anna, d.holds(anna, 1, 50, back)); !strings.Contains(said, "anna: bad_demand") {
			t.Errorf("%+v given back was answered by\n%s", back, said)
		}
	}
	d.report(anna, d.holds(anna, 1, 50, lease.Capacity{}))
	if got := d.lent(anna); got != before {
		t.Errorf("anna holds %+v after bad demands, before them %+v", got, before)
	}
	// Nor tokens: they count as far as she gives back the burst that they were in.
	level := d.c.list[0].Pool.Level
	d.report(anna, d.holds(anna, 1, 50, lease.Capacity{Tokens: math.MaxInt64}))
	d.report(anna, d.holds(anna, 1, 50, lease.Capacity{Tokens: math.MaxInt64, Burst: 5 * fixed.Token}))
	if got := d.c.list[0].Pool.Level; got < level || got > level+10*fixed.Token {
		t.Errorf("there are %v tokens after a lie about them, before it %v", got, level)
	}
}

func TestNoSuchResource(t *testing.T) {
	d := newDesk(t, hundred)
	d.report(anna, asks(50))
	unknown := lease.Demand{Handle: 2, Resource: lease.ResourceID{Limit: "other"}, Rate: fixed.Token}
	d.want(d.report(anna, unknown), "anna: handle 2 unknown_limit\n")
	d.want(d.report(anna, lease.Demand{Handle: 3, Rate: fixed.Token}), "anna: handle 3 lease_gone\n")
	d.want(d.report(anna, lease.Demand{Handle: 4, Resource: theLimit, Rate: fixed.Token}), "anna: handle 4 bad_key\n")
	for i := range 3 {
		d.report(anna, lease.Demand{Handle: uint32(5 + i), Resource: lease.ResourceID{Limit: "l", Key: fmt.Sprint(i)}})
	}
	d.want(d.report(anna, lease.Demand{Handle: 9, Resource: lease.ResourceID{Limit: "l", Key: "x"}}), "anna: handle 9 too_many_resources\n")
	d.want(d.report(bert, lease.Demand{Handle: 9, Resource: lease.ResourceID{Limit: "l", Key: "x"}}), "bert: handle 9 too_many_resources\n")
	if s := d.c.Stats(); s.Resources != 4 || s.Refused != 5 {
		t.Errorf("%+v", s)
	}
}

// TestLimitGoes: when the configuration drops a limit, its instances are sent that until
// it comes back.
func TestLimitGoes(t *testing.T) {
	d := newDesk(t, hundred)
	d.report(anna, asks(50))
	delete(d.terms, "l")
	d.granted = slices.Clone(d.c.Step(d.now, Reconfigure{}))
	if said := d.after(5 * time.Millisecond); !strings.HasPrefix(said, "anna: unknown_limit") {
		t.Errorf("sent\n%s", said)
	}
	// She gives up the lease and asks again.
	ask := asks(50)
	ask.AckedGrant = d.acked[anna]
	d.want(d.report(anna, ask), "anna: unknown_limit\n")
	d.want(d.report(bert, asks(50)), "bert: unknown_limit\n")
	d.terms["l"] = hundred
	d.c.Step(d.now, Reconfigure{})
	d.after(5 * time.Millisecond)
	ask.AckedGrant = d.acked[anna]
	d.report(anna, ask)
	if d.report(bert, asks(50)); d.lent(anna).Rate < 50*fixed.Token || d.lent(bert).Rate < 25*fixed.Token {
		t.Errorf("anna holds %+v, bert %+v of the limit that came back", d.lent(anna), d.lent(bert))
	}
}
