package redis

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint/limit"
)

// batch is one run of the script: operations in the order of their arrival, and their buckets.
// Consecutive requests with equal charges on the same buckets are sent as one that is repeated;
// each is decided on its own.
type batch struct {
	ops     []*operation
	slot    uint16
	buckets []bucket // scalar ones first
	scalars int
	index   map[string]int
	rules   []*rule
	runs    []run

	back int64      // by how many microseconds the server's clock was set back recently; 0 = it was not
	seen limit.Time // what the server's clock has shown; 0 = not yet

	numbers []byte
	count   uint32 // of numbers
	strings []string

	conversions []conversion
}

// bucket is one key in a batch.
type bucket struct {
	key   string
	rule  *rule
	of    int // the rule's index
	run   int // the last run on this bucket; -1 = none
	state state
	raw   string // before
	there bool   // Redis has the key; raw may be ""
	// The state needs no correction for a step of the server's clock: it was corrected before,
	// or is not to be.
	stepped bool

	// taken says that a Take changed the bucket, refused that the last Take was refused.
	taken, refused bool
}

// run is an operation that is repeated.
type run struct {
	op    *operation
	count int
}

// conversion replaces the state that another policy wrote.
type conversion struct {
	bucket   int
	from, to string
}

// maxBuckets bounds the buckets of one run of the script, so that other clients' commands wait
// for a millisecond or so at most. One operation may have more.
const maxBuckets = 256

// maxOperations bounds the requests of one run for the same reason.
const maxOperations = 2048

func (b *batch) reset() {
	clear(b.ops)
	clear(b.buckets)
	clear(b.rules)
	clear(b.runs)
	clear(b.strings)
	b.ops, b.buckets, b.rules, b.runs = b.ops[:0], b.buckets[:0], b.rules[:0], b.runs[:0]
	b.conversions, b.seen = b.conversions[:0], 0
	if b.index == nil || len(b.index) > maxBuckets {
		b.index = make(map[string]int)
	}
	clear(b.index)
}

// accept adds an operation, unless the batch is full or has one of its buckets under another
// policy.
func (b *batch) accept(o *operation) bool {
	if len(b.ops) > 0 && (len(b.index)+len(o.parts) > maxBuckets || len(b.ops) >= maxOperations) {
		return false
	}
	for i := range o.parts {
		if j, ok := b.index[o.parts[i].key]; ok && b.buckets[j].rule != o.parts[i].rule {
			return false
		}
	}
	for i := range o.parts {
		p := &o.parts[i]
		if _, ok := b.index[p.key]; !ok {
			b.index[p.key] = len(b.buckets)
			b.buckets = append(b.buckets, bucket{key: p.key, rule: p.rule, run: -1})
		}
	}
	b.ops = append(b.ops, o)
	return true
}

// arrange puts the scalar buckets first and finds the buckets of each part, the
// rules and the runs.
func (b *batch) arrange() {
	b.scalars = 0
	for i := range b.buckets {
		if b.buckets[i].rule.kind.scalar() {
			b.buckets[i], b.buckets[b.scalars] = b.buckets[b.scalars], b.buckets[i]
			b.scalars++
		}
	}
	for i := range b.buckets {
		k := &b.buckets[i]
		b.index[k.key] = i
		if k.of = slices.Index(b.rules, k.rule); k.of < 0 {
			k.of = len(b.rules)
			b.rules = append(b.rules, k.rule)
		}
	}
	for _, o := range b.ops {
		o.in = o.in[:0]
		for i := range o.parts {
			o.in = append(o.in, b.index[o.parts[i].key])
		}
		if r := b.repeated(o); r >= 0 {
			b.runs[r].count++
			continue
		}
		for _, i := range o.in {
			b.buckets[i].run = len(b.runs)
		}
		b.runs = append(b.runs, run{o, 1})
	}
}

// repeated returns the run that o is a repetition of, or -1.
func (b *batch) repeated(o *operation) int {
	if o.verb != verbTake || len(o.parts) == 0 {
		return -1
	}
	r := b.buckets[o.in[0]].run
	if r < 0 || b.runs[r].op.verb != verbTake || len(b.runs[r].op.parts) != len(o.parts) {
		return -1
	}
	first := b.runs[r].op
	for i := range o.parts {
		p, f := &o.parts[i], &first.parts[i]
		if o.in[i] != first.in[i] || b.buckets[o.in[i]].run != r || o.in[i] >= b.scalars || p.cost != f.cost || p.shadow != f.shadow || p.terms != f.terms {
			return -1
		}
	}
	return r
}

// encode returns the keys and arguments of the script: the numbers that lua/load.lua and
// lua/decide.lua name, and the strings that they refer to.
// clock is about what the server's clock shows.
func (b *batch) encode(now, clock limit.Time, void int64, hold float64, channel string) (keys, args []string) {
	b.numbers = append(b.numbers[:0], 0xdd, 0, 0, 0, 0) // an array of count numbers
	b.count = 0
	args = append(make([]string, 0, 2+len(b.rules)+2*len(b.conversions)), "", channel)
	keys = make([]string, 0, len(b.buckets))
	b.put(float64(now/1000), float64(void), float64(b.back), hold, float64(len(b.rules)))
	for _, r := range b.rules {
		n := r.numbersAt(clock)
		b.put(float64(r.kind), n[0], n[1], n[2], n[3])
		args = append(args, r.tag)
	}
	b.put(float64(len(b.buckets)), float64(b.scalars), float64(len(b.conversions)))
	for i := range b.buckets {
		of := b.buckets[i].of + 1
		if b.back > 0 && b.buckets[i].stepped {
			of += len(b.rules)
		}
		b.put(float64(of))
		keys = append(keys, b.buckets[i].key)
	}
	for i := range b.buckets {
		if b.buckets[i].rule.kind == kindPermits {
			keys = append(keys, b.buckets[i].key+":h")
		}
	}
	for _, c := range b.conversions {
		args = append(args, c.from, c.to)
		b.put(float64(c.bucket+1), float64(len(args)-1), float64(len(args)))
	}
	for _, r := range b.runs {
		what, count := r.op.verb, float64(r.count)
		switch {
		case what == verbSettle:
			count = float64(r.op.owed)
		case what == verbTake && r.op.once:
			what = verbOnce
		}
		b.put(float64(what), count, float64(len(r.op.parts)))
		for i := range r.op.parts {
			args = b.putPart(r.op, i, args)
		}
	}
	binary.BigEndian.PutUint32(b.numbers[1:], b.count)
	args[0] = string(b.numbers)
	return keys, args
}

func (b *batch) putPart(o *operation, i int, args []string) []string {
	p := &o.parts[i]
	where := float64(4 * (o.in[i] + 1))
	if p.terms.counts || p.keep {
		where += 2
	}
	if p.shadow {
		where++
	}
	asks := o.verb == verbTake || o.verb == verbPeek
	one, two := p.rule.cost(p.cost, asks && !p.terms.counts)
	if asks && p.terms.own {
		two = float64(min(p.terms.quota, maxCount) + 1)
	}
	if p.rule.kind == kindPermits {
		args = append(args, fmt.Sprint(p.permit))
		two = float64(len(args))
	} else if o.verb == verbRefund && p.rule.kind != kindBucket {
		two = float64(p.taken)
	}
	b.put(where, one, two)
	return args
}

// put appends numbers in the encoding of MessagePack.
func (b *batch) put(list ...float64) {
	b.count += uint32(len(list))
	for _, f := range list {
		switch u := uint64(f); {
		case f >= 0 && u < 128 && float64(u) == f:
			b.numbers = append(b.numbers, byte(u))
		case f >= 0 && u < 1<<32 && float64(u) == f:
			b.numbers = binary.BigEndian.AppendUint32(append(b.numbers, 0xce), uint32(u))
		default:
			b.numbers = binary.BigEndian.AppendUint64(append(b.numbers, 0xcb), math.Float64bits(f))
		}
	}
}

// outcome is the status of a run of the script.
type outcome uint8

const (
	decided outcome = iota
	strange         // another policy wrote a state; conversions are prepared
	late            // it ran too late to count; nothing was charged
	moved           // the server's clock is in another window of the calendar; nothing was charged
)

var (
	errAnswer   = errors.New("redis: the script's answer cannot be read: is another script in its place, or a proxy between?")
	errPolicies = errors.New("other processes keep changing the policy of its states")
	errLate     = errors.New("it decides too late")
	errDisagree = errors.New("redis: the script and package limit disagree: does the server count in 64-bit floating point numbers as Redis does?")
)

// reply is what the script answered for a batch.
type reply struct {
	err      error // no answer
	out      outcome
	now      int64 // microseconds, on the server's clock
	admitted int64
	raws     []raw // the scalar states before
	findings []finding
	unread   error // the answer cannot be read
}

// raw is a state as Redis has it, if there is one.
type raw struct {
	text  string
	there bool
}

// read reads an answer about some scalar states.
func (r *reply) read(answer []rueidis.RedisMessage, scalars int) {
	r.unread = errAnswer
	if len(answer) < 2 {
		return
	}
	now, err1 := answer[0].AsInt64()
	status, err2 := answer[1].AsInt64()
	if err1 != nil || err2 != nil {
		return
	}
	r.now = now
	switch status {
	case 2, 3:
		r.out, r.unread = late, nil
		if status == 3 {
			r.out = moved
		}
		return
	}
	if len(answer) < 4 {
		return
	}
	raws, err := answer[3].ToArray()
	if err != nil || len(raws) != scalars {
		return
	}
	r.raws = make([]raw, scalars)
	for i := range raws {
		if r.raws[i].there = !raws[i].IsNil(); r.raws[i].there {
			if r.raws[i].text, err = raws[i].ToString(); err != nil {
				return
			}
		}
	}
	if status == 1 {
		r.out, r.unread = strange, nil
		return
	}
	if r.admitted, err = answer[2].AsInt64(); err != nil || len(answer) < 5 {
		return
	}
	found, err := answer[4].ToArray()
	if err != nil {
		return
	}
	r.findings, r.unread = readFindings(found)
}

// accepts sets the results of the operations.
func (b *batch) accepts(r reply) (out outcome, err error) {
	if r.unread != nil {
		return 0, r.unread
	}
	for i := range r.raws {
		b.buckets[i].raw, b.buckets[i].there = r.raws[i].text, r.raws[i].there
	}
	at := limit.Time(r.now * 1000)
	switch r.out {
	case moved:
		b.seen = at
	case strange:
		b.convert(at)
	case decided:
		return decided, b.replay(at, r.admitted, r.findings)
	}
	return r.out, nil
}

func readFindings(list []rueidis.RedisMessage) ([]finding, error) {
	if len(list)%4 != 0 {
		return nil, errAnswer
	}
	if len(list) == 0 {
		return nil, nil
	}
	findings := make([]finding, 0, len(list)/4)
	for len(list) > 0 {
		var n [4]int64
		for i := range n {
			var err error
			if n[i], err = list[i].AsInt64(); err != nil {
				return nil, errAnswer
			}
		}
		findings = append(findings, finding{n[0] == 1, n[1], n[2], n[3]})
		list = list[4:]
	}
	return findings, nil
}

// convert prepares conversions of the states that another policy wrote.
func (b *batch) convert(now limit.Time) {
	b.conversions = b.conversions[:0]
	for i := range b.scalars {
		k := &b.buckets[i]
		if k.there && !k.rule.wrote(k.raw) {
			b.conversions = append(b.conversions, conversion{i, k.raw, k.rule.convert(k.raw, now)})
		}
	}
}
