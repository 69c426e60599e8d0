package estimate

import (
	"cmp"
	"math/bits"
	"strconv"
	"time"

	"github.com/stint-io/stint/internal/quantile"
)

const (
	// halfLife is the number of further requests after which one counts half. At a quantile of 0.9 a rise is followed
	// after about 20 requests and a fall after about 430: the cautious side is the quick one. Not smaller: a p90 of
	// fewer is noise.
	halfLife = 128

	// established is the number of requests after which what is learned is kept in records, and not forgotten for
	// strangers. Not smaller: a stranger who comes a few times is no tenant.
	established = 16

	// idleStranger and idle are how long nothing may be settled of one that is not established, or is, before its place
	// is given to another when there is no room.
	idleStranger = 10 * time.Minute
	idle         = 24 * time.Hour

	// maxKey bounds a key: longer ones have no estimate of their own.
	maxKey = 256

	// The weight in requests of what a new one begins with, that of the start or of its model; and of what other
	// processes have learned. The first is small, as it has to go: at a quantile of 0.9 one that is too large is gone
	// after nine times as many.
	weightOfStart    = 2
	weightOfRecorded = 16

	// weightOfOwed is the weight in requests of the debt that a new one begins with.
	weightOfOwed = 8

	// fading halves the weight of what was settled after some 700 further requests.
	fading = 0.999
)

// entry is what is learned of one subject, or of a model.
type entry struct {
	costs   quantile.Histogram
	settled int64
	last    time.Duration // when something was settled

	exceeded, declared float64 // above estimates: what was used, and what was declared, each by its cost; fading

	noted record // what stands in the records
	dirty bool   // something was settled since the records were read
}

// value is the estimate: not below the quantile, so that no smaller share of requests is within it.
func (n *entry) value() int64 { return max(n.costs.Top(), 1) }

// owed is the share of what requests declare above their estimates that those in flight at a time will use. A
// request is in flight for as long as it is long, so each counts by what it has cost.
func (n *entry) owed() float64 {
	if n.declared <= 0 {
		return 1
	}
	return n.exceeded / n.declared
}

// add learns a cost.
func (n *entry) add(now time.Duration, declared, actual int64, q float64) {
	if over, span := actual-n.value(), declared-n.value(); span > 0 && n.settled > 0 {
		// No cost counts for more than what was declared: it is the caller's word.
		weight := float64(min(actual, declared))
		n.exceeded = n.exceeded*fading + weight*float64(min(max(over, 0), span))
		n.declared = n.declared*fading + weight*float64(span)
	}
	n.costs.Add(actual, 1, quantile.Growth(halfLife), q)
	n.settled++
	n.last, n.dirty = now, true
}

// begin makes a new entry begin with an estimate, 0 = none, and a debt.
func (n *entry) begin(value int64, weight, owed, scale, q float64) {
	if value > 0 {
		n.costs.Add(value, weight, quantile.Growth(halfLife), q)
	}
	n.exceeded, n.declared = owed*scale, scale
}

// room is a bounded number of entries.
type room struct {
	entries map[string]*entry
	most    int
	swept   time.Duration
}

// table has the entries of subjects, and those of models.
type table struct{ own, model room }

// forget makes the table empty.
func (t *table) forget(most int) {
	t.own = room{entries: map[string]*entry{}, most: most}
	t.model = room{entries: map[string]*entry{}, most: max(most/4, 1)}
}

// keys of a subject. Mosts of one power of two are together: most callers have a few of them.
func (s *Subject) keys() (own, model string) {
	if len(s.Values) == 0 {
		return "", ""
	}
	b := strconv.AppendQuote(nil, s.Values[0])
	model = string(b)
	for _, v := range s.Values[1:] {
		b = strconv.AppendQuote(append(b, ' '), v)
	}
	return string(strconv.AppendInt(append(b, ' '), int64(bits.Len64(uint64(max(s.Declared, 0)))), 10)), model
}

// find returns what is known of a subject, or of its model; nil = nothing.
func (t *table) find(s Subject) (*entry, From) {
	own, model := s.keys()
	if n := t.own.entries[own]; n != nil {
		return n, Own
	}
	if n := t.model.entries[model]; n != nil {
		return n, Model
	}
	return nil, Start
}

// learn adds a cost. own is false if there is no room for the subject.
func (t *table) learn(now time.Duration, s Subject, actual int64, c *Config) (own bool) {
	key, key1 := s.keys()
	model := t.model.get(now, key1)
	n := t.own.get(now, key)
	// What is new begins with what was estimated for it.
	scale := weightOfOwed * float64(actual) * float64(max(s.Declared, actual))
	from, owed := c.Start, 1.0
	if model != nil && model.settled > 0 {
		from, owed = model.value(), model.owed()
	}
	for _, n := range []*entry{model, n} {
		if n == nil {
			continue
		}
		if n.settled == 0 {
			n.begin(from, weightOfStart, owed, scale, c.Quantile)
		}
		n.add(now, s.Declared, actual, c.Quantile)
	}
	return n != nil
}

// get returns the entry of a key, a new one if there is room; nil = there is none.
func (r *room) get(now time.Duration, key string) *entry {
	if n := r.entries[key]; n != nil {
		return n
	}
	if len(key) > maxKey {
		return nil
	}
	if len(r.entries) >= r.most {
		r.sweep(now)
	}
	if len(r.entries) >= r.most {
		return nil
	}
	n := new(entry)
	r.entries[key] = n
	return n
}

// sweep removes idle entries. It goes through all of them, so not more often than every minute, however many strangers
// come.
func (r *room) sweep(now time.Duration) {
	if r.swept != 0 && now-r.swept < time.Minute {
		return
	}
	r.swept = cmp.Or(now, 1)
	for key, n := range r.entries {
		if now-n.last > idle || n.settled < established && now-n.last > idleStranger {
			delete(r.entries, key)
		}
	}
}

// record is what stands in the records of an entry. A quantile is enough of a distribution to go on with: one that has
// some weight at its own quantile, and the rest as it is, has the same quantile.
type record struct {
	By       string  `json:"by"` // the attributes whose values the key has
	Quantile float64 `json:"quantile"`
	Estimate int64   `json:"estimate"`
	Settled  int64   `json:"settled"`
	Owed     float64 `json:"owed"`
	At       int64   `json:"at"` // seconds since the epoch, by the clock of who wrote it
}
