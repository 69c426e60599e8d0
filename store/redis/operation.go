package redis

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// verb is what an operation does, by the number that the script knows it by.
type verb uint8

const (
	verbTake verb = iota + 1
	verbPeek
	verbRefund
	verbFinish
	verbReset
	verbSettle // charges what was admitted without the server
	verbOnce   // how the script knows a Take whose last part is as in store.Charge.Once
)

// part is one bucket's part of an operation.
type part struct {
	counters *Counters
	rule     *rule
	key      string
	cost     int64
	permit   uint64
	shadow   bool
	keep     bool // of a Finish
	terms    terms

	onFailure store.OnFailure
	failed    bool

	// taken is when the cost was charged, in microseconds on the server's clock. In a refund, 0
	// = the caller says that the window is still the same.
	taken int64

	// ends is when the ban ends that the bucket is under, in microseconds; 0 = it is under none.
	ends int64

	verdict limit.Verdict
	// stand is the verdict of a cost of 0: the bucket without this charge.
	stand limit.Verdict
}

// The stages of an operation. After stageDone it is the caller's; after
// stageAbandoned nobody's, and it is not used again.
const (
	stageQueued int32 = iota
	stageSent
	stageDone
	stageAbandoned
)

// operation is one request to the store. It owns all memory that it refers to, so that a caller
// may give up while it is under way.
type operation struct {
	verb  verb
	once  bool // the last part is as in store.Charge.Once
	parts []part
	home  []int // for each charge of the caller its part; -1 = unlimited
	born  int64 // on the store's clock

	// deadline is when the lane abandons the operation: nanoseconds since the store began.
	deadline int64

	// parked is how often it had to wait for a key. The lane's mutex guards it.
	parked int

	stage atomic.Int32
	done  chan struct{} // holds one token once there are results, or the lane gave up

	// split says that this is one slot's part of a request over several, which
	// may have to be given back.
	split bool

	// unattended says that no caller waits for the operation.
	unattended bool

	// settles is what verbSettle charges, and owed how many microseconds of debt a bucket has
	// at least.
	settles *localCharge
	owed    int64

	allowed bool
	err     error

	in   []int          // scratch of the batch: the bucket of each part
	seen map[string]int // the parts by key, where they are many
}

var operations = sync.Pool{New: func() any {
	return &operation{done: make(chan struct{}, 1)}
}}

func newOperation(v verb, born int64) *operation {
	o := operations.Get().(*operation)
	o.verb, o.born, o.once, o.split, o.unattended, o.allowed, o.err = v, born, false, false, false, false, nil
	o.deadline, o.parked, o.settles, o.owed = math.MaxInt64, 0, nil, 0
	o.stage.Store(stageQueued)
	return o
}

// release returns o to the pool. Its owner calls it once. An abandoned operation is left to the
// garbage collector: its caller may still read it.
func (o *operation) release() {
	clear(o.parts)
	o.parts, o.home, o.seen = o.parts[:0], o.home[:0], nil
	if cap(o.parts) <= 64 {
		operations.Put(o)
	}
}

// begin reports whether o is still wanted; it is being sent from then on.
func (o *operation) begin() bool {
	return o.unattended || o.stage.CompareAndSwap(stageQueued, stageSent)
}

// end signals the caller that o has its results, unless it has given up. o must not be used
// afterwards.
func (o *operation) end() {
	if o.unattended {
		o.settled()
		o.release()
		return
	}
	for _, from := range []int32{stageSent, stageQueued} {
		if o.stage.CompareAndSwap(from, stageDone) {
			o.done <- struct{}{}
			return
		}
	}
}

// abandon gives up o; false when the results are there.
func (o *operation) abandon() bool {
	return o.stage.CompareAndSwap(stageQueued, stageAbandoned) || o.stage.CompareAndSwap(stageSent, stageAbandoned)
}

// fill makes the parts of charges; those of unlimited policies have none. With
// together, charges on one bucket are one part with their costs added up, which is
// enforced if one of them is.
func (o *operation) fill(charges []store.Charge, together bool) {
	var buf [256]byte
	for i := range charges {
		c := &charges[i]
		own := c.Counters.(*Counters)
		b := own.bound.Load()
		if b.rule.policy.Unlimited {
			o.home = append(o.home, -1)
			continue
		}
		key := appendKey(append(buf[:0], b.head...), c.Key)
		if c.Once {
			o.once = !c.Shadow
			if len(o.parts) > 0 && own.store.opts.Topology == Cluster {
				key = appendBeside(nil, o.parts[0].key, key)
			}
		}
		j := o.find(key)
		if together && j >= 0 {
			o.home = append(o.home, j)
			p := &o.parts[j]
			if p.cost += c.Cost; p.cost < 0 {
				p.cost = 1<<63 - 1 // above every quota, as the sum would be
			}
			p.shadow = p.shadow && c.Shadow
			p.terms.join(termsOf(c, p.rule))
			continue
		}
		rule := b.rule
		if j >= 0 {
			rule = o.parts[j].rule // even if the policy has changed in between
		}
		o.home = append(o.home, len(o.parts))
		o.parts = append(o.parts, part{
			counters: own, rule: rule, key: string(key), cost: c.Cost, permit: c.Permit, keep: c.Keep,
			shadow: c.Shadow, onFailure: c.OnFailure, terms: termsOf(c, rule),
		})
	}
}

// repeated reports whether the last part says that the Take was made before.
func (o *operation) repeated() bool { return o.once && !o.parts[len(o.parts)-1].verdict.Allowed }

// few is up to how many parts are searched linearly. Not more: a request of thousands would take
// milliseconds. Not fewer: a map costs more than searching these.
const few = 32

// find returns the part with the key, or -1.
func (o *operation) find(key []byte) int {
	if len(o.parts) >= few {
		if o.seen == nil {
			o.seen = make(map[string]int)
		}
		for j := len(o.seen); j < len(o.parts); j++ {
			o.seen[o.parts[j].key] = j
		}
		if j, ok := o.seen[string(key)]; ok {
			return j
		}
		return -1
	}
	for j := range o.parts {
		if o.parts[j].key == string(key) {
			return j
		}
	}
	return -1
}

// twin returns a copy of the request of o that belongs to the caller alone.
func (o *operation) twin() *operation {
	t := newOperation(o.verb, o.born)
	t.once = o.once
	t.home = append(t.home, o.home...)
	for i := range o.parts {
		p := &o.parts[i]
		t.parts = append(t.parts, part{
			counters: p.counters, rule: p.rule, key: p.key, cost: p.cost, permit: p.permit, keep: p.keep,
			shadow: p.shadow, onFailure: p.onFailure, terms: p.terms,
		})
	}
	return t
}

// answer copies the results to the caller's charges.
func (o *operation) answer(charges []store.Charge) {
	for i := range charges {
		if j := o.home[i]; j < 0 {
			charges[i].Verdict, charges[i].Failed = unlimited, false
		} else {
			charges[i].Verdict, charges[i].Failed = o.parts[j].verdict, o.parts[j].failed
		}
	}
}

// unlimited is the verdict of an unlimited policy.
var unlimited = limit.Verdict{Allowed: true, Remaining: 1<<63 - 1}
