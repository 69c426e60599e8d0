package sim

import (
	"math"
	"time"

	"github.com/stint-io/stint/limit"
)

// Count is a number of requests and what they cost together.
type Count struct{ Requests, Tokens int64 }

func (c *Count) add(requests, tokens int64) {
	c.Requests += requests
	c.Tokens += tokens
}

// Result is what a run showed. Measures mean the same for every system; L is the
// limit's rate, B its burst. Where the limit changes, L is the one in force, and with
// [Measure].Grace the kinder of both.
type Result struct {
	Scenario, System string
	Seed             uint64
	Duration         time.Duration

	Offered  Count // to processes that ran or were paused
	Admitted Count
	Refused  Count
	Lost     Count // with a process when it ended
	Missed   Count // met no process: down, or paused for longer than a request waits
	Held     Count // waited still at the end

	// Early are those of Refused that came when one central limiter, given all
	// requests, admitted them and had refused nothing for a second. Below are
	// those, in tokens, that were refused while the demand of every 1 s window
	// around them was at most L. Both count from Measure.From on.
	Early Count
	Below int64

	// OneRefused is what one central limiter that is given all requests, and lets each
	// wait as long as it may, refuses of those from Measure.From on. RefusedPart is what
	// the fleet refused of them over what they asked for, in tokens, and BeyondOne how
	// much more that is than OneRefused: below 0 where the fleet is over the limit.
	OneRefused             Count
	RefusedPart, BeyondOne float64

	// Over is how many tokens the fleet admitted beyond B + L x T, in the interval
	// T in which they were most: exact, 0 = never over.
	Over float64
	// Peak1 and Peak10 are the most that was admitted in any 1 s and 10 s, over
	// B + L x T. Most1 is the former in tokens.
	Peak1, Peak10 float64
	Most1         int64
	// Rate1 is the most that was admitted in any 1 s, over L alone. Aligned1 is the
	// same for whole seconds of the right clock, one of which begins with the run.
	Rate1, Aligned1 float64
	// SharePeak is the largest sum of shares at any look, over L. BadShares is how
	// often a share was negative or no number.
	SharePeak float64
	BadShares int64

	// Use is what was admitted from Measure.From on, over the smaller of what the
	// limit allows and what was asked for. UseWindows is the same with the smaller
	// of both taken in each second. Lent is the sum of shares over the
	// smaller of L and the demand, at most 1, on average over all looks.
	Use, UseWindows, Lent float64
	// Mean is what was admitted from Measure.From on, over what the limit's rate
	// lets through.
	Mean float64
	// Tenths are the parts of what was admitted from Measure.From on that came in
	// each tenth of a second of the right clock; they add up to 1.
	Tenths [10]float64
	// T95 is how long after Measure.Step every 1 s window that begins later has a
	// use of at least 0.95, to a request; T95Fine is the same for windows of 100 ms.
	// limit.Never: not in this run.
	T95, T95Fine time.Duration
	// T110 is how long after Measure.Step all 1 s windows that begin within 10 s
	// later admit at most 1.10 L. limit.Never: not in this run.
	T110 time.Duration
	// Excess60 is what the seconds of the minute from Measure.Step admitted above
	// L, in seconds of the limit. Swing is the difference of the most and the least
	// of the 1 s windows of the last minute, or the last half of a shorter run, over L;
	// Steady is what that minute admitted, over what the limit's rate lets through.
	Excess60, Swing, Steady float64
	// Jain is Jain's index of fairness: over each instance's admitted tokens over
	// those it is entitled to by weighted max-min of what it asked for. 1 = fair.
	Jain float64

	// Messages and Bytes are what was sent in all. Kbps is what one instance sent
	// and received, in 1,000 bits per second, on average; KbpsMost is that of the
	// busiest.
	Messages, Bytes int64
	Kbps, KbpsMost  float64

	// WaitMean and WaitMost are of those requests that were held back.
	WaitMean, WaitMost time.Duration

	Instances []InstanceResult
	Samples   []Sample

	// Hash stands for every decision and every message, in order: two runs with
	// one hash are the same.
	Hash uint64
}

// InstanceResult is what one instance did.
type InstanceResult struct {
	Offered, Admitted, Refused, Lost, Missed Count

	MessagesSent, MessagesReceived int64
	BytesSent, BytesReceived       int64

	wants, used int64 // tokens from Measure.From on
}

// Sample is how things stood, for charts: rates in tokens per second. Demand, Admitted
// and Refused are those since the sample before.
type Sample struct {
	At                        time.Duration
	Limit, Total              float64 // Total is the sum of Shares
	Demand, Admitted, Refused float64
	Shares                    []float32 // per instance; 0 while it does not run
}

// finish works out the measures that need the whole run.
func (r *recorder) finish(g *engine) *Result {
	r.advance(g.now)
	res := r.result
	res.Scenario, res.System = r.s.Name, g.system.Name()
	res.Seed, res.Duration, res.Hash = r.s.Seed, r.s.Duration, r.hash
	res.Held = Count{
		res.Offered.Requests - res.Admitted.Requests - res.Refused.Requests - res.Lost.Requests,
		res.Offered.Tokens - res.Admitted.Tokens - res.Refused.Tokens - res.Lost.Tokens,
	}
	r.over.settle()
	res.Over = r.over.overall
	res.Peak1, res.Peak10, res.Most1, res.Rate1 = r.one.worst, r.ten.worst, r.one.most, r.one.bare
	sum := int64(0)
	for _, tokens := range r.tenths {
		sum += tokens
	}
	for i, tokens := range r.tenths {
		res.Tenths[i] = ratio(float64(tokens), float64(sum))
	}
	if r.looks > 0 {
		res.Lent = r.lent / float64(r.looks)
	}
	if r.waitNum > 0 {
		res.WaitMean = time.Duration(r.waitSum / r.waitNum)
		res.WaitMost = time.Duration(r.waitMax)
	}
	wants := int64(0)
	for i := range res.Instances {
		in := &res.Instances[i]
		wants += in.wants
		kbps := float64(in.BytesSent+in.BytesReceived) * 8 / 1000 / r.s.Duration.Seconds()
		res.Kbps += kbps / float64(len(res.Instances))
		res.KbpsMost = max(res.KbpsMost, kbps)
	}
	r.useAndSteps(newTally(r))
	res.Jain = r.jain()
	res.RefusedPart = ratio(float64(r.late), float64(wants))
	res.BeyondOne = res.RefusedPart - ratio(float64(res.OneRefused.Tokens), float64(wants))
	return res
}

// tally answers sums over stretches of bins.
type tally struct {
	r     *recorder
	sums  []bin     // sums[i] is all before bin i
	flows []float64 // what the limit lets through before bin i
	kind  []float64 // the same with grace
	bins  int       // whole bins
}

func newTally(r *recorder) *tally {
	n := len(r.bins)
	t := &tally{r: r, sums: make([]bin, n+1), flows: make([]float64, n+1), kind: make([]float64, n+1), bins: n}
	era, kindEra := 0, 0
	for i, b := range r.bins {
		s := t.sums[i]
		t.sums[i+1] = bin{s.offered + b.offered, s.admitted + b.admitted, s.refused + b.refused}
		from := int64(i) * r.width
		to := min(from+r.width, int64(r.s.Duration))
		t.flows[i+1] = t.flows[i] + flowIn(r.exact, &era, from, to)
		t.kind[i+1] = t.kind[i] + flowIn(r.kind, &kindEra, from, to)
	}
	if int64(r.s.Duration)%r.width != 0 {
		t.bins--
	}
	return t
}

// flowIn is flow for a walk through time: most bins lie within one era.
func flowIn(t timeline, era *int, from, to int64) float64 {
	*era = t.at(from, *era)
	if *era+1 == len(t) || t[*era+1].at >= to {
		return t[*era].rate * seconds(to-from)
	}
	return t.flow(from, to)
}

// per is how many bins a span has.
func (t *tally) per(span int64) int { return int(max(span/t.r.width, 1)) }

func (t *tally) in(from, to int) (offered, admitted, refused int64, flow float64) {
	a, b := t.sums[from], t.sums[to]
	return b.offered - a.offered, b.admitted - a.admitted, b.refused - a.refused, t.flows[to] - t.flows[from]
}

// useAndSteps fills in the measures over windows.
func (r *recorder) useAndSteps(t *tally) {
	res, one := r.result, t.per(second)
	first := int((r.from + r.width - 1) / r.width)
	if first < t.bins {
		offered, admitted, _, flow := t.in(first, t.bins)
		res.Use = ratio(float64(admitted), min(flow, float64(offered)))
		res.Mean = ratio(float64(admitted), flow)
	}
	for i := 0; i+one <= t.bins; i += one {
		_, admitted, _, _ := t.in(i, i+one)
		res.Aligned1 = max(res.Aligned1, ratio(float64(admitted), t.kind[i+one]-t.kind[i]))
	}
	possible, used := 0.0, int64(0)
	for i := first; i+one <= t.bins; i += one {
		offered, admitted, _, flow := t.in(i, i+one)
		possible += min(flow, float64(offered))
		used += admitted
	}
	res.UseWindows = ratio(float64(used), possible)
	res.Below = t.below(first, one)
	step := int((int64(r.s.Measure.Step) + r.width - 1) / r.width)
	res.T95 = t.t95(step, one)
	res.T95Fine = t.t95(step, t.per(second/10))
	res.T110 = t.t110(step, one)
	for i := step; i+one <= min(t.bins, step+60*one); i += one {
		_, admitted, _, _ := t.in(i, i+one)
		if flow := t.kind[i+one] - t.kind[i]; float64(admitted) > flow {
			res.Excess60 += ratio(float64(admitted)-flow, flow)
		}
	}
	least, most, allowed := math.Inf(1), 0.0, 0.0
	last := t.bins - min(60*one, t.bins/2)
	_, late, _, flow := t.in(last, t.bins)
	res.Steady = ratio(float64(late), flow)
	for i := last; i+one <= t.bins; i++ {
		_, admitted, _, flow := t.in(i, i+one)
		least, most, allowed = min(least, float64(admitted)), max(most, float64(admitted)), max(allowed, flow)
	}
	if most > 0 {
		res.Swing = ratio(most-least, allowed)
	}
}

// below adds up what was refused in bins of which every window asked for no more than
// the limit lets through.
func (t *tally) below(first, one int) int64 {
	sum := int64(0)
	busy := -1 // the last bin that lies in a window with more demand
	next := max(first-one+1, 0)
	for i := first; i < t.bins; i++ {
		for ; next <= i && next+one <= t.bins; next++ {
			if offered, _, _, flow := t.in(next, next+one); float64(offered) > flow*(1+1e-9) {
				busy = next + one - 1
			}
		}
		if i > busy {
			_, _, refused, _ := t.in(i, i+1)
			sum += refused
		}
	}
	return sum
}

// t95 is how long after step the last window ends to begin whose use is too low.
func (t *tally) t95(step, length int) time.Duration {
	for i := t.bins - length; i >= step; i-- {
		offered, admitted, _, flow := t.in(i, i+length)
		if float64(admitted+t.r.largest) <= 0.95*min(flow, float64(offered)) {
			if i == t.bins-length {
				return limit.Never
			}
			return time.Duration(int64(i+1-step) * t.r.width)
		}
	}
	if step+length > t.bins {
		return limit.Never
	}
	return 0
}

// t110 is the first time after step from which on windows are calm for 10 s, or to the
// end of the run.
func (t *tally) t110(step, one int) time.Duration {
	calm := 0
	for i := step; i+one <= t.bins; i++ {
		_, admitted, _, _ := t.in(i, i+one)
		if float64(admitted) > 1.10*(t.kind[i+one]-t.kind[i]) {
			calm = 0
			continue
		}
		if calm++; calm > 10*one || i+one == t.bins {
			return time.Duration(int64(i+1-calm-step) * t.r.width)
		}
	}
	return limit.Never
}

// jain compares what instances got with what they are entitled to.
func (r *recorder) jain() float64 {
	flow := r.exact.flow(r.from, int64(r.s.Duration))
	wants := make([]float64, len(r.result.Instances))
	weights := make([]float64, len(wants))
	for i := range wants {
		wants[i] = float64(r.result.Instances[i].wants)
		weights[i] = 1
		if r.s.Weights != nil {
			weights[i] = float64(r.s.Weights[i])
		}
	}
	sum, squares, n := 0.0, 0.0, 0.0
	for i, due := range waterfill(flow, wants, weights) {
		if due <= 0 {
			continue
		}
		x := float64(r.result.Instances[i].used) / due
		sum += x
		squares += x * x
		n++
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (n * squares)
}
