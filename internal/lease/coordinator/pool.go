package coordinator

import (
	"math/bits"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// pool is the bucket of what a coordinator has not lent: a token bucket whose rate
// and burst change with every grant and return. Its zero value is empty.
//
// What was used is the burst less the level, here and at the instances together, and no
// change of the capacity touches it. So the level may be below 0: that is debt, of what
// was used under a larger burst, which the rate pays before there are tokens again.
type pool struct {
	rate, burst fixed.Amount // below 0 while instances hold more than a limit that was reduced
	level       fixed.Amount
	// reserved is the part of the burst that belongs to unacknowledged tokens which were granted
	// without burst. Without it the pool could refill before they arrive, and there would be more
	// tokens than one bucket holds.
	reserved  fixed.Amount
	remainder uint64 // of a millionth of a token, in 1e-9
	at        limit.Time
}

// room is how many tokens there can be in the pool.
func (p *pool) room() fixed.Amount { return p.burst - p.reserved }

// spare is how much burst can be lent, in whole tokens. What is reserved is not spare: if it
// were lent, as many tokens in the pool would no longer fit and be dropped.
func (p *pool) spare() fixed.Amount { return max(0, p.room()) / fixed.Token * fixed.Token }

// refill brings the level up to now. A clock that steps back adds nothing.
func (p *pool) refill(now limit.Time) {
	dt := now - p.at
	if dt <= 0 {
		return
	}
	p.at = now
	if room := p.room(); p.rate > 0 && p.level < room {
		hi, lo := bits.Mul64(uint64(p.rate), uint64(dt))
		lo, carry := bits.Add64(lo, p.remainder, 0)
		hi += carry
		if hi >= 1e9 {
			p.level, p.remainder = room, 0
			return
		}
		var gained uint64
		gained, p.remainder = bits.Div64(hi, lo, 1e9)
		if gained >= uint64(room-p.level) {
			p.level, p.remainder = room, 0
			return
		}
		p.level += fixed.Amount(gained)
	}
	p.clip()
}

// clip drops tokens above the room.
func (p *pool) clip() {
	if room := p.room(); p.level >= room {
		p.level, p.remainder = room, 0
	}
}

// resize changes the capacity. What was used stays used, so the level fits as before.
func (p *pool) resize(rate, burst fixed.Amount) {
	p.rate += rate
	p.burst += burst
	p.level += burst
}

// lend takes h out of the pool.
func (p *pool) lend(h lease.Capacity) {
	p.rate -= h.Rate
	p.burst -= h.Burst
	p.level -= h.Tokens
	p.clip()
}

// takeBack puts h into the pool.
func (p *pool) takeBack(h lease.Capacity) {
	p.rate += h.Rate
	p.burst += h.Burst
	p.level += h.Tokens
	p.clip()
}
