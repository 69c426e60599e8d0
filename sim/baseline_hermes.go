package sim

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/stint-io/stint/limit"
)

// Hermes is our model of the max-rate balancing of Allegro's Hermes as described
// (article of 2017 and the published algorithm). A consumer limits itself to its
// max-rate. Every 15 s it reports which part of that it used, when the part changed
// by more than 9 % of it, and takes its newest max-rate. What it used
// is divided by at least one token per second. The coordinator puts the max-rates anew
// every 30 s; it takes from idle consumers and gives to busy ones. A new
// consumer has 1 token per second until it hears of its own.
//
// Where the description leaves a choice: the coordinator is one process that also
// stands for ZooKeeper. Consumers report two seconds after they start and every 15 s
// from there, and the first round of balancing is a second later. So those of a fleet
// that started together report together, soon after a shift of load at a whole period,
// and are balanced at once: the best case. Apart draws the moments of each process at
// random; shares move later then, because rounds meet reports of before the shift.
//
// The article has a consumer report its rate at the moment: that of the last second,
// or of the latest two requests when there are few. The published code reports the
// mean since a count that starts anew every 30 s, in whole seconds, and starts
// after a report of the same moment. Averaged does that; shares move later then,
// because what was before a shift counts.
//
// The described local rate climbs to a raised max-rate by a fifth every 30 s; here it
// is there at once. A consumer that is gone is noticed after 10 s, by a heartbeat
// every third of it, and a coordinator that restarts reads the max-rates from the
// heartbeats, as it would from ZooKeeper. An old version has limit/N, with the N of the
// start, and reports nothing.
//
// The zero value is as published, with the article's rate of the moment.
type Hermes struct {
	Apart    bool // each consumer reports at its own moment
	Averaged bool // consumers report the mean of the count
}

// Published constants, and a session of our choice. Of what consumers used the
// newest report alone counts.
const (
	hermesReports  = 15 * time.Second
	hermesBalances = 30 * time.Second
	hermesMeasures = 30 * time.Second
	hermesSession  = 10 * time.Second

	hermesBusyTolerance     = 0.1
	hermesMinMaxRate        = 1.0  // tokens per second
	hermesMinAllowedChange  = 0.01 // of the limit
	hermesSignificantUpdate = 0.09 // of the max-rate
)

// Name returns "hermes".
func (Hermes) Name() string { return "hermes" }

// Coordinator makes the balancer at Coordinator, and nil elsewhere.
func (h Hermes) Coordinator(env Env, setup Setup, address Address, restart int) Node {
	if address != Coordinator {
		return nil
	}
	c := &hermesCoordinator{Hermes: h, env: env, limit: setup.Limit}
	first := hermesFirst + hermesRound
	switch {
	case restart > 0: // not before every consumer has reported
		first = hermesBalances
	case h.Apart:
		first = time.Duration(1 + env.Rand().Int64N(int64(hermesBalances)))
	}
	c.next = env.Now().Add(first)
	env.WakeAt(c.next)
	return c
}

// Instance makes a consumer.
func (h Hermes) Instance(env Env, setup Setup, i, restart int) Enforcer {
	c := &hermesConsumer{Hermes: h, instances: setup.Instances, session: restart, old: modelOld(setup, i)}
	rate := hermesMinMaxRate
	if c.old {
		rate = modelEqual(setup)
	}
	c.modelLimiter = newModelLimiter(env, setup.Limit, rate)
	now := env.Now()
	c.last.at = now
	first := now.Add(hermesFirst)
	if h.Apart {
		first = now.Add(time.Duration(1 + env.Rand().Int64N(int64(hermesReports))))
	}
	c.timers.set(hermesMeasure, first)
	if !c.old {
		c.reportAt(first)
	}
	c.beat()
	return c
}

// hermesFirst is when a consumer first reports, after its start, and hermesRound how
// long after that the first round is.
const (
	hermesFirst = 2 * time.Second
	hermesRound = time.Second
)

// Messages, and the sizes of what they stand for: ZooKeeper's ping, its write and its
// read of a record of 16 bytes. What a beat carries is in ZooKeeper already.
type (
	hermesBeat struct {
		session int
		leaving bool
		max     float64
		hasMax  bool
		used    []float64
	}
	hermesUsed struct {
		session int
		used    []float64
	}
	hermesMax struct {
		session int
		max     float64
	}
)

const (
	hermesBeatBytes = 12
	hermesUsedBytes = 100
	hermesMaxBytes  = 100
)

// The timers of a consumer, beside that of its queue.
const (
	hermesReport = 1 + iota
	hermesMeasure
	hermesAlive
	hermesMark
)

type hermesConsumer struct {
	modelLimiter
	Hermes
	instances int
	session   int
	old       bool

	last   modelCount // where the count of admitted cost started
	mark   modelCount // a moment before the next report
	hasMax bool
	used   []float64 // what was reported last; empty = nothing yet
}

func (c *hermesConsumer) Receive(_ Address, message any) {
	if m, ok := message.(hermesMax); ok && m.session == c.session && !c.old {
		c.hasMax = true
		c.setRate(m.max)
	}
}

func (c *hermesConsumer) Wake() {
	c.timers.woken()
	now := c.timers.env.Now()
	if c.timers.due(hermesMark) {
		c.timers.set(hermesMark, modelNever)
		c.mark = modelCount{now, c.admitted}
	}
	if c.timers.due(hermesReport) {
		c.report(now)
		c.reportAt(modelNext(c.timers.at[hermesReport], now, int64(hermesReports)))
	}
	if c.timers.due(hermesMeasure) {
		c.last = modelCount{now, c.admitted}
		c.timers.set(hermesMeasure, modelNext(c.timers.at[hermesMeasure], now, int64(hermesMeasures)))
	}
	if c.timers.due(hermesAlive) {
		c.beat()
	}
	c.serve()
}

// reportAt puts the next report to t.
func (c *hermesConsumer) reportAt(t limit.Time) {
	c.timers.set(hermesReport, t)
	c.timers.set(hermesMark, t-limit.Time(modelRecent))
}

// report notes the part of the max-rate that was used and asks for the newest one.
func (c *hermesConsumer) report(now limit.Time) {
	seconds := max(1, math.Floor(modelSeconds(c.last.at, now)))
	rate := float64(c.admitted-c.last.total) / seconds
	if !c.Averaged {
		recent, enough := modelCount{now, c.admitted}.recent(c.mark, rate)
		if !enough {
			recent = c.recentRate(rate)
		}
		rate = recent
	}
	used := min(1, rate/max(c.rate, 1))
	if len(c.used) == 0 || math.Abs(used-c.used[0]) > hermesSignificantUpdate {
		c.used = []float64{used}
	}
	c.timers.env.Send(Coordinator, hermesUsed{c.session, slices.Clone(c.used)}, hermesUsedBytes)
}

// beat keeps the session with ZooKeeper.
func (c *hermesConsumer) beat() {
	env := c.timers.env
	env.Send(Coordinator, hermesBeat{c.session, false, c.rate, c.hasMax || c.old, slices.Clone(c.used)}, hermesBeatBytes)
	c.timers.set(hermesAlive, env.Now().Add(hermesSession/3))
}

func (c *hermesConsumer) Leave() {
	c.timers.env.Send(Coordinator, hermesBeat{session: c.session, leaving: true}, hermesBeatBytes)
}

func (c *hermesConsumer) SetLimit(l Limit) {
	c.setLimit(l)
	if c.old {
		c.setRate(l.PerSecond() / float64(max(1, c.instances)))
	}
}

// hermesCoordinator is the leader among the consumers, and their registry.
type hermesCoordinator struct {
	Hermes
	env       Env
	limit     Limit
	next      limit.Time
	consumers []hermesEntry // by address
}

type hermesEntry struct {
	address Address
	session int
	seen    limit.Time
	hermesShare
}

func (c *hermesCoordinator) SetLimit(l Limit) { c.limit = l }

func (c *hermesCoordinator) Receive(from Address, message any) {
	i, found := slices.BinarySearchFunc(c.consumers, from, func(e hermesEntry, a Address) int { return cmp.Compare(e.address, a) })
	switch m := message.(type) {
	case hermesBeat:
		switch {
		case found && m.session < c.consumers[i].session: // late, of a former process
		case m.leaving && found:
			c.consumers = slices.Delete(c.consumers, i, i+1)
		case m.leaving:
		case found && m.session == c.consumers[i].session:
			c.consumers[i].seen = c.env.Now()
		default:
			e := hermesEntry{from, m.session, c.env.Now(), hermesShare{m.max, m.hasMax, m.used}}
			if found {
				c.consumers[i] = e
			} else {
				c.consumers = slices.Insert(c.consumers, i, e)
			}
		}
	case hermesUsed:
		if !found || m.session != c.consumers[i].session {
			return
		}
		e := &c.consumers[i]
		e.seen, e.used = c.env.Now(), m.used
		if e.hasMax {
			c.env.Send(from, hermesMax{m.session, e.max}, hermesMaxBytes)
		}
	}
}

func (c *hermesCoordinator) Wake() {
	now := c.env.Now()
	c.consumers = slices.DeleteFunc(c.consumers, func(e hermesEntry) bool { return e.seen.Add(hermesSession) < now })
	shares := make([]hermesShare, len(c.consumers))
	for i, e := range c.consumers {
		shares[i] = e.hermesShare
	}
	if hermesBalance(c.limit.PerSecond(), shares) {
		for i, s := range shares {
			c.consumers[i].hermesShare = s
		}
	}
	c.next = modelNext(c.next, now, int64(hermesBalances))
	c.env.WakeAt(c.next)
}
