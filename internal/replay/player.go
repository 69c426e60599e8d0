package replay

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/accesslog"
	"github.com/stint-io/stint/internal/derive"
	"github.com/stint-io/stint/internal/derive/fromfiles"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// player decides by one configuration.
type player struct {
	set      *rules.Set
	maxBytes int64
	source   derive.Planned
	engine   *engine.Engine
	store    *memory.Store
	now      limit.Time // the store's clock
	query    engine.Query
	attrs    []limit.Attribute

	limits  []*counts // by Variant.Index of the limit's base
	fits    *fits     // nil = nobody asked
	total   counts
	time    timeline
	flights flights

	overflowed int64 // decisions on counters that keys share, because the memory was full

	comparing bool
	refusals  []refusal // of the lines of the latest play, while comparing
}

// refusal says which limit refused a line, and with which key; the zero value is a line that was admitted.
type refusal struct {
	refused bool
	counts  *counts // nil when no single limit did
	key     []byte
	at      limit.Time
}

// counts are those of a limit, or of all.
type counts struct {
	limit           *rules.Limit
	asked, admitted int64 // admitted by all limits
	refused         int64
	shadow          int64 // refusals that refuse nothing
	banned          int64 // of refused
	missing         int64 // of refused
	first, last     limit.Time
	keys            sketch
	newly           int64 // requests that it refused, and that what is compared with admitted
	newKeys         sketch
	series          series
}

func newPlayer(set *rules.Set, maxBytes int64) (*player, error) {
	p := &player{set: set, maxBytes: maxBytes}
	var err error
	if p.source, err = fromfiles.Open(context.Background(), set, func() time.Time { return time.Unix(0, int64(p.now)) }); err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	p.limits = make([]*counts, len(set.Variants()))
	for _, l := range set.Limits() {
		p.limits[l.Base.Index] = &counts{limit: l}
	}
	return p, p.open()
}

// open makes the store, whose time begins with the clock, and the engine.
func (p *player) open() error {
	p.store = memory.New(memory.Options{MaxBytes: p.maxBytes, Now: func() limit.Time { return p.now }})
	var err error
	p.engine, err = engine.New(p.store, p.set, engine.Options{Derive: func(*rules.Set) engine.Deriver { return p.source }})
	return err
}

// begin sets the clock for the first line. A player that is nil has nothing to do.
func (p *player) begin(at limit.Time) error {
	if p == nil {
		return nil
	}
	p.now = at
	p.time = timeline{start: at - at%limit.Time(time.Second), width: time.Second}
	return errors.Join(p.store.Close(), p.open())
}

// end closes the store.
func (p *player) end() error {
	p.overflowed = p.store.Stats().Overflowed
	return p.store.Close()
}

// play decides lines in their order.
func (p *player) play(names []string, lines []accesslog.Line, onDecision func(*accesslog.Line, *limit.Decision)) error {
	p.refusals = p.refusals[:0]
	ctx := context.Background()
	for i := range lines {
		l := &lines[i]
		if err := p.advance(l.At); err != nil {
			return err
		}
		p.attrs = p.attrs[:0]
		for k, v := range l.Values {
			if v != "" {
				p.attrs = append(p.attrs, limit.Attribute{Name: names[k], Value: v})
			}
		}
		p.query.Descriptors = append(p.query.Descriptors[:0], engine.Descriptor{Attributes: p.attrs, Cost: l.Cost})
		if err := p.engine.Decide(ctx, &p.query); err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		p.count()
		if p.query.Decision.Permit != 0 {
			p.fly(l)
		}
		if onDecision != nil {
			onDecision(l, &p.query.Decision)
		}
	}
	return nil
}

// advance sets the clock, which never goes back, and gives back the permits of requests that have ended.
func (p *player) advance(at limit.Time) error {
	at = max(at, p.now)
	for len(p.flights) > 0 && p.flights[0].at <= at {
		f := heap.Pop(&p.flights).(flight)
		p.now = max(p.now, f.at)
		if err := p.engine.Finish(context.Background(), limit.Request{Attributes: f.attrs}, f.permit); err != nil {
			return fmt.Errorf("replay: %w", err)
		}
	}
	p.now = at
	return nil
}

// flight is a request that holds a permit.
type flight struct {
	at     limit.Time // when it ends
	permit uint64
	attrs  []limit.Attribute
}

type flights []flight

func (f flights) Len() int           { return len(f) }
func (f flights) Less(i, j int) bool { return f[i].at < f[j].at }
func (f flights) Swap(i, j int)      { f[i], f[j] = f[j], f[i] }
func (f *flights) Push(x any)        { *f = append(*f, x.(flight)) }
func (f *flights) Pop() any {
	last := len(*f) - 1
	x := (*f)[last]
	(*f)[last] = flight{}
	*f = (*f)[:last]
	return x
}

// fly notes when the request ends. One of unknown length ends at once.
func (p *player) fly(l *accesslog.Line) {
	attrs := slices.Clone(p.attrs)
	for i := range attrs {
		attrs[i].Value = strings.Clone(attrs[i].Value) // not the whole block of the log
	}
	heap.Push(&p.flights, flight{p.now + limit.Time(max(l.Took, 0)), p.query.Decision.Permit, attrs})
}

// count notes the latest decision.
func (p *player) count() {
	d := &p.query.Decision
	slot := p.time.slot(p.now, p)
	p.total.asked++
	p.total.series.add(slot, d.Allowed, !d.Allowed)
	by := refusal{refused: !d.Allowed}
	if !d.Allowed {
		p.total.refused++
		p.total.mark(p.now)
	}
	for i := range p.query.Hits {
		h := &p.query.Hits[i]
		if h.Result < 0 || h.Limit == nil {
			continue
		}
		r, c := &d.Results[h.Result], p.limits[h.Limit.Base.Index]
		c.asked++
		p.fits.note(h, r, p.now, p.query.Descriptors[0].Cost)
		c.series.add(slot, d.Allowed, !r.Allowed)
		if d.Allowed {
			c.admitted++
		}
		if r.Allowed {
			continue
		}
		c.mark(p.now)
		c.keys.add(h.Key(), p.now)
		switch {
		case r.Shadow:
			c.shadow++
			continue
		case r.Reason == limit.ReasonBanned:
			c.banned++
		case r.Reason == limit.ReasonMissing:
			c.missing++
		}
		c.refused++
		if by.counts == nil {
			by.counts, by.key = c, h.Key()
		}
	}
	if p.comparing {
		by.key, by.at = slices.Clone(by.key), p.now
		p.refusals = append(p.refusals, by)
	}
}

func (c *counts) mark(at limit.Time) {
	if c.first == 0 {
		c.first = at
	}
	c.last = at
}
