package overload

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	defaultWindow = 10 * time.Millisecond
	bins          = 240 // of a chart
)

// recorder counts what happens.
type recorder struct {
	scenario *Scenario
	from, to int64
	step     int64
	window   int64
	windows  [][]mean // queue delay after the step, by server and window
	result   *Result

	attempts   int64
	usefulFrom []int64 // CPU time spent before figures count, by server
	useful     []int64 // CPU time of good requests that ended while they count
}

type mean struct {
	sum float64
	n   int64
}

func newRecorder(s *Scenario) *recorder {
	m := &s.Measure
	r := &recorder{
		scenario: s, from: int64(m.From), to: int64(cmp.Or(m.To, s.Duration)), step: int64(m.Step),
		window: int64(cmp.Or(m.Window, defaultWindow)),
		result: &Result{Scenario: s, Loads: make([]Group, len(s.Loads)), Timeline: make([]Bin, bins)},
		useful: make([]int64, len(s.Servers)), usefulFrom: make([]int64, len(s.Servers)),
	}
	r.windows = make([][]mean, len(s.Servers))
	for i := range r.windows {
		r.windows[i] = make([]mean, max(0, (r.to-r.step)/r.window))
	}
	return r
}

func (r *recorder) counts(at int64) bool { return at >= r.from && at < r.to }

func (r *recorder) bin(now int64) *Bin {
	return &r.result.Timeline[min(bins-1, int(now*bins/int64(r.scenario.Duration)))]
}

// groups returns all that a request belongs to.
func (r *recorder) groups(q *Request) [3]*Group {
	return [3]*Group{&r.result.All, &r.result.Classes[q.Class], &r.result.Loads[q.load]}
}

func (r *recorder) offer(now int64, q *Request) {
	r.bin(now).Offered++
	if !r.counts(now) {
		return
	}
	for _, g := range r.groups(q) {
		g.Offered++
	}
}

// end counts a request that has ended. It returns whether it was answered well and in time.
// Requests belong to the time at which they were born.
func (r *recorder) end(now int64, q *Request, o Outcome) bool {
	latency := now - q.born
	good := o == Answered && (q.Route.SLO == 0 || latency <= int64(q.Route.SLO))
	b := r.bin(now)
	if good {
		b.Good++
	} else {
		b.Bad++
	}
	if now >= r.from && now < r.to && good {
		if q.at == nil {
			r.useful[q.Route.Step.Server] += q.spent
		}
		for i, spent := range q.at {
			r.useful[i] += spent
		}
	}
	if !r.counts(q.born) {
		return good
	}
	for _, g := range r.groups(q) {
		g.Ended[o]++
		if good {
			g.Good++
		}
		if o == Answered {
			g.Latency.Add(latency)
		}
	}
	return good
}

// delay counts a call that got a core.
func (r *recorder) delay(now int64, server int, delay int64) {
	b := r.bin(now)
	b.DelaySum += float64(delay)
	b.Begun++
	if r.counts(now) {
		r.result.Delay.Add(delay)
	}
	if k := (now - r.step) / r.window; now >= r.step && k < int64(len(r.windows[server])) {
		r.windows[server][k].sum += float64(delay)
		r.windows[server][k].n++
	}
}

// refuse counts a call that a server turned away while the least important that waits there is
// lowest.
func (r *recorder) refuse(c *Call, o Outcome, lowest int) {
	if (o == Refused || o == Evicted) && lowest < c.rank() {
		r.result.Inversions++
	}
}

// mark notes what was used before figures count.
func (r *recorder) mark(e *Env) {
	for i, s := range e.servers {
		r.usefulFrom[i] = s.used
	}
}

func (r *recorder) finish(e *Env) *Result {
	out := r.result
	out.Requests, out.Attempts = int64(e.requests), r.attempts
	span := float64(r.to-r.from) / float64(time.Second)
	out.Goodput = float64(out.All.Good) / span
	used, useful := 0.0, 0.0
	for i, s := range e.servers {
		capacity := float64(s.Cores) * float64(r.to-r.from)
		out.Useful = max(out.Useful, float64(r.useful[i])/capacity)
		used += float64(s.used - r.usefulFrom[i])
		useful += float64(r.useful[i])
	}
	if used > 0 {
		out.Wasted = max(0, 1-useful/used)
	}
	out.Settled, out.Steady = r.stable()
	for k := range out.Timeline {
		b := &out.Timeline[k]
		b.At = time.Duration(int64(k) * int64(r.scenario.Duration) / bins)
	}
	return out
}

// stable are the times from the step until queue delays stay below the band, and until they stay
// about what they are in the end, which is from half to half as much again of the median of the
// second half.
func (r *recorder) stable() (settled, steady float64) {
	for _, windows := range r.windows {
		delays := make([]float64, 0, len(windows))
		for _, m := range windows {
			delays = append(delays, m.sum/float64(max(m.n, 1)))
		}
		if len(delays) == 0 {
			continue
		}
		band := float64(r.scenario.Measure.Band)
		settled = max(settled, r.until(delays, func(d float64) bool { return d > band }))
		late := slices.Sorted(slices.Values(delays[len(delays)/2:]))
		level := late[len(late)/2]
		steady = max(steady, r.until(delays, func(d float64) bool { return d < level/2 || d > level*1.5 }))
	}
	return settled, steady
}

// calm is how many windows have to be good but for one, so that it counts as stable, and of how many
// that follow one may be bad: with random arrivals some always are.
const calm = 20

// until is when the windows become stable: the first time from which a window is good, all but one
// of the calm ones from it are, and all but one in calm of all that follow; infinite without such a
// time before the last tenth.
func (r *recorder) until(delays []float64, bad func(float64) bool) float64 {
	after := make([]int, len(delays)+1) // how many are bad from each on
	for k := len(delays) - 1; k >= 0; k-- {
		after[k] = after[k+1]
		if bad(delays[k]) {
			after[k]++
		}
	}
	for k := 0; k+calm <= len(delays) && k <= len(delays)*9/10; k++ {
		if after[k] == after[k+1] && after[k]-after[k+calm] <= 1 && after[k]*calm <= len(delays)-k {
			return float64(int64(k)*r.window) / float64(time.Second)
		}
	}
	return math.Inf(1)
}
