package durable

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/google/btree"

	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Records are the [store.Records] in the file. Changes since the last snapshot are in memory; the rest
// is read from the file. They are safe for concurrent use.
type Records struct {
	store *Store
	now   func() limit.Time

	mu      sync.Mutex
	changed layer                          // since the snapshot
	frozen  layer                          // before changed: what a compaction is writing; nil = nothing
	base    baseLayer                      // before both
	unsaved map[string]map[string]struct{} // keys of changed that are not in the file yet, by table
	writing map[string]map[string]struct{} // those that are being written
}

// entry is the value of a record.
type entry struct {
	value []byte     // nil = the record is removed
	until limit.Time // 0 = for ever
}

func (e entry) ended(now limit.Time) bool { return e.until != 0 && now >= e.until }

// live returns the value of the record at now, nil if there is none.
func (e entry) live(now limit.Time) []byte {
	if e.ended(now) {
		return nil
	}
	return e.value
}

// item is a record of a layer.
type item struct {
	key string
	entry
}

// degree is that of the trees: nodes of some two kilobytes, so that a search touches few of them.
const degree = 32

// layer is a part of the records, in memory, by table.
type layer map[string]*btree.BTreeG[item]

func (l layer) put(table, key string, e entry) {
	t := l[table]
	if t == nil {
		t = btree.NewG(degree, func(a, b item) bool { return a.key < b.key })
		l[table] = t
	}
	t.ReplaceOrInsert(item{key, e})
}

func (l layer) get(table, key string) (entry, bool) {
	if t := l[table]; t != nil {
		i, known := t.Get(item{key: key})
		return i.entry, known
	}
	return entry{}, false
}

// from yields the records of a table from a key on.
func (l layer) from(table, key string) iter.Seq2[item, error] {
	return func(yield func(item, error) bool) {
		if t := l[table]; t != nil {
			t.AscendGreaterOrEqual(item{key: key}, func(i item) bool { return yield(i, nil) })
		}
	}
}

// baseLayer is the records of the snapshot. They are read from the file.
type baseLayer struct {
	file   io.ReaderAt
	tables map[string][]block
	last   frame // the one that was read last
}

// read returns the frame of a block. It is valid until the next call.
func (b *baseLayer) read(p place) (frame, error) {
	if b.last.place == p {
		return b.last, nil
	}
	f, _, err := readFrame(b.file, p, frameRecords, nil)
	if err != nil {
		return frame{}, err
	}
	b.last = f
	return f, nil
}

// from yields the records of a table from a key on. Their values are valid until the next one.
func (b *baseLayer) from(table, key string) iter.Seq2[item, error] {
	return func(yield func(item, error) bool) {
		blocks := b.tables[table]
		first := sort.Search(len(blocks), func(i int) bool { return blocks[i].first > key })
		for _, one := range blocks[max(first-1, 0):] {
			f, err := b.read(one.place)
			if err != nil {
				yield(item{}, err)
				return
			}
			d := decoder{b: f.body}
			for d.bytes(); len(d.b) > 0; {
				name, e := d.record()
				if d.bad {
					break
				}
				if string(name) >= key && !yield(item{string(name), e}, nil) {
					return
				}
			}
			if err := d.err(); err != nil {
				yield(item{}, err)
				return
			}
		}
	}
}

// merged yields the records that any of some layers has, those of the first layers before those of the others.
func merged(layers ...iter.Seq2[item, error]) iter.Seq2[item, error] {
	return func(yield func(item, error) bool) {
		type head struct {
			item
			next func() (item, error, bool)
		}
		var heads []head
		for _, l := range layers {
			next, stop := iter.Pull2(l)
			defer stop()
			i, err, ok := next()
			if err != nil {
				yield(item{}, err)
				return
			}
			if ok {
				heads = append(heads, head{i, next})
			}
		}
		for len(heads) > 0 {
			least := heads[0].item
			for _, h := range heads[1:] {
				if h.key < least.key {
					least = h.item
				}
			}
			if !yield(least, nil) {
				return
			}
			left := heads[:0]
			for _, h := range heads {
				if h.key == least.key {
					i, err, ok := h.next()
					if err != nil {
						yield(item{}, err)
						return
					}
					if !ok {
						continue
					}
					h.item = i
				}
				left = append(left, h)
			}
			heads = left
		}
	}
}

func newRecords(s *Store, now func() limit.Time) *Records {
	if now == nil {
		now = func() limit.Time { return limit.At(time.Now()) }
	}
	return &Records{store: s, now: now, changed: layer{}}
}

// rebase makes the snapshot of a file the base. r.mu is held.
func (r *Records) rebase(file io.ReaderAt, tables map[string][]block) {
	r.frozen = nil
	r.base = baseLayer{file: file, tables: tables}
}

// Get implements [store.Records].
func (r *Records) Get(_ context.Context, table, key string) ([]byte, error) {
	if err := store.CheckRecord(table, key, nil); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	value, err := r.get(table, key, r.now())
	return bytes.Clone(value), err
}

// get returns the value of a record, nil when there is none; it is valid until the next call. r.mu is held, as in put.
func (r *Records) get(table, key string, now limit.Time) ([]byte, error) {
	if e, known := r.changed.get(table, key); known {
		return e.live(now), nil
	}
	if e, known := r.frozen.get(table, key); known {
		return e.live(now), nil
	}
	for i, err := range r.base.from(table, key) {
		if err != nil {
			return nil, r.unreadable(err)
		}
		if i.key == key {
			return i.live(now), nil
		}
		break
	}
	return nil, nil
}

func (r *Records) unreadable(err error) error {
	return fmt.Errorf("durable: %s cannot be read: %w", r.store.opts.Path, err)
}

func (r *Records) put(table, key string, e entry) {
	r.changed.put(table, key, e)
	note(&r.unsaved, table, key)
}

func note(tables *map[string]map[string]struct{}, table, key string) {
	if *tables == nil {
		*tables = make(map[string]map[string]struct{})
	}
	if (*tables)[table] == nil {
		(*tables)[table] = make(map[string]struct{})
	}
	(*tables)[table][key] = struct{}{}
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
		return false, bytes.Clone(is), nil
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

func (r *Records) each(table, prefix, after string, most int, f func(key string, value []byte)) error {
	if err := store.CheckRecord(table, "any", nil); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	from := max(prefix, after)
	for i, err := range merged(r.changed.from(table, from), r.frozen.from(table, from), r.base.from(table, from)) {
		if err != nil {
			return r.unreadable(err)
		}
		if most <= 0 || !strings.HasPrefix(i.key, prefix) && i.key > prefix {
			break
		}
		if value := i.live(now); value != nil && i.key != after {
			f(i.key, value)
			most--
		}
	}
	return nil
}

// take appends what is to be written; saved follows. With freeze, what was changed is frozen for a
// compaction.
func (r *Records) take(to *frames, freeze bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for table, keys := range r.unsaved {
		n := 0
		for key := range keys {
			if n == 0 {
				to.beginNamed(frameRecords, table)
			}
			e, _ := r.changed.get(table, key)
			to.buf = appendRecord(to.buf, key, e)
			if n++; to.long(statesFrame) {
				to.end()
				n = 0
			}
		}
		if n > 0 {
			to.end()
		}
	}
	r.writing, r.unsaved = r.unsaved, nil
	if freeze {
		r.frozen, r.changed = r.changed, layer{}
	}
}

// saved ends what take has begun: what it has appended is in the file, or has to be written again.
func (r *Records) saved(ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !ok {
		for table, keys := range r.writing {
			for key := range keys {
				note(&r.unsaved, table, key)
			}
		}
	}
	r.writing = nil
}

// thaw puts what was frozen back.
func (r *Records) thaw() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.frozen == nil {
		return
	}
	for table, t := range r.changed {
		t.Ascend(func(i item) bool {
			r.frozen.put(table, i.key, i.entry)
			return true
		})
	}
	r.changed, r.frozen = r.frozen, nil
}

// frozenTables returns the tables that a compaction writes.
func (r *Records) frozenTables() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	tables := make(map[string]struct{})
	for table := range r.frozen {
		tables[table] = struct{}{}
	}
	for table := range r.base.tables {
		tables[table] = struct{}{}
	}
	return slices.Sorted(maps.Keys(tables))
}

// eachFrozen goes through the records of a table as they were when they were frozen. Others may read and write
// meanwhile: neither what is frozen nor the base changes before the compaction ends.
func (r *Records) eachFrozen(table string, f func(key string, e entry) error) error {
	r.mu.Lock()
	frozen, base := r.frozen, baseLayer{file: r.base.file, tables: r.base.tables}
	r.mu.Unlock()
	for i, err := range merged(frozen.from(table, ""), base.from(table, "")) {
		if err == nil {
			err = f(i.key, i.entry)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
