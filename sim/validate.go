package sim

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/sim/internal/words"
)

const (
	// maxOffset is below origin, so that no clock shows a time before the epoch.
	maxOffset = 10 * 24 * time.Hour
	// minMove bounds how many events a moving load makes.
	minMove = time.Millisecond
	// maxRequests bounds the requests per second of a load: above it a run would
	// take days.
	maxRequests = 1e9
)

// Validate returns all that is wrong with the scenario, joined, or nil. Run calls it.
func (s Scenario) Validate() error {
	v := validation{s: &s}
	v.fleet()
	v.network()
	v.stops()
	parts := 0
	for i := range s.Loads {
		name := fmt.Sprintf("loads[%d]", i)
		if parts += s.Loads[i].parts(&s); parts > MaxParts {
			v.fault("%s is too much: loads have at most %d parts, one for each instance of each load", name, MaxParts)
			break
		}
		v.load(name, &s.Loads[i])
	}
	v.span("measure.from", s.Measure.From)
	v.span("measure.step", s.Measure.Step)
	v.span("measure.grace", s.Measure.Grace)
	for _, m := range []struct {
		name string
		d    time.Duration
	}{{"measure.sample", s.Measure.Sample}, {"measure.look", s.Measure.Look}} {
		if m.d != 0 && m.d < time.Millisecond {
			v.fault("%s is %v, want at least 1ms, or 0 for the default", m.name, m.d)
		}
	}
	if s.Measure.From >= s.Duration && s.Duration > 0 {
		v.fault("measure.from is %v, want a time before the end at %v", s.Measure.From, s.Duration)
	}
	return errors.Join(v.faults...)
}

// validation gathers faults.
type validation struct {
	s      *Scenario
	faults []error
}

func (v *validation) fault(format string, args ...any) {
	v.faults = append(v.faults, fmt.Errorf("sim: "+format, args...))
}

// span checks a time within a run, or a length.
func (v *validation) span(name string, d time.Duration) {
	if d < 0 || d > words.MaxDuration {
		v.fault("%s is %v, want from 0 to %v", name, d, words.MaxDuration)
	}
}

func (v *validation) limit(name string, l Limit) {
	if err := l.Rate.Validate(); err != nil {
		v.fault("%s: %w", name, err)
	}
	if l.Burst < 0 || l.Burst > limit.MaxCount {
		v.fault("%s: burst is %d, want from 0 to %d", name, l.Burst, int64(limit.MaxCount))
	}
}

func (v *validation) instance(name string, i int) {
	if i < 0 || i >= v.s.Instances {
		v.fault("%s is %d, want an instance from 0 to %d", name, i, v.s.Instances-1)
	}
}

// node checks an address. Which coordinators there are is known to the system alone.
func (v *validation) node(name string, a Address) {
	if int(a) >= v.s.Instances || a < Coordinator-maxCoordinators+1 {
		v.fault("%s is node %d, want an instance from 0 to %d or a coordinator from %d down", name, a, v.s.Instances-1, Coordinator)
	}
}

func (v *validation) perInstance(name string, n int) {
	if n != 0 && n != v.s.Instances {
		v.fault("%s has %d entries, want one for each of %d instances, or none", name, n, v.s.Instances)
	}
}

func (v *validation) fleet() {
	s := v.s
	if s.Instances < 1 || s.Instances > MaxInstances {
		v.fault("instances is %d, want from 1 to %d", s.Instances, MaxInstances)
	}
	if s.Duration <= 0 || s.Duration > words.MaxDuration {
		v.fault("duration is %v, want above 0 and at most %v", s.Duration, words.MaxDuration)
	}
	v.limit("limit", s.Limit)
	last := time.Duration(0)
	for i, c := range s.Changes {
		name := fmt.Sprintf("changes[%d]", i)
		v.span(name+".at", c.At)
		v.limit(name+".limit", c.Limit)
		if c.At < last {
			v.fault("%s.at is %v, before the one before it at %v: put changes in order of time", name, c.At, last)
		}
		last = c.At
	}
	v.perInstance("weights", len(s.Weights))
	for i, w := range s.Weights {
		if w == 0 {
			v.fault("weights[%d] is 0, want at least 1", i)
		}
	}
	v.perInstance("old", len(s.Old))
	v.perInstance("starts", len(s.Starts))
	for i, at := range s.Starts {
		v.span(fmt.Sprintf("starts[%d]", i), at)
	}
	v.perInstance("clocks", len(s.Clocks))
	for i, d := range s.Clocks {
		v.offset(fmt.Sprintf("clocks[%d]", i), d)
	}
	v.offset("coordinator_clock", s.CoordinatorClock)
	v.clockSteps()
}

// clockSteps checks that no clock is ever further off than it may be from the start.
func (v *validation) clockSteps() {
	wrong := map[Address]time.Duration{}
	for i, c := range v.s.ClockSteps {
		name := fmt.Sprintf("clock_steps[%d]", i)
		v.span(name+".at", c.At)
		v.node(name+".node", c.Node)
		v.offset(name+".by", c.By)
		if _, known := wrong[c.Node]; !known {
			switch {
			case c.Node <= Coordinator:
				wrong[c.Node] = v.s.CoordinatorClock.Abs()
			case int(c.Node) < len(v.s.Clocks):
				wrong[c.Node] = v.s.Clocks[c.Node].Abs()
			}
		}
		if wrong[c.Node] += min(c.By.Abs(), 2*maxOffset); wrong[c.Node] > maxOffset && c.By.Abs() <= maxOffset {
			v.fault("%s sets the clock of node %d off by %v together with what came before, want at most %v", name, c.Node, wrong[c.Node], maxOffset)
			wrong[c.Node] = math.MinInt64 / 2 // say it once
		}
	}
}

func (v *validation) offset(name string, d time.Duration) {
	if d < -maxOffset || d > maxOffset {
		v.fault("%s is wrong by %v, want at most %v either way", name, d, maxOffset)
	}
}

func (v *validation) network() {
	n := v.s.Network
	v.span("network.delay", n.Delay)
	v.span("network.jitter", n.Jitter)
	v.part("network.loss", n.Loss)
	v.part("network.duplicate", n.Duplicate)
	if n.Loss == 1 {
		v.fault("network.loss is 1, want below it: use a partition for a network that carries nothing")
	}
	for i, p := range v.s.Partitions {
		name := fmt.Sprintf("partitions[%d]", i)
		v.span(name+".at", p.At)
		v.span(name+".for", p.For)
		if len(p.Nodes) == 0 {
			v.fault("%s has no nodes, want those to cut off", name)
		}
		for k, a := range p.Nodes {
			v.node(fmt.Sprintf("%s.nodes[%d]", name, k), a)
		}
		if p.Cut >= directions {
			v.fault("%s.cut is %d, want BothWays, Outwards or Inwards", name, p.Cut)
		}
	}
}

// part checks a probability or a share of a whole.
func (v *validation) part(name string, x float64) {
	if !(x >= 0 && x <= 1) {
		v.fault("%s is %v, want from 0 to 1", name, x)
	}
}

// amount checks a number that is not negative, of which a sum is made.
func (v *validation) amount(name string, x float64) {
	if !(x >= 0) || math.IsInf(x, 0) {
		v.fault("%s is %v, want a finite number of at least 0", name, x)
	}
}

func (v *validation) stops() {
	for i, p := range v.s.Pauses {
		name := fmt.Sprintf("pauses[%d]", i)
		v.span(name+".at", p.At)
		v.span(name+".for", p.For)
		v.span(name+".backlog", p.Backlog)
		v.node(name+".node", p.Node)
	}
	for i, p := range v.s.Stops {
		name := fmt.Sprintf("stops[%d]", i)
		v.span(name+".at", p.At)
		v.span(name+".for", p.For)
		v.node(name+".node", p.Node)
	}
	for i, r := range v.s.Rolling {
		name := fmt.Sprintf("rolling[%d]", i)
		v.span(name+".at", r.At)
		v.span(name+".every", r.Every)
		if r.Down <= 0 || r.Down > words.MaxDuration {
			v.fault("%s.down is %v, want above 0 and at most %v", name, r.Down, words.MaxDuration)
		}
		for k, inst := range r.Instances {
			v.instance(fmt.Sprintf("%s.instances[%d]", name, k), inst)
		}
	}
}

// parts is among how many instances the load is split.
func (l *Load) parts(s *Scenario) int {
	if l.Instances == nil {
		return s.Instances
	}
	return len(l.Instances)
}

func (v *validation) load(name string, l *Load) {
	n := l.parts(v.s)
	if l.Instances != nil && n == 0 {
		v.fault("%s.instances is empty, want some, or nil for all", name)
	}
	seen := make(map[int]bool, len(l.Instances))
	for k, i := range l.Instances {
		v.instance(fmt.Sprintf("%s.instances[%d]", name, k), i)
		if seen[i] {
			v.fault("%s.instances names %d twice", name, i)
		}
		seen[i] = true
	}
	last := time.Duration(0)
	for k, d := range l.Demand {
		at := fmt.Sprintf("%s.demand[%d]", name, k)
		v.span(at+".at", d.At)
		v.amount(at+".rate", d.Rate)
		if d.Rate/float64(max(l.Cost, 1)) > maxRequests {
			v.fault("%s.rate is %v: that is above %v requests per second", at, d.Rate, maxRequests)
		}
		if d.At < last {
			v.fault("%s.at is %v, before the one before it at %v: put steps in order of time", at, d.At, last)
		}
		last = d.At
	}
	if l.Arrivals >= arrivals {
		v.fault("%s.arrivals is %d, want Even, Poisson, Bursts or Loop", name, l.Arrivals)
	}
	if l.Arrivals == Bursts && l.Size < 1 || l.Size < 0 {
		v.fault("%s.size is %d, want how many requests a burst has, at least 1", name, l.Size)
	}
	if l.Cost < 0 || l.Cost > limit.MaxCount {
		v.fault("%s.cost is %d, want from 1 to %d, or 0 for 1", name, l.Cost, int64(limit.MaxCount))
	}
	v.span(name+".wait", l.Wait)
	v.split(name+".split", &l.Split, n)
	v.mishaps(name+".mishaps", &l.Mishaps)
}

func (v *validation) split(name string, s *Split, n int) {
	switch {
	case s.Kind >= splitKinds:
		v.fault("%s.kind is %d, want Equal, OnOne, Zipf or Shares", name, s.Kind)
	case s.Kind == OnOne && (s.Hot < 0 || s.Hot >= n):
		v.fault("%s.hot is %d, want one of the load's instances from 0 to %d", name, s.Hot, n-1)
	case s.Kind == Zipf:
		v.amount(name+".exponent", s.Exponent)
	case s.Kind == Shares:
		sum := 0.0
		for i, x := range s.Shares {
			v.amount(fmt.Sprintf("%s.shares[%d]", name, i), x)
			sum += x
		}
		if len(s.Shares) != n {
			v.fault("%s.shares has %d entries, want one for each of the load's %d instances", name, len(s.Shares), n)
		} else if !(sum > 0) || math.IsInf(sum, 0) {
			v.fault("%s.shares add up to %v, want a finite number above 0", name, sum)
		}
	}
	if s.Move != 0 && s.Move < minMove || s.Move > words.MaxDuration {
		v.fault("%s.move is %v, want at least %v, or 0 to stay", name, s.Move, minMove)
	}
	if s.Shuffle && s.Move == 0 {
		v.fault("%s.shuffle needs move: how long until the parts are dealt out again", name)
	}
}

func (v *validation) mishaps(name string, m *Mishaps) {
	if m.Every == 0 {
		if *m != (Mishaps{}) {
			v.fault("%s needs every: how long from one to the next", name)
		}
		return
	}
	if m.Every < minMove || m.Every > words.MaxDuration {
		v.fault("%s.every is %v, want from %v to %v", name, m.Every, minMove, words.MaxDuration)
	}
	if m.Length <= 0 || m.Length > words.MaxDuration {
		v.fault("%s.length is %v, want above 0 and at most %v", name, m.Length, words.MaxDuration)
	}
	v.amount(name+".spike", m.Spike)
	v.part(name+".trough", m.Trough)
	v.part(name+".troughs", m.Troughs)
	if m.Spike == 0 && m.Troughs < 1 {
		v.fault("%s.spike is 0, want the factor of spikes, or troughs: 1 for troughs alone", name)
	}
}
