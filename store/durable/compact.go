package durable

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store/memory"
)

// A file is written anew, as a snapshot alone, when what was appended has become long. That goes on beside the writes:
// what they append meanwhile is copied at the end, and only for the last part of it, and for the new name, writes wait.

const (
	// leastGrown is how many bytes a file may grow before it is written anew, however little it has. A start reads
	// them, in some 20 ms.
	leastGrown = 16 << 20
	// growth is how many times the length of the snapshot may be appended. The file is then at most 1 + growth times
	// as long as what it has, and of each byte that is appended 1 / growth are written again.
	growth = 2
	// lastPart is how many bytes may be copied while writes wait.
	lastPart = 256 << 10
)

// grown reports whether the file should be written anew.
func (x *index) grown() bool { return x.size-x.base > max(leastGrown, growth*x.base) }

// snapshot is a new file that is being written.
type snapshot struct {
	disk   disk
	path   string // of the file it will replace
	handle handle
	out    *bufio.Writer
	frames
	index
	err error // of the first write that failed
}

func newSnapshot(d disk, path string) (*snapshot, error) {
	h, err := d.create(newName(path))
	if err != nil {
		return nil, err
	}
	s := &snapshot{disk: d, path: path, handle: h, out: bufio.NewWriterSize(io.NewOffsetWriter(h, headerSize), 1<<20)}
	s.size, s.limits, s.tables = headerSize, make(map[string]*saved), make(map[string][]block)
	return s, nil
}

// put writes the frame that was ended.
func (s *snapshot) put() place {
	p := place{s.size, uint32(len(s.buf))}
	if _, err := s.out.Write(s.buf); err != nil && s.err == nil {
		s.err = err
	}
	s.size += int64(len(s.buf))
	s.buf = s.buf[:0]
	return p
}

// states writes the states of a limit that each yields.
func (s *snapshot) states(id, policy string, each func(put func(key, state []byte) error) error) error {
	one := &saved{policy: policy}
	n := 0
	end := func() {
		if n > 0 {
			s.end()
			one.states = append(one.states, s.put())
		}
		n = 0
	}
	err := each(func(key, state []byte) error {
		if n == 0 {
			s.beginNamed(frameStates, id)
		}
		s.buf = appendState(s.buf, key, state)
		if n++; s.long(statesFrame) {
			end()
		}
		return s.err
	})
	end()
	if one.unique = len(one.states); one.unique > 0 {
		s.limits[id] = one
	}
	return errors.Join(err, s.err)
}

// records writes the records of a table that each yields, in the order of their keys.
func (s *snapshot) records(table string, each func(put func(key string, e entry) error) error) error {
	first := ""
	n := 0
	end := func() {
		if n > 0 {
			s.end()
			s.tables[table] = append(s.tables[table], block{s.put(), first})
		}
		n = 0
	}
	err := each(func(key string, e entry) error {
		if n == 0 {
			s.beginNamed(frameRecords, table)
			first = key
		}
		s.buf = appendRecord(s.buf, key, e)
		if n++; s.long(recordsFrame) {
			end()
		}
		return s.err
	})
	end()
	return errors.Join(err, s.err)
}

// finish writes the rest and syncs the file. number is that of the last batch that is in the snapshot.
func (s *snapshot) finish(number uint64, at time.Time) (index, error) {
	s.directory = s.size
	s.begin(frameDirectory)
	s.buf = s.appendDirectory(s.buf)
	s.end()
	s.put()
	s.base, s.header.number, s.header.at = s.size, number, at.UnixNano()
	s.written = s.header.at
	err := errors.Join(s.err, s.out.Flush())
	if err == nil {
		_, err = s.handle.WriteAt(s.header.encode(), 0)
	}
	if err == nil {
		err = s.handle.Sync()
	}
	return s.index, err
}

// discard removes the new file, and returns why with what else has failed.
func (s *snapshot) discard(why error) error {
	return errors.Join(why, s.handle.Close(), removeIfThere(s.disk, newName(s.path)))
}

// compact writes the file anew without what has ended or was replaced. It returns early if ctx ends.
func (w *writer) compact(ctx context.Context) error {
	s := w.store
	began := time.Now()
	w.mu.Lock()
	err := w.flushLocked(true)
	old, from := w.file.index.clone(), w.file.handle
	w.compacting = true
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.compacting = false
	}()
	if err != nil {
		return err
	}
	next, err := newSnapshot(s.opts.disk, s.opts.Path)
	if err == nil {
		if err = errors.Join(s.copyLive(ctx, next, &old, from)); err == nil {
			err = w.install(next, &old)
		}
		if err != nil {
			err = next.discard(err)
		}
	}
	if err != nil {
		s.records.thaw()
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	s.opts.Logger.Debug("the file was written anew", "file", s.opts.Path, "bytes", next.base, "before", old.size,
		"took", time.Since(began).Round(time.Millisecond))
	return nil
}

func (x *index) clone() index {
	c := *x
	c.limits = make(map[string]*saved, len(x.limits))
	for id, one := range x.limits {
		copied := *one
		copied.states = slices.Clip(one.states)
		c.limits[id] = &copied
	}
	return c
}

// copyLive writes what is still of use into a snapshot.
func (s *Store) copyLive(ctx context.Context, next *snapshot, old *index, from io.ReaderAt) error {
	now := s.records.now()
	for _, id := range slices.Sorted(maps.Keys(old.limits)) {
		one := old.limits[id]
		ended := func([]byte) bool { return false }
		var p limit.Policy
		if json.Unmarshal([]byte(one.policy), &p) == nil && p.Validate() == nil {
			ended = func(state []byte) bool { return memory.Ended(p, state, now) }
		}
		err := next.states(id, one.policy, func(put func(key, state []byte) error) error {
			return one.eachState(from, func(key, state []byte) error {
				if ended(state) {
					return nil
				}
				return put(key, state)
			})
		})
		if err = errors.Join(err, ctx.Err()); err != nil {
			return fmt.Errorf("the states of %q: %w", id, err)
		}
	}
	for _, table := range s.records.frozenTables() {
		err := next.records(table, func(put func(key string, e entry) error) error {
			return s.records.eachFrozen(table, func(key string, e entry) error {
				if e.value == nil || e.ended(now) {
					return nil
				}
				return errors.Join(ctx.Err(), put(key, e))
			})
		})
		if err != nil {
			return fmt.Errorf("the records of %q: %w", table, err)
		}
	}
	_, err := next.finish(old.number, time.Unix(0, old.written))
	return err
}

// install copies what was appended since the snapshot began, and makes the new file the one that is written.
func (w *writer) install(next *snapshot, old *index) error {
	copied := old.size
	catchUp := func(to int64) error {
		part := io.NewSectionReader(w.file.handle, copied, to-copied)
		n, err := io.Copy(io.NewOffsetWriter(next.handle, next.base+copied-old.size), part)
		copied += n
		return err
	}
	for {
		w.mu.Lock()
		size := w.file.size
		w.mu.Unlock()
		if size-copied < lastPart {
			break
		}
		if err := errors.Join(catchUp(size), next.handle.Sync()); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := catchUp(w.file.size); err != nil {
		return err
	}
	if err := next.handle.Sync(); err != nil {
		return err
	}
	size := next.base + copied - old.size
	x, err := load(next.handle, size, nil)
	if err == nil && x.size != size {
		err = errFrame
	}
	if err != nil {
		return err
	}
	s := w.store
	s.records.mu.Lock()
	defer s.records.mu.Unlock()
	err = w.file.swap(next.handle)
	s.records.base.file = w.file.handle
	if err != nil {
		return err
	}
	w.file.index = x
	w.file.unsettled = true
	s.records.rebase(w.file.handle, x.tables)
	w.bytes.Store(size)
	// If this fails the next batch tries again, before it is written.
	_ = w.file.settle()
	return nil
}
