package share

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

// accountModel is an account as a list of what was granted, heard or not.
type accountModel struct {
	*account
	grants   []grantModel
	returned Holding
	most     Amount // the tokens that it can have at most
	mostAt   limit.Time
}

type grantModel struct {
	Holding
	number uint64 // of the telling; 0 = not told yet
	heard  bool
}

func (m *accountModel) sums() (granted, aloft Holding) {
	for _, g := range m.grants {
		granted = granted.plus(g.Holding)
		if !g.heard {
			aloft = aloft.plus(g.Holding)
		}
	}
	return granted, aloft
}

// earn is what came with the rate, by a clock that runs fast by one part in 128.
func (m *accountModel) earn(now limit.Time) {
	granted, _ := m.sums()
	dt := now - m.mostAt
	m.most += (granted.Rate - m.returned.Rate).scale(Amount(dt+dt/driftMargin), Amount(time.Second))
	m.mostAt = now
}

// upTo is a random amount up to most.
func upTo(r *rand.Rand, most Amount) Amount { return Amount(r.Int64N(int64(max(0, most)) + 1)) }

// hears wants that the tokens of what was told up to a number, and not heard before, are said.
func (m *accountModel) hears(t *testing.T, heard uint64) {
	want := Amount(0)
	for i, g := range m.grants {
		if g.number > 0 && !g.heard && g.number <= max(heard, m.heard) {
			m.grants[i].heard = true
			want += g.Tokens
		}
	}
	if got := m.hear(heard); got != want {
		t.Fatalf("%v are heard of by %d, want %v", got, heard, want)
	}
}

// givesBack gives back something, or what cannot be, and reports whether it was taken.
func (m *accountModel) givesBack(t *testing.T, r *rand.Rand, now limit.Time) bool {
	granted, aloft := m.sums()
	back := Holding{Rate: upTo(r, granted.Rate), Depth: upTo(r, granted.Depth) / Token * Token, Tokens: m.returned.Tokens + upTo(r, 20*Token)}
	if r.IntN(3) > 0 {
		back.Rate, back.Depth = max(back.Rate, m.returned.Rate), max(back.Depth, m.returned.Depth)
	}
	switch r.IntN(12) {
	case 0:
		back.Rate = granted.Rate + 1
	case 1:
		back.Depth = granted.Depth + Token
	case 2:
		back.Tokens = m.returned.Tokens - 1
	case 3:
		back = granted
		back.Tokens = max(back.Tokens, m.returned.Tokens)
	}
	landed := upTo(r, 5*Token)
	ok := back.Rate >= m.returned.Rate && back.Depth >= m.returned.Depth && back.Tokens >= m.returned.Tokens && back.Rate <= granted.Rate && back.Depth <= granted.Depth
	before := m.resource.pool.level
	if got := m.settle(back, landed); got != ok {
		t.Fatalf("%+v of %+v given back, %+v before: %v", back, granted, m.returned, got)
	}
	if !ok {
		return false
	}
	m.earn(now)
	tokens := min(back.Tokens-m.returned.Tokens, back.Depth-m.returned.Depth+landed, m.most)
	m.returned = back
	m.most = min(m.most-tokens, granted.Depth-back.Depth+aloft.Tokens)
	if want := min(before+tokens, m.resource.pool.room()); m.resource.pool.level != want {
		t.Fatalf("%v in the pool after %v came back, want %v", m.resource.pool.level, tokens, want)
	}
	return true
}

// consistent wants that the accounts are as their lists say, and the pool has the rest. It returns
// what is reserved for tokens under way.
func consistent(t *testing.T, res *resource, all []*accountModel) (under Amount) {
	var held Holding
	for _, m := range all {
		granted, aloft := m.sums()
		h := m.account.held()
		if h.Rate != granted.Rate-m.returned.Rate || h.Depth != granted.Depth-m.returned.Depth || m.purse != m.most {
			t.Fatalf("%+v is held and %v at most, want %+v less %+v and %v", h, m.purse, granted, m.returned, m.most)
		}
		held.Rate, held.Depth = held.Rate+h.Rate, held.Depth+h.Depth
		under += max(0, aloft.Tokens-aloft.Depth)
	}
	if p := res.pool; p.rate+held.Rate != res.terms.Rate || p.depth+held.Depth != res.terms.Burst || p.flying != under {
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
		terms := Terms{Rate: 1000 * Token, Burst: 1000 * Token}
		now := start
		res := newResource(theLimit, terms, now, false)
		var all []*accountModel
		for range 3 {
			all = append(all, &accountModel{account: &account{session: &session{}, resource: res, keepRate: MaxAmount, keepDepth: MaxAmount, purseAt: now}, mostAt: now})
		}
		for number := uint64(1); number < 120; number++ {
			if r.IntN(2) == 0 {
				now += limit.Time(r.Int64N(int64(time.Second)))
				res.pool.accrue(now)
			}
			m := all[r.IntN(len(all))]
			switch r.IntN(6) {
			case 0, 1:
				h := Holding{Rate: upTo(r, res.pool.rate/2), Depth: upTo(r, res.pool.spare()/2) / Token * Token, Tokens: upTo(r, res.pool.level/2)}
				if r.IntN(3) == 0 {
					h.Rate, h.Depth = 0, 0
				}
				if h == (Holding{}) {
					break
				}
				m.earn(now)
				m.most += h.Tokens
				m.grant(h)
				m.grants = append(m.grants, grantModel{Holding: h})
			case 2:
				m.tellings = append(m.tellings, telling{number, m.untold})
				m.untold = Holding{}
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
				m.grants, m.returned, m.most = nil, Holding{}, 0
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
		d.send(Report{Member: anna, Epoch: tt.heard, Demands: []Demand{asks(10)}})
		if got := d.c.Epoch(); got != tt.want {
			t.Errorf("epoch %d after one heard of %d, want %d", got, tt.heard, tt.want)
		}
	}
}

// TestEverythingComesBack: of a handle that is closed, and of all when the instance goes, rate and
// depth are given back to the last millionth, and the tokens that are left.
func TestEverythingComesBack(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	granted := Holding{Rate: 50*Token + 7, Depth: 10 * Token, Tokens: 10 * Token}
	for _, leaving := range []bool{false, true} {
		b := newBench(t)
		bucket := NewBucket(b.h.Deadline())
		handle := b.h.Open(b.now, theLimit, LeaseOptions{}, bucket)
		b.step(Tick{})
		b.answer(lends(handle, 3, granted))
		b.allowed(bucket, 4)
		if leaving {
			r := b.step(Leave{})
			if r == nil || !r.Leaving || b.h.Next() != never || b.h.Step(b.now, Tick{}) != nil {
				t.Errorf("it goes with %+v", r)
			}
		} else {
			b.h.Close(b.now, handle)
			if r := b.after(time.Second)[0]; len(r.Demands) != 1 || !r.Demands[0].Closed || r.Demands[0].Returned != (Holding{granted.Rate, granted.Depth, 6 * Token}) {
				t.Errorf("it closes with %+v", r)
			}
		}
		if held := b.h.list; len(held) == 1 && (held[0].held().Rate != 0 || held[0].held().Depth != 0) {
			t.Errorf("%+v is held after all", held[0].held())
		}
		if bucket.Remaining(b.now) != 0 || bucket.Depth(b.now) != 0 {
			t.Errorf("%d of %d remain", bucket.Remaining(b.now), bucket.Depth(b.now))
		}
	}
}

// TestTotalsThatGoBack: a grant of less than was granted under the same lease changes nothing,
// whichever of its totals went back.
func TestTotalsThatGoBack(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	granted := Holding{Rate: 50 * Token, Depth: 10 * Token, Tokens: 10 * Token}
	for _, less := range []Holding{{Rate: 1}, {Depth: Token}, {Tokens: 1}} {
		b := newBench(t)
		bucket := NewBucket(b.h.Deadline())
		handle := b.h.Open(b.now, theLimit, LeaseOptions{}, bucket)
		b.step(Tick{})
		b.answer(lends(handle, 3, granted))
		more := Holding{Rate: 70 * Token, Depth: 20 * Token, Tokens: 20 * Token}
		if less.Rate > 0 {
			more.Rate = granted.Rate - less.Rate
		}
		if less.Depth > 0 {
			more.Depth = granted.Depth - less.Depth
		}
		if less.Tokens > 0 {
			more.Tokens = granted.Tokens - less.Tokens
		}
		b.answer(lends(handle, 3, more))
		if s := b.h.State(handle); s.Held.Rate != granted.Rate || s.Held.Depth != granted.Depth || bucket.Remaining(b.now) != 10 {
			t.Errorf("%+v is held after a grant of %+v under the same lease, %d remain", s.Held, more, bucket.Remaining(b.now))
		}
	}
}

// TestReconnectedIsNotExtendedBlindly: after a new connection a lease is extended again when the
// coordinator has said something of it, and not by a renewal: it may know nothing of it.
func TestReconnectedIsNotExtendedBlindly(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	b := newBench(t)
	handle := b.h.Open(b.now, theLimit, LeaseOptions{}, NewBucket(b.h.Deadline()))
	b.step(Tick{})
	share := lends(handle, 3, Holding{Rate: 50 * Token, Depth: 10 * Token, Tokens: 10 * Token})
	b.answer(share)
	ends := b.h.Deadline().Load()
	b.after(time.Second)
	b.step(Connected{})
	b.answer()
	if got := b.h.Deadline().Load(); got != ends {
		t.Errorf("a renewal extends it by %v", time.Duration(got-ends))
	}
	share.Seen = b.reports[len(b.reports)-1].Number
	if b.answer(share); b.h.Deadline().Load() <= ends {
		t.Error("it is not extended when the lease is known")
	}
}

// TestLimitOfNothing: of a limit without rate and depth nothing is lent, also where it is each
// instance's own; with one of the two it is a limit.
func TestLimitOfNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, tt := range []struct {
		terms Terms
		lends bool
	}{
		{Terms{Allocation: Static}, false}, {Terms{Allocation: None}, false}, {Terms{}, false},
		{Terms{Allocation: Static, Rate: Token}, true}, {Terms{Allocation: Static, Burst: Token}, true}, {Terms{Allocation: Static, Burst: 1}, true}, {Terms{Allocation: Static, Rate: 1}, true},
	} {
		if got := tt.terms.lendable() != (Holding{}); got != tt.lends {
			t.Errorf("%+v lends %+v", tt.terms, tt.terms.lendable())
		}
	}
}
