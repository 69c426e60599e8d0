package redis

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// TestDifferential drives a real server with random requests, several at a time, under random
// policies, costs and times, and compares every answer with package limit's. Among the requests
// scripts are flushed, policies change, and the store and the server restart with the data kept.
//
// A million steps for each algorithm:
//
//	STINT_STEPS=1000000 go test ./store/redis -run 'TestDifferential$' -timeout 30m -v
//
// A difference names its seed; STINT_SEED=<seed> begins with that history.
func TestDifferential(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	steps, seed := environment(t, "STINT_STEPS", 4000), environment(t, "STINT_SEED", 1+rand.IntN(1e9))
	for _, name := range limit.AlgorithmNames() {
		algorithm, err := limit.ParseAlgorithm(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			h := newHistory(t, nil)
			h.upheavals = []int{steps / 5, steps * 2 / 5, steps * 3 / 5, steps * 4 / 5}
			for n := 0; h.steps < steps && !t.Failed(); n++ {
				h.seed = uint64(seed + n)
				h.r = rand.New(rand.NewPCG(h.seed, uint64(algorithm)))
				h.run(algorithm, min(400, steps-h.steps))
			}
			t.Logf("%d steps, %d runs of the script, %d refusals answered here, %d admitted, %d refused", h.steps, h.calls, h.local, h.admitted, h.refused)
			if h.admitted < h.steps/20 || h.refused < h.steps/20 {
				t.Errorf("of %d steps %d were admitted and %d refused: the histories are one-sided", h.steps, h.admitted, h.refused)
			}
		})
	}
}

func environment(t *testing.T, name string, or int) int {
	text := os.Getenv(name)
	if text == "" {
		return or
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s is no positive number", name, text)
	}
	return n
}

// history is one store, its server and the clock of both, and a few limits by the
// book.
type history struct {
	*testing.T
	server *redistest.Server
	store  *Store
	lane   *lane
	clock  atomic.Int64
	r      *rand.Rand
	seed   uint64
	name   string
	limits []*limitByBook
	last   limit.Verdict // of the last request
	again  *request      // what was asked last

	steps             int
	admitted, refused int
	calls, local      uint64 // of stores that are closed
	upheavals         []int  // before which steps something begins anew
	left              bool   // this history has left the range in which Redis is exact
}

// limitByBook is one limit and a few of its keys.
type limitByBook struct {
	id       string
	counters store.Counters
	keys     [3]*model
}

func newHistory(t *testing.T, r *rand.Rand) *history {
	h := &history{T: t, server: redistest.Start(t), r: r}
	h.clock.Store(1_700_000_000_123_456_000)
	h.open()
	return h
}

func (h *history) now() limit.Time { return limit.Time(h.clock.Load()) }

// open opens a store. Keys outlive its clock, which runs ahead of the server's.
func (h *history) open() {
	h.store = connected(h.T, Options{Addrs: []string{h.server.Addr()}, Timeout: patient}, h.now)
	h.store.hold = 1e12
	h.lane = laneBeside(h.store)
}

// begin begins with new limits of these policies.
func (h *history) begin(name string, policies ...limit.Policy) {
	h.Helper()
	for _, l := range h.limits {
		if err := h.store.Unbind(l.counters); err != nil {
			h.Fatal(err)
		}
	}
	h.name, h.limits = name, nil
	for i, p := range policies {
		l := &limitByBook{id: fmt.Sprintf("%s-%d-%d", name, h.seed, i)}
		for k := range l.keys {
			l.keys[k] = &model{policy: p}
		}
		h.bindTo(l, p)
		h.limits = append(h.limits, l)
	}
}

func (h *history) bindTo(l *limitByBook, p limit.Policy) {
	h.Helper()
	var err error
	if l.counters, err = h.store.Bind(store.Spec{ID: l.id, Policy: p}); err != nil {
		h.Fatalf("Bind(%+v): %v", p, err)
	}
}

func keyNumber(k int) []byte { return store.AppendKey(nil, strconv.Itoa(k)) }

func (h *history) charge(l *limitByBook, k int, cost int64) store.Charge {
	return store.Charge{Counters: l.counters, Key: keyNumber(k), Cost: cost}
}

// modelsOf returns the model of each charge.
func (h *history) modelsOf(charges []store.Charge) []*model {
	models := make([]*model, len(charges))
	for i := range charges {
		for _, l := range h.limits {
			for k := range l.keys {
				if l.counters == charges[i].Counters && string(keyNumber(k)) == string(charges[i].Key) {
					models[i] = l.keys[k]
				}
			}
		}
	}
	return models
}

// run draws one history of steps requests.
func (h *history) run(algorithm limit.Algorithm, steps int) {
	h.clock.Store([]int64{1_700_000_000_123_456_000, 1_000_000_000, 3_000_000_000_000_000_000}[h.r.IntN(3)] + h.r.Int64N(1e9)*1000)
	policies := []limit.Policy{drawPolicy(h.r, algorithm)}
	for h.r.IntN(2) == 0 && len(policies) < 4 {
		policies = append(policies, drawPolicy(h.r, limit.Algorithm(h.r.IntN(6))))
	}
	h.begin(algorithm.String(), policies...)
	h.forget()
	h.left = false
	for end := h.steps + steps; h.steps < end && !h.Failed() && !h.left; {
		if len(h.upheavals) > 0 && h.steps >= h.upheavals[0] {
			h.upheavals = h.upheavals[1:]
			h.upheave()
		}
		if h.r.IntN(200) == 0 {
			h.server.Do("SCRIPT", "FLUSH")
		}
		h.pause()
		n := 1
		switch h.r.IntN(8) {
		case 0, 1, 2, 3:
			n = 2 + h.r.IntN(12)
		case 4:
			n = 2 + h.r.IntN(100)
		}
		h.drawRound(min(n, end-h.steps))
		for n == 1 && h.r.IntN(3) > 0 && h.steps < end {
			// One after the other, as an impatient client asks.
			h.clock.Add(int64(h.r.IntN(3)) * 1000)
			h.round([]*request{h.again.clone()})
		}
	}
}

// upheave begins with a new store, and every other time with a new server as well.
func (h *history) upheave() {
	h.Helper()
	stats := h.store.Stats()
	h.calls, h.local = h.calls+stats.Calls, h.local+stats.LocalRefusals
	policies := make([]limit.Policy, len(h.limits))
	for i, l := range h.limits {
		policies[i] = l.counters.Spec().Policy
	}
	if err := h.store.Close(); err != nil {
		h.Fatal(err)
	}
	if len(h.upheavals)%2 == 0 {
		h.server.Do("SAVE")
		h.server.Restart()
	}
	h.open()
	for i, l := range h.limits {
		h.bindTo(l, policies[i])
	}
}

// pause moves the clock: not at all, a step, to about where something changes,
// far, or back.
func (h *history) pause() {
	now, r := h.clock.Load(), h.r
	p := h.limits[r.IntN(len(h.limits))].counters.Spec().Policy
	period := max(int64(p.Rate.Period), int64(p.Timeout), 1000)
	near := (r.Int64N(3) - 1) * 1000
	switch r.IntN(12) {
	case 0, 1:
	case 2:
		now += 1000
	case 3, 4, 5:
		if h.last.RetryAfter < limit.Never {
			now += int64(h.last.RetryAfter) + near
		}
	case 6:
		if h.last.ResetAfter < limit.Never {
			now += int64(h.last.ResetAfter) + near
		}
	case 7:
		now += period - now%period + near
	case 8:
		now += r.Int64N(min(2*period, 1<<61))
	case 9:
		now += min(period, 1<<60) / (1 + r.Int64N(20))
	case 10:
		now += min(10*min(period, 1<<58), 1<<60) * r.Int64N(2)
	case 11:
		if r.IntN(4) == 0 {
			now -= r.Int64N(min(2*period, 1<<50))
		}
	}
	if now < h.clock.Load() {
		h.forget()
	}
	if now <= 4_500_000_000_000_000_000 { // beyond it what package limit adds up saturates
		h.clock.Store(max(now, 1_000_000_000) / 1000 * 1000)
	}
}

// forget drops the refusals that the store remembers. Those of a time that the clock
// has gone back to are younger than theirs, and are not learnt.
func (h *history) forget() {
	for i := range h.store.denials.shards {
		sh := &h.store.denials.shards[i]
		sh.mu.Lock()
		clear(sh.states)
		sh.freed = 0
		sh.mu.Unlock()
	}
}

// drawRound draws n requests at one time, and has them decided: a single one by the
// store's methods, several in one batch.
func (h *history) drawRound(n int) {
	var all []*request
	for len(all) < n {
		if h.r.IntN(100) == 0 {
			// A policy changes, even within a batch.
			if len(all) > 0 {
				h.round(all)
				n -= len(all)
				all = nil
			}
			l := h.limits[h.r.IntN(len(h.limits))]
			h.bindTo(l, drawPolicy(h.r, heir(h.r, l.counters.Spec().Policy.Algorithm)))
		}
		q := h.draw()
		for again := 1; len(all) < n && again > 0; again-- {
			all = append(all, q.clone())
			if h.r.IntN(3) == 0 {
				again += h.r.IntN(6)
			}
		}
	}
	h.again = all[len(all)-1]
	h.round(all)
}

// heir is an algorithm that reads the states of another.
func heir(r *rand.Rand, a limit.Algorithm) limit.Algorithm {
	if a <= limit.LeakyBucket {
		return limit.Algorithm(r.IntN(2))
	}
	return a
}

// draw draws one request.
func (h *history) draw() *request {
	r := h.r
	q, counts := &request{verb: verbTake}, false
	switch r.IntN(16) {
	case 0:
		q.verb = verbPeek
	case 1:
		q.verb = verbRefund
	case 2:
		q.verb = verbFinish
	case 3:
		if r.IntN(4) == 0 {
			q.verb = verbReset
		}
	}
	n := 1
	if r.IntN(4) == 0 {
		n = 1 + r.IntN(4)
	}
	for range n {
		l := h.limits[0]
		if r.IntN(4) == 0 {
			l = h.limits[r.IntN(len(h.limits))]
		}
		c := h.charge(l, min(r.IntN(4), 2), h.cost(l))
		c.Permit, c.Shadow = r.Uint64N(8), r.IntN(6) == 0
		c.Keep = q.verb == verbFinish && r.IntN(2) == 0
		if r.IntN(32) == 0 {
			c.Permit = 1<<64 - 1
		}
		h.options(l, &c)
		counts = counts || c.CountRefused || l.counters.Spec().Policy.CountRefused
		q.charges = append(q.charges, c)
	}
	for i := range q.charges {
		if c := &q.charges[i]; counts { // charges on one bucket add up
			c.Cost = boundedCost(c.Counters.Spec().Policy, c.Cost)
		}
	}
	q.models = h.modelsOf(q.charges)
	return q
}

func (h *history) cost(l *limitByBook) int64 {
	r, p := h.r, l.counters.Spec().Policy
	quota := p.Quota()
	var cost int64
	switch r.IntN(12) {
	case 0:
		cost = 0
	case 1, 2:
		cost = r.Int64N(12)
	case 3:
		cost = 1 << r.IntN(63)
	case 4:
		cost = quota + r.Int64N(3) - 1
	case 5:
		cost = h.last.Remaining + r.Int64N(3) - 1
	case 6, 7:
		cost = quota / (1 + r.Int64N(8))
	case 8:
		if cost = 1; r.IntN(8) == 0 {
			cost = limit.MaxCount
		}
	default:
		cost = 1
	}
	if p.CountRefused {
		return boundedCost(p, cost)
	}
	return min(max(cost, 0), limit.MaxCount)
}

// options draws whether a charge counts though it is refused, and whether it brings a
// quota of its own.
func (h *history) options(l *limitByBook, c *store.Charge) {
	p := l.counters.Spec().Policy
	if h.r.IntN(5) == 0 {
		c.CountRefused = true
	}
	if p.Algorithm == limit.FixedWindow && h.r.IntN(4) == 0 {
		c.Quota, c.HasQuota = drawCount(h.r), true
		if h.r.IntN(2) == 0 {
			c.Quota = h.r.Int64N(20)
		}
	}
}

// boundedCost is a cost that may pile up: counts stop at 2^51, and debts in 2112.
func boundedCost(p limit.Policy, cost int64) int64 {
	cost = min(max(cost, 0), 1<<40)
	if r, err := newRule(p); err == nil && r.kind == kindBucket {
		for cost > 0 {
			if whole, _ := r.ticks(uint64(cost)); whole < 1<<36 {
				break
			}
			cost /= 2
		}
	}
	return cost
}

// round has requests decided at the same time and compares.
func (h *history) round(all []*request) {
	h.Helper()
	before := make([]string, 0, len(all))
	ops := make([]*operation, len(all))
	for i, q := range all {
		q.expect(h.now())
		if len(all) > 1 {
			ops[i] = q.operation(h.store)
		}
	}
	if len(all) > 1 {
		together(h.lane, append([]*operation(nil), ops...))
	}
	for _, q := range all {
		for _, m := range q.models {
			m.settled()
		}
	}
	for i, q := range all {
		var allowed bool
		var err error
		if o := ops[i]; o != nil {
			if allowed, err = o.allowed, o.err; err == nil && q.want != nil {
				o.answer(q.charges)
			}
			o.release()
		} else {
			allowed, err = q.ask(h.store)
		}
		h.steps++
		before = append(before, fmt.Sprintf("%d %+v", q.verb, costsOf(q)))
		if !h.same(q, allowed, err) {
			h.Fatalf("seed %d, step %d, request %d of %d at %d\nall: %v", h.seed, h.steps, i, len(all), h.now(), before)
		}
	}
}

func costsOf(q *request) []int64 {
	var costs []int64
	for i := range q.charges {
		costs = append(costs, q.charges[i].Cost)
	}
	return costs
}

// same compares one answer with the book's.
func (h *history) same(q *request, allowed bool, err error) bool {
	h.Helper()
	if err != nil {
		h.Errorf("verb %d: %v", q.verb, err)
		h.describe(q)
		return false
	}
	if q.want == nil {
		return true
	}
	if q.allowed {
		h.admitted++
	} else {
		h.refused++
	}
	ok := allowed == q.allowed
	for i := range q.charges {
		if kind := q.charges[i].Counters.Spec().Policy.Algorithm; kind <= limit.LeakyBucket && q.want[i].ResetAfter > untilOwed(h.now()) {
			h.left = true
		}
		ok = ok && (h.left || q.charges[i].Verdict == q.want[i])
		h.last = q.want[i]
	}
	if !ok {
		h.Errorf("verb %d: admitted %v, want %v", q.verb, allowed, q.allowed)
		h.describe(q)
	}
	return ok
}

// untilOwed is the time from now to 2^53 microseconds, in the year 2255, where what is refused and counted makes no more debt
// in Redis.
func untilOwed(now limit.Time) time.Duration { return time.Duration(1<<53*1000 - int64(now)) }

// describe logs the charges that differ, the first of them.
func (h *history) describe(q *request) {
	h.Helper()
	logged := 0
	for i, c := range q.charges {
		if q.want != nil && c.Verdict == q.want[i] || logged == 5 {
			continue
		}
		logged++
		h.Logf("charge %s %q cost %d permit %d shadow %v under %+v", c.Counters.Spec().ID, c.Key, c.Cost, c.Permit, c.Shadow, c.Counters.Spec().Policy)
		if q.want != nil {
			h.Logf("\n got %+v\nwant %+v", c.Verdict, q.want[i])
		}
	}
}
