package durable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/stint-io/stint/limit"
)

// Files of the former format are databases of bbolt. One is converted when it is opened: the new file is written beside it
// and takes its name, and the old one is kept under another. If that is interrupted it begins again at the next start.

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
	err = guarded(func() error { return db.View(func(tx *bolt.Tx) error { return convertInto(w, tx) }) })
	if err == nil {
		err = keepBackup(f.path)
	}
	// A database that faults may fault again.
	err = errors.Join(err, guarded(db.Close), w.handle.Close())
	if err == nil {
		err = errors.Join(f.disk.rename(newName(f.path), f.path), f.disk.syncFolder(f.path))
	}
	if err != nil {
		return errors.Join(err, removeIfThere(f.disk, newName(f.path)))
	}
	o.Logger.Info("the file has a new format; the former one is kept for a return to the version before",
		"file", f.path, "former", backupName(f.path), "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// keepBackup gives the database a second name.
func keepBackup(path string) error {
	if err := os.Remove(backupName(path)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if os.Link(path, backupName(path)) == nil {
		return nil
	}
	// Not all file systems have links.
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(backupName(path), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Sync(), to.Close())
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
