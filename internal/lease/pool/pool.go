package pool

import (
	"math/bits"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// Pool is the bucket of what a coordinator has not lent: a token bucket whose rate
// and burst change with every grant and return. Its zero value is empty.
//
// What was used is the burst less the level, here and at the instances together, and no
// change of the capacity touches it. So the level may be below 0: that is debt, of what
// was used under a larger burst, which the rate pays before there are tokens again.
type Pool struct {
	Rate, Burst fixed.Amount // below 0 while instances hold more than a limit that was reduced
	Level       fixed.Amount
	// Reserved is the part of the burst that belongs to unacknowledged tokens which were granted
	// without burst. Without it the pool could refill before they arrive, and there would be more
	// tokens than one bucket holds.
	Reserved  fixed.Amount
	Remainder uint64 // of a millionth of a token, in 1e-9
	At        limit.Time
}

// Room is how many tokens there can be in the pool.
func (p *Pool) Room() fixed.Amount { return p.Burst - p.Reserved }

// Spare is how much burst can be lent, in whole tokens. Reserved burst cannot be lent: as many tokens in the pool would
// no longer fit and be dropped.
func (p *Pool) Spare() fixed.Amount { return max(0, p.Room()) / fixed.Token * fixed.Token }

// Refill brings the level up to now. A clock that steps back adds nothing.
func (p *Pool) Refill(now limit.Time) {
	dt := now - p.At
	if dt <= 0 {
		return
	}
	p.At = now
	if room := p.Room(); p.Rate > 0 && p.Level < room {
		hi, lo := bits.Mul64(uint64(p.Rate), uint64(dt))
		lo, carry := bits.Add64(lo, p.Remainder, 0)
		hi += carry
		if hi >= 1e9 {
			p.Level, p.Remainder = room, 0
			return
		}
		var gained uint64
		gained, p.Remainder = bits.Div64(hi, lo, 1e9)
		if gained >= uint64(room-p.Level) {
			p.Level, p.Remainder = room, 0
			return
		}
		p.Level += fixed.Amount(gained)
	}
	p.Clip()
}

// Begin says that there were so many tokens at a time.
func (p *Pool) Begin(tokens fixed.Amount, then limit.Time) {
	p.Level, p.Remainder, p.At = tokens, 0, then
	p.Clip()
}

// Clip drops tokens above the room.
func (p *Pool) Clip() {
	if room := p.Room(); p.Level >= room {
		p.Level, p.Remainder = room, 0
	}
}

// Resize changes the capacity. What was used stays used, so the level fits as before.
func (p *Pool) Resize(rate, burst fixed.Amount) {
	p.Rate += rate
	p.Burst += burst
	p.Level += burst
}

// Lend takes h out of the pool.
func (p *Pool) Lend(h lease.Capacity) {
	p.Rate -= h.Rate
	p.Burst -= h.Burst
	p.Level -= h.Tokens
	p.Clip()
}

// TakeBack puts h into the pool.
func (p *Pool) TakeBack(h lease.Capacity) {
	p.Rate += h.Rate
	p.Burst += h.Burst
	p.Level += h.Tokens
	p.Clip()
}

// Overflow takes out and returns the tokens for which there is no room.
func (p *Pool) Overflow() fixed.Amount {
	over := max(0, p.Level-max(0, p.Room()))
	p.Level -= over
	p.Clip()
	return over
}

// Cap is the bucket of the cap of one site, less what its accounts hold. A site that starts
// again has two accounts until the leases of the former one have expired: both are within it.
type Cap struct {
	Pool
	Full lease.Capacity
}

// NewCap returns a cap, of which nothing was taken unless it may have been.
func NewCap(now limit.Time, full lease.Capacity, used bool) *Cap {
	c := &Cap{Pool: Pool{Rate: full.Rate, Burst: full.Burst, At: now}, Full: full}
	if !used {
		c.Level = c.Burst
	}
	return c
}

// Bound reduces a grant at now to what the cap leaves.
func (c *Cap) Bound(now limit.Time, g lease.Capacity) lease.Capacity {
	c.Refill(now)
	g.Rate, g.Burst = min(g.Rate, max(0, c.Rate)), min(g.Burst, c.Spare())
	g.Tokens = min(g.Tokens, max(0, c.Level))
	return g
}

// Change makes full the cap, at now.
func (c *Cap) Change(now limit.Time, full lease.Capacity) {
	c.Refill(now)
	c.Resize(full.Rate-c.Full.Rate, full.Burst-c.Full.Burst)
	c.Full = full
	c.Clip()
}
