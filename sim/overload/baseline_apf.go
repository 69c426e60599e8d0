package overload

import (
	"cmp"
	"math"

	"github.com/stint-io/stint/internal/traffic"
)

// APF is our model of API priority and fairness of Kubernetes: each class is a priority level with
// an equal part of the seats, and its own queues. A flow (a user) is dealt a hand of queues by its
// hash (8 of 64, as is the default) and joins the shortest; queues are served by virtual time, a seat for as long as a request
// runs. A queue that is full refuses. Seats are not borrowed between classes.
type APF struct{ Tuning }

// apfLength is how many wait in a queue, by default.
const apfLength = 50

// Name is that of the table.
func (a APF) Name() string { return a.name("apf") }

// dealHand deals distinct queues by the digits of a hash.
func dealHand(hash uint64, queues, size int, hand []int) []int {
	hand = hand[:0]
	for i := range size {
		left := uint64(queues - i)
		card := int(hash % left)
		hash /= left
		// card counts among those that are not in the hand, which is in order.
		at := 0
		for at < len(hand) && card >= hand[at] {
			card++
			at++
		}
		hand = append(hand, 0)
		copy(hand[at+1:], hand[at:])
		hand[at] = card
	}
	return hand
}

// fairQueues is a priority level.
type fairQueues struct {
	queues  []fairQueue
	seats   int
	running int
	virtual float64 // seat-seconds for each queue that has something
	at      int64
	turn    int
	hand    []int
	size    int
	length  int
	guess   float64 // seconds that a request is expected to take
}

// fairQueue is one queue. start is the virtual time at which its next request begins.
type fairQueue struct {
	ring
	start   float64
	running int
}

func (f *fairQueues) advance(now int64) {
	active := 0
	for i := range f.queues {
		if f.queues[i].len()+f.queues[i].running > 0 {
			active++
		}
	}
	if active > 0 {
		f.virtual += float64(now-f.at) / 1e9 * min(1, float64(f.seats)/float64(active))
	}
	f.at = now
}

// push takes a call into the shortest queue of its flow's hand. It reports whether there was room.
func (f *fairQueues) push(now int64, c *Call) bool {
	f.advance(now)
	f.hand = dealHand(traffic.Mix(c.User, 2), len(f.queues), f.size, f.hand)
	best := -1
	for _, q := range f.hand {
		if best < 0 || f.queues[q].len()+f.queues[q].running < f.queues[best].len()+f.queues[best].running {
			best = q
		}
	}
	q := &f.queues[best]
	if q.len() >= f.length {
		return false
	}
	if q.len() == 0 && q.running == 0 {
		q.start = max(q.start, f.virtual)
	}
	c.lists = best
	q.push(c)
	return true
}

// next takes out the call that is served next, or returns nil.
func (f *fairQueues) next(now int64) *Call {
	if f.running >= f.seats {
		return nil
	}
	f.advance(now)
	best, least := -1, math.Inf(1)
	for k := range f.queues {
		i := (f.turn + 1 + k) % len(f.queues)
		if q := &f.queues[i]; q.len() > 0 && q.start < least {
			best, least = i, q.start
		}
	}
	if best < 0 {
		return nil
	}
	f.turn = best
	q := &f.queues[best]
	q.start += f.guess
	q.running++
	f.running++
	return q.pop()
}

// done corrects a queue's virtual start by what a call has taken.
func (f *fairQueues) done(now int64, c *Call) {
	f.advance(now)
	q := &f.queues[c.lists]
	q.start += float64(now-c.began)/1e9 - f.guess
	q.running--
	f.running--
}

type apf struct {
	none
	levels [][]*fairQueues // by server and class
}

// New begins a run.
func (a APF) New(env *Env) Control {
	v := &apf{none: none{env}}
	used := map[int]bool{}
	for _, l := range env.Scenario.Loads {
		used[l.Class] = true
	}
	for i, s := range env.Scenario.Servers {
		seats := s.Cores
		if env.calls(i) {
			seats *= 100
		}
		levels := make([]*fairQueues, maxClass+1)
		for class := range used {
			levels[class] = &fairQueues{
				queues: make([]fairQueue, cmp.Or(a.Queues, 64)), seats: max(1, seats/len(used)), size: cmp.Or(a.Hand, 8),
				length: apfLength, guess: env.meanWork(i),
			}
		}
		v.levels = append(v.levels, levels)
	}
	return v
}

func (v *apf) Arrive(c *Call) {
	f := v.levels[c.Server][c.Class]
	if !f.push(v.env.now, c) {
		v.env.Refuse(c, Refused)
		return
	}
	v.serve(f)
}

func (v *apf) serve(f *fairQueues) {
	for c := f.next(v.env.now); c != nil; c = f.next(v.env.now) {
		v.env.Run(c)
	}
}

func (v *apf) Finish(c *Call) {
	f := v.levels[c.Server][c.Class]
	f.done(v.env.now, c)
	v.serve(f)
}
