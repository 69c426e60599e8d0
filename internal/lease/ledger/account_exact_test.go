package ledger

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// accountModel is an account as a list of what was granted, acknowledged or not.
type accountModel struct {
	*Account
	grants   []grantModel
	returned lease.Capacity
	most     fixed.Amount // the tokens that it can have at most
	mostAt   limit.Time
}

type grantModel struct {
	part   lease.Capacity
	number uint64 // of the telling; 0 = not told yet
	acked  bool
}

func (m *accountModel) sums() (granted, unacked lease.Capacity) {
	for _, g := range m.grants {
		granted = granted.Add(g.part)
		if !g.acked {
			unacked = unacked.Add(g.part)
		}
	}
	return granted, unacked
}

// growRefundable is what came with the rate, by a clock that runs fast by one part in 128.
func (m *accountModel) refill(now limit.Time) {
	granted, _ := m.sums()
	dt := now - m.mostAt
	m.most += (granted.Rate - m.returned.Rate).Scale(fixed.Amount(dt+dt/lease.DriftMargin), fixed.Amount(time.Second))
	m.mostAt = now
}

// upTo is a random amount up to most.
func upTo(r *rand.Rand, most fixed.Amount) fixed.Amount {
	return fixed.Amount(r.Int64N(int64(max(0, most)) + 1))
}

// acknowledges fails unless Acknowledge returns the tokens that were sent up to a number and not acked before.
func (m *accountModel) acknowledges(t *testing.T, acked uint64) {
	want := fixed.Amount(0)
	for i, g := range m.grants {
		if g.number > 0 && !g.acked && g.number <= max(acked, m.AckedGrant) {
			m.grants[i].acked = true
			want += g.part.Tokens
		}
	}
	if got := m.Acknowledge(acked); got != want {
		t.Fatalf("%v are acked by %d, want %v", got, acked, want)
	}
}

// givesBack gives back something, or what cannot be, and reports whether it was taken.
func (m *accountModel) givesBack(t *testing.T, r *rand.Rand, now limit.Time) bool {
	granted, unacked := m.sums()
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
	before := m.resource.Pool.Level
	if got := m.Settle(back, landed); got != ok {
		t.Fatalf("%+v of %+v given back, %+v before: %v", back, granted, m.returned, got)
	}
	if !ok {
		return false
	}
	m.refill(now)
	tokens := min(back.Tokens-m.returned.Tokens, back.Burst-m.returned.Burst+landed, m.most)
	m.returned = back
	m.most = min(m.most-tokens, granted.Burst-back.Burst+unacked.Tokens)
	if want := min(before+tokens, m.resource.Pool.Room()); m.resource.Pool.Level != want {
		t.Fatalf("%v in the pool after %v came back, want %v", m.resource.Pool.Level, tokens, want)
	}
	return true
}

// consistent checks that the accounts are as their lists say, and the pool has the rest. It returns
// what is reserved for tokens under way.
func consistent(t *testing.T, res *Resource, all []*accountModel) (under fixed.Amount) {
	var held lease.Capacity
	for _, m := range all {
		granted, unacked := m.sums()
		h := m.Account.Held()
		if h.Rate != granted.Rate-m.returned.Rate || h.Burst != granted.Burst-m.returned.Burst || m.refundable != m.most {
			t.Fatalf("%+v is held and %v at most, want %+v less %+v and %v", h, m.refundable, granted, m.returned, m.most)
		}
		held.Rate, held.Burst = held.Rate+h.Rate, held.Burst+h.Burst
		under += max(0, unacked.Tokens-unacked.Burst)
	}
	if p := res.Pool; p.Rate+held.Rate != res.Terms.Rate || p.Burst+held.Burst != res.Terms.Burst || p.Reserved != under {
		t.Fatalf("%+v is in the pool and %+v held, %v under way", p, held, under)
	}
	return under
}

// TestAccountsAgainstLists: whatever is granted, sent, acknowledged, given back and ended, in any order, by
// instances that lie about it, the pool and what instances hold are together the limit; burst is
// reserved for the tokens under way that bring none; nobody gives back what was not granted, nor
// more tokens than it can have.
func TestAccountsAgainstLists(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	settled, refused, reserved := 0, 0, 0
	for seed := range seeding.Draw(t, 300) {
		r := rand.New(rand.NewPCG(seed, 93))
		terms := lease.Terms{Rate: 1000 * fixed.Token, Burst: 1000 * fixed.Token}
		now := start
		res := new(Scratch).New(theLimit, terms, now, false)
		var all []*accountModel
		for range 3 {
			all = append(all, &accountModel{Account: &Account{resource: res, caps: noCaps, totals: totals{refundableAt: now}}, mostAt: now})
		}
		for number := uint64(1); number < 120; number++ {
			if r.IntN(2) == 0 {
				now += limit.Time(r.Int64N(int64(time.Second)))
				res.Pool.Refill(now)
			}
			m := all[r.IntN(len(all))]
			switch r.IntN(6) {
			case 0, 1:
				h := lease.Capacity{Rate: upTo(r, res.Pool.Rate/2), Burst: upTo(r, res.Pool.Spare()/2) / fixed.Token * fixed.Token, Tokens: upTo(r, res.Pool.Level/2)}
				if r.IntN(3) == 0 {
					h.Rate, h.Burst = 0, 0
				}
				if h == (lease.Capacity{}) {
					break
				}
				m.refill(now)
				m.most += h.Tokens
				m.grant(h)
				m.grants = append(m.grants, grantModel{part: h})
			case 2:
				m.Sent(number)
				for i := range m.grants {
					if m.grants[i].number == 0 {
						m.grants[i].number = number
					}
				}
			case 3:
				m.acknowledges(t, r.Uint64N(number+2))
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
				before := res.Pool.Level
				m.End()
				if res.Pool.Level > before {
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
