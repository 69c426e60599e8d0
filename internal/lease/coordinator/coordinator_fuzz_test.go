package coordinator

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/lease/ledger"
	"github.com/stint-io/stint/limit"
)

// mob is a coordinator with one honest instance, and hostile ones that say what the
// bytes of the input stand for.
type mob struct {
	t      testing.TB
	in     []byte
	now    limit.Time
	terms  lease.Terms
	c      *Coordinator
	honest *agent.Agent
	bucket *bucket.Bucket
	handle uint32
	ask    limit.Time

	number [hostiles]uint64
	acked  map[lease.Member]uint64
	leases map[lease.Member]uint64
	tokens [][]byte
	level  fixed.Amount // of one bucket with the limit
	part   uint64
	at     limit.Time
}

const hostiles = 4

var nasty = [...]fixed.Amount{0, 1, -1, fixed.Token, 10 * fixed.Token, 100 * fixed.Token, 1000 * fixed.Token, fixed.MaxAmount - 1, fixed.MaxAmount, fixed.MaxAmount + 1, math.MaxInt64, math.MinInt64, math.MinInt64 + 1, -fixed.Token}

func (m *mob) byte() byte {
	if len(m.in) == 0 {
		return 0
	}
	b := m.in[0]
	m.in = m.in[1:]
	return b
}

func (m *mob) amount() fixed.Amount {
	b := m.byte()
	if b < 128 {
		return nasty[int(b)%len(nasty)]
	}
	return fixed.Amount(b-128) * fixed.Token // 0 to 127
}

func (m *mob) member(b byte) lease.Member {
	return lease.Member{Instance: fmt.Sprint("hostile-", b%hostiles), Session: uint64(b % hostiles)}
}

// report is what a hostile instance says.
func (m *mob) report() *lease.Report {
	who, how := m.byte(), m.byte()
	me := m.member(who)
	m.number[who%hostiles] += uint64(how & 3) // 0 says the last number again
	r := &lease.Report{Member: me, Number: m.number[who%hostiles], Epoch: uint64(how >> 2 & 3), Stamp: time.Duration(m.now), Leaving: how>>4 == 15}
	for range 1 + int(how>>4&1) {
		flags, of := m.byte(), m.byte()
		d := lease.Demand{
			Handle: uint32(of & 3), Rate: m.amount(), Shortfall: m.amount(), Silent: flags&1 != 0, Closed: flags&14 == 14,
			Returned: lease.Capacity{Rate: m.amount(), Burst: m.amount(), Tokens: m.amount()},
		}
		d.Resource = []lease.ResourceID{{}, {Limit: "l"}, {Limit: "l"}, {Limit: "l", Key: "k"}, {Limit: "gone"}}[of>>2%5]
		switch flags >> 4 & 7 {
		case 1, 2, 3, 4:
			d.Lease = m.leases[me]
		case 5:
			d.Lease = m.leases[anna]
		case 6:
			d.Lease = math.MaxUint64
		}
		switch flags >> 7 {
		case 0:
			d.AckedGrant = m.acked[me]
		default:
			d.AckedGrant = []uint64{0, math.MaxUint64, m.acked[me] - 1, m.acked[anna]}[of>>6]
		}
		if n := int(of >> 5); n < len(m.tokens) && flags&6 == 6 {
			d.Claim = m.tokens[n]
		}
		d.Within = time.Duration(int8(flags)) * time.Millisecond
		if m.terms.Suppress != nil {
			d.Attempted, d.Admitted, r.Version = m.amount(), m.amount(), uint32(flags>>3)
			if a := m.account(me); a != nil && of&16 != 0 {
				d.Attempted, d.Admitted = a.Attempted+d.Attempted, a.Admitted+d.Admitted
			}
		}
		if flags&14 == 12 { // what is true, and then some
			if a := m.account(me); a != nil {
				d.Returned = a.Returned.Add(lease.Capacity{Rate: max(0, d.Returned.Rate), Burst: max(0, d.Returned.Burst), Tokens: max(0, d.Returned.Tokens)})
			}
		}
		r.Demands = append(r.Demands, d)
	}
	return r
}

func (m *mob) account(who lease.Member) *account {
	if s := m.c.sessions[who]; s != nil {
		for _, a := range s.accounts {
			if a.resource.ID == theLimit {
				return a
			}
		}
	}
	return nil
}

// step steps the coordinator, and brings what it grants to the honest one at once.
func (m *mob) step(e lease.Event) {
	events := []lease.Event{e}
	for n := 0; len(events) > 0; n++ {
		if n > 10_000 {
			m.t.Fatal("the messages do not end")
		}
		for _, g := range slices.Clone(m.c.Step(m.now, events[0])) {
			m.acked[g.To] = g.Number
			for _, s := range g.Shares {
				if s.Lease != 0 && s.Limit.Rate > 0 {
					m.leases[g.To] = s.Lease
				}
				if s.Token != nil && len(m.tokens) < 8 {
					m.tokens = append(m.tokens, s.Token)
				}
			}
			if g.To == anna {
				events = append(events, m.honestSteps(&g)...)
			}
		}
		events = events[1:]
	}
	m.check()
}

func (m *mob) honestSteps(e lease.Event) []lease.Event {
	if r := m.honest.Step(m.now, e); r != nil {
		c := *r
		c.Demands = slices.Clone(r.Demands)
		return []lease.Event{&c}
	}
	return nil
}

// pass lets time pass, while the honest one takes all that it can.
func (m *mob) pass(d time.Duration) {
	steps := 0
	for end := m.now.Add(d); m.now < end; {
		if steps++; steps > 1000+int(d/(10*time.Microsecond)) {
			m.t.Fatalf("after %d steps %v of %v are left: next are %v and %v", steps, time.Duration(end-m.now), d, m.c.Next()-m.now, m.honest.Next()-m.now)
		}
		m.now = max(m.now+1, min(end, m.c.Next(), m.honest.Next(), m.ask))
		m.step(lease.Tick{})
		for _, e := range m.honestSteps(lease.Tick{}) {
			m.step(e)
		}
		if m.now < m.ask {
			continue
		}
		m.ask = m.now.Add(2 * time.Millisecond)
		for range 3 {
			if ok, _ := m.bucket.Allow(m.now, 1); ok {
				m.takes()
				continue
			}
			for _, e := range m.honestSteps(agent.Starved{Handle: m.handle}) {
				m.step(e)
			}
		}
	}
}

// takes holds what the honest one is allowed against one bucket with the limit.
func (m *mob) takes() {
	p := ledger.Pool{Rate: m.terms.Rate, Burst: m.terms.Burst, Level: m.level, Remainder: m.part, At: m.at}
	p.Refill(m.now)
	m.level, m.part, m.at = p.Level-fixed.Token, p.Remainder, p.At
	if m.level < -100 {
		m.t.Fatalf("the honest instance alone was allowed %v more than the limit", -m.level)
	}
}

// check holds the coordinator's books against the limit.
func (m *mob) check() {
	d := desk{t: m.t, c: m.c}
	d.check()
	for _, r := range m.c.list {
		if r.Pool.Rate < 0 || r.Pool.Burst < 0 || r.Pool.Reserved < 0 || r.Pool.Level > r.Pool.Room() {
			m.t.Fatalf("more is lent than there is: %+v", r.Pool)
		}
		if err := r.Check(); err != nil {
			m.t.Fatal(err)
		}
	}
}

// FuzzCoordinator: whatever hostile instances say, nothing panics, no more is lent than
// there is, the honest instance has its fair part, and it is allowed no more than the
// limit. What the hostile ones do with theirs is theirs.
func FuzzCoordinator(f *testing.F) {
	f.Add([]byte("\x00"))
	// The first is which limit. Then each is who, how, flags, which, rate, burst, three amounts given back, a pause.
	join := func(i byte) []byte { return []byte{i, 5, 0x00, 5, 5, 5, 0, 0, 0, 201} }
	for i := range byte(3) {
		lie := func(rate, burst, tokens byte) []byte { return []byte{i, 5, 0x1c, 5, 5, 5, rate, burst, tokens, 3} }
		f.Add(slices.Concat([]byte{i}, join(i), lie(0, 0, 10)))                            // more tokens than fit
		f.Add(slices.Concat([]byte{i}, join(i), lie(0, 3, 3), lie(0, 0, 9), lie(8, 8, 8))) // some, and too many
		f.Add(slices.Concat([]byte{i}, join(i), bytes.Repeat(lie(0, 3, 3), 150)))          // tokens from nowhere
		f.Add(slices.Concat([]byte{i}, join(i), bytes.Repeat(lie(0, 0, 5), 150)))
		f.Add(slices.Concat([]byte{i}, join(i), bytes.Repeat([]byte{i, 5, 0x90, 0x45, 8, 8, 0, 0, 0, 3}, 50))) // heard what will be said
		f.Add(slices.Concat([]byte{i}, join(i), join(i^1), []byte{i, 0xf5, 0x10, 5, 0, 0, 0, 0, 0, 7}, join(i)))
	}
	for seed := range uint64(16) {
		b := []byte{byte(seed * 16)}
		for n := range uint64(60) {
			b = binary.BigEndian.AppendUint64(b, (seed+1)*(n+1)*0x9e3779b97f4a7c15)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 2000 {
			in = in[:2000]
		}
		m := &mob{t: t, in: in, now: limit.Time(time.Hour), acked: map[lease.Member]uint64{}, leases: map[lease.Member]uint64{}}
		// In the others there are fewer tokens than instances.
		kind := m.byte()
		m.terms = []lease.Terms{hundred, {Rate: 5 * fixed.Token, Burst: 2 * fixed.Token}, {Rate: fixed.Token / 2, Burst: fixed.Token}}[kind%3]
		if kind >= 128 {
			m.terms.Suppress = []*lease.Suppress{{}, {Report: 20 * time.Millisecond, Window: time.Second, Intervals: 4, Admitted: kind&2 != 0, Ramp: lease.Ramp(kind & 1)}}[kind>>6&1]
		}
		m.level, m.at, m.ask = m.terms.Burst, m.now, m.now
		m.c = New(Options{
			Epoch: 1, Seal: NewSeal([]byte("k")), MaxResources: 4,
			Resolve: func(id lease.ResourceID) (lease.Terms, lease.Status) {
				if id.Limit != "l" {
					return lease.Terms{}, lease.StatusUnknownLimit
				}
				return m.terms, lease.StatusOK
			},
		}, m.now)
		m.honest = agent.New(agent.Options{Member: anna})
		m.bucket = bucket.NewBucket(m.honest.Deadline())
		m.handle = m.honest.Open(m.now, theLimit, agent.LeaseOptions{}, m.bucket)
		m.pass(time.Second)
		for len(m.in) > 0 {
			m.step(m.report())
			if pause := m.byte(); pause&1 != 0 {
				m.pass(time.Duration(pause) * time.Millisecond)
			} else if pause == 2 {
				m.step(Reconfigure{})
			}
		}
		m.pass(500 * time.Millisecond)
		fair := m.terms.Rate / (hostiles + 1)
		if held := m.honest.State(m.handle).Held; m.terms.Burst == hundred.Burst && m.terms.Suppress == nil && (held.Rate < fair-fair/16 || held.Burst < fixed.Token) {
			t.Errorf("the honest instance holds %+v of %v/s among %d", held, m.terms.Rate, hostiles+1)
		}
		m.pass(lease.DefaultLease + time.Second)
		if s := m.c.Stats(); s.Instances != 1 || s.Resources > 4 {
			t.Errorf("after the hostile ones have gone: %+v", s)
		}
	})
}
