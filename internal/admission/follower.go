package admission

import "math"

// follower makes the limit of running requests follow the server.
//
// The signal is whether requests take longer than when little runs. A round is as many completions
// as the limit. Each of its requests is compared with the calm time of its own route, by logarithms:
// the mean difference is the stretch. A queue in the server delays or slows all requests, the short
// ones first, so a stretch of 0 means that there is none. The mean of logarithms of times from 5 ms to
// 5 s has the error of that of an exponential law, where the mean of the times has ten times as much.
//
// The limit grows while a request waits for it and the stretch is that of a queue of less than the
// square root of the limit, which is how far the number of busy workers wanders at random. In
// doubt it grows. It falls only by a stretch that is significant, and by no more than the queue
// that the stretch means if all requests are delayed by the same time.
//
// Calm times are those of requests that start while at most few run. Under lasting overload there are
// none, so now and then a probe lets only few run. While demand fits there is no probe, since
// waiting for long requests to end would refuse others.
type follower struct {
	floor, ceiling int
	current        float64
	pace           float64 // the next growth, in square roots of the limit

	// Of this round:
	number      uint64
	reached     bool // a request waited for the limit
	lost        bool // a request did not get in or waited too long
	skipped     bool // the round does not count: it is the first after a probe, and short requests end first
	completions int
	known       float64 // completions of routes with a calm time
	off         float64 // sum of the differences of logarithms
	noise, lack float64 // variances of off: by the spread of service times, and by the error of calm times
	weighted    float64 // sum of the differences, each times the calm time of its route
	weights     float64 // sum of calm times

	// Over rounds, smoothed:
	stretch  float64 // mean difference
	timed    float64 // mean difference, weighted by calm times
	calm     float64 // mean calm time
	variance float64 // of the mean difference of one round

	// The cohort of samples of calm times:
	cohort  uint32
	opened  int64 // when its first request started
	started int   // requests of the cohort so far
	running int   // those that run

	probing    bool
	until      int64   // when the probe ends at the latest
	wanted     int     // samples that the probe still wants
	probed     float64 // the limit at the last probe
	overloaded int     // rounds with lost requests, one after another, since the last probe
	every      int     // about as many of these until the next
	due        int     // exactly as many
	doubtful   bool    // a queue is likely, but calm times are those of fewer than recent requests
}

const (
	// initial is the limit at first. From there five doublings reach 128. Envoy's gradient
	// controller begins with 3, Netflix's and failsafe-go with 20, which a server with two
	// workers and slow requests takes minutes to leave.
	initial = 4

	// gain is the part of the way that a step goes: the effect of a step is seen a round later.
	gain = 0.25

	// smooth is the weight of the newest round. With gain the loop is damped: its poles are
	// 0.875 +- 0.22i.
	smooth = 0.25

	// sure is how many standard errors are significant: one round in 740 errs.
	sure = 3

	// A probe comes after half to 3/2 of so many rounds of overload, at random, so that servers do
	// not probe together. The first comes soon, and so does the next after one that has replaced a
	// calm time: it may have been too long itself, since a limit of many times the workers falls by
	// half with each probe. Any other doubles the rounds until the next. At probeEvery it costs half
	// of some four rounds: 1 %.
	firstProbe = 4
	probeEvery = 200

	// patience is how many mean service times a probe lasts at most, so that requests that hang do
	// not hold it.
	patience = 10

	// rare is how many mean service times a cohort is waited for. By Markov's inequality at most 1 %
	// of requests take longer, and without them the mean of logarithms of times that differ a
	// thousandfold is off by at most 0.07.
	rare = 100

	golden = 0x9e3779b97f4a7c15 // spreads a time over all bits
)

func (f *follower) init(floor, ceiling int) {
	f.floor, f.ceiling = floor, ceiling
	if floor > 0 {
		f.current = float64(max(floor, min(initial, ceiling)))
		f.probed, f.number, f.cohort, f.every = f.current, 1, 1, firstProbe
		f.pace = math.Sqrt(f.current)
	}
}

// limit is how many may run now.
func (f *follower) limit() int {
	switch {
	case f.floor == 0:
		return f.ceiling
	case f.probing:
		return f.few()
	default:
		return int(f.current)
	}
}

// few is how many run without queueing in the server. It is near half the limit, where long requests
// soon make room, and less: a limit of twice the workers then falls by half with each probe.
func (f *follower) few() int {
	root := math.Sqrt(f.current)
	return max(1, int(max(root, f.current/2-root)))
}

// begin takes a request that starts as one of running for a sample, if it has no queue in the server.
func (f *follower) begin(it *Item, running int) {
	it.cohort = 0
	if f.floor == 0 || running > f.few() || !f.probing && f.started >= recent {
		return
	}
	if f.started == 0 {
		f.opened = it.started
	}
	it.cohort = f.cohort
	f.running++
	f.started++
}

// observe learns from a request of route r that has run; r is nil if it teaches nothing.
func (f *follower) observe(it *Item, r *routeTime, service int64, t *times) {
	if f.floor == 0 {
		return
	}
	now, x := it.started+service, math.Log(float64(max(service, 1)))
	if it.cohort == f.cohort {
		f.running--
		f.wanted--
		if r != nil {
			r.calm.gathered.add(x)
		}
	}
	if f.started > 0 && (f.running == 0 || float64(now-f.opened) > rare*t.mean) {
		f.learn(t)
	}
	if f.probing {
		if f.wanted <= 0 {
			f.endProbe()
		}
		return
	}
	if r != nil && r.calm.count > 0 {
		f.compare(r, x)
	}
	if f.completions++; f.completions >= int(f.current) {
		f.step(now, t.mean)
	}
}

// learn takes in the samples of the cohort that have ended, and opens the next. Until all have ended
// the short ones alone would tell too short a time.
func (f *follower) learn(t *times) {
	for _, r := range t.routes {
		if r.calm.learn() {
			f.stretch, f.timed, f.every = 0, 0, firstProbe
		}
	}
	f.started, f.running = 0, 0
	f.cohort++
}

// compare adds a request to the round.
func (f *follower) compare(r *routeTime, x float64) {
	if r.round != f.number {
		r.round, r.inRound = f.number, 0
	}
	off, calm, variance := x-r.calm.mean, math.Exp(r.calm.mean), r.calm.variance()
	f.known++
	f.off += off
	f.noise += variance
	f.lack += (2*r.inRound + 1) * variance / r.calm.count
	r.inRound++
	f.weighted += calm * off
	f.weights += calm
}

// begins starts a round.
func (f *follower) begins() {
	f.number++
	f.reached, f.lost, f.skipped, f.completions = false, false, false, 0
	f.known, f.off, f.noise, f.lack, f.weighted, f.weights = 0, 0, 0, 0, 0, 0
}

// step ends a round.
func (f *follower) step(now int64, mean float64) {
	known, lost := f.known > 0, f.lost
	if known && !f.skipped {
		f.adjust(mean)
	}
	f.current = min(max(f.current, float64(f.floor)), float64(f.ceiling))
	if !lost {
		f.overloaded = 0
	} else if !f.skipped {
		if f.overloaded++; f.overloaded == 1 {
			f.due = f.every/2 + int(uint64(now)*golden>>32%uint64(f.every))
		}
	}
	f.begins()
	switch {
	case !lost:
	case f.overloaded >= f.due, f.current < f.probed/2:
		f.every = min(2*f.every, probeEvery)
		f.probe(now, mean)
	}
}

func (f *follower) probe(now int64, mean float64) {
	f.probing, f.until, f.overloaded, f.probed = true, now+int64(patience*mean), 0, f.current
	f.wanted = max(2*f.few(), enough)
	if f.doubtful {
		f.wanted = max(f.wanted, recent/2)
	}
}

// adjust moves the limit by what the round has shown.
func (f *follower) adjust(mean float64) {
	n, root := f.known, math.Sqrt(f.current)
	here, lack := f.off/n, f.lack/n/n
	f.stretch += smooth * (here - f.stretch)
	f.timed += smooth * (f.weighted/f.weights - f.timed)
	f.calm += smooth * (f.weights/n - f.calm)
	f.variance += smooth * (f.noise/n/n - f.variance)

	least := f.stretch - sure*math.Sqrt(f.variance*smooth/(2-smooth)+lack)
	queued := min(1-math.Exp(-max(0, min(here, least))), max(0, f.calm*math.Expm1(f.timed))/mean, 0.5)
	// short says whether a stretch is that of a queue of less than the root of the limit.
	short := func(stretch float64) bool { return f.current*(1-math.Exp(-stretch)) <= root }
	f.doubtful = f.noise/n < recent*lack && !short(max(here, f.stretch))
	switch {
	case !f.reached:
		f.pace = gain
	case f.current*queued > root:
		f.pace = gain
		f.current -= gain * (f.current*queued - root)
	case !short(max(least, here-sure*math.Sqrt(f.noise+f.lack)/n)):
		f.pace = gain
	default:
		if !short(max(here, f.stretch)) {
			f.pace = gain
		}
		f.current += min(f.pace*(root-f.current*queued), f.current)
		f.pace *= 2
	}
}

// tick ends a probe that takes too long.
func (f *follower) tick(now int64) {
	if f.probing && now >= f.until {
		f.endProbe()
	}
}

// endProbe restores the limit.
func (f *follower) endProbe() {
	f.probing = false
	f.begins()
	f.skipped = true
}
