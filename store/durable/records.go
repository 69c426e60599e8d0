package durable

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Records are the [store.Records] in the file. What was changed and is not written yet is in memory; the rest
// is read from the file. They are safe for concurrent use.
type Records struct {
	store *Store
	now   func() limit.Time

	mu      sync.Mutex
	pending map[string]map[string]entry // changed since the last write began
	writing map[string]map[string]entry // being written; read-only
}

// entry is the value of a record.
type entry struct {
	value []byte     // nil = the record is removed
	until limit.Time // 0 = for ever
}

func (e entry) ended(now limit.Time) bool { return e.until != 0 && now >= e.until }

// readEntry reads what the file has of a record: when it ends, and its value.
func readEntry(raw []byte) (e entry, ok bool) {
	if len(raw) < 8 {
		return e, false
	}
	return entry{raw[8:], limit.Time(binary.BigEndian.Uint64(raw))}, true
}

func newRecords(s *Store, now func() limit.Time) *Records {
	if now == nil {
		now = func() limit.Time { return limit.At(time.Now()) }
	}
	return &Records{store: s, now: now}
}

// Get implements [store.Records].
func (r *Records) Get(_ context.Context, table, key string) ([]byte, error) {
	if err := store.CheckRecord(table, key, nil); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.get(table, key, r.now())
}

// get returns the value of a record, nil when there is none. r.mu is held, as in put.
func (r *Records) get(table, key string, now limit.Time) (value []byte, err error) {
	for _, part := range []map[string]map[string]entry{r.pending, r.writing} {
		if e, changed := part[table][key]; changed {
			if e.ended(now) {
				return nil, nil
			}
			return bytes.Clone(e.value), nil
		}
	}
	err = guarded(func() error {
		return r.store.db.View(func(tx *bolt.Tx) error {
			if b := tx.Bucket(recordsBucket).Bucket([]byte(table)); b != nil {
				if e, ok := readEntry(b.Get([]byte(key))); ok && !e.ended(now) {
					value = append([]byte{}, e.value...)
				}
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("durable: %s cannot be read: %w", r.store.opts.Path, err)
	}
	return value, nil
}

func (r *Records) put(table, key string, e entry) {
	if r.pending == nil {
		r.pending = make(map[string]map[string]entry)
	}
	if r.pending[table] == nil {
		r.pending[table] = make(map[string]entry)
	}
	r.pending[table][key] = e
}

// Swap implements [store.Records]. It returns when the record is as safe as the store's bound says.
func (r *Records) Swap(ctx context.Context, table, key string, old, value []byte, keep time.Duration) (bool, []byte, error) {
	if err := store.CheckRecord(table, key, value); err != nil {
		return false, nil, err
	}
	swapped, present, err := r.swap(table, key, old, value, keep)
	if err == nil && swapped {
		err = r.store.writer.wait(ctx)
	}
	return swapped && err == nil, present, err
}

func (r *Records) swap(table, key string, old, value []byte, keep time.Duration) (bool, []byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	is, err := r.get(table, key, now)
	if err != nil {
		return false, nil, err
	}
	if (is == nil) != (old == nil) || !bytes.Equal(is, old) {
		return false, is, nil
	}
	var e entry
	if value != nil {
		e.value = append([]byte{}, value...)
		if keep > 0 {
			e.until = now.Add(keep)
		}
	}
	r.put(table, key, e)
	return true, value, nil
}

// Raise implements [store.Records].
func (r *Records) Raise(ctx context.Context, table string, marks []store.Mark, keep time.Duration) error {
	for i := range marks {
		if err := store.CheckRecord(table, marks[i].Key, nil); err != nil {
			return err
		}
	}
	if err := r.raise(table, marks, keep); err != nil {
		return err
	}
	return r.store.writer.wait(ctx)
}

// Kept returns nil when what was changed before the call is on the disk.
func (r *Records) Kept(context.Context) error { return r.store.Flush() }

func (r *Records) raise(table string, marks []store.Mark, keep time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, m := range marks {
		is, err := r.get(table, m.Key, now)
		if err != nil {
			return err
		}
		if is != nil && records.Number(is) >= m.N {
			continue
		}
		e := entry{value: binary.BigEndian.AppendUint64(nil, m.N)}
		if keep > 0 {
			e.until = now.Add(keep)
		}
		r.put(table, m.Key, e)
	}
	return nil
}

// Range implements [store.Records].
func (r *Records) Range(_ context.Context, table, prefix, after string, most int) (found []store.Record, err error) {
	err = r.each(table, prefix, after, most, func(key string, value []byte) {
		found = append(found, store.Record{Key: key, Value: bytes.Clone(value)})
	})
	return found, err
}

// Marks implements [store.Records].
func (r *Records) Marks(_ context.Context, table, prefix, after string, most int) (found []store.Mark, err error) {
	err = r.each(table, prefix, after, most, func(key string, value []byte) {
		found = append(found, store.Mark{Key: key, N: records.Number(value)})
	})
	return found, err
}

// each goes through what the file has, with what was changed since in its place.
func (r *Records) each(table, prefix, after string, most int, f func(key string, value []byte)) error {
	if err := store.CheckRecord(table, "any", nil); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	changed := make(map[string]entry)
	for _, part := range []map[string]map[string]entry{r.writing, r.pending} {
		for key, e := range part[table] {
			if strings.HasPrefix(key, prefix) && key > after {
				changed[key] = e
			}
		}
	}
	keys := make([]string, 0, len(changed))
	for key := range changed {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	give := func(key string, e entry) {
		if e.value != nil && !e.ended(now) && most > 0 {
			f(key, e.value)
			most--
		}
	}
	err := guarded(func() error {
		return r.store.db.View(func(tx *bolt.Tx) error {
			b := tx.Bucket(recordsBucket).Bucket([]byte(table))
			if b == nil {
				return nil
			}
			c := b.Cursor()
			for key, raw := c.Seek([]byte(max(prefix, after))); key != nil && most > 0; key, raw = c.Next() {
				if !bytes.HasPrefix(key, []byte(prefix)) && string(key) > prefix {
					break
				}
				for len(keys) > 0 && keys[0] < string(key) {
					give(keys[0], changed[keys[0]])
					keys = keys[1:]
				}
				if len(keys) > 0 && keys[0] == string(key) {
					continue // given with its new value, before the next one
				}
				if e, ok := readEntry(raw); ok && string(key) > after {
					give(string(key), e)
				}
			}
			return nil
		})
	})
	for _, key := range keys {
		give(key, changed[key])
	}
	if err != nil {
		return fmt.Errorf("durable: %s cannot be read: %w", r.store.opts.Path, err)
	}
	return nil
}

// take returns what is to be written; written or giveBack follows.
func (r *Records) take() map[string]map[string]entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writing, r.pending = r.pending, nil
	return r.writing
}

func (r *Records) written() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writing = nil
}

// giveBack puts what could not be written before what was changed since.
func (r *Records) giveBack() {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.writing
	r.writing = nil
	for table, entries := range old {
		for key, e := range entries {
			if _, newer := r.pending[table][key]; !newer {
				r.put(table, key, e)
			}
		}
	}
}

func writeRecords(tx *bolt.Tx, tables map[string]map[string]entry) error {
	for table, entries := range tables {
		b, err := tx.Bucket(recordsBucket).CreateBucketIfNotExists([]byte(table))
		if err != nil {
			return err
		}
		keys := make([]string, 0, len(entries))
		for key := range entries {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		for _, key := range keys {
			e := entries[key]
			if e.value == nil {
				err = b.Delete([]byte(key))
			} else {
				err = b.Put([]byte(key), append(binary.BigEndian.AppendUint64(nil, uint64(e.until)), e.value...))
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
