package rlqs

import (
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/limit"
)

// part is the lease of one limit for one bucket of one Envoy. It is the Lender of an agent: what it has
// assigned it cannot give back at once.
//
// level and most are models of the lease's tokens, as of the latest usage report: refilled by the rate, less what
// the Envoy admitted, and below 0 when that was more. A report does not say when requests came. So level is the least
// that is left: it says how large the token bucket may be that Envoy fills at a change. And most is the most that is left:
// below 0 it is the debt, which was certainly spent above the lease.
type part struct {
	of     *quota
	id     lease.ResourceID
	agent  *member
	handle uint32

	held    lease.Capacity // Tokens is 0
	ceiling lease.Capacity
	answer  agent.Answer
	known   bool       // there was an answer
	since   limit.Time // when it came first

	level  fixed.Amount
	most   fixed.Amount
	credit fixed.Amount // since the report
	at     limit.Time   // of credit
}

var _ agent.Lender = (*part)(nil)

// accrue brings credit up to now.
func (p *part) accrue(now limit.Time) {
	if dt := time.Duration(now - p.at); dt > 0 {
		if more := p.held.Rate.Scale(fixed.Amount(dt), fixed.Amount(time.Second)); more > 0 || p.held.Rate == 0 {
			p.credit, p.at = fixed.SaturatingAdd(p.credit, more), now
		}
	}
}

// spend takes note of what the Envoy admitted since the report before, and that it has left at most that
// much. What it did not use up to the burst is there for the next interval; the rest is lost, as in a
// bucket.
func (p *part) spend(now limit.Time, admitted, left fixed.Amount) {
	p.accrue(now)
	before := min(p.most, 0)
	level, most := p.expected(now, admitted)
	if more := before - most; more > 0 {
		p.of.session.stats.Over = saturatingAdd(p.of.session.stats.Over, uint64(more/fixed.Token))
	}
	p.level, p.most = max(min(level, left), -p.mostDebt()), max(most, -p.mostDebt())
	p.credit = 0
}

// expected is the least and the most that is left now, if the Envoy has admitted that much since the report.
func (p *part) expected(now limit.Time, admitted fixed.Amount) (level, most fixed.Amount) {
	p.accrue(now)
	return min(p.level+p.credit-admitted, p.held.Burst), min(p.most+p.credit-admitted, p.held.Burst)
}

// allowed is the rate and burst that may be assigned.
func (p *part) allowed() lease.Capacity {
	return lease.Capacity{Rate: min(p.held.Rate, p.ceiling.Rate), Burst: min(p.held.Burst, p.ceiling.Burst)}
}

// Observe implements [agent.Bucket]; Load says more.
func (p *part) Observe(limit.Time) bucket.Reading { return bucket.Reading{} }

// Update implements [agent.Bucket]; Hold is called instead.
func (p *part) Update(limit.Time, fixed.Amount, fixed.Amount, fixed.Amount) (surplus, held fixed.Amount) {
	return 0, 0
}

// Load implements [agent.Lender].
func (p *part) Load(now limit.Time) agent.Load {
	if p.of.ending {
		return agent.Load{ShortUntil: lease.Never, Free: p.free(now)}
	}
	return agent.Load{Demand: p.demand(), ShortUntil: lease.Never, Weight: 1, Free: p.free(now), Spare: true}
}

// demand is what is reported and, before there is a report, the whole limit: a new bucket may have all the load, and gets
// no more than any other where they demand as much. Several new ones of one Envoy and one limit demand it together.
func (p *part) demand() fixed.Amount {
	rate, guess := p.answer.Limit.Rate, fixed.Amount(0)
	if !p.of.demand.known {
		n := fixed.Amount(0)
		for _, m := range p.of.session.list {
			if o := m.has[p.id]; o != nil && !o.of.demand.known {
				n++
			}
		}
		guess = max(rate/max(1, n), fixed.Token)
	}
	return min(p.of.demand.amount(rate, guess), fixed.MaxAmount/4)
}

// free is what no assignment uses.
func (p *part) free(now limit.Time) lease.Capacity {
	used := p.of.inUse(now)
	return lease.Capacity{Rate: max(0, p.held.Rate-used.Rate), Burst: max(0, p.held.Burst-used.Burst)}
}

// Hold implements [agent.Lender].
func (p *part) Hold(now limit.Time, held, ceiling lease.Capacity, tokens fixed.Amount) (inForce lease.Capacity, surplus fixed.Amount) {
	p.accrue(now)
	p.held, p.ceiling = lease.Capacity{Rate: held.Rate, Burst: held.Burst}, ceiling
	p.credit = fixed.SaturatingAdd(p.credit, tokens)
	if over := min(p.level+p.credit-held.Burst, tokens); over > 0 {
		p.credit -= over
		surplus = over
	}
	free := p.free(now)
	p.held.Rate -= min(max(0, held.Rate-ceiling.Rate), free.Rate)
	p.held.Burst -= min(max(0, held.Burst-ceiling.Burst), free.Burst) / fixed.Token * fixed.Token
	p.level, p.most = min(p.level, p.held.Burst), min(p.most, p.held.Burst)
	p.of.touch()
	return p.held, surplus
}

// Lapse implements [agent.Lender].
func (p *part) Lapse(now limit.Time) {
	p.accrue(now)
	p.held, p.ceiling = lease.Capacity{}, lease.Capacity{}
	p.level, p.most, p.credit = min(p.level, 0), min(p.most, 0), 0
	p.known = false // what is assigned stays until it expires
	p.of.touch()
}

// Expire implements [agent.Lender]. The assignments ended before the lease.
func (p *part) Expire(now limit.Time) { p.Lapse(now) }

// Inform implements [agent.Lender].
func (p *part) Inform(a agent.Answer) {
	if !p.known {
		p.known, p.since = true, p.of.session.now
	}
	if a.Recovering || a.Status != lease.StatusOK {
		p.since = p.of.session.now // nothing is lent, whatever is free
	}
	p.answer = a
	p.of.touch()
}
