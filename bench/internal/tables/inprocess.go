package tables

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"

	"github.com/stint-io/stint/bench/internal/contender"
	"github.com/stint-io/stint/bench/internal/measure"
)

// lane is one contender on one number of threads.
type lane struct {
	contender.Contender
	limiter contender.Limiter
	threads int
	samples []measure.Sample
}

func (l *lane) ns() measure.Series {
	return measure.Figures(l.samples, func(s measure.Sample) float64 { return s.NsPerOp })
}

// race is one table in the making: every contender on one thread and on two.
type race struct {
	lanes []*lane
	plan  contender.Plan
}

// threads are the numbers of goroutines; GOMAXPROCS is the larger one.
var threads = [...]int{1, 2}

// on names a number of threads.
func on(threads int) string {
	if threads == 1 {
		return "1 thread"
	}
	return fmt.Sprintf("%d threads", threads)
}

func newRace(plan contender.Plan, contenders []contender.Contender) (*race, error) {
	r := &race{plan: plan}
	for _, c := range contenders {
		l, err := c.New(plan)
		if err != nil {
			return nil, fmt.Errorf("bench: %s: %w", c.Name, err)
		}
		for _, n := range threads {
			r.lanes = append(r.lanes, &lane{Contender: c, limiter: l, threads: n})
		}
	}
	return r, nil
}

func (r *race) close() {
	for _, l := range r.lanes {
		contender.Close(l.limiter)
	}
}

func (r *race) lane(name string, threads int) *lane {
	for _, l := range r.lanes {
		if l.Name == name && l.threads == threads {
			return l
		}
	}
	panic("bench: no lane " + name)
}

// run measures all lanes. spin does n operations for a worker of a lane.
func (r *race) run(cfg Config, allowed bool, spin func(l *lane, worker, n int) int) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads[len(threads)-1]))
	all, err := measure.Interleave(cfg.Rounds, len(r.lanes), func(i int) (measure.Sample, error) {
		l := r.lanes[i]
		s := measure.Slice(l.threads, cfg.Slice, func(worker, n int) int { return spin(l, worker, n) })
		want := int64(0)
		if allowed {
			want = s.Ops
		}
		if s.Yes != want {
			return s, fmt.Errorf("bench: %s, %d threads: %d of %d admitted, want %d: the answers are wrong, so is the time",
				l.Name, l.threads, s.Yes, s.Ops, want)
		}
		return s, nil
	})
	for i := range all {
		r.lanes[i].samples = all[i]
	}
	return err
}

// write prints the lanes of one contender in one row, compared with the floor.
func (r *race) write(rep *Report, floor string) {
	head := []string{"ns per request"}
	for _, n := range threads {
		head = append(head, on(n), "× floor", "× stint")
	}
	head = append(head, "allocs")
	var rows [][]string
	for i := 0; i < len(r.lanes); i += len(threads) {
		row := []string{r.lanes[i].Name}
		var allocs float64
		for _, l := range r.lanes[i : i+len(threads)] {
			ns := l.ns()
			row = append(row, ns.Format("%.0f"),
				fmt.Sprintf("%.2f", ns.Over(r.lane(floor, l.threads).ns()).Median()),
				fmt.Sprintf("%.2f", ns.Over(r.lane(contender.StintName, l.threads).ns()).Median()))
			allocs = max(allocs, l.allocs())
		}
		rows = append(rows, append(row, fmt.Sprintf("%.0f", allocs)))
	}
	rep.Table(head, rows)
}

func (l *lane) allocs() float64 {
	return measure.Figures(l.samples, measure.Sample.AllocsPerOp).Median()
}

// ratio is the median over the rounds of a's time to b's.
func (r *race) ratio(a, b string, threads int) float64 {
	return r.lane(a, threads).ns().Over(r.lane(b, threads).ns()).Median()
}

// best names the fastest rival, and its time over stint's: below 1 it is faster.
func (r *race) best(threads int) (name string, ratio float64) {
	for _, l := range r.lanes {
		if l.threads != threads || !slices.ContainsFunc(contender.Rivals(), func(c contender.Contender) bool { return c.Name == l.Name }) {
			continue
		}
		if x := r.ratio(l.Name, contender.StintName, threads); name == "" || x < ratio {
			name, ratio = l.Name, x
		}
	}
	return name, ratio
}

// state says who of the rivals is fastest, and where that is faster than stint.
func (r *race) state(rep *Report, what string) {
	for _, n := range threads {
		name, ratio := r.best(n)
		rep.State(fmt.Sprintf("%s, %s: best rival (%s) / stint", what, on(n), name), ratio, " ×", ratio >= 1, "it is faster")
	}
}

const hotKey = "hot-key-16-bytes"

// HotAllowed is one key that every thread takes from, always admitted.
func HotAllowed(cfg Config, rep *Report) error {
	floor := contender.OneWord()
	r, err := newRace(contender.AlwaysAllowed, append([]contender.Contender{floor, contender.Stint()}, contender.Rivals()...))
	if err != nil {
		return err
	}
	defer r.close()
	if err := r.run(cfg, true, func(l *lane, _, n int) int { return l.limiter.Hot(hotKey, n) }); err != nil {
		return err
	}
	rep.Section("One hot key, allowed",
		"One key of 16 bytes, a limit that is never reached.",
		"The floor reads the clock and does one compare-and-swap on one word; it has no keys.",
		"On two threads, both take from the same key; ns are wall time per request over both.")
	r.write(rep, floor.Name)
	for _, n := range threads {
		rep.AtMost(fmt.Sprintf("hot key, allowed, %s: stint / floor", on(n)), r.ratio(contender.StintName, floor.Name, n), 1.25, " ×")
		rep.AtLeast(fmt.Sprintf("hot key, allowed, %s: x/time/rate / stint", on(n)), r.ratio(contender.XTimeName, contender.StintName, n), 2, " ×")
	}
	r.state(rep, "hot key, allowed")
	// A runtime that allocates for itself now and then shows as some millionths.
	rep.AtMost("hot key, allowed: stint's allocations per request", float64(int(r.lane(contender.StintName, 2).allocs()+0.01)), 0, "")
	return nil
}

// HotRefused is one key that is used up.
func HotRefused(cfg Config, rep *Report) error {
	floor := contender.ClockOnly()
	contenders := []contender.Contender{floor, contender.Stint()}
	for _, c := range contender.Rivals() {
		if !c.Blocks {
			contenders = append(contenders, c)
		}
	}
	r, err := newRace(contender.Refused, contenders)
	if err != nil {
		return err
	}
	defer r.close()
	for _, l := range r.lanes {
		l.limiter.Allow(hotKey)
	}
	if err := r.run(cfg, false, func(l *lane, _, n int) int { return l.limiter.Hot(hotKey, n) }); err != nil {
		return err
	}
	rep.Section("One hot key, refused",
		"The same key, used up for the day: what an attacker costs. The floor reads the clock and does nothing else.",
		"(uber/ratelimit waits instead of refusing.)")
	r.write(rep, floor.Name)
	rep.AtMost("hot key, refused, 2 threads: stint / clock read", r.ratio(contender.StintName, floor.Name, 2), 1.25, " ×")
	r.state(rep, "hot key, refused")
	return nil
}

// ManyKeys takes along a random walk over all keys.
func ManyKeys(cfg Config, rep *Report) error {
	floor, bare := contender.FlatTable(), contender.HashOnly()
	contenders := append([]contender.Contender{bare, floor, contender.Stint()}, contender.Rivals()...)
	r, err := newRace(contender.LongLived, contenders)
	if err != nil {
		return err
	}
	defer r.close()
	keys := contender.NewKeys(cfg.Keys)
	type strand struct { // one worker of one lane
		walk *contender.Walk
		seed uint64
		ops  int64
	}
	strands := make(map[*lane][]*strand)
	for i, l := range r.lanes {
		if l.Blocks { // at one per minute it would still be waiting
			if l.limiter, err = l.New(contender.AlwaysAllowed); err != nil {
				return err
			}
		}
		if l.threads == 1 {
			fill(l.limiter, keys)
		} else {
			l.limiter = r.lanes[i-1].limiter
		}
		for w := range l.threads {
			seed := uint64(i*len(threads) + w)
			strands[l] = append(strands[l], &strand{walk: contender.NewWalk(keys, seed), seed: seed})
		}
	}
	err = r.run(cfg, true, func(l *lane, worker, n int) int {
		s := strands[l][worker]
		s.ops += int64(n)
		return l.limiter.Spin(s.walk, n)
	})
	if err != nil {
		return err
	}
	fewest := cfg.Keys
	for _, l := range r.lanes {
		seen, distinct, ops := make([]bool, cfg.Keys), 0, int64(0)
		for _, s := range strands[l] {
			distinct += contender.NewWalk(keys, s.seed).Distinct(s.ops, seen)
			ops += s.ops
		}
		if want := expectDistinct(cfg.Keys, ops); float64(distinct) < 0.98*want {
			return fmt.Errorf("bench: %s met %d keys in %d requests, want about %.0f: the walk is not random", l.Name, distinct, ops, want)
		}
		fewest = min(fewest, distinct)
	}
	if fewest < cfg.Keys/20 {
		return fmt.Errorf("bench: a contender met only %d of %d keys: the walk was too short to say anything", fewest, cfg.Keys)
	}
	rep.Section(fmt.Sprintf("%d keys, random", cfg.Keys),
		"Keys of 16 bytes in one block, met in uniformly random order, all present and in use from the start; a limit that is never reached.",
		"The floor is a flat table of 16-byte slots that never grows, with the same hash, arithmetic and clock.",
		"The first row fetches and hashes the keys and does nothing else; its cache misses overlap, those behind a clock read do not.",
		fmt.Sprintf("Every contender met at least %d different keys while measured.", fewest))
	r.write(rep, floor.Name)
	rep.AtMost("many keys, 2 threads: stint / flat table", r.ratio(contender.StintName, floor.Name, 2), 1.3, " ×")
	name, best := r.best(2)
	rep.AtLeast(fmt.Sprintf("many keys, 2 threads: best rival (%s) / stint", name), best, 2, " ×")
	return nil
}

// expectDistinct is how many of n keys so many uniformly random steps meet.
func expectDistinct(n int, steps int64) float64 {
	return float64(n) * -math.Expm1(-float64(steps)/float64(n))
}

// fill takes once for every key, from two goroutines.
func fill(l contender.Limiter, keys *contender.Keys) {
	var both sync.WaitGroup
	for half := range 2 {
		both.Go(func() {
			for i := half; i < keys.Len(); i += 2 {
				l.Allow(keys.At(i))
			}
		})
	}
	both.Wait()
}
