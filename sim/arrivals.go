package sim

import (
	"cmp"
	"math"
	"math/rand/v2"
	"time"

	"github.com/stint-io/stint/sim/internal/words"
)

// load is a Load at work: the parts of its instances at this moment.
type load struct {
	*Load
	cost      int64
	total     float64   // tokens per second
	parts     []float64 // by position, adding up to 1
	factors   []float64 // of mishaps, by position; 1 = none
	moves     int       // how often the parts have moved
	split     *rand.Rand
	mishap    *rand.Rand
	first     int // the generator of its first position
	instances []int
}

// generator makes the requests of one load at one instance. It counts in requests:
// the time of the next is when left have accrued since base.
type generator struct {
	load, instance int32
	generation     uint32  // of the pending event: earlier ones are void
	rate           float64 // requests per second
	base           int64
	left           float64
	random         *rand.Rand // Poisson only
	asking         *process   // Loop only: who decides about its request; nil = it asks for nothing
}

// newLoads makes the loads of a scenario, all of them silent.
func (g *engine) newLoads() {
	s := &g.scenario
	for i := range s.Loads {
		l := &load{Load: &s.Loads[i], first: len(g.generators)}
		l.cost = max(l.Cost, 1)
		l.instances = l.Instances
		if l.instances == nil {
			l.instances = make([]int, s.Instances)
			for k := range l.instances {
				l.instances[k] = k
			}
		}
		n := len(l.instances)
		l.split = source(s.Seed, chanceSplit, uint64(i), 0)
		l.mishap = source(s.Seed, chanceMishaps, uint64(i), 0)
		l.parts = firstParts(&l.Split, n)
		l.factors = make([]float64, n)
		for k, instance := range l.instances {
			l.factors[k] = 1
			gen := generator{load: int32(i), instance: int32(instance)}
			switch {
			case l.Arrivals == Poisson:
				gen.random = source(s.Seed, chanceArrivals, uint64(i), uint64(instance))
				gen.left = gen.random.ExpFloat64()
			case l.Aligned:
				gen.left = l.step(nil)
			default:
				gen.left = l.step(nil) * float64(k+1) / float64(n)
			}
			g.generators = append(g.generators, gen)
		}
		g.loads = append(g.loads, l)
		if l.Split.Move > 0 {
			g.push(event{At: int64(l.Split.Move), Of: what{kind: eventMove, ref: int32(i)}})
		}
		if l.Mishaps.Every > 0 {
			g.pushMishap(int32(i))
		}
	}
}

// firstParts returns how a load is split before it moves.
func firstParts(s *Split, n int) []float64 {
	parts := make([]float64, n)
	switch s.Kind {
	case OnOne:
		parts[s.Hot] = 1
		return parts
	case Shares:
		copy(parts, s.Shares)
	case Zipf:
		exponent := cmp.Or(s.Exponent, 1)
		for k := range parts {
			parts[k] = math.Pow(float64(k+1), -exponent)
		}
	default:
		for k := range parts {
			parts[k] = 1
		}
	}
	sum := 0.0
	for _, x := range parts {
		sum += x
	}
	for k := range parts {
		parts[k] /= sum
	}
	return parts
}

// step is how many requests accrue from one event of a generator to the next.
func (l *load) step(random *rand.Rand) float64 {
	switch l.Arrivals {
	case Poisson:
		return random.ExpFloat64()
	case Bursts:
		return float64(l.Size)
	default:
		return 1
	}
}

// setRates brings the generators of a load in line with its demand.
func (g *engine) setRates(i int32) {
	l := g.loads[i]
	for k := range l.instances {
		g.setRate(l, k)
	}
}

func (g *engine) setRate(l *load, position int) {
	index := l.first + position
	gen := &g.generators[index]
	rate := l.total * l.parts[position] * l.factors[position] / float64(l.cost)
	if rate == gen.rate {
		return
	}
	g.demand += (rate - gen.rate) * float64(l.cost)
	gen.left = max(gen.left-gen.rate*seconds(g.now-gen.base), 0)
	gen.base, gen.rate = g.now, rate
	gen.generation++
	if gen.asking != nil {
		return // it goes on when that is decided
	}
	if at, ok := gen.next(); ok {
		g.push(event{At: at, Of: what{kind: eventArrival, ref: int32(index), generation: gen.generation}})
	}
}

// again makes a Loop ask once more, since its last request was decided or lost.
func (g *engine) again(loop int32) {
	if loop == 0 {
		return
	}
	gen := &g.generators[loop-1]
	gen.asking, gen.base, gen.left = nil, g.now, 1
	gen.generation++
	if at, ok := gen.next(); ok {
		g.push(event{At: at, Of: what{kind: eventArrival, ref: loop - 1, generation: gen.generation}})
	}
}

func seconds(ns int64) float64 { return float64(ns) / float64(time.Second) }

// next is when the generator's next requests come, rounded up.
func (g *generator) next() (int64, bool) {
	if g.rate <= 0 {
		return 0, false
	}
	wait := g.left / g.rate * float64(time.Second)
	// Without the slack a whole number of nanoseconds that is rounded to a hair
	// above it would come a nanosecond late.
	wait = math.Ceil(wait - max(wait*1e-15, 1e-3))
	if wait > float64(words.MaxDuration) {
		return 0, false
	}
	return g.base + int64(wait), true
}

// arrive is the event of a generator, which is the earliest in the heap and is
// replaced there by the next one.
func (g *engine) arrive(e event) {
	gen := &g.generators[e.Of.ref]
	if e.Of.generation != gen.generation {
		g.events.Pop()
		return
	}
	l := g.loads[gen.load]
	if l.Arrivals == Loop {
		g.events.Pop()
		g.offer(int(gen.instance), gen.load, e.Of.ref+1)
		return
	}
	gen.left += l.step(gen.random)
	if at, ok := gen.next(); ok {
		g.seq++
		g.events.Replace(event{At: at, Seq: g.seq, Of: what{kind: eventArrival, ref: e.Of.ref, generation: e.Of.generation}})
	} else {
		g.events.Pop()
	}
	n := 1
	if l.Arrivals == Bursts {
		n = l.Size
	}
	for range n {
		g.offer(int(gen.instance), gen.load, 0)
	}
}

// move turns the parts of a load on, or deals them out again.
func (g *engine) move(i int32) {
	l := g.loads[i]
	l.moves++
	n := len(l.parts)
	if l.Split.Shuffle {
		l.split.Shuffle(n, func(a, b int) { l.parts[a], l.parts[b] = l.parts[b], l.parts[a] })
	} else {
		last := l.parts[n-1]
		copy(l.parts[1:], l.parts)
		l.parts[0] = last
	}
	g.setRates(i)
	g.push(event{At: g.now + int64(l.Split.Move), Of: what{kind: eventMove, ref: i}})
}

func (g *engine) pushMishap(i int32) {
	l := g.loads[i]
	wait := l.mishap.ExpFloat64() * float64(l.Mishaps.Every)
	g.push(event{At: g.now + int64(min(wait, float64(words.MaxDuration))) + 1, Of: what{kind: eventMishap, ref: i}})
}

// strike lets a mishap befall an instance of a load, unless one does already.
func (g *engine) strike(i int32) {
	l := g.loads[i]
	position := l.mishap.IntN(len(l.instances))
	trough := l.mishap.Float64() < l.Mishaps.Troughs
	length := min(l.mishap.ExpFloat64()*float64(l.Mishaps.Length), float64(words.MaxDuration))
	if l.factors[position] == 1 {
		l.factors[position] = l.Mishaps.Spike
		if trough {
			l.factors[position] = l.Mishaps.Trough
		}
		g.setRate(l, position)
		g.push(event{At: g.now + int64(length) + 1, Of: what{kind: eventMishapEnd, ref: i, generation: uint32(position)}})
	}
	g.pushMishap(i)
}

func (g *engine) endMishap(i int32, position uint32) {
	l := g.loads[i]
	l.factors[position] = 1
	g.setRate(l, int(position))
}
