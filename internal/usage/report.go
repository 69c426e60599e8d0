package usage

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/store"
)

// Table is the table of marks in which usage is kept.
const Table = "usage"

// batch bounds the marks of one call: some 100 KB.
const batch = 500

const (
	markTaken    = 't'
	markReturned = 'r'
)

// markKey is where a count is kept: limit, subject, start of the hour, kind and origin, in this order, so that
// the hours of a key stand behind each other. Limit and subject have no zero bytes.
func markKey(s *slot, kind byte, origin string) string {
	return prefix(s.limit) + s.subject + "\x00" + fmt.Sprintf("%011d", s.start) + string(kind) + origin
}

// prefix is how the keys of a limit begin.
func prefix(name string) string { return name + "\x00" }

// cutMark is the inverse of markKey.
func cutMark(key string) (name, subject string, start int64, kind byte, ok bool) {
	name, rest, ok1 := strings.Cut(key, "\x00")
	subject, rest, ok2 := strings.Cut(rest, "\x00")
	if !ok1 || !ok2 || len(rest) < 12 {
		return "", "", 0, 0, false
	}
	start, err := strconv.ParseInt(rest[:11], 10, 64)
	return name, subject, start, rest[11], err == nil
}

// Run reports what was counted every [Options.Every] until ctx ends, and then once more.
func (m *Meter) Run(ctx context.Context) {
	tick := time.NewTicker(m.opts.Every)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			if err := m.Report(last); err != nil {
				m.opts.Logger.Error("the last usage of this process is not reported; with a folder the next process does it", "err", err)
			}
			return
		case <-tick.C:
		}
		err := m.Report(ctx)
		if failing != (err != nil) && ctx.Err() == nil {
			if failing = err != nil; failing {
				m.opts.Logger.Warn("usage is not reported for now: nothing is lost, it is tried again", "err", err)
			} else {
				m.opts.Logger.Info("usage is reported again")
			}
		}
	}
}

// Report hands over what was counted since the report before. After an error all of it is reported again, which
// changes nothing where it was taken.
func (m *Meter) Report(ctx context.Context) error {
	if m.opts.Records == nil {
		return nil
	}
	m.reporting.Lock()
	defer m.reporting.Unlock()
	var errs []error
	for _, t := range m.tables() {
		if err := m.reportTable(ctx, t); err != nil {
			errs = append(errs, err)
			continue
		}
		if t != m.current.Load() {
			errs = append(errs, m.drop(ctx, t))
		}
	}
	return errors.Join(errs...)
}

// sent is one slot in a batch, and what it had counted.
type sent struct {
	s               *slot
	taken, returned uint64
}

func (m *Meter) reportTable(ctx context.Context, t *table) error {
	var marks []store.Mark
	var slots []sent
	send := func() error {
		if len(marks) == 0 {
			return nil
		}
		if err := m.opts.Records.Raise(ctx, Table, marks, m.opts.Keep); err != nil {
			m.stats.failures.Add(1)
			return fmt.Errorf("usage: %w", err)
		}
		m.stats.reports.Add(1)
		for _, one := range slots {
			one.s.reported.taken, one.s.reported.returned = one.taken, one.returned
		}
		marks, slots = marks[:0], slots[:0]
		return nil
	}
	for _, s := range t.all() {
		one := sent{s, s.n.taken.Load(), s.n.returned.Load()}
		if one.taken == s.reported.taken && one.returned == s.reported.returned {
			continue
		}
		if one.taken != s.reported.taken {
			marks = append(marks, store.Mark{Key: markKey(s, markTaken, t.origin), N: one.taken})
		}
		if one.returned != s.reported.returned {
			marks = append(marks, store.Mark{Key: markKey(s, markReturned, t.origin), N: one.returned})
		}
		if slots = append(slots, one); len(marks) >= batch {
			if err := send(); err != nil {
				return err
			}
		}
	}
	return send()
}

// Keeper is what records may be that take marks before they are safe.
type Keeper interface {
	// Kept returns nil when what was raised before the call outlives a kill of this process.
	Kept(ctx context.Context) error
}

// heldBack is for how long a table that is reported and not safe stays. Not for ever: each is a file.
const heldBack = 7 * 24

// drop forgets a table that is closed and wholly reported, once what it counted is safe.
func (m *Meter) drop(ctx context.Context, t *table) error {
	if !m.kept(ctx) && hourOf(m.opts.Now())-t.hour < heldBack {
		return nil
	}
	// It was closed before it was read, unless turn is at work: then the next report reads the rest.
	m.mu.Lock()
	found := false
	for i, c := range m.closed {
		if c == t {
			for _, s := range t.slots {
				if s.n.taken.Load() != s.reported.taken || s.n.returned.Load() != s.reported.returned {
					m.mu.Unlock()
					return nil
				}
			}
			m.closed = append(m.closed[:i:i], m.closed[i+1:]...)
			found = true
			break
		}
	}
	m.mu.Unlock()
	if !found {
		return nil
	}
	if err := t.file.remove(); err != nil {
		return fmt.Errorf("usage: a file that is reported stays: %w", err)
	}
	return nil
}

// kept says whether what was raised outlives this process.
func (m *Meter) kept(ctx context.Context) bool {
	k, late := m.opts.Records.(Keeper)
	return !late || k.Kept(ctx) == nil
}

// Close lets go of the files. What is not reported stays in them for the next process. Nothing may be counted
// any more.
func (m *Meter) Close() error {
	m.reporting.Lock()
	defer m.reporting.Unlock()
	m.ended.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	kept := m.kept(ctx)
	var errs []error
	for _, t := range m.tables() {
		t.close()
		whole := kept
		for _, s := range t.all() {
			whole = whole && s.n.taken.Load() == s.reported.taken && s.n.returned.Load() == s.reported.returned
			// The mapped memory goes.
			n := new(counts)
			n.taken.Store(s.n.taken.Load())
			n.returned.Store(s.n.returned.Load())
			s.n = n
		}
		if whole {
			errs = append(errs, t.file.remove())
		} else {
			errs = append(errs, t.file.release())
		}
		t.file = nil
	}
	return errors.Join(errs...)
}
