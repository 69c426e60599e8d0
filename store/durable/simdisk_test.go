package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"sync"
	"syscall"
)

// simDisk is a disk in memory that loses what a crash may lose. After crash, of what was written to a file since it was
// synced each sector is there or not, whatever the order, and so is each change of its length; and of the names that were
// given and removed since their folder was synced the last ones are forgotten. Writes fail for lack of room, in the middle
// as well, and syncs fail.
type simDisk struct {
	r *rand.Rand

	mu    sync.Mutex
	names map[string]*simFile
	// former is what the names were before each change since the folder was synced.
	former  []map[string]*simFile
	held    map[string]bool
	room    int // bytes that writes may still add; below 0 = any number
	failing bool
	slow    func() // called in each sync, without the lock; nil = nothing
	reads   func() // called in each read, without the lock; nil = nothing
	crashed bool   // nothing that was opened before may be used
	sector  int64  // what is written whole or not at all
	// created is called when a new file is synced for the first time, without the lock; nil = nothing.
	created func()
}

var errSimulated = errors.New("a simulated failure")

// simFile is the content of a file.
type simFile struct {
	data   []byte
	synced []byte
	// since is what was done since the last sync, in order.
	since []simWrite
	seen  bool // it was synced before
}

// simWrite is a write of data at a place, or with nil data a truncation.
type simWrite struct {
	at   int64
	data []byte
}

func newSimDisk(r *rand.Rand) *simDisk {
	return &simDisk{r: r, names: map[string]*simFile{}, held: map[string]bool{}, room: -1, sector: []int64{16, 64, 512}[r.IntN(3)]}
}

// crash returns what a disk has after its machine has lost its power: files that are open on the former one are lost.
func (d *simDisk) crash() *simDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.crashed = true
	names := d.names
	if n := len(d.former); n > 0 {
		if back := d.r.IntN(n + 1); back < n {
			names = d.former[back]
		}
	}
	next := newSimDisk(d.r)
	for name, f := range names {
		content := f.afterCrash(d.r, d.sector)
		next.names[name] = &simFile{data: content, synced: append([]byte(nil), content...), seen: true}
	}
	return next
}

func (f *simFile) afterCrash(r *rand.Rand, sector int64) []byte {
	content := append([]byte(nil), f.synced...)
	keep := []float64{0, 0.5, 0.95, 1}[r.IntN(4)]
	for _, i := range r.Perm(len(f.since)) {
		w := f.since[i]
		if w.data == nil {
			if r.Float64() < keep {
				content = resized(content, w.at)
			}
			continue
		}
		for from := int64(0); from < int64(len(w.data)); {
			to := min(int64(len(w.data)), from+sector-(w.at+from)%sector)
			if r.Float64() < keep {
				content = written(content, w.data[from:to], w.at+from)
			}
			from = to
		}
	}
	return content
}

func resized(b []byte, size int64) []byte {
	if int64(len(b)) >= size {
		return b[:size]
	}
	return append(b, make([]byte, size-int64(len(b)))...)
}

func written(b, data []byte, at int64) []byte {
	if end := at + int64(len(data)); end > int64(len(b)) {
		b = resized(b, end)
	}
	copy(b[at:], data)
	return b
}

// fill makes writes fail when they have added so many bytes; below 0 = never.
func (d *simDisk) fill(room int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.room = room
}

// fail makes one in three of what can fail fail.
func (d *simDisk) fail(failing bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failing = failing
}

// failed is called with the lock held, at the beginning of what may fail.
func (d *simDisk) failed() error {
	if d.crashed {
		return errors.New("the machine has no power")
	}
	if d.failing && d.r.IntN(3) == 0 {
		return errSimulated
	}
	return nil
}

// changing is called before names change.
func (d *simDisk) changing() { d.former = append(d.former, maps.Clone(d.names)) }

func (d *simDisk) open(name string) (handle, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.names[name]
	if f == nil {
		return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	return &simHandle{d, f}, d.failed()
}

func (d *simDisk) create(name string) (handle, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.failed(); err != nil {
		return nil, err
	}
	d.changing()
	f := &simFile{}
	d.names[name] = f
	return &simHandle{d, f}, nil
}

func (d *simDisk) rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.failed(); err != nil {
		return err
	}
	d.changing()
	d.names[to] = d.names[from]
	delete(d.names, from)
	return nil
}

func (d *simDisk) remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[name] == nil {
		return fs.ErrNotExist
	}
	if err := d.failed(); err != nil {
		return err
	}
	d.changing()
	delete(d.names, name)
	return nil
}

func (d *simDisk) syncFolder(string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.failed(); err != nil {
		return err
	}
	d.former = nil
	return nil
}

type simLock struct {
	d    *simDisk
	name string
}

func (d *simDisk) lock(name string) (io.Closer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held[name] {
		return nil, errInUse
	}
	d.held[name] = true
	return simLock{d, name}, nil
}

func (l simLock) Close() error {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	l.d.held[l.name] = false
	return nil
}

type simHandle struct {
	d *simDisk
	f *simFile
}

func (h *simHandle) ReadAt(p []byte, at int64) (int, error) {
	if h.d.reads != nil {
		h.d.reads()
	}
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if at >= int64(len(h.f.data)) {
		return 0, io.EOF
	}
	n := copy(p, h.f.data[at:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (h *simHandle) WriteAt(p []byte, at int64) (int, error) {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	err := h.d.failed()
	if h.d.crashed {
		return 0, err
	}
	if err != nil {
		p = p[:h.d.r.IntN(len(p)+1)]
	}
	if more := int(at) + len(p) - len(h.f.data); h.d.room >= 0 && more > h.d.room {
		p = p[:max(0, len(p)-more+h.d.room)]
		err = syscall.ENOSPC
	}
	if len(p) > 0 {
		before := len(h.f.data)
		h.f.data = written(h.f.data, p, at)
		h.f.since = append(h.f.since, simWrite{at, append([]byte{}, p...)})
		if h.d.room >= 0 {
			h.d.room -= len(h.f.data) - before
		}
	}
	return len(p), err
}

func (h *simHandle) Truncate(size int64) error {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if err := h.d.failed(); err != nil {
		return err
	}
	if h.d.room >= 0 {
		h.d.room += max(0, len(h.f.data)-int(size))
	}
	h.f.data = resized(h.f.data, size)
	h.f.since = append(h.f.since, simWrite{at: size})
	return nil
}

func (h *simHandle) Sync() error {
	h.d.mu.Lock()
	err := h.d.failed()
	wait := h.d.slow
	data := len(h.f.since)
	created := h.d.created
	if h.f.seen {
		created = nil
	}
	h.f.seen = true
	h.d.mu.Unlock()
	if wait != nil {
		wait()
	}
	if created != nil {
		created()
	}
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if h.d.crashed {
		return errors.New("the machine has no power")
	}
	if err != nil {
		// As Linux does: what was not written is forgotten, and the next sync succeeds without it. What was written is
		// still read until a crash.
		if h.d.r.IntN(2) == 0 {
			h.f.since = h.f.since[data:]
		}
		return err
	}
	// What was written while the sync went on may be lost.
	for _, w := range h.f.since[:data] {
		if w.data == nil {
			h.f.synced = resized(h.f.synced, w.at)
		} else {
			h.f.synced = written(h.f.synced, w.data, w.at)
		}
	}
	h.f.since = append([]simWrite(nil), h.f.since[data:]...)
	return nil
}

func (h *simHandle) Size() (int64, error) {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	return int64(len(h.f.data)), nil
}

func (h *simHandle) Close() error { return nil }
