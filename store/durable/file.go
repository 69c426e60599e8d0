package durable

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"syscall"
	"time"
)

// file is an open file of counts. It is not safe for concurrent use, but frames that it has once are never changed:
// they can be read from its handle at any time.
type file struct {
	index
	disk   disk
	path   string
	handle handle
	locked io.Closer
	tried  uint64 // the number of the batch that was tried last
	// unsettled says that the folder was not synced since the file got its name: a crash would bring back the one
	// before, without what is appended now.
	unsettled bool
}

// index is what a file has, and where.
type index struct {
	header
	size    int64 // up to the end of the last batch
	written int64 // when that was, Unix nanoseconds
	limits  map[string]*saved
	tables  map[string][]block // the records of the snapshot
}

// saved is what a file has of a limit.
type saved struct {
	policy string  // of the states, as JSON
	states []place // frames, the oldest first
	unique int     // so many of them are of a snapshot: no two have a key in common
}

// block is a frame of records, in the order of their keys.
type block struct {
	place
	first string // key
}

// The names of files beside the one of a path.
func newName(path string) string  { return path + ".new" }
func lockName(path string) string { return path + ".lock" }

// openFile opens or makes a file. records is called for each record that was changed since the snapshot, in order.
func openFile(o *Options, records func(table string, key []byte, e entry)) (f *file, err error) {
	f = &file{disk: o.disk, path: o.Path}
	defer func() {
		if err != nil {
			err = explain(f.path, errors.Join(err, f.close()))
			f = nil
		}
	}()
	if f.locked, err = lockWithin(f.disk, lockName(f.path), o.Wait); err != nil {
		return f, err
	}
	// A process that ended while it wrote a new file has left a part of it.
	if err := removeIfThere(f.disk, newName(f.path)); err != nil {
		return f, err
	}
	f.handle, err = f.disk.open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, f.make()
	}
	if err != nil {
		return f, err
	}
	size, err := f.handle.Size()
	switch {
	case err != nil:
		return f, err
	case size == 0:
		err = f.handle.Close()
		f.handle = nil
		if err != nil {
			return f, err
		}
		return f, f.make()
	case isBolt(f.handle):
		err = f.handle.Close()
		f.handle = nil
		if err != nil {
			return f, err
		}
		if err := f.convert(o); err != nil {
			return f, err
		}
		if f.handle, err = f.disk.open(f.path); err != nil {
			return f, err
		}
		if size, err = f.handle.Size(); err != nil {
			return f, err
		}
	}
	if f.index, err = load(f.handle, size, records); err != nil {
		return f, err
	}
	f.tried = f.number
	if cut := size - f.size; cut > 0 {
		// The last write has not ended, and no caller was told that it had.
		o.Logger.Warn("the last write to the file was cut off, as by a crash: its part is dropped", "file", f.path, "bytes", cut)
		return f, errors.Join(f.handle.Truncate(f.size), f.handle.Sync())
	}
	return f, nil
}

// make makes the file, empty.
func (f *file) make() error {
	w, err := newSnapshot(f.disk, f.path)
	if err != nil {
		return err
	}
	// Others cannot know the numbers of batches, and so cannot choose a key that looks like a frame.
	if f.index, err = w.finish(rand.Uint64N(1<<62), time.Now()); err == nil {
		err = f.swap(w.handle)
	}
	if err != nil {
		return w.discard(err)
	}
	f.tried, f.unsettled = f.number, true
	return f.settle()
}

// swap renames the new file to the path, and makes next the handle.
func (f *file) swap(next handle) (err error) {
	if renameNeedsClosed {
		return f.swapClosed(next)
	}
	if err := f.disk.rename(newName(f.path), f.path); err != nil {
		return err
	}
	old := f.handle
	f.handle = next
	if old != nil {
		_ = old.Close() // nothing was written to it since it was synced
	}
	return nil
}

// swapClosed is swap for systems that rename no file that is open.
func (f *file) swapClosed(next handle) error {
	err := next.Close()
	if f.handle != nil {
		err = errors.Join(err, f.handle.Close())
	}
	if err == nil {
		err = f.disk.rename(newName(f.path), f.path)
	}
	h, openErr := f.disk.open(f.path)
	if openErr != nil {
		h = closedFile{openErr}
	}
	f.handle = h
	return errors.Join(err, openErr)
}

// settle makes sure that after a crash the file is the one that has its name.
func (f *file) settle() error {
	if !f.unsettled {
		return nil
	}
	if err := f.disk.syncFolder(f.path); err != nil {
		return err
	}
	f.unsettled = false
	return nil
}

// append appends a batch and returns when it is on the disk. If it fails the file is as it was.
func (f *file) append(batch []byte) error {
	if err := f.settle(); err != nil {
		return err
	}
	_, err := f.handle.WriteAt(batch, f.size)
	if err == nil {
		err = f.handle.Sync()
	}
	if err != nil {
		return err // the next batch is written over it
	}
	at := f.size
	for len(batch) > 0 {
		one, ok := parseFrame(batch, at)
		if !ok {
			return errFrame
		}
		if err := f.apply(one, nil); err != nil {
			return err
		}
		batch, at = batch[one.place.size:], at+int64(one.place.size)
	}
	f.size = at
	return nil
}

func (f *file) close() error {
	var errs []error
	if f.handle != nil {
		errs = append(errs, f.handle.Close())
	}
	if f.locked != nil {
		errs = append(errs, f.locked.Close())
	}
	return errors.Join(errs...)
}

// explain says what is wrong with the file, and the way out.
func explain(path string, err error) error {
	switch {
	case errors.Is(err, errInUse):
		return fmt.Errorf("durable: %s is in use by another process: stop it, or give this one a file of its own", path)
	case errors.Is(err, errNewer):
		return fmt.Errorf("durable: %s: %w, run that one, or put the file aside to begin anew", path, err)
	case errors.Is(err, errNoFile):
		return fmt.Errorf("durable: %s is no regular file, give the path of a file", path)
	case errors.Is(err, os.ErrPermission), errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("durable: %w: make the folder, and let this user write in it", err)
	case errors.As(err, new(*os.PathError)), errors.As(err, new(*os.LinkError)), errors.As(err, new(syscall.Errno)):
		return fmt.Errorf("durable: %s cannot be used (%w): make room, or choose another --state-dir; the counts in it are as they were",
			path, err)
	default:
		return fmt.Errorf("durable: %s is damaged (%w): restore a snapshot, or put the file aside to begin anew", path, err)
	}
}

// load reads the directory of a file, and the batches behind its snapshot. size is that of the file; that of the index
// may be less, if the last batch is not whole. Batches that are not whole and have others behind them are an error.
func load(r io.ReaderAt, size int64, records func(table string, key []byte, e entry)) (x index, err error) {
	head := make([]byte, headerSize)
	if n, err := r.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return x, err
	} else if x.header, err = decodeHeader(head[:n]); err != nil {
		return x, err
	}
	if x.base > size || x.directory < headerSize || x.directory > x.base-frameHead {
		return x, fmt.Errorf("it has %d bytes, and its first %d were written together", size, x.base)
	}
	if err := x.readDirectory(r); err != nil {
		return x, err
	}
	x.size, x.written = x.base, x.at
	return x, x.readBatches(r, size, records)
}

func (x *index) readDirectory(r io.ReaderAt) error {
	f, _, err := readFrame(r, place{x.directory, uint32(x.base - x.directory)}, frameDirectory, nil)
	if err != nil {
		return err
	}
	d := decoder{b: f.body}
	x.limits, x.tables = make(map[string]*saved), make(map[string][]block)
	readPlace := func() place {
		p := place{int64(d.uvarint()), uint32(d.uvarint())}
		if p.at < headerSize || p.at > x.directory || p.at+int64(p.size) > x.directory {
			d.bad = true
		}
		return p
	}
	for n := d.uvarint(); n > 0 && !d.bad; n-- {
		id := string(d.bytes())
		one := &saved{policy: string(d.bytes())}
		for n := d.uvarint(); n > 0 && !d.bad; n-- {
			one.states = append(one.states, readPlace())
		}
		one.unique = len(one.states)
		x.limits[id] = one
	}
	for n := d.uvarint(); n > 0 && !d.bad; n-- {
		table := string(d.bytes())
		for n := d.uvarint(); n > 0 && !d.bad; n-- {
			first := string(d.bytes())
			x.tables[table] = append(x.tables[table], block{readPlace(), first})
		}
	}
	return d.err()
}

func (x *index) appendDirectory(b []byte) []byte {
	appendPlace := func(p place) {
		b = binary.AppendUvarint(b, uint64(p.at))
		b = binary.AppendUvarint(b, uint64(p.size))
	}
	b = binary.AppendUvarint(b, uint64(len(x.limits)))
	for id, one := range x.limits {
		b = appendBytes(b, id)
		b = appendBytes(b, one.policy)
		b = binary.AppendUvarint(b, uint64(len(one.states)))
		for _, p := range one.states {
			appendPlace(p)
		}
	}
	b = binary.AppendUvarint(b, uint64(len(x.tables)))
	for table, blocks := range x.tables {
		b = appendBytes(b, table)
		b = binary.AppendUvarint(b, uint64(len(blocks)))
		for _, one := range blocks {
			b = appendBytes(b, one.first)
			appendPlace(one.place)
		}
	}
	return b
}

// readBatches reads the batches behind the snapshot.
func (x *index) readBatches(r io.ReaderAt, size int64, records func(table string, key []byte, e entry)) error {
	in := bufio.NewReaderSize(io.NewSectionReader(r, x.size, size-x.size), 1<<20)
	var batch []frame
	var buf []byte
	for at := x.size; ; {
		one, ok, err := nextFrame(in, &buf, at, size)
		if err != nil {
			return err
		}
		if !ok || one.number <= x.number || len(batch) > 0 && one.number != batch[0].number {
			return x.checkRest(r, size)
		}
		at += int64(one.place.size)
		batch = append(batch, one)
		if one.kind != frameCommit {
			continue
		}
		for _, f := range batch {
			if err := x.apply(f, records); err != nil {
				return err
			}
		}
		x.number, x.size = one.number, at
		batch, buf = batch[:0], buf[:0]
	}
}

// nextFrame reads the next frame into the free part of buf.
func nextFrame(in *bufio.Reader, buf *[]byte, at, size int64) (frame, bool, error) {
	head, err := in.Peek(frameHead)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return frame{}, false, err
	}
	length := int64(binary.LittleEndian.Uint32(head)) + frameHead
	if length > size-at {
		return frame{}, false, nil
	}
	from := len(*buf)
	*buf = append(*buf, make([]byte, length)...)
	if _, err := io.ReadFull(in, (*buf)[from:]); err != nil {
		return frame{}, false, err
	}
	one, ok := parseFrame((*buf)[from:], at)
	return one, ok, nil
}

// batchOf returns where the batch begins that a frameCommit ends.
func batchOf(f frame) (at int64, ok bool) {
	if f.kind != frameCommit || len(f.body) != commitSize-frameHead {
		return 0, false
	}
	return f.place.at - int64(binary.LittleEndian.Uint64(f.body[8:])), true
}

// checkRest looks for a batch behind the one that is not whole: then the file was damaged after it was written, since no
// batch is written before the one before it is on the disk.
func (x *index) checkRest(r io.ReaderAt, size int64) error {
	rest := make([]byte, size-x.size)
	if n, err := r.ReadAt(rest, x.size); n < len(rest) {
		return err
	}
	for i := 0; i+commitSize <= len(rest); i++ {
		if rest[i] != commitSize-frameHead || rest[i+frameHead-1] != frameCommit {
			continue
		}
		f, ok := parseFrame(rest[i:], x.size+int64(i))
		if !ok || f.number <= x.number {
			continue
		}
		if begin, ok := batchOf(f); ok && begin > x.size {
			return fmt.Errorf("at byte %d of %d: %w", x.size, size, errFrame)
		}
	}
	return nil
}

// apply notes what a frame has.
func (x *index) apply(f frame, records func(table string, key []byte, e entry)) error {
	d := decoder{b: f.body}
	switch f.kind {
	case framePolicy:
		one := x.limit(string(d.bytes()))
		one.policy = string(d.b)
	case frameStates:
		one := x.limit(string(d.bytes()))
		one.states = append(one.states, f.place)
	case frameRecords:
		if records == nil {
			return nil
		}
		for table := string(d.bytes()); len(d.b) > 0; {
			key, e := d.record()
			if !d.bad {
				records(table, key, e)
			}
		}
	case frameCommit:
		x.written = int64(binary.LittleEndian.Uint64(f.body))
	default:
		return errBody
	}
	return d.err()
}

func (x *index) limit(id string) *saved {
	one := x.limits[id]
	if one == nil {
		one = &saved{}
		x.limits[id] = one
	}
	return one
}

// usualState is about how many bytes a state and its key take.
const usualState = 32

// eachState calls put with the newest state of each key that a limit has in a file.
func (s *saved) eachState(r io.ReaderAt, put func(key, state []byte) error) error {
	bytes := 0
	for _, p := range s.states[s.unique:] {
		bytes += int(p.size)
	}
	newer := make(map[string]struct{}, bytes/usualState)
	var buf []byte
	for i := len(s.states) - 1; i >= 0; i-- {
		f, grown, err := readFrame(r, s.states[i], frameStates, buf)
		if err != nil {
			return err
		}
		buf = grown
		d := decoder{b: f.body}
		for d.bytes(); len(d.b) > 0; {
			key, state := d.bytes(), d.state()
			if d.bad {
				break
			}
			if _, known := newer[string(key)]; known {
				continue
			}
			if i >= s.unique {
				newer[string(key)] = struct{}{}
			}
			if len(state) == 0 {
				continue
			}
			if err := put(key, state); err != nil {
				return err
			}
		}
		if err := d.err(); err != nil {
			return err
		}
	}
	return nil
}

// keys returns the keys that a limit has in the file.
func (f *file) keys(id string) (keys []string, err error) {
	if one := f.limits[id]; one != nil {
		err = one.eachState(f.handle, func(key, _ []byte) error {
			keys = append(keys, string(key))
			return nil
		})
	}
	return keys, err
}

// closedFile is a file that could not be opened again.
type closedFile struct{ err error }

func (c closedFile) ReadAt([]byte, int64) (int, error)  { return 0, c.err }
func (c closedFile) WriteAt([]byte, int64) (int, error) { return 0, c.err }
func (c closedFile) Truncate(int64) error               { return c.err }
func (c closedFile) Sync() error                        { return c.err }
func (c closedFile) Size() (int64, error)               { return 0, c.err }
func (c closedFile) Close() error                       { return nil }
