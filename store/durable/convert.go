package durable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/stint-io/stint/limit"
)

// Files of the former format are databases of bbolt. One is converted when it is opened, and Downgrade converts it back: the
// new file is written beside the old one and takes its name. A conversion that is interrupted begins again at the next start.

// isBolt reports whether a file is a database of bbolt: its first page has a number of its own behind the page's head.
func isBolt(r io.ReaderAt) bool {
	b := make([]byte, 4)
	_, err := r.ReadAt(b, 16)
	return err == nil && (binary.LittleEndian.Uint32(b) == 0xED0CDAED || binary.BigEndian.Uint32(b) == 0xED0CDAED)
}

// convert replaces the database at the path by a file of this format.
func (f *file) convert(o *Options) error {
	// The lock of the database keeps out programs that know the former format alone.
	db, err := bolt.Open(f.path, 0o600, &bolt.Options{Timeout: max(o.Wait, time.Millisecond), ReadOnly: true})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return errInUse
	}
	if err != nil {
		return err
	}
	began := time.Now()
	w, err := newSnapshot(f.disk, f.path)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	err = guarded(func() error {
		return db.View(func(tx *bolt.Tx) error {
			if err := f.checkDatabase(db.Info().PageSize, uint64(tx.Cursor().Bucket().Root())); err != nil {
				return err
			}
			return convertInto(w, tx)
		})
	})
	// A database that faults may fault again.
	err = errors.Join(err, guarded(db.Close), w.handle.Close())
	if err == nil {
		err = errors.Join(f.disk.rename(newName(f.path), f.path), f.disk.syncFolder(f.path))
	}
	if err != nil {
		return errors.Join(err, removeIfThere(f.disk, newName(f.path)))
	}
	o.Logger.Info("converted the file to the current format; before going back to the previous version run stint state downgrade",
		"file", f.path, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// guarded runs f, which reads the database, and returns its panics and faults as errors: bbolt maps the file into
// memory and trusts what stands there.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("reading it failed: %v", r)
		}
	}()
	return f()
}

// checkDatabase checks the pages of the database at the path.
func (f *file) checkDatabase(pageSize int, root uint64) error {
	h, err := f.disk.open(f.path)
	if err != nil {
		return err
	}
	pages := boltPages{file: h, size: int64(pageSize), seen: make(map[uint64]bool)}
	return errors.Join(pages.check(root), h.Close())
}

// boltPages are the pages of a database of bbolt.
type boltPages struct {
	file io.ReaderAt
	size int64 // of a page without overflow
	seen map[uint64]bool
}

// check returns an error if a page is reached twice from the page id: bbolt would follow a page that leads back to itself
// until there is no memory left.
func (p *boltPages) check(id uint64) error {
	if p.seen[id] || id > 1<<40 {
		return fmt.Errorf("page %d is in two places", id)
	}
	p.seen[id] = true
	page := make([]byte, boltPageHead)
	if _, err := p.file.ReadAt(page, int64(id)*p.size); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	whole := io.NewSectionReader(p.file, int64(id)*p.size, (1+int64(binary.LittleEndian.Uint32(page[12:])))*p.size)
	page, err := io.ReadAll(whole)
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return p.checkInside(page)
}

const (
	boltPageHead    = 16 // ID, flags, count of elements, count of overflow pages
	boltElementSize = 16
	boltBranch      = 1 // flag of a page: elements have the IDs of other pages
	boltBucket      = 1 // flag of an element of a leaf: its value begins with the ID of a page, or is a page if that is 0
)

// checkInside checks the pages to which a page leads.
func (p *boltPages) checkInside(page []byte) error {
	if len(page) < boltPageHead {
		return errBody
	}
	branch := binary.LittleEndian.Uint16(page[8:])&boltBranch != 0
	for i := range int(binary.LittleEndian.Uint16(page[10:])) {
		at := boltPageHead + i*boltElementSize
		if at+boltElementSize > len(page) {
			return errBody
		}
		e := page[at : at+boltElementSize]
		var err error
		switch {
		case branch:
			err = p.check(binary.LittleEndian.Uint64(e[8:]))
		case binary.LittleEndian.Uint32(e)&boltBucket != 0:
			value := uint64(at) + uint64(binary.LittleEndian.Uint32(e[4:])) + uint64(binary.LittleEndian.Uint32(e[8:]))
			if value+16 > uint64(len(page)) {
				return errBody
			}
			if root := binary.LittleEndian.Uint64(page[value:]); root != 0 {
				err = p.check(root)
			} else {
				err = p.checkInside(page[value+16:])
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// The buckets and keys of the former format.
var (
	metaBucket     = []byte("meta")     // format, and when it was written last
	countersBucket = []byte("counters") // a bucket for each limit, by its ID: its policy, and states by key
	recordsBucket  = []byte("records")  // a bucket for each table of records

	formatKey  = []byte("format")
	writtenKey = []byte("written") // Unix nanoseconds, big-endian
	policyKey  = []byte("policy")  // JSON
	statesKey  = []byte("states")  // by 'k' and the key
	journalKey = []byte("journal") // changes of states that are not in states yet, by number
)

func convertInto(w *snapshot, tx *bolt.Tx) error {
	written := time.Now()
	meta := tx.Bucket(metaBucket)
	counters, records := tx.Bucket(countersBucket), tx.Bucket(recordsBucket)
	if meta == nil && counters == nil && records == nil {
		if name, _ := tx.Cursor().First(); name != nil {
			return errForeign
		}
		_, err := w.finish(rand.Uint64N(1<<62), written)
		return err
	}
	if meta == nil || counters == nil || records == nil {
		return errors.New("a part of it is missing")
	}
	if format := meta.Get(formatKey); len(format) != 8 {
		return errors.New("it does not say which format it is")
	} else if v := binary.BigEndian.Uint64(format); v != 1 {
		return fmt.Errorf("its format is %d, and this one knows 1 in such a file: %w", v, errNewer)
	}
	if at := meta.Get(writtenKey); len(at) == 8 {
		written = time.Unix(0, int64(binary.BigEndian.Uint64(at)))
	}
	err := counters.ForEachBucket(func(id []byte) error {
		b := counters.Bucket(id)
		text := b.Get(policyKey)
		if text == nil {
			return nil
		}
		return w.states(string(id), string(text), func(put func(key, state []byte) error) error {
			return eachFormerState(b, put)
		})
	})
	if err != nil {
		return err
	}
	err = records.ForEachBucket(func(table []byte) error {
		return w.records(string(table), func(put func(key string, e entry) error) error {
			return records.Bucket(table).ForEach(func(key, raw []byte) error {
				if len(raw) < 8 {
					return errBody
				}
				return put(string(key), entry{raw[8:], limit.Time(binary.BigEndian.Uint64(raw))})
			})
		})
	})
	if err != nil {
		return err
	}
	_, err = w.finish(rand.Uint64N(1<<62), written)
	return err
}

// eachFormerState goes through the states of a limit: those in its journal, the newest of each key, and the rest.
func eachFormerState(b *bolt.Bucket, put func(key, state []byte) error) error {
	states := make(map[string][]byte)
	if journal := b.Bucket(journalKey); journal != nil {
		err := journal.ForEach(func(_, value []byte) error {
			for d := (decoder{b: value}); len(d.b) > 0 || d.bad; {
				key := d.bytes()
				state := d.state()
				if d.bad {
					return errBody
				}
				states[string(key)] = state
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if tree := b.Bucket(statesKey); tree != nil {
		err := tree.ForEach(func(key, state []byte) error {
			if len(key) == 0 || len(state) > 255 {
				return errBody
			}
			if _, newer := states[string(key[1:])]; newer {
				return nil
			}
			return put(key[1:], state)
		})
		if err != nil {
			return err
		}
	}
	for key, state := range states {
		if len(state) == 0 {
			continue
		}
		if err := put([]byte(key), state); err != nil {
			return err
		}
	}
	return nil
}

// Downgrade replaces the file at path by a database of bbolt with the same counts and records, which the versions before the
// present format read. No process may use the file. A file that is such a database already stays as it is. The error wraps
// [fs.ErrNotExist] if there is no file; after any error the file is as it was.
func Downgrade(path string) (err error) {
	o := Options{Path: path, Wait: time.Second, Logger: slog.New(slog.DiscardHandler), disk: systemDisk{}}
	h, err := o.disk.open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("durable: %w", err)
	}
	if err != nil {
		return explain(path, err)
	}
	former := isBolt(h)
	if err := h.Close(); err != nil || former {
		return err
	}
	changed := layer{}
	f, err := openFile(&o, func(table string, key []byte, e entry) {
		changed.put(table, string(key), entry{bytes.Clone(e.value), e.until})
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	db, err := bolt.Open(newName(path), 0o600, nil)
	if err != nil {
		return explain(path, err)
	}
	err = errors.Join(db.Update(func(tx *bolt.Tx) error { return f.downgradeInto(tx, changed) }), db.Close())
	if err == nil {
		err = f.handle.Close() // not all systems replace a file that is open
		f.handle = nil
	}
	if err == nil {
		err = errors.Join(f.disk.rename(newName(path), path), f.disk.syncFolder(path))
	}
	if err != nil {
		return explain(path, errors.Join(err, removeIfThere(f.disk, newName(path))))
	}
	return nil
}

func (f *file) downgradeInto(tx *bolt.Tx, changed layer) error {
	meta, err1 := tx.CreateBucket(metaBucket)
	counters, err2 := tx.CreateBucket(countersBucket)
	records, err3 := tx.CreateBucket(recordsBucket)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	number := func(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }
	if err := errors.Join(meta.Put(formatKey, number(1)), meta.Put(writtenKey, number(f.written))); err != nil {
		return err
	}
	for id, one := range f.limits {
		b, err := counters.CreateBucket([]byte(id))
		if err != nil {
			return err
		}
		tree, err := b.CreateBucket(statesKey)
		if err = errors.Join(err, b.Put(policyKey, []byte(one.policy))); err != nil {
			return err
		}
		err = one.eachState(f.handle, func(key, state []byte) error {
			return tree.Put(append([]byte{'k'}, key...), bytes.Clone(state))
		})
		if err != nil {
			return fmt.Errorf("the states of %q: %w", id, err)
		}
	}
	base := baseLayer{file: f.handle, tables: f.tables}
	tables := slices.AppendSeq(slices.Collect(maps.Keys(f.tables)), maps.Keys(changed))
	slices.Sort(tables)
	for _, table := range slices.Compact(tables) {
		b, err := records.CreateBucket([]byte(table))
		if err != nil {
			return err
		}
		for i, err := range merged(changed.from(table, ""), base.from(table, "")) {
			if err == nil && i.value != nil {
				err = b.Put([]byte(i.key), append(number(int64(i.until)), i.value...))
			}
			if err != nil {
				return fmt.Errorf("the records of %q: %w", table, err)
			}
		}
	}
	return nil
}
