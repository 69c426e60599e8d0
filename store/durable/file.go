package durable

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/stint-io/stint/limit"
)

// formatVersion is that of the file. A program reads the versions up to its own.
const formatVersion = 1

// The buckets at the root of the file.
var (
	metaBucket     = []byte("meta")     // format, and when it was written last
	countersBucket = []byte("counters") // a bucket for each limit, by its ID: its policy, and states by key
	recordsBucket  = []byte("records")  // a bucket for each table of records
)

// The keys of metaBucket, and of the bucket of a limit.
var (
	formatKey  = []byte("format")
	writtenKey = []byte("written") // Unix nanoseconds, big-endian
	policyKey  = []byte("policy")  // JSON
	statesKey  = []byte("states")
	journalKey = []byte("journal") // changes of states that are not in states yet, by number
)

// openFile opens or makes the file and checks that it can be read.
func openFile(path string, wait time.Duration) (db *bolt.DB, written time.Time, err error) {
	if info, statErr := os.Stat(path); statErr == nil && !info.Mode().IsRegular() {
		return nil, written, fmt.Errorf("durable: %s is no regular file, give the path of a file", path)
	}
	err = guarded(func() error {
		db, err = bolt.Open(path, 0o600, &bolt.Options{Timeout: wait, FreelistType: bolt.FreelistMapType})
		if err != nil {
			return err
		}
		written, err = prepare(db)
		return err
	})
	if err == nil {
		return db, written, nil
	}
	if db != nil {
		// A file that faults may fault again.
		_ = guarded(db.Close)
	}
	return nil, written, explain(path, err)
}

// errNewer is the error of a file that a newer program has written.
var errNewer = errors.New("a newer version of this program has written it")

func explain(path string, err error) error {
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("durable: %s is in use by another process: stop it, or give this one a file of its own", path)
	case errors.Is(err, errNewer):
		return fmt.Errorf("durable: %s: %w, run that one, or put the file aside to begin anew", path, err)
	case errors.Is(err, os.ErrPermission), errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("durable: %w: make the folder, and let this user write in it", err)
	case errors.As(err, new(*os.PathError)), errors.As(err, new(syscall.Errno)):
		return fmt.Errorf("durable: %s cannot be used (%w): make room, or choose another --state-dir; the counts in it are as they were", path, err)
	default:
		return fmt.Errorf("durable: %s is damaged (%w): restore a snapshot, or put the file aside to begin anew", path, err)
	}
}

// guarded runs f, which reads the file, and returns its panics and faults as errors: bbolt maps the file into
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

// prepare checks the format of the file, or writes it into a new one.
func prepare(db *bolt.DB) (written time.Time, err error) {
	fresh := false
	err = db.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		if meta == nil {
			if name, _ := tx.Cursor().First(); name != nil {
				return fmt.Errorf("it has a part %.20q, and none that says which format it is", name)
			}
			fresh = true
			return nil
		}
		format := meta.Get(formatKey)
		if len(format) != 8 {
			return errors.New("it does not say which format it is")
		}
		if v := binary.BigEndian.Uint64(format); v > formatVersion {
			return fmt.Errorf("its format is %d, and this one knows %d: %w", v, formatVersion, errNewer)
		}
		if at := meta.Get(writtenKey); len(at) == 8 {
			written = time.Unix(0, int64(binary.BigEndian.Uint64(at)))
		}
		if tx.Bucket(countersBucket) == nil || tx.Bucket(recordsBucket) == nil {
			return errors.New("a part of it is missing")
		}
		return nil
	})
	if err != nil || !fresh {
		return written, err
	}
	return written, db.Update(func(tx *bolt.Tx) error {
		meta, err := tx.CreateBucket(metaBucket)
		if err != nil {
			return err
		}
		for _, name := range [][]byte{countersBucket, recordsBucket} {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		return meta.Put(formatKey, binary.BigEndian.AppendUint64(nil, formatVersion))
	})
}

// readPolicy returns the policy under which the states of a limit were written; ok is false when there are
// none.
func readPolicy(b *bolt.Bucket) (p limit.Policy, ok bool, err error) {
	text := b.Get(policyKey)
	if text == nil {
		return p, false, nil
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return p, false, fmt.Errorf("the policy of its states cannot be read: %w", err)
	}
	return p, true, nil
}

func writePolicy(b *bolt.Bucket, p limit.Policy) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return b.Put(policyKey, text)
}

// Snapshot writes a copy of the file to w, as of one moment, while the store goes on. The copy is a file
// that Open takes. What was counted in the last moments may not be in it; see [Store.Flush].
func (s *Store) Snapshot(w io.Writer) error {
	err := s.db.View(func(tx *bolt.Tx) error {
		_, err := tx.WriteTo(w)
		return err
	})
	if err != nil {
		return fmt.Errorf("durable: the snapshot failed: %w", err)
	}
	return nil
}
