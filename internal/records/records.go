// Package records keeps small values by table and key in this process, in the order of their keys. It does not
// persist them, and knows nothing of what they say.
package records

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/btree"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// DefaultMaxBytes bounds keys and values together: 64 MiB, room for some 300,000 records of 200 bytes. Not larger:
// strangers may make them, within their limits. Not smaller: a reservation of each of 10,000 streams must fit ten times.
const DefaultMaxBytes = 64 << 20

// overhead is what a record takes beside its key and its value, about.
const overhead = 96

// degree is that of the trees: nodes of some two kilobytes, so that a search touches few of them.
const degree = 32

// Memory is a [store.Records] in this process. New makes it.
type Memory struct {
	now      func() limit.Time
	maxBytes int64

	mu     sync.Mutex
	tables map[string]*btree.BTreeG[item]
	bytes  int64
	sweep  limit.Time // no search for ended records before
}

var _ store.Records = (*Memory)(nil)

type item struct {
	key   string
	value []byte
	until limit.Time // 0 = for ever
}

func (i item) size() int64 { return int64(len(i.key)+len(i.value)) + overhead }

// New returns an empty table of tables. now is the clock; nil = the system's. maxBytes 0 = [DefaultMaxBytes].
func New(now func() limit.Time, maxBytes int64) *Memory {
	if now == nil {
		now = func() limit.Time { return limit.At(time.Now()) }
	}
	if maxBytes <= 0 {
		maxBytes = DefaultMaxBytes
	}
	return &Memory{now: now, maxBytes: maxBytes, tables: make(map[string]*btree.BTreeG[item])}
}

// Get implements [store.Records].
func (m *Memory) Get(_ context.Context, table, key string) ([]byte, error) {
	if err := store.CheckRecord(table, key, nil); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i, _ := m.get(table, key, m.now())
	return slices.Clone(i.value), nil
}

// Swap implements [store.Records].
func (m *Memory) Swap(_ context.Context, table, key string, old, value []byte, keep time.Duration) (bool, []byte, error) {
	if err := store.CheckRecord(table, key, value); err != nil {
		return false, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	is, known := m.get(table, key, now)
	if known != (old != nil) || string(is.value) != string(old) {
		return false, slices.Clone(is.value), nil
	}
	if value == nil {
		m.remove(table, key)
		return true, nil, nil
	}
	if err := m.put(table, item{key, append([]byte{}, value...), until(now, keep)}, now); err != nil {
		return false, nil, err
	}
	return true, value, nil
}

// Range implements [store.Records].
func (m *Memory) Range(_ context.Context, table, prefix, after string, most int) ([]store.Record, error) {
	var found []store.Record
	err := m.each(table, prefix, after, most, func(i item) {
		found = append(found, store.Record{Key: i.key, Value: slices.Clone(i.value)})
	})
	return found, err
}

// Raise implements [store.Records].
func (m *Memory) Raise(_ context.Context, table string, marks []store.Mark, keep time.Duration) error {
	for i := range marks {
		if err := store.CheckRecord(table, marks[i].Key, nil); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	for _, mark := range marks {
		if is, known := m.get(table, mark.Key, now); known && Number(is.value) >= mark.N {
			continue
		}
		if err := m.put(table, item{mark.Key, binary.BigEndian.AppendUint64(nil, mark.N), until(now, keep)}, now); err != nil {
			return err
		}
	}
	return nil
}

// Marks implements [store.Records].
func (m *Memory) Marks(_ context.Context, table, prefix, after string, most int) ([]store.Mark, error) {
	var found []store.Mark
	err := m.each(table, prefix, after, most, func(i item) {
		found = append(found, store.Mark{Key: i.key, N: Number(i.value)})
	})
	return found, err
}

// Number is the number of a mark's value; 0 for a value that is none.
func Number(value []byte) uint64 {
	if len(value) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(value)
}

func until(now limit.Time, keep time.Duration) limit.Time {
	if keep <= 0 {
		return 0
	}
	return now.Add(keep)
}

func (i item) ended(now limit.Time) bool { return i.until != 0 && now >= i.until }

// get returns a record that has not ended. m.mu is held, as in the methods below.
func (m *Memory) get(table, key string, now limit.Time) (item, bool) {
	t := m.tables[table]
	if t == nil {
		return item{}, false
	}
	i, known := t.Get(item{key: key})
	if !known || i.ended(now) {
		return item{}, false
	}
	return i, true
}

func (m *Memory) put(table string, i item, now limit.Time) error {
	if m.bytes+i.size() > m.maxBytes {
		m.dropEnded(now)
	}
	t := m.tables[table]
	var was int64
	if t != nil {
		if o, known := t.Get(item{key: i.key}); known {
			was = o.size()
		}
	}
	if m.bytes+i.size()-was > m.maxBytes {
		return fmt.Errorf("records: %w: %d bytes are in use, the most there may be", store.ErrFull, m.bytes)
	}
	if t == nil {
		t = btree.NewG(degree, func(a, b item) bool { return a.key < b.key })
		m.tables[table] = t
	}
	t.ReplaceOrInsert(i)
	m.bytes += i.size() - was
	return nil
}

func (m *Memory) remove(table, key string) {
	if t := m.tables[table]; t != nil {
		if i, known := t.Delete(item{key: key}); known {
			m.bytes -= i.size()
		}
	}
}

// dropEnded forgets what has ended, at most once a second: it visits everything.
func (m *Memory) dropEnded(now limit.Time) {
	if now < m.sweep {
		return
	}
	m.sweep = now.Add(time.Second)
	for name, t := range m.tables {
		var ended []string
		t.Ascend(func(i item) bool {
			if i.ended(now) {
				ended = append(ended, i.key)
			}
			return true
		})
		for _, key := range ended {
			m.remove(name, key)
		}
	}
}

func (m *Memory) each(table, prefix, after string, most int, f func(item)) error {
	if err := store.CheckRecord(table, "any", nil); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tables[table]
	if t == nil {
		return nil
	}
	now := m.now()
	t.AscendGreaterOrEqual(item{key: max(prefix, after)}, func(i item) bool {
		switch {
		case most <= 0 || !strings.HasPrefix(i.key, prefix) && i.key > prefix:
			return false
		case i.key == after || i.ended(now):
		default:
			f(i)
			most--
		}
		return true
	})
	return nil
}
