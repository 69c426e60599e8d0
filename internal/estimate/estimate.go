// Package estimate learns what requests cost whose cost is known at their end, such as those to language models, from
// what they have cost: by the model, by the tenant, and by the most that they declare. So less than that most has to be
// reserved, and near the end of a budget it says when the most has to be. It takes nothing and decides nothing.
package estimate

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// ErrBad is wrapped by the errors of attributes of which nothing can be estimated.
var ErrBad = errors.New("bad request")

// Config says what is learned. The zero value learns nothing, and estimates nothing.
type Config struct {
	// By are the attributes by which costs are learned. By the first alone is learned what those that are new by the
	// others begin with, such as a new tenant of a known model.
	By []string
	// Declared is the attribute that has the most that a request can cost; "" = none.
	Declared string
	// Quantile of the recent costs that is estimated, above 0 and below 1.
	Quantile float64
	// Start is the estimate of what nothing is known of; 0 = the declared most, and without that 1,000.
	Start int64
}

// fallbackStart is the start where nothing says anything: an answer of a page or two of text.
const fallbackStart = 1000

// Options set up an [Estimator]. The zero value has the defaults.
type Options struct {
	Config
	// MaxKeys bounds what has an estimate of its own; 0 = 4,096, which is 8 MB as a rule and 30 MB at most. Others have
	// that of their model. Not smaller: a service with a thousand tenants has a few models each. A quarter as many
	// models are learned.
	MaxKeys int
	// MaxOpen bounds the reservations whose debt is foreseen; 0 = 65,536, some 20 MB. Others reserve what they declare.
	MaxOpen int
	// Instances is how many processes share the store, of which each knows only what it has reserved itself; nil = 1.
	Instances func() int
	// Records keep what is learned beyond the process, and for others that share them; nil = nothing does.
	Records store.Records
	Logger  *slog.Logger
	// Now is the time since any moment, and does not jump with the clock; nil = that of the process.
	Now func() time.Duration
}

// From says what an estimate is from.
type From string

// What estimates are from.
const (
	Own   From = "own"   // what has cost the same by all attributes
	Model From = "model" // what has cost the same by the first attribute
	Start From = "start" // nothing is known
)

// Subject is what is learned of. The zero value is that of a request without attributes.
type Subject struct {
	Values   []string `json:"v,omitempty"` // those of Config.By; "" = the request has none
	Declared int64    `json:"d,omitempty"` // 0 = it declares nothing
}

// Estimate is what a request is expected to cost.
type Estimate struct {
	Cost int64 // at least 1; at most Subject.Declared, if there is one
	From From
	// Settled is how many requests it was learned from, at most. Older ones count less.
	Settled int64
	Subject Subject
	// owes is what the request is likely to cost above Cost.
	owes debt
}

// Estimator estimates. It is safe for concurrent use; New makes it, and Run keeps what it has learned.
type Estimator struct {
	options Options

	mu    sync.Mutex
	conf  Config
	table table
	open  ledger
	stats Stats
}

// New returns an estimator that knows nothing.
func New(o Options) (*Estimator, error) {
	if o.MaxKeys < 0 || o.MaxOpen < 0 {
		return nil, fmt.Errorf("estimate: %d keys and %d reservations: neither is negative", o.MaxKeys, o.MaxOpen)
	}
	if o.MaxKeys == 0 {
		o.MaxKeys = 4096
	}
	if o.MaxOpen == 0 {
		o.MaxOpen = 1 << 16
	}
	if o.Now == nil {
		begin := time.Now()
		o.Now = func() time.Duration { return time.Since(begin) }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	e := &Estimator{options: o, open: newLedger(o.MaxOpen), stats: Stats{Estimates: map[From]uint64{}}}
	e.table.forget(o.MaxKeys)
	return e, e.Configure(o.Config)
}

// Configure makes c hold from now on. What was learned by other attributes or for another quantile is forgotten. After an
// error nothing has changed.
func (e *Estimator) Configure(c Config) error {
	if len(c.By) > 0 && !(c.Quantile > 0 && c.Quantile < 1) {
		return fmt.Errorf("estimate: a quantile of %v: it is above 0 and below 1, such as 0.9", c.Quantile)
	}
	if c.Start < 0 || c.Start > limit.MaxCount {
		return fmt.Errorf("estimate: a start of %d, want 0 to %d", c.Start, int64(limit.MaxCount))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Equal(c.By, e.conf.By) || c.Quantile != e.conf.Quantile {
		e.table.forget(e.options.MaxKeys)
	}
	c.By = slices.Clone(c.By)
	e.conf = c
	return nil
}

// Subject returns what is learned of by a request with these attributes. ok is false if nothing is learned at all. An
// error wraps [ErrBad].
func (e *Estimator) Subject(attrs []limit.Attribute) (s Subject, ok bool, err error) {
	e.mu.Lock()
	c := e.conf
	e.mu.Unlock()
	if len(c.By) == 0 {
		return s, false, nil
	}
	req := limit.Request{Attributes: attrs}
	for _, name := range c.By {
		value, _ := req.Get(name)
		s.Values = append(s.Values, value)
	}
	if c.Declared == "" {
		return s, true, nil
	}
	if text, has := req.Get(c.Declared); has {
		s.Declared, err = strconv.ParseInt(text, 10, 64)
		if err != nil || s.Declared < 1 || s.Declared > limit.MaxCount {
			return Subject{}, true, fmt.Errorf("estimate: %w: the attribute %s is %.40q, want a whole number from 1 to %d", ErrBad, c.Declared, text, int64(limit.MaxCount))
		}
	}
	return s, true, nil
}

// Estimate returns what a request is expected to cost.
func (e *Estimator) Estimate(s Subject) Estimate {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := Estimate{From: Start, Cost: e.conf.Start, Subject: s}
	owed := 1.0
	if n, from := e.table.find(s); n != nil {
		out.Cost, out.From, out.Settled, owed = n.value(), from, n.settled, min(n.owed(), 1)
	} else if out.Cost == 0 {
		if out.Cost = s.Declared; out.Cost == 0 {
			out.Cost = fallbackStart
		}
	}
	if s.Declared > 0 {
		out.Cost = min(out.Cost, s.Declared)
	}
	out.Cost = max(out.Cost, 1)
	out.owes = debtOf(owed, float64(max(s.Declared-out.Cost, 0)))
	return out
}

// Settle learns what a request has cost. estimated is what [Estimator.Estimate] said; 0 = its caller knew better, and
// nothing of the error of estimates is learned. A cost of 0 teaches nothing: a request that failed says nothing of
// others.
func (e *Estimator) Settle(s Subject, estimated, actual int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if estimated > 0 {
		e.stats.observe(estimated, actual)
	}
	if actual <= 0 || len(s.Values) != len(e.conf.By) || len(s.Values) == 0 {
		return // the configuration has changed since
	}
	if !e.table.learn(e.options.Now(), s, actual, &e.conf) {
		e.stats.Shared++
	}
}
