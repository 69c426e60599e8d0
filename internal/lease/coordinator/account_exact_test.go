package coordinator

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// accountModel is an account as a list of what was granted, heard or not.
type accountModel struct {
	*account
	grants   []grantModel
	returned lease.Capacity
	most     fixed.Amount // the tokens that it can have at most
	mostAt   limit.Time
}

type grantModel struct {
	part   lease.Capacity
	number uint64 // of the telling; 0 = not told yet
	heard  bool
}

func (m *accountModel) sums() (granted, aloft lease.Capacity) {
	for _, g := range m.grants {
		granted = granted.Add(g.part)
		if !g.heard {
			aloft = aloft.Add(g.part)
		}
	}
	return granted, aloft
}

// growRefundable is what came with the rate, by a clock that runs fast by one part in 128.
func (m *accountModel) earn(now limit.Time) {
	granted, _ := m.sums()
	dt := now - m.mostAt
	m.most += (granted.Rate - m.returned.Rate).Scale(fixed.Amount(dt+dt/lease.DriftMargin), fixed.Amount(time.Second))
	m.mostAt = now
}

// upTo is a random amount up to most.
func upTo(r *rand.Rand, most fixed.Amount) fixed.Amount {
	return fixed.Amount(r.Int64N(int64(max(0, most)) + 1))
}

// hears wants that the tokens of what was told up to a number, and not heard before, are said.
func (m *accountModel) hears(t *testing.T, heard uint64) {
	want := fixed.Amount(0)
	for i, g := range m.grants {
		if g.number > 0 && !g.heard && g.number <= max(heard, m.ackedGrant) {
			m.grants[i].heard = true
			want += g.part.Tokens
		}
	}
	if got := m.acknowledge(heard); got != want {
		t.Fatalf("%v are heard of by %d, want %v", got, heard, want)
	}
}

// givesBack gives back something, or what cannot be, and reports whether it was taken.
func (m *accountModel) givesBack(t *testing.T, r *rand.Rand, now limit.Time) bool {
	granted, aloft := m.sums()
	back := lease.Capacity{Rate: upTo(r, granted.Rate), Burst: upTo(r, granted.Burst) / fixed.Token * fixed.Token, Tokens: m.returned.Tokens + upTo(r, 20*fixed.Token)}
	if r.IntN(3) > 0 {
		back.Rate, back.Burst = max(back.Rate, m.returned.Rate), max(back.Burst, m.returned.Burst)
	}
	switch r.IntN(12) {
	case 0:
		back.Rate = granted.Rate + 1
	case 1:
		back.Burst = granted.Burst + fixed.Token
	case 2:
		back.Tokens = m.returned.Tokens - 1
	case 3:
		back = granted
		back.Tokens = max(back.Tokens, m.returned.Tokens)
	}
	landed := upTo(r, 5*fixed.Token)
	ok := back.Rate >= m.returned.Rate && back.Burst >= m.returned.Burst && back.Tokens >= m.returned.Tokens && back.Rate <= granted.Rate && back.Burst <= granted.Burst
	before := m.resource.pool.level
	if got := m.settle(back, landed); got != ok {
		t.Fatalf("%+v of %+v given back, %+v before: %v", back, granted, m.returned, got)
	}
	if !ok {
		return false
	}
	m.earn(now)
	tokens := min(back.Tokens-m.returned.Tokens, back.Burst-m.returned.Burst+landed, m.most)
	m.returned = back
	m.most = min(m.most-tokens, granted.Burst-back.Burst+aloft.Tokens)
	if want := min(before+tokens, m.resource.pool.room()); m.resource.pool.level != want {
		t.Fatalf("%v in the pool after %v came back, want %v", m.resource.pool.level, tokens, want)
	}
	return true
}

// consistent wants that the accounts are as their lists say, and the pool has the rest. It returns
// what is reserved for tokens under way.
func consistent(t *testing.T, res *resource, all []*accountModel) (under fixed.Amount) {
	var held lease.Capacity
	for _, m := range all {
		granted, aloft := m.sums()
		h := m.account.held()
		if h.Rate != granted.Rate-m.returned.Rate || h.Burst != granted.Burst-m.returned.Burst || m.refundable != m.most {
			t.Fatalf("%+v is held and %v at most, want %+v less %+v and %v", h, m.refundable, granted, m.returned, m.most)
		}
		held.Rate, held.Burst = held.Rate+h.Rate, held.Burst+h.Burst
		under += max(0, aloft.Tokens-aloft.Burst)
	}
	if p := res.pool; p.rate+held.Rate != res.terms.Rate || p.burst+held.Burst != res.terms.Burst || p.reserved != under {
		t.Fatalf("%+v is in the pool and %+v held, %v under way", p, held, under)
	}
	return under
}

// TestAccountsAgainstLists: whatever is granted, told, heard, given back and ended, in any order, by
// instances that lie about it, the pool and what instances hold are together the limit; depth is
// reserved for the tokens under way that bring none; nobody gives back what was not granted, nor
// more tokens than it can have.
func TestAccountsAgainstLists(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	settled, refused, reserved := 0, 0, 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 93))
		terms := lease.Terms{Rate: 1000 * fixed.Token, Burst: 1000 * fixed.Token}
		now := start
		res := newResource(theLimit, terms, now, false)
		var all []*accountModel
		for range 3 {
			all = append(all, &accountModel{account: &account{session: &session{}, resource: res, caps: noCaps, ledger: ledger{refundableAt: now}}, mostAt: now})
		}
		for number := uint64(1); number < 120; number++ {
			if r.IntN(2) == 0 {
				now += limit.Time(r.Int64N(int64(time.Second)))
				res.pool.refill(now)
			}
			m := all[r.IntN(len(all))]
			switch r.IntN(6) {
			case 0, 1:
				h := lease.Capacity{Rate: upTo(r, res.pool.rate/2), Burst: upTo(r, res.pool.spare()/2) / fixed.Token * fixed.Token, Tokens: upTo(r, res.pool.level/2)}
				if r.IntN(3) == 0 {
					h.Rate, h.Burst = 0, 0
				}
				if h == (lease.Capacity{}) {
					break
				}
				m.earn(now)
				m.most += h.Tokens
				m.grant(h)
				m.grants = append(m.grants, grantModel{part: h})
			case 2:
				m.unackedGrants = append(m.unackedGrants, unackedGrant{number, m.unsent})
				m.unsent = lease.Capacity{}
				for i := range m.grants {
					if m.grants[i].number == 0 {
						m.grants[i].number = number
					}
				}
			case 3:
				m.hears(t, r.Uint64N(number+2))
			case 4:
				if m.givesBack(t, r, now) {
					settled++
				} else {
					refused++
				}
			case 5:
				if r.IntN(4) > 0 {
					break
				}
				before := res.pool.level
				m.end()
				if res.pool.level > before {
					t.Fatalf("seed %d: tokens of one that ended came back", seed)
				}
				m.grants, m.returned, m.most = nil, lease.Capacity{}, 0
			}
			under := consistent(t, res, all)
			if under > 0 {
				reserved++
			}
		}
	}
	if settled < 1000 || refused < 300 || reserved < 1000 {
		t.Errorf("%d given back, %d refused, %d times something was reserved: too tame", settled, refused, reserved)
	}
}

// TestLateReportsAreSeenAsSuch: what a report was under way for longer than the least is late, and
// the least follows clocks that drift apart, by 1/256 of that with each report.
func TestLateReportsAreSeenAsSuch(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := &session{}
	at := func(under time.Duration) time.Duration {
		s.transit(limit.Time(time.Hour).Add(under), 0)
		return s.late
	}
	if first, second := at(20*time.Millisecond), at(10*time.Millisecond); first != 0 || second != 0 {
		t.Errorf("the first is late by %v, an earlier one by %v", first, second)
	}
	if late := at(266 * time.Millisecond); late != 256*time.Millisecond {
		t.Errorf("late by %v, want 256ms", late)
	}
	if late := at(266 * time.Millisecond); late != 255*time.Millisecond {
		t.Errorf("another is late by %v, want 255ms", late)
	}
	if late := at(5 * time.Millisecond); late != 0 || at(6*time.Millisecond) != time.Millisecond {
		t.Errorf("an earlier one is late by %v", late)
	}
}

// TestHighestEpoch: a coordinator goes above what an instance has heard up to the highest epoch that
// counts, and not above one that is beyond it.
func TestHighestEpoch(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, tt := range []struct{ heard, want uint64 }{{4, 5}, {5, 5}, {6, 7}, {MaxEpoch, MaxEpoch + 1}, {MaxEpoch + 1, 5}} {
		d := newDesk(t, hundred)
		d.start(5, 0)
		d.send(lease.Report{Member: anna, Epoch: tt.heard, Demands: []lease.Demand{asks(10)}})
		if got := d.c.Epoch(); got != tt.want {
			t.Errorf("epoch %d after one heard of %d, want %d", got, tt.heard, tt.want)
		}
	}
}

// TestLimitOfNothing: of a limit without rate and depth nothing is lent, also where it is each
// instance's own; with one of the two it is a limit.
func TestLimitOfNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, tt := range []struct {
		terms lease.Terms
		lends bool
	}{
		{lease.Terms{Allocation: fairshare.Static}, false},
		{lease.Terms{Allocation: fairshare.None}, false},
		{lease.Terms{}, false},
		{lease.Terms{Allocation: fairshare.Static, Rate: fixed.Token}, true},
		{lease.Terms{Allocation: fairshare.Static, Burst: fixed.Token}, true},
		{lease.Terms{Allocation: fairshare.Static, Burst: 1}, true},
		{lease.Terms{Allocation: fairshare.Static, Rate: 1}, true},
	} {
		if got := tt.terms.Lendable() != (lease.Capacity{}); got != tt.lends {
			t.Errorf("%+v lends %+v", tt.terms, tt.terms.Lendable())
		}
	}
}
