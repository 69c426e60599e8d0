package usage

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

const (
	// pageSize is how many marks of the records are read at once.
	pageSize = 1000
	// pageReads bounds the reads for one [Page] of [Store.Page]: few marks of many may be asked for.
	pageReads = 20
)

// Page is a part of the marks that a [Query] asks for.
type Page struct {
	Marks []store.Mark // in the order of their keys
	Next  string       // the key behind which to go on; "" = there are no more
}

// check returns an error for a page that cannot be the one behind after.
func (p *Page) check(q *Query, after string) error {
	last := after
	for _, m := range p.Marks {
		if m.Key <= last || !q.asks(m.Key) {
			return fmt.Errorf("usage: the answer has %.200q behind %.200q, which was not asked for", m.Key, last)
		}
		last = m.Key
	}
	if p.Next != "" && (p.Next < last || p.Next <= after) {
		return fmt.Errorf("usage: the answer goes on behind %.200q, and has come to %.200q", p.Next, last)
	}
	return nil
}

// page reads once from the records.
func (q *Query) page(ctx context.Context, from store.Records, after string) (p Page, err error) {
	name := short(q.Limit)
	if name == "" {
		first, err := from.Marks(ctx, Table, "", after, 1)
		if err != nil {
			return p, fmt.Errorf("usage: %w", err)
		}
		if len(first) == 0 {
			return p, nil
		}
		name, _, _ = strings.Cut(first[0].Key, "\x00")
	}
	found, err := from.Marks(ctx, Table, prefix(name)+q.subjectPrefix(name), after, pageSize)
	if err != nil {
		return p, fmt.Errorf("usage: %w", err)
	}
	for _, m := range found {
		if q.asks(m.Key) {
			p.Marks = append(p.Marks, m)
		}
	}
	switch {
	case len(found) == pageSize:
		p.Next = q.jump(found[pageSize-1].Key)
	case q.Limit == "":
		p.Next = name + "\x01" // the next limit
	}
	return p, nil
}

// asks reports whether the mark under a key is asked for.
func (q *Query) asks(key string) bool {
	name, subject, start, _, ok := cutMark(key)
	if !ok || q.Limit != "" && name != short(q.Limit) || !q.From.IsZero() && start < q.From.Unix() || !q.To.IsZero() && start >= q.To.Unix() {
		return false
	}
	if len(q.Key) == 0 {
		return true
	}
	attributes := Attributes(subject)
	return !slices.ContainsFunc(q.Key, func(a limit.Attribute) bool { return !slices.Contains(attributes, a) })
}

// subjectPrefix is how the keys that are asked for begin, as far as that is known.
func (q *Query) subjectPrefix(name string) string {
	if q.Order == nil || len(q.Key) == 0 {
		return ""
	}
	var first []limit.Attribute
	for _, attribute := range q.Order(name) {
		i := slices.IndexFunc(q.Key, func(a limit.Attribute) bool { return a.Name == attribute })
		if i < 0 {
			break
		}
		first = append(first, q.Key[i])
	}
	if text := Subject(first); !strings.HasPrefix(text, "sha256=") {
		return text // acme is the beginning of acme2 as well: the rows are looked at one by one
	}
	return ""
}

// jump returns behind which mark the search goes on: hours out of the time that is asked for are not read one by
// one.
func (q *Query) jump(after string) string {
	name, subject, start, _, ok := cutMark(after)
	switch {
	case !ok:
	case start < q.From.Unix() && !q.From.IsZero():
		return prefix(name) + subject + "\x00" + fmt.Sprintf("%011d", q.From.Unix())
	case !q.To.IsZero() && start >= q.To.Unix():
		return prefix(name) + subject + "\x01"
	}
	return after
}
