package ui

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/tally"
	"github.com/stint-io/stint/internal/topkeys"
	"github.com/stint-io/stint/internal/watch"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
)

const (
	// rateOver is the time over which rates are taken. Not shorter: they would jump. Not longer: people wait for what
	// they changed.
	rateOver = 5
	// points is how many points a chart has, one each pointEvery beats of a second.
	points     = 60
	pointEvery = 5
)

// counts are those of one limit at a moment.
type counts struct{ allowed, refused, shadow uint64 }

// history has the latest counts of one limit.
type history struct {
	latest [rateOver + 1]counts // a ring; see figures.beat
	old    [points + 1]counts   // one each pointEvery beats
}

// figures are counted each second. It is safe for concurrent use.
type figures struct {
	o *Options

	mu struct {
		sync.Mutex
		beat    int // how often it was counted
		at      [rateOver + 1]time.Time
		of      map[string]*history
		top     watch.Top
		topTime time.Time
	}
}

// count counts; call it each second.
func (f *figures) count(now time.Time) {
	set := f.o.Limits()
	there := make(map[string]bool, len(set.Limits()))
	for _, l := range set.Limits() {
		there[l.Name] = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	beat := f.mu.beat
	f.mu.beat++
	f.mu.at[beat%len(f.mu.at)] = now
	for name := range f.mu.of {
		if !there[name] {
			delete(f.mu.of, name)
		}
	}
	for t := range f.all() {
		if !there[t.Limit] {
			continue // of limits that come with requests
		}
		h := f.mu.of[t.Limit]
		if h == nil {
			h = new(history)
			f.mu.of[t.Limit] = h
			if beat > 0 { // it is new: what it has counted is of now
				for i := range h.latest {
					h.latest[i] = sum(&t)
				}
				for i := range h.old {
					h.old[i] = sum(&t)
				}
			}
		}
		h.latest[beat%len(h.latest)] = sum(&t)
		if beat%pointEvery == 0 {
			h.old[beat/pointEvery%len(h.old)] = sum(&t)
		}
	}
}

// all yields the tallies, with what instances of other processes have decided.
func (f *figures) all() iter.Seq[tally.Tally] {
	elsewhere := f.o.Elsewhere()
	return func(yield func(tally.Tally) bool) {
		for t := range f.o.Tallies() {
			if e, ok := elsewhere[t.Limit]; ok {
				t.Allowed += e[0]
				t.Refused[limit.ReasonRate] += e[1]
			}
			if !yield(t) {
				return
			}
		}
	}
}

func sum(t *tally.Tally) (c counts) {
	c.allowed = t.Allowed
	for i := range t.Refused {
		c.refused += t.Refused[i]
		c.shadow += t.ShadowRefused[i] + t.Tagged[i]
	}
	return c
}

// Row is one limit as it stands.
type Row struct {
	Limit string `json:"limit"`
	// Rate says in words what it admits, and Key for each of what; "" = all requests together.
	Rate string `json:"rate"`
	Key  string `json:"key,omitempty"`
	// Shadow says that the limit only watches.
	Shadow bool `json:"shadow,omitempty"`
	// Used is how many percent of its quota the key uses that is met most; null = that is not known.
	Used *float64 `json:"used_percent"`
	// Allowed, Refused and Over are requests per second over the latest 5 s: those that the limit admitted, those that it
	// refused, and those over the limit that it let through.
	Allowed float64 `json:"allowed_per_second"`
	Refused float64 `json:"refused_per_second"`
	Over    float64 `json:"let_through_per_second,omitempty"`
	// Top are the keys that are admitted most, and Most those that are refused most, of the latest minute.
	Top  []KeyRate `json:"top_keys"`
	Most []KeyRate `json:"refused_most"`

	limit *rules.Limit
}

// KeyRate is a key with its rate.
type KeyRate struct {
	Key string `json:"key"`
	// Rate is too high by at most Error. Sure says that the key is surely among those that are met most.
	Rate  float64 `json:"per_second"`
	Error float64 `json:"error"`
	Sure  bool    `json:"sure"`
}

// query says which rows are wanted.
type query struct {
	find string // in the name; "" = all
	sort string // as in sorts
	page int    // from 0
	most int    // rows of a page
	keys int    // of each list
}

// sorts are the orders that rows can have.
var sorts = map[string]func(a, b *Row) int{
	"refused": func(a, b *Row) int {
		return cmp.Or(cmp.Compare(step(b.Refused+b.Over), step(a.Refused+a.Over)), cmp.Compare(step(b.Allowed), step(a.Allowed)))
	},
	"allowed": func(a, b *Row) int { return cmp.Compare(step(b.Allowed), step(a.Allowed)) },
	"name":    func(a, b *Row) int { return 0 },
}

// step makes rates that differ by less than a quarter one, so that rows do not change places all the time.
func step(rate float64) int { return int(math.Ceil(4.5 * math.Log1p(rate))) }

// table is a page of rows.
type table struct {
	rows  []Row
	total int // that match
	pages int
	top   watch.Top
}

// rows returns a page of limits.
func (f *figures) rows(ctx context.Context, q query) table {
	f.mu.Lock()
	if time.Since(f.mu.topTime) > time.Second/2 { // many viewers, one view
		f.mu.top, f.mu.topTime = f.o.Watch.Top(maxKeys), time.Now()
	}
	t := table{top: f.mu.top}
	var all []Row
	names := map[string]bool{}
	for _, l := range f.o.Limits().Limits() {
		if l.Whitelist || names[l.Name] || q.find != "" && !strings.Contains(strings.ToLower(l.Name), strings.ToLower(q.find)) {
			continue
		}
		names[l.Name] = true
		r := Row{Limit: l.Name, Shadow: l.Shadow, limit: l}
		if h := f.mu.of[l.Name]; h != nil {
			r.Allowed, r.Refused, r.Over = f.rates(h)
		}
		all = append(all, r)
	}
	f.mu.Unlock()
	order := sorts[q.sort]
	if order == nil {
		order = sorts["refused"]
	}
	slices.SortFunc(all, func(a, b Row) int { return cmp.Or(order(&a, &b), cmp.Compare(a.Limit, b.Limit)) })
	t.total, t.pages = len(all), max(1, (len(all)+q.most-1)/q.most)
	from := min(max(q.page, 0)*q.most, len(all))
	t.rows = all[from:min(from+q.most, len(all))]
	for i := range t.rows {
		f.fill(ctx, &t.rows[i], &t.top, q.keys)
	}
	return t
}

// rates are those of a limit; mu is held.
func (f *figures) rates(h *history) (allowed, refused, over float64) {
	last := f.mu.beat - 1
	first := max(last-rateOver, 0)
	if last <= first {
		return 0, 0, 0
	}
	n := len(h.latest)
	elapsed := f.mu.at[last%n].Sub(f.mu.at[first%n]).Seconds()
	a, b := h.latest[first%n], h.latest[last%n]
	per := func(a, b uint64) float64 { return float64(b-min(a, b)) / max(elapsed, 1e-3) }
	return per(a.allowed, b.allowed), per(a.refused, b.refused), per(a.shadow, b.shadow)
}

// series are the rates of a limit in the latest minutes, the oldest first.
func (f *figures) series(name string) (allowed, refused []float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.mu.of[name]
	if h == nil {
		return nil, nil
	}
	last := (f.mu.beat - 1) / pointEvery
	for i := max(last-points+1, 1); i <= last; i++ {
		a, b := h.old[(i-1)%len(h.old)], h.old[i%len(h.old)]
		per := func(a, b uint64) float64 { return float64(b-min(a, b)) / pointEvery }
		allowed = append(allowed, per(a.allowed, b.allowed))
		refused = append(refused, per(a.refused, b.refused)+per(a.shadow, b.shadow))
	}
	return allowed, refused
}

// fill adds what takes longer.
func (f *figures) fill(ctx context.Context, r *Row, top *watch.Top, keys int) {
	l := r.limit
	r.Rate, r.Key = policyText(&l.Base.Policy), strings.Join(l.Key, ", ")
	r.Top = shownKeys(l, top.Admitted[l.Name], keys)
	r.Most = shownKeys(l, top.Refused[l.Name], keys)
	for _, list := range [][]topkeys.Key{top.Refused[l.Name], top.Admitted[l.Name]} {
		if len(list) > 0 && list[0].Size <= topkeys.MaxKey && r.Used == nil {
			r.Used = f.used(ctx, l, list[0].Text)
		}
	}
}

// used is how many percent of its quota a key uses; nil = that is not known.
func (f *figures) used(ctx context.Context, l *rules.Limit, key []byte) *float64 {
	for _, c := range f.o.Engine.Counters(l.Name, nil) {
		if c.When != "" || c.Variant.Pool != "" {
			continue
		}
		quota := c.Variant.Policy.Quota()
		charges := []store.Charge{{Counters: c.Counters, Key: key, OnFailure: store.FailTake}}
		if _, err := f.o.Engine.Peek(ctx, charges); err != nil {
			return nil
		}
		p := watch.Percent(quota, charges[0].Verdict.Remaining)
		return &p
	}
	return nil
}

func shownKeys(l *rules.Limit, list []topkeys.Key, most int) []KeyRate {
	out := []KeyRate{}
	for _, k := range list[:min(len(list), most)] {
		text := "all requests"
		if k.Size > 0 {
			text = strings.ToValidUTF8(strings.TrimSpace(l.KeyTextOf(k.Text, k.Size)), "\uFFFD")
		}
		out = append(out, KeyRate{text, round(k.Rate), round(k.Over), k.Sure})
	}
	return out
}

// round keeps three digits after the point: more is noise.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }

// policyText is a policy for people.
func policyText(p *limit.Policy) string {
	switch {
	case p.Unlimited:
		return "unlimited"
	case p.Algorithm == limit.Concurrency:
		return fmt.Sprintf("%d in flight", p.MaxInFlight)
	}
	text := p.Rate.String()
	if p.Burst != 0 {
		text += fmt.Sprintf(", burst %d", p.Burst)
	}
	if p.Algorithm != limit.TokenBucket {
		text += ", " + strings.ReplaceAll(p.Algorithm.String(), "_", " ")
	}
	return text
}
