package spending

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

const (
	// askBatch is how many questions are sent at once. Not more: the coordinator answers a batch without a pause.
	askBatch = 500
	// askFlights is how many batches of a shard are under way at a time, each of other keys: what is given back of a key
	// is there for the next question about it. Not fewer: one can be delayed by a follower. Not more: the longer they
	// wait, the larger and the cheaper they are.
	askFlights = 2
	// askPatience is how long a request waits for its answer. Not longer: its caller waits as well. Not shorter:
	// the coordinator waits for a follower for 300 ms.
	askPatience = 500 * time.Millisecond
	// givenUp is for how long nothing is asked of a coordinator that did not answer in time. Not longer: keys have
	// leases meanwhile. Not shorter: each request would wait for it once more.
	givenUp = time.Second
	// The coordinator takes nothing back while another server has a lease of the bucket, or while it still knows a lease
	// that was closed here. The tokens are then given back again after backAgain, after twice that, and so on.
	backAgain = time.Second
	backTries = 7
)

var errNoAnswer = errors.New("spending: the coordinator did not answer in time")

// Ask asks the coordinator of a shard, and returns one answer for each question. After an error it is not known
// whether something was taken.
type Ask func(ctx context.Context, shard int, asks []lease.Ask) ([]lease.Answer, error)

// asker asks coordinators about keys that come too seldom to have a lease: the questions of many requests go in one
// call. It does not know limits or charges, and takes from no lease. It is safe for concurrent use. Nil means that each
// key has a lease.
type asker struct {
	ask     Ask
	shardOf func(lease.ResourceID) int // nil = there is one shard
	back    func(id lease.ResourceID, cost int64, kept bool) (leased bool)
	queues  []askQueue // of each shard
	seed    maphash.Seed
	recent  recent
}

// newAsker returns an asker that asks by ask, or nil if ask is nil. back is called with what was given back:
// kept says that the bucket has a lease by then, so that it has not gone back to the coordinator. Otherwise it has, or may
// have. back reports whether this server has a lease of the bucket. If not it is called again after [asker.returning]
// has stopped counting the cost, so that a lease that was opened between the two has heard of it.
func newAsker(ask Ask, shards int, shardOf func(lease.ResourceID) int, back func(id lease.ResourceID, cost int64, kept bool) (leased bool)) *asker {
	if ask == nil {
		return nil
	}
	a := &asker{ask: ask, shardOf: shardOf, back: back, queues: make([]askQueue, max(1, shards)), seed: maphash.MakeSeed()}
	for i := range a.queues {
		a.queues[i].returning = map[lease.ResourceID]returning{}
		for k := range askFlights {
			a.queues[i].lines[k].wake = make(chan struct{}, 1)
		}
	}
	return a
}

// often counts a request for a key, and says whether it comes so often that it deserves a lease.
func (a *asker) often(now limit.Time, key []byte) bool { return a.recent.often(a.seed, now, key) }

// queue returns where questions about a resource wait: the queue of its shard, and the line in it.
func (a *asker) queue(id lease.ResourceID) (q *askQueue, line int) {
	shard := 0
	if a.shardOf != nil {
		shard = min(a.shardOf(id), len(a.queues)-1)
	}
	return &a.queues[shard], int(maphash.String(a.seed, id.Key) % askFlights)
}

// shortfall says that a bucket lacked at least so many tokens of its burst at a time. The zero value says nothing.
type shortfall struct {
	tokens int64
	at     time.Time
}

// giveBack puts back what was taken and not used, before what is asked later about the same resource. It does not wait.
// short is what is known of the bucket from when the cost was taken.
func (a *asker) giveBack(id lease.ResourceID, cost int64, short shortfall) {
	q, line := a.queue(id)
	q.put(line, &question{ask: lease.Ask{Resource: id, Cost: -fixed.Whole(cost)}, short: short})
}

// returning is how much giveBack puts back of a resource that the coordinator has not answered yet, and how much its
// bucket was short of when the latest of that was taken.
func (a *asker) returning(id lease.ResourceID) (cost int64, short shortfall) {
	if a == nil {
		return 0, shortfall{}
	}
	q, _ := a.queue(id)
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.returning[id]
	return r.cost, r.short
}

// askQueue is what is to be asked of a shard. Each key has its line, of which one batch after the other is under way.
type askQueue struct {
	mu        sync.Mutex
	lines     [askFlights]askLine
	returning map[lease.ResourceID]returning // until it is answered
	open      bool
	until     time.Time // nothing is asked before
}

// returning is what is given back of a resource, and what the bucket lacked when the latest of it was taken.
type returning struct {
	cost  int64
	short shortfall
}

type askLine struct {
	waiting []*question
	later   []*question // given back again when they are due
	wake    chan struct{}
}

// question is one of a request, or gives back.
type question struct {
	ask      lease.Ask
	short    shortfall // with what it gives back
	tries    int       // how often it was given back in vain
	due      time.Time // when it is given back again
	answer   lease.Answer
	err      error
	done     chan struct{}      // nil = nobody waits for the answer
	answered func(lease.Answer) // nil = nothing; called with the answer, if there is one
	mu       sync.Mutex
	left     bool   // nobody waits any more
	unused   func() // called when it was admitted then
	ended    bool
}

// run asks until ctx ends.
func (a *asker) run(ctx context.Context) {
	var wg sync.WaitGroup
	for i := range a.queues {
		q := &a.queues[i]
		q.mu.Lock()
		q.open = true
		q.mu.Unlock()
		for k := range askFlights {
			wg.Go(func() { a.serve(ctx, i, k) })
		}
	}
	wg.Wait()
	for i := range a.queues {
		q := &a.queues[i]
		q.mu.Lock()
		q.open = false
		var left []*question
		for k := range q.lines {
			left = append(left, q.lines[k].waiting...)
			q.lines[k].waiting, q.lines[k].later = nil, nil
		}
		q.mu.Unlock()
		for _, one := range left {
			one.end(lease.Answer{}, ctx.Err())
		}
	}
}

func (a *asker) serve(ctx context.Context, shard, line int) {
	q := &a.queues[shard]
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		case <-q.lines[line].wake:
		}
		if due := q.repeat(line); !due.IsZero() {
			again.Reset(time.Until(due))
		}
		questions := q.take(line)
		if len(questions) == 0 {
			continue
		}
		asks := make([]lease.Ask, 0, len(questions)) // not used again: one that is late may still be read
		for _, one := range questions {
			asks = append(asks, one.ask)
		}
		asking, cancel := context.WithTimeout(ctx, 2*askPatience)
		answers, err := a.ask(asking, shard, asks)
		cancel()
		if err == nil && len(answers) != len(asks) {
			err = fmt.Errorf("spending: %d answers to %d questions", len(answers), len(asks))
		}
		for i, one := range questions {
			var answer lease.Answer
			if err == nil {
				answer = answers[i]
			}
			switch id := one.ask.Resource; {
			case one.ask.Cost < 0:
				n, kept := -one.ask.Cost.Floor(), err == nil && !answer.Decided
				leased := a.back(id, n, kept)
				q.returned(id, n) // only now, so that it never counts less than it is
				if !leased && !a.back(id, n, kept) && kept {
					q.putLater(line, one)
				}
			case one.answered != nil && err == nil:
				one.answered(answer)
			}
			if unused := one.end(answer, err); unused {
				one.unused()
			}
		}
	}
}

// take returns the questions of a batch.
func (q *askQueue) take(line int) []*question {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := &q.lines[line]
	n := min(len(l.waiting), askBatch)
	batch := l.waiting[:n:n]
	if l.waiting = l.waiting[n:]; len(l.waiting) == 0 {
		l.waiting = nil
	} else {
		l.wakeUp()
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
func (q *askQueue) put(line int, one *question) (ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.open || one.done != nil && time.Now().Before(q.until) {
		return false
	}
	l := &q.lines[line]
	q.insert(l, one)
	l.wakeUp()
	return true
}

// putLater has what was given back in vain be given back again.
func (q *askQueue) putLater(line int, one *question) {
	if one.tries++; one.tries > backTries {
		return
	}
	one.due = time.Now().Add(backAgain << (one.tries - 1))
	q.mu.Lock()
	defer q.mu.Unlock()
	l := &q.lines[line]
	l.later = append(l.later, one)
	l.wakeUp() // repeat sets the timer
}

// repeat puts what is due in the line again, and returns when the next is due; the zero time if there is none.
func (q *askQueue) repeat(line int) (next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l, now := &q.lines[line], time.Now()
	l.later = slices.DeleteFunc(l.later, func(one *question) bool {
		if one.due.After(now) {
			if next.IsZero() || one.due.Before(next) {
				next = one.due
			}
			return false
		}
		q.insert(l, one)
		return true
	})
	return next
}

// insert puts a question in a line; q.mu is held.
func (q *askQueue) insert(l *askLine, one *question) {
	if n := -one.ask.Cost.Floor(); n > 0 {
		r := q.returning[one.ask.Resource]
		r.cost += n
		if one.short.tokens > 0 {
			r.short = one.short
		}
		q.returning[one.ask.Resource] = r
	}
	l.waiting = append(l.waiting, one)
}

// returned says that n has been answered.
func (q *askQueue) returned(id lease.ResourceID, n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.returning[id]
	if r.cost -= n; r.cost > 0 {
		r.short.tokens -= n
		q.returning[id] = r
	} else {
		delete(q.returning, id)
	}
}

func (l *askLine) wakeUp() {
	select {
	case l.wake <- struct{}{}:
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

// decide asks for one request, and waits for the answer, at most askPatience. An error says that it is not known whether
// something was taken; what was, without a caller that waits, goes back.
//
// An answer is passed to answered first, unless that is nil, in the order of all questions about the resource, and also
// when nobody waits any more.
func (a *asker) decide(ctx context.Context, id lease.ResourceID, cost int64, peek bool, answered func(lease.Answer)) (lease.Answer, error) {
	short := shortfall{tokens: cost, at: time.Now()}
	one := &question{
		ask: lease.Ask{Resource: id, Cost: fixed.Whole(cost), Peek: peek}, done: make(chan struct{}), answered: answered,
		unused: func() { a.giveBack(id, cost, short) },
	}
	q, line := a.queue(id)
	if !q.put(line, one) {
		return lease.Answer{}, errNoAnswer
	}
	late := time.NewTimer(askPatience)
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
