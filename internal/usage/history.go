package usage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
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

const page = 1000

// History calls yield with each row, by limit, key and time, until it returns an error. What processes have not
// reported yet is not in it.
func History(ctx context.Context, from store.Records, q Query, yield func(*Row) error) error {
	if !q.To.IsZero() && !q.From.Before(q.To) {
		return errors.New("usage: the time that is asked for is empty: from is not before to")
	}
	names := []string{short(q.Limit)}
	if q.Limit == "" {
		var err error
		if names, err = limits(ctx, from); err != nil {
			return err
		}
	}
	for _, name := range names {
		s := scan{from: from, q: &q, yield: yield, zone: time.UTC}
		if q.Zone != nil {
			if z := q.Zone(name); z != nil {
				s.zone = z
			}
		}
		if err := s.limit(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// limits returns the names of the limits that have usage: it jumps from one to the next.
func limits(ctx context.Context, from store.Records) (names []string, err error) {
	for after := ""; ; {
		found, err := from.Marks(ctx, Table, "", after, 1)
		if err != nil {
			return nil, fmt.Errorf("usage: %w", err)
		}
		if len(found) == 0 {
			return names, nil
		}
		name, _, _ := strings.Cut(found[0].Key, "\x00")
		names = append(names, name)
		after = name + "\x01"
	}
}

// scan reads the marks of one limit.
type scan struct {
	from  store.Records
	q     *Query
	yield func(*Row) error
	zone  *time.Location
	row   *Row
}

func (s *scan) limit(ctx context.Context, name string) error {
	begin := prefix(name)
	begin += s.subjectPrefix(name)
	for after := ""; ; {
		found, err := s.from.Marks(ctx, Table, begin, after, page)
		if err != nil {
			return fmt.Errorf("usage: %w", err)
		}
		for _, mark := range found {
			after = mark.Key
			if err := s.mark(mark); err != nil {
				return err
			}
		}
		if len(found) < page {
			return s.flush()
		}
		after = s.jump(after)
	}
}

// subjectPrefix is how the keys that are asked for begin, as far as that is known.
func (s *scan) subjectPrefix(name string) string {
	if s.q.Order == nil || len(s.q.Key) == 0 {
		return ""
	}
	var first []limit.Attribute
	for _, attribute := range s.q.Order(name) {
		i := slices.IndexFunc(s.q.Key, func(a limit.Attribute) bool { return a.Name == attribute })
		if i < 0 {
			break
		}
		first = append(first, s.q.Key[i])
	}
	if text := Subject(first); !strings.HasPrefix(text, "sha256=") {
		return text // acme is the beginning of acme2 as well: the rows are looked at one by one
	}
	return ""
}

// jump returns behind which mark the search goes on: hours out of the time that is asked for are not read one by
// one.
func (s *scan) jump(after string) string {
	name, subject, start, _, ok := cutMark(after)
	switch {
	case !ok:
	case start < s.q.From.Unix() && !s.q.From.IsZero():
		return prefix(name) + subject + "\x00" + fmt.Sprintf("%011d", s.q.From.Unix())
	case !s.q.To.IsZero() && start >= s.q.To.Unix():
		return prefix(name) + subject + "\x01"
	}
	return after
}

func (s *scan) mark(mark store.Mark) error {
	name, subject, start, kind, ok := cutMark(mark.Key)
	if !ok || kind != markTaken && kind != markReturned || !s.q.From.IsZero() && start < s.q.From.Unix() || !s.q.To.IsZero() && start >= s.q.To.Unix() {
		return nil
	}
	at := s.step(start)
	if s.row == nil || s.row.subject != subject || s.q.By != Total && !s.row.Start.Equal(at) {
		if err := s.flush(); err != nil {
			return err
		}
		attrs := Attributes(subject)
		if !has(attrs, s.q.Key) {
			return nil
		}
		s.row = &Row{Limit: name, Key: attrs, Start: at, subject: subject}
	}
	switch kind {
	case markTaken:
		s.row.Taken = sumUp(s.row.Taken, mark.N)
	case markReturned:
		s.row.Returned = sumUp(s.row.Returned, mark.N)
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

func (s *scan) flush() error {
	row := s.row
	s.row = nil
	if row == nil {
		return nil
	}
	return s.yield(row)
}

// step returns when the step began that has the hour.
func (s *scan) step(start int64) time.Time {
	t := time.Unix(start, 0).In(s.zone)
	switch s.q.By {
	case Day:
		return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, s.zone)
	case Month:
		return time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, s.zone)
	case Total:
		if !s.q.From.IsZero() {
			return s.q.From.In(s.zone)
		}
	}
	return t // of a total without a beginning: the first hour
}

func has(attrs, want []limit.Attribute) bool {
	for _, w := range want {
		if !slices.Contains(attrs, w) {
			return false
		}
	}
	return true
}
