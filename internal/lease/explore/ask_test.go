package explore

import (
	"fmt"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
)

// This file is servers that ask a leader for a token where nobody has a lease. Their answer waits for the replica, as
// in package lending.

// asking is a token that was taken, and whose answer waits. It counts from when it was taken, and only if it is
// answered: the term may end before.
type asking struct {
	must  uint64       // the number of the Level that replicas have to know first
	level fixed.Amount // what the bucket has if this one counts, and those before it
}

// askFor is the event of one that asks for a token.
func askFor() *coordinator.Asked {
	return &coordinator.Asked{Asks: []lease.Ask{{Resource: lease.ResourceID{Limit: theLimit}, Cost: fixed.Token}}}
}

// answer sends the answer that a token was taken from leader i, or keeps it back.
func (u *Universe) answer(w *World, i int, must uint64) (fault string) {
	p, level := &w.processes[i], w.level
	switch n := len(p.asks); {
	case p.know(must): // others may still wait
		u.fill(w, 0, fixed.Token)
		return w.over()
	case n > 0:
		level = p.asks[n-1].level
	}
	p.asks = append(p.asks[:len(p.asks):len(p.asks)], asking{must, level - fixed.Token})
	return ""
}

// over says that more was admitted than one bucket has.
func (w *World) over() (fault string) {
	if w.level < -rounding {
		return fmt.Sprintf("%v more than one bucket has was admitted", -w.level)
	}
	return ""
}

// answerAll sends the answers of leader i that have waited for long enough.
func (u *Universe) answerAll(w *World, i int) (fault string) {
	p := &w.processes[i]
	for len(p.asks) > 0 && p.know(p.asks[0].must) {
		w.level, p.asks = p.asks[0].level, p.asks[1:]
	}
	return w.over()
}

// fill lets the bucket of the whole limit fill, and spends of it.
func (u *Universe) fill(w *World, by time.Duration, spent fixed.Amount) {
	t := &u.fleet.terms
	filled := func(level fixed.Amount) fixed.Amount {
		return min(t.Burst, level+t.Rate.Scale(fixed.Amount(by), fixed.Amount(time.Second))) - spent
	}
	w.level = filled(w.level)
	for i := range w.processes {
		asks := w.processes[i].asks
		if len(asks) == 0 {
			continue
		}
		w.processes[i].asks = make([]asking, len(asks))
		for k, a := range asks {
			w.processes[i].asks[k] = asking{a.must, filled(a.level)}
		}
	}
}

// askScenarios are those in which servers ask.
func askScenarios() []Scenario {
	return []Scenario{
		{"asked: a leader died that had told its replica of the first tokens that servers asked for", from(uneven, even, budget{cuts: 1, asks: 2}, askedOnce), false},
		{"asked, answered: the same, and the replica had confirmed them", from(uneven, even, budget{cuts: 1, asks: 2}, answered), false},
		{"asked, then lent: servers have asked, and nobody has a lease", from(uneven, even, budget{cuts: 1, follows: 1, crashes: 1, leaves: 1, asks: 2}, askedAlone), false},
		{"waited for: the holder of all has spent it, and has not come to a successor that knows the buckets", from(uneven, even, budget{cuts: 1, asks: 2}, spentByHolder), false},
		{"left: the holder of all has spent it and has left", from(uneven, even, budget{cuts: 1, asks: 2}, spentAndLeft), false},
	}
}

// askedOnce: the replica was told half of what was left, and has not confirmed it.
func askedOnce(p *play) {
	inSync(p)
	p.do(ask<<1, ask<<1, ask<<1, crash<<1)
	p.lead(1)
}

// answered: what was taken later is above what the replica was told.
func answered(p *play) {
	inSync(p)
	p.do(ask<<1, learn<<1, confirm<<1, ask<<1, ask<<1, crash<<1)
	p.lead(1)
}

// askedAlone: there is no replica.
func askedAlone(p *play) { p.do(elect<<1, ask<<1, ask<<1, ask<<1) }

// spentByHolder: the instance had all of the bucket from the former leader, and half of its lease is over.
func spentByHolder(p *play) {
	known(p)
	p.do(take << 1)
	for range 9 {
		p.do(pass << 1)
	}
}

// spentAndLeft: the coordinator keeps the bucket as one of which nobody has a lease.
func spentAndLeft(p *play) {
	p.do(elect << 1)
	p.until(func() bool {
		return p.fleet.spendable(p.instances[0].machine, p.local(p.World, 0)).tokens > 0 && p.quiet()
	}, connect<<1|1)
	p.do(take<<1, leave<<1)
	for range 4 {
		p.quick(0)
		p.do(pass << 1)
	}
}
