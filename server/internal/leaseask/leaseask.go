// Package leaseask asks coordinators about keys that come too seldom to have a lease: the questions of many requests go in
// one call. It knows neither limits nor charges, and takes from no lease.
package leaseask

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

const (
	// batch is how many questions are sent at once. Not more: the coordinator answers a batch without a pause.
	batch = 500
	// flights is how many batches of a shard are under way at a time. Not fewer: one can be delayed by a
	// follower. Not more: the longer they wait, the larger and the cheaper they are.
	flights = 2
	// Patience is how long a request waits for its answer. Not longer: its caller waits as well. Not shorter:
	// the coordinator waits for a follower for 300 ms.
	Patience = 500 * time.Millisecond
	// givenUp is for how long nothing is asked of a coordinator that did not answer in time. Not longer: keys have
	// leases meanwhile. Not shorter: each request would wait for it once more.
	givenUp = time.Second
)

var errNoAnswer = errors.New("leaseask: the coordinator did not answer in time")

// Ask asks the coordinator of a shard, and returns one answer for each question. After an error it is not known
// whether something was taken.
type Ask func(ctx context.Context, shard int, asks []lease.Ask) ([]lease.Answer, error)

// Asking is how keys without a lease are decided. It is safe for concurrent use; the zero value decides none.
type Asking struct {
	asker   *asker // nil = each key has a lease
	shardOf func(lease.ResourceID) int
	seed    maphash.Seed
	recent  *recent
	kept    func(id lease.ResourceID, cost int64)
}

// New returns one that asks by ask; nil = it decides none. kept is called with what was given back of a
// bucket of which there is a lease by then.
func New(ask Ask, shards int, shardOf func(lease.ResourceID) int, kept func(lease.ResourceID, int64)) Asking {
	if ask == nil {
		return Asking{}
	}
	return Asking{asker: newAsker(ask, shards), shardOf: shardOf, seed: maphash.MakeSeed(), recent: new(recent), kept: kept}
}

// Asks reports whether keys are asked for; else each has a lease.
func (a *Asking) Asks() bool { return a.asker != nil }

// Run asks until ctx ends.
func (a *Asking) Run(ctx context.Context) { a.asker.run(ctx) }

// Often counts a request for a key, and says whether it comes so often that it deserves a lease.
func (a *Asking) Often(now limit.Time, key []byte) bool { return a.recent.often(a.seed, now, key) }

// shard returns which coordinator has a resource.
func (a *Asking) shard(id lease.ResourceID) int {
	if a.shardOf == nil {
		return 0
	}
	return min(a.shardOf(id), len(a.asker.queues)-1)
}

// GiveBack puts back what was taken and not used. It does not wait.
func (a *Asking) GiveBack(id lease.ResourceID, cost int64) {
	a.asker.queues[a.shard(id)].put(&question{
		ask: lease.Ask{Resource: id, Cost: -fixed.Whole(cost)}, leased: func() { a.kept(id, cost) },
	})
}

// asker asks for many requests at once. It is safe for concurrent use.
type asker struct {
	ask    Ask
	queues []askQueue // of each shard
}

// askQueue is what is to be asked of a shard.
type askQueue struct {
	mu      sync.Mutex
	waiting []*question
	open    bool
	until   time.Time // nothing is asked before
	wake    chan struct{}
}

// question is one of a request.
type question struct {
	ask    lease.Ask
	answer lease.Answer
	err    error
	done   chan struct{} // nil = nobody waits for the answer
	leased func()        // nil = nothing; called when there is a lease of the bucket
	mu     sync.Mutex
	left   bool   // nobody waits any more
	unused func() // called when it was admitted then
	ended  bool
}

func newAsker(ask Ask, shards int) *asker {
	a := &asker{ask: ask, queues: make([]askQueue, max(1, shards))}
	for i := range a.queues {
		a.queues[i].wake = make(chan struct{}, 1)
	}
	return a
}

// run asks until ctx ends.
func (a *asker) run(ctx context.Context) {
	var wg sync.WaitGroup
	for i := range a.queues {
		q := &a.queues[i]
		q.mu.Lock()
		q.open = true
		q.mu.Unlock()
		for range flights {
			wg.Go(func() { a.serve(ctx, i, q) })
		}
	}
	wg.Wait()
	for i := range a.queues {
		q := &a.queues[i]
		q.mu.Lock()
		q.open = false
		left := q.waiting
		q.waiting = nil
		q.mu.Unlock()
		for _, one := range left {
			one.end(lease.Answer{}, ctx.Err())
		}
	}
}

func (a *asker) serve(ctx context.Context, shard int, q *askQueue) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		}
		questions := q.take()
		if len(questions) == 0 {
			continue
		}
		asks := make([]lease.Ask, 0, len(questions)) // not used again: one that is late may still be read
		for _, one := range questions {
			asks = append(asks, one.ask)
		}
		asking, cancel := context.WithTimeout(ctx, 2*Patience)
		answers, err := a.ask(asking, shard, asks)
		cancel()
		if err == nil && len(answers) != len(asks) {
			err = fmt.Errorf("leaseask: %d answers to %d questions", len(answers), len(asks))
		}
		for i, one := range questions {
			var answer lease.Answer
			if err == nil {
				answer = answers[i]
			}
			if unused := one.end(answer, err); unused {
				one.unused()
			} else if one.leased != nil && err == nil && !answer.Decided {
				one.leased()
			}
		}
	}
}

// take returns the questions of a batch.
func (q *askQueue) take() []*question {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), batch)
	batch := q.waiting[:n:n]
	if q.waiting = q.waiting[n:]; len(q.waiting) == 0 {
		q.waiting = nil
	} else {
		q.wakeUp()
	}
	return batch
}

// giveUp has nothing be asked for a while.
func (q *askQueue) giveUp() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.until = time.Now().Add(givenUp)
}

// put adds a question; ok is false when nobody asks, or not now. What is given back is not lost for that.
func (q *askQueue) put(one *question) (ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.open || one.done != nil && time.Now().Before(q.until) {
		return false
	}
	q.waiting = append(q.waiting, one)
	q.wakeUp()
	return true
}

func (q *askQueue) wakeUp() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// end takes the answer. unused says that it admits a request that does not wait any more.
func (one *question) end(answer lease.Answer, err error) (unused bool) {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.answer, one.err, one.ended = answer, err, true
	if one.done != nil {
		close(one.done)
	}
	return one.left && answer.Admitted && !one.ask.Peek && one.ask.Cost > 0
}

// leave says that nobody waits any more; ok is false if the answer has come.
func (one *question) leave() (ok bool) {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.left = true
	return !one.ended
}

// Decide asks for one request, and waits for the answer, at most [Patience]. An error says that it is not known whether
// something was taken; what was, without a caller that waits, goes back.
func (a *Asking) Decide(ctx context.Context, id lease.ResourceID, cost int64, peek bool) (lease.Answer, error) {
	one := &question{
		ask: lease.Ask{Resource: id, Cost: fixed.Whole(cost), Peek: peek}, done: make(chan struct{}), unused: func() { a.GiveBack(id, cost) },
	}
	q := &a.asker.queues[a.shard(id)]
	if !q.put(one) {
		return lease.Answer{}, errNoAnswer
	}
	late := time.NewTimer(Patience)
	defer late.Stop()
	err := errNoAnswer
	select {
	case <-one.done:
		return one.answer, one.err
	case <-late.C:
		q.giveUp()
	case <-ctx.Done():
		err = ctx.Err()
	}
	if !one.leave() {
		return one.answer, one.err
	}
	return lease.Answer{}, err
}
