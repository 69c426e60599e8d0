package sim

import (
	"math"
	"time"

	"github.com/stint-io/stint/internal/traffic"
	"github.com/stint-io/stint/limit"
)

const (
	second        = int64(time.Second)
	defaultLook   = 10 * time.Millisecond
	defaultSample = 100 * time.Millisecond
	// maxShares bounds the shares kept for charts: 64 MB.
	maxShares = 8 << 20
	// maxBins bounds the counts kept for measures over windows: 24 MB.
	maxBins = 1 << 20
	// calm is how long one central limiter must have refused nothing before a
	// refusal by the fleet is early.
	calm = int64(time.Second)
)

// recorder stands at the protected side, with the one right clock, and sees every
// decision. It knows nothing of how a system works, so that all are measured alike.
type recorder struct {
	s          *Scenario
	from       int64
	exact      timeline // the limit in force
	kind       timeline // the same with grace, for measures of excess
	era        int      // of exact
	kindEra    int      // of kind
	lookEvery  int64
	lookEra    int
	lookKind   int
	result     *Result
	hash       uint64
	over       *central
	one, ten   window
	ideal      limit.Bucket // one central limiter that is given all requests
	idealState limit.BucketState
	idealNo    int64        // when it refused last
	patient    commonBucket // the same that lets requests wait as long as they may

	tenths  [10]int64 // admitted tokens, by the tenth of the second
	width   int64     // of a bin
	bins    []bin
	largest int64 // cost of a request

	sampleEvery               int64
	sampled                   Sample // running totals at the last sample
	total, admitted, refused  int64  // tokens, of the whole run
	late                      int64  // tokens refused of requests from Measure.From on
	sampler                   func() // called at each sample; nil = nothing
	looks                     int64
	lent                      float64
	waitSum, waitMax, waitNum int64
}

// bin is what happened in a short stretch of time, in tokens.
type bin struct{ offered, admitted, refused int64 }

func newRecorder(s *Scenario) *recorder {
	r := &recorder{
		s: s, from: int64(s.Measure.From), hash: traffic.Mix(s.Seed, 0),
		exact: newTimeline(s, 0), kind: newTimeline(s, s.Measure.Grace),
		lookEvery: int64(s.Measure.Look), sampleEvery: int64(s.Measure.Sample),
		one: window{span: second}, ten: window{span: 10 * second},
		idealNo: math.MinInt64 / 2, width: int64(defaultLook),
		result: &Result{Instances: make([]InstanceResult, s.Instances)},
	}
	if r.lookEvery == 0 {
		r.lookEvery = int64(defaultLook)
	}
	if r.sampleEvery == 0 {
		r.sampleEvery = int64(defaultSample)
		for int64(s.Duration)/r.sampleEvery*int64(s.Instances) > maxShares {
			r.sampleEvery *= 2
		}
	}
	for int64(s.Duration)/r.width > maxBins {
		r.width *= 10
	}
	for i := range s.Loads {
		r.largest = max(r.largest, s.Loads[i].Cost, 1)
	}
	r.bins = make([]bin, (int64(s.Duration)+r.width-1)/r.width)
	r.over = newCentral(r.kind[0].limit)
	r.ideal = idealBucket(r.exact[0].limit)
	r.patient.set(origin, r.exact[0].limit)
	return r
}

func idealBucket(l Limit) limit.Bucket {
	return limit.NewBucket(limit.Policy{Rate: l.Rate, Burst: l.Burst})
}

// advance brings the limits up to now.
func (r *recorder) advance(now int64) {
	for r.era+1 < len(r.exact) && r.exact[r.era+1].at <= now {
		r.era++
		next := idealBucket(r.exact[r.era].limit)
		r.idealState = next.Convert(r.idealState, &r.ideal, origin+limit.Time(r.exact[r.era].at))
		r.ideal = next
		r.patient.set(origin+limit.Time(r.exact[r.era].at), r.exact[r.era].limit)
	}
	for r.kindEra+1 < len(r.kind) && r.kind[r.kindEra+1].at <= now {
		r.kindEra++
		r.over.change(r.kind[r.kindEra].at, r.kind[r.kindEra].limit)
	}
}

func (r *recorder) note(now int64, what, instance int, cost int64) {
	r.hash = traffic.Mix(r.hash^uint64(now), uint64(what)<<60^uint64(uint32(instance))<<24^uint64(cost))
}

// offer counts a request that a process will decide about. It returns whether one
// central limiter admits it, and has refused nothing for calm.
func (r *recorder) offer(now int64, instance int, cost int64, wait time.Duration) (fits bool) {
	r.advance(now)
	if _, ok := r.patient.takeWithin(origin+limit.Time(now), float64(cost), wait); !ok && now >= r.from {
		r.result.OneRefused.add(1, cost)
	}
	r.result.Offered.add(1, cost)
	r.result.Instances[instance].Offered.add(1, cost)
	r.total += cost
	r.bins[now/r.width].offered += cost
	if now >= r.from {
		r.result.Instances[instance].wants += cost
	}
	if !r.ideal.Take(&r.idealState, origin+limit.Time(now), cost).Allowed {
		r.idealNo = now
		return false
	}
	return now-r.idealNo > calm
}

// miss counts a request that met no process.
func (r *recorder) miss(now int64, instance int, cost int64) {
	r.note(now, 3, instance, cost)
	r.result.Missed.add(1, cost)
	r.result.Instances[instance].Missed.add(1, cost)
}

// lose counts requests that were with a process when it ended.
func (r *recorder) lose(instance int, requests, cost int64) {
	r.result.Lost.add(requests, cost)
	r.result.Instances[instance].Lost.add(requests, cost)
}

// decided counts a decision.
func (r *recorder) decided(now int64, q request, instance int, cost int64, admitted bool) {
	r.advance(now)
	in := &r.result.Instances[instance]
	b := &r.bins[now/r.width]
	if waited := now - q.at; waited > 0 {
		r.waitSum += waited
		r.waitNum++
		r.waitMax = max(r.waitMax, waited)
	}
	if !admitted {
		r.note(now, 2, instance, cost)
		r.refused += cost
		b.refused += cost
		r.result.Refused.add(1, cost)
		in.Refused.add(1, cost)
		if q.at >= r.from {
			r.late += cost
			if q.fits {
				r.result.Early.add(1, cost)
			}
		}
		return
	}
	r.note(now, 1, instance, cost)
	r.admitted += cost
	b.admitted += cost
	r.result.Admitted.add(1, cost)
	in.Admitted.add(1, cost)
	if now >= r.from {
		in.used += cost
		r.tenths[now%second/(second/10)] += cost
	}
	r.one.add(now, cost, r.kind)
	r.ten.add(now, cost, r.kind)
	r.over.admit(now, cost)
}

func (r *recorder) sent(p *process, bytes int) {
	r.result.Messages++
	r.result.Bytes += int64(bytes)
	if p.address >= 0 {
		in := &r.result.Instances[p.address]
		in.MessagesSent++
		in.BytesSent += int64(bytes)
	}
}

func (r *recorder) received(now int64, p *process, bytes int) {
	r.note(now, 4, p.index, int64(bytes))
	if p.address >= 0 {
		in := &r.result.Instances[p.address]
		in.MessagesReceived++
		in.BytesReceived += int64(bytes)
	}
}

// look adds up the shares of running instances. A paused process spends nothing.
func (r *recorder) look(now int64, instances []*process, demand float64) {
	sum := 0.0
	for _, p := range instances {
		if p.state != stateUp {
			continue
		}
		share := p.enforcer.Share()
		if !(share >= 0) || math.IsInf(share, 0) {
			r.result.BadShares++
			continue
		}
		sum += share
	}
	r.lookEra, r.lookKind = r.exact.at(now, r.lookEra), r.kind.at(now, r.lookKind)
	// A billionth of slack: the sum is one of floating-point numbers.
	if most := r.kind[r.lookKind].rate; sum > most*(1+1e-9)+1e-9 {
		r.result.SharePeak = max(r.result.SharePeak, ratio(sum, most))
	} else if most > 0 {
		r.result.SharePeak = max(r.result.SharePeak, min(sum/most, 1))
	}
	if possible := min(r.exact[r.lookEra].rate, demand); now >= r.from && possible > 1e-6 {
		r.looks++
		r.lent += min(sum/possible, 1)
	}
}

// sample keeps how things stand for charts.
func (r *recorder) sample(now int64, instances []*process) {
	x := Sample{At: time.Duration(now), Shares: make([]float32, len(instances))}
	for i, p := range instances {
		if p.state == stateUp {
			share := p.enforcer.Share()
			x.Shares[i] = float32(share)
			x.Total += share
		}
	}
	if r.sampler != nil {
		r.sampler()
	}
	x.Limit = r.exact[r.exact.at(now, 0)].rate
	totals := Sample{Demand: float64(r.total), Admitted: float64(r.admitted), Refused: float64(r.refused)}
	if now > 0 {
		per := seconds(r.sampleEvery)
		x.Demand = (totals.Demand - r.sampled.Demand) / per
		x.Admitted = (totals.Admitted - r.sampled.Admitted) / per
		x.Refused = (totals.Refused - r.sampled.Refused) / per
	}
	r.sampled = totals
	r.result.Samples = append(r.result.Samples, x)
}
