package usage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Step is how long a row of a history is. The zero value is Hour.
type Step uint8

// The steps.
const (
	Hour  Step = iota
	Day        // of the limit's time zone
	Month      // of the limit's time zone
	Total      // the whole of the time that is asked for
)

// ParseStep returns the step of that name: hour, day, month or total.
func ParseStep(name string) (Step, error) {
	if i := slices.Index([]string{"hour", "day", "month", "total"}, name); i >= 0 {
		return Step(i), nil
	}
	return 0, fmt.Errorf("usage: by is %.100q, want hour, day, month or total", name)
}

// Query says which usage is asked for. The zero value is all there is, by the hour.
type Query struct {
	// Limit is the name of a limit; "" = all.
	Limit string
	// Key are attributes that the key must have; nil = any key.
	Key []limit.Attribute
	// From and To bound when an hour began: From <= start < To. A zero To is without end.
	From, To time.Time
	By       Step
	// Zone returns the time zone of a limit's days; nil, and a nil location, are UTC.
	Zone func(limit string) *time.Location
	// Order returns the attributes of a limit's key in their order, which makes the search quick where the
	// first of them are in Key; nil = not known.
	Order func(limit string) []string
}

// Row is what a key used of a limit in one step.
type Row struct {
	Limit string
	// Key has the attributes of the key. One called "*" has those beyond [Options.MaxKeys] together.
	Key   []limit.Attribute
	Start time.Time
	// Taken is what was admitted, and Returned what was given back of it.
	Taken, Returned uint64

	subject string
}

// Used is what was taken and not given back. What is given back in a later hour than it was taken can make an
// hour's Used 0 with more returned than taken.
func (r *Row) Used() uint64 { return r.Taken - min(r.Taken, r.Returned) }

// Subject is the key as text, as [Subject] writes it.
func (r *Row) Subject() string { return r.subject }

// Member is another process, which counts for itself.
type Member struct {
	Name string
	// Page is [Store.Page] of that process. It returns soon after ctx is done.
	Page func(ctx context.Context, q Query, after string) (Page, error)
}

// patience bounds the wait for one page of a member.
const patience = 2 * time.Second

// History sums what is in own and what the others have counted, and calls yield with each row, by limit, key and
// time, until yield returns an error. A mark that several of them have counts once. What processes have not reported
// to their records is not in it. missing has an error for each of the others that did not answer, or not to the end.
func History(ctx context.Context, own store.Records, others []Member, q Query, yield func(*Row) error) (missing map[string]error, err error) {
	if !q.To.IsZero() && !q.From.Before(q.To) {
		return nil, errors.New("usage: the time that is asked for is empty: from is not before to")
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := func(name string, ask func(ctx context.Context, after string) (Page, error)) *source {
		s := &source{name: name, pages: make(chan []store.Mark, 1)}
		reading.Go(func() { s.read(ctx, ask) })
		return s
	}
	sources := []*source{begin("", func(ctx context.Context, after string) (Page, error) { return q.page(ctx, own, after) })}
	for _, m := range others {
		sources = append(sources, begin(m.Name, func(ctx context.Context, after string) (Page, error) {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			p, err := m.Page(ctx, q, after)
			if err == nil {
				err = p.check(&q, after)
			}
			return p, err
		}))
	}
	rows := rows{q: &q, yield: yield}
	for mark := next(sources); mark != nil; mark = next(sources) {
		if err := rows.add(mark); err != nil {
			return nil, err
		}
	}
	if err := cmp.Or(ctx.Err(), sources[0].err); err != nil {
		return nil, err
	}
	for _, s := range sources[1:] {
		if s.err != nil {
			if missing == nil {
				missing = map[string]error{}
			}
			missing[s.name] = s.err
		}
	}
	return missing, rows.flush()
}

// source is a process whose marks are read.
type source struct {
	name  string
	pages chan []store.Mark // closed behind the last one
	err   error             // set before pages is closed
	page  []store.Mark      // what is left of the page that was received last
}

// read sends the pages until ctx is done.
func (s *source) read(ctx context.Context, ask func(ctx context.Context, after string) (Page, error)) {
	defer close(s.pages)
	for after := ""; ; {
		var p Page
		if p, s.err = ask(ctx, after); s.err != nil {
			return
		}
		select {
		case s.pages <- p.Marks:
		case <-ctx.Done():
			s.err = ctx.Err()
			return
		}
		if after = p.Next; after == "" {
			return
		}
	}
}

// head returns the first mark that is not taken yet; nil = there are no more.
func (s *source) head() *store.Mark {
	for len(s.page) == 0 {
		page, more := <-s.pages
		if !more {
			return nil
		}
		s.page = page
	}
	return &s.page[0]
}

// next takes the mark that comes first in the order of keys; nil = there are no more.
func next(sources []*source) (first *store.Mark) {
	for _, s := range sources {
		if m := s.head(); m != nil && (first == nil || m.Key < first.Key) {
			first = m
		}
	}
	if first == nil {
		return nil
	}
	mark := *first
	for _, s := range sources {
		if m := s.head(); m != nil && m.Key == mark.Key {
			mark.N = max(mark.N, m.N)
			s.page = s.page[1:]
		}
	}
	return &mark
}

// rows makes rows of marks.
type rows struct {
	q     *Query
	yield func(*Row) error
	row   *Row
	zone  *time.Location // of the row's limit
}

func (r *rows) add(mark *store.Mark) error {
	name, subject, start, kind, _ := cutMark(mark.Key)
	if kind != markTaken && kind != markReturned {
		return nil // of a newer version
	}
	if r.row == nil || r.row.Limit != name {
		r.zone = time.UTC
		if r.q.Zone != nil {
			r.zone = cmp.Or(r.q.Zone(name), time.UTC)
		}
	}
	at := r.step(start)
	if r.row == nil || r.row.Limit != name || r.row.subject != subject || r.q.By != Total && !r.row.Start.Equal(at) {
		if err := r.flush(); err != nil {
			return err
		}
		r.row = &Row{Limit: name, Key: Attributes(subject), Start: at, subject: subject}
	}
	if kind == markTaken {
		r.row.Taken = sumUp(r.row.Taken, mark.N)
	} else {
		r.row.Returned = sumUp(r.row.Returned, mark.N)
	}
	return nil
}

// sumUp is the sum, or the largest number.
func sumUp(a, b uint64) uint64 {
	if a+b < a {
		return math.MaxUint64
	}
	return a + b
}

func (r *rows) flush() error {
	row := r.row
	r.row = nil
	if row == nil {
		return nil
	}
	return r.yield(row)
}

// step returns when the step began that has the hour.
func (r *rows) step(start int64) time.Time {
	t := time.Unix(start, 0).In(r.zone)
	switch r.q.By {
	case Day:
		return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, r.zone)
	case Month:
		return time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, r.zone)
	case Total:
		if !r.q.From.IsZero() {
			return r.q.From.In(r.zone)
		}
	}
	return t // of a total without a beginning: the first hour
}
