// Package budgets runs streams of a language model against a budget in virtual time: how much is overspent and how
// much is left unused when the cost of a request is known only at its end, many run at a time, and a gateway crashes.
//
// The ways that are ours are the engine, the store and the reservations that ship. The others are models of what
// their sources do.
package budgets

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/sim/internal/agenda"
)

// Scenario is what happens. The zero value is of no use.
type Scenario struct {
	Budget    int64   // tokens in the window, which is longer than the run
	Streams   int     // at a time
	MaxTokens int64   // that each declares
	Median    float64 // tokens of an answer
	Sigma     float64 // of its logarithm
	Rate      float64 // tokens a second of one stream
	Piece     int64   // tokens that a gateway says it will send before it sends them; 0 = it says nothing before the end
	CrashAt   float64 // share of the budget at whose use half of the streams lose their gateway; 0 = none does
	Seed      uint64
}

// Result is what came of it.
type Result struct {
	Overspend float64 // what was spent above the budget, as a share of it
	Use       float64 // what was spent of the budget, as a share of it
	Early     int     // attempts refused while less than 98 % of the budget was spent
	Admitted  int     // streams
}

// A Way decides streams. id names one to End; estimated is what it has asked for.
type Way interface {
	Begin(declared int64) (id string, estimated int64, ok bool, err error)
	// Renew says that a stream has used so much, or will in a moment.
	Renew(id string, used int64) error
	End(id string, declared, estimated, actual int64) error
	// Tick is called every second of virtual time.
	Tick() error
}

// New makes a way for a budget, by the clock of a run.
type New func(budget int64, now func() limit.Time) (Way, error)

// run is a run of a scenario.
type run struct {
	Scenario
	way      Way
	rnd      *rand.Rand
	heap     agenda.Heap[func() error]
	seq      uint64
	now      limit.Time
	running  map[int]*stream
	next     int
	spent    int64
	result   Result
	crashed  bool
	admitted limit.Time // when a stream was the last time
}

type stream struct {
	id                string
	estimated, length int64
	began             limit.Time
}

const (
	retry   = time.Second
	patient = 10 * time.Minute // nothing is admitted for so long: the run is over
)

// Simulate runs a scenario.
func Simulate(s Scenario, create New) (Result, error) {
	r := &run{Scenario: s, rnd: rand.New(rand.NewPCG(s.Seed, 33)), running: map[int]*stream{}, now: limit.At(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC))}
	r.admitted = r.now
	var err error
	if r.way, err = create(s.Budget, func() limit.Time { return r.now }); err != nil {
		return Result{}, err
	}
	for i := range s.Streams {
		// Not all at one moment: half of a second apart.
		r.in(time.Duration(i)*time.Second/2/time.Duration(s.Streams), r.begin)
	}
	r.in(retry, r.tick)
	for len(r.heap) > 0 {
		e := r.heap.Pop()
		r.now = limit.Time(e.At)
		if err := e.Of(); err != nil {
			return Result{}, err
		}
	}
	r.result.Overspend = max(0, float64(r.spent-s.Budget)/float64(s.Budget))
	r.result.Use = min(1, float64(r.spent)/float64(s.Budget))
	return r.result, nil
}

func (r *run) in(d time.Duration, do func() error) {
	r.seq++
	r.heap.Push(agenda.Event[func() error]{At: int64(r.now.Add(d)), Seq: r.seq, Of: do})
}

func (r *run) over() bool { return r.now > r.admitted.Add(patient) }

func (r *run) tick() error {
	if r.over() {
		return nil
	}
	r.in(retry, r.tick)
	return r.way.Tick()
}

func (r *run) begin() error {
	if r.over() {
		return nil
	}
	id, estimated, ok, err := r.way.Begin(r.MaxTokens)
	if err != nil {
		return err
	}
	if !ok {
		if r.spent < r.Budget-r.Budget/50 {
			r.result.Early++
		}
		r.in(retry, r.begin)
		return nil
	}
	r.result.Admitted++
	r.admitted = r.now
	length := int64(min(max(1, r.Median*math.Exp(r.Sigma*r.rnd.NormFloat64())), float64(r.MaxTokens)))
	n := r.next
	r.next++
	r.running[n] = &stream{id, estimated, length, r.now}
	if r.Piece > 0 {
		if err := r.renew(n, 0); err != nil {
			return err
		}
	}
	r.in(time.Duration(float64(length)/r.Rate*float64(time.Second)), func() error { return r.end(n) })
	return nil
}

// renew says that a stream, which has sent so much, will send a piece more. Its gateway does not know where it ends.
func (r *run) renew(n int, sent int64) error {
	s := r.running[n]
	if s == nil {
		return nil // it has ended, or its gateway has crashed
	}
	used := min(sent+r.Piece, r.MaxTokens)
	if used < r.MaxTokens {
		r.in(time.Duration(float64(r.Piece)/r.Rate*float64(time.Second)), func() error { return r.renew(n, used) })
	}
	return r.way.Renew(s.id, used)
}

func (r *run) end(n int) error {
	s := r.running[n]
	if s == nil {
		return nil // its gateway has crashed
	}
	delete(r.running, n)
	r.spent += s.length
	if err := r.way.End(s.id, r.MaxTokens, s.estimated, s.length); err != nil {
		return err
	}
	if !r.crashed && r.CrashAt > 0 && float64(r.spent) > r.CrashAt*float64(r.Budget) {
		r.crash()
	}
	return r.begin()
}

// crash cuts every other stream. What it has sent is spent, and nobody says so; its client comes again.
func (r *run) crash() {
	r.crashed = true
	for n := range r.next {
		s := r.running[n]
		if s == nil || n%2 == 0 {
			continue
		}
		delete(r.running, n)
		r.spent += min(s.length, int64(float64(r.now-s.began)/float64(time.Second)*r.Rate))
		r.in(retry, r.begin)
	}
}
