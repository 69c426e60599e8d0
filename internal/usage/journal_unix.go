//go:build unix

package usage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// errHeld says that the process of a file lives.
var errHeld = errors.New("the file is in use")

// journal is the file of a table. Its lock is held as long as it is open. nil is none.
type journal struct {
	origin  string
	file    *os.File
	pieces  [][]byte // mapped
	used    int      // bytes of the last piece
	failed  bool     // the disk does not take more
	removed bool
}

// createJournal makes the file of a new table. A file without a header is never left behind under its name.
func createJournal(folder string, hour int64) (*journal, error) {
	j := &journal{origin: newOrigin()}
	name := filepath.Join(folder, fmt.Sprintf("%07d-%s%s", hour, j.origin, journalSuffix))
	f, err := os.OpenFile(name+".new", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("usage: %w", err)
	}
	j.file = f
	if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
		if _, err = f.Write(journalHeader(hour, j.origin)); err == nil {
			err = os.Rename(f.Name(), name)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("usage: %s: %w", name, err), f.Close(), os.Remove(f.Name()))
	}
	return j, nil
}

// takeJournal opens the file of a process that has ended.
func takeJournal(name string) (*journal, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, errHeld
	}
	// Another process may have taken and removed it since it was listed.
	have, err1 := f.Stat()
	now, err2 := os.Stat(name)
	if err1 != nil || err2 != nil || !os.SameFile(have, now) {
		_ = f.Close()
		return nil, errHeld
	}
	return &journal{file: f}, nil
}

// place gives the slot its counts: in the file, or in memory where the file takes no more. The table's lock is
// held.
func (j *journal) place(s *slot) {
	if j != nil && !j.failed {
		if e := s.entry(); j.room(len(e)) {
			to := j.pieces[len(j.pieces)-1][j.used:]
			copy(to[4:], e[4:])
			s.n = (*counts)(unsafe.Pointer(&to[8]))
			// The size last: until it stands there is no entry.
			atomic.StoreUint32((*uint32)(unsafe.Pointer(&to[0])), binary.NativeEndian.Uint32(binary.LittleEndian.AppendUint32(nil, uint32(len(e)))))
			j.used += len(e)
			return
		}
	}
	s.n = new(counts)
}

// room makes sure that the last piece has room for an entry.
func (j *journal) room(size int) bool {
	if len(j.pieces) > 0 && j.used+size <= segmentSize-8 {
		return true
	}
	// Mappings begin at a page, so the first piece has the header in it.
	at := int64(len(j.pieces)) * segmentSize
	end := at + segmentSize
	// Zeros are written: a hole that the disk has no room for would kill the process when it is touched.
	zeros := make([]byte, segmentSize)
	from := at
	if at == 0 {
		zeros, from = zeros[headerSize:], headerSize
	}
	if _, err := j.file.WriteAt(zeros, from); err != nil {
		j.failed = true
		return false
	}
	piece, err := syscall.Mmap(int(j.file.Fd()), at, int(end-at), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		j.failed = true
		return false
	}
	j.pieces = append(j.pieces, piece)
	if j.used = 0; at == 0 {
		j.used = headerSize
	}
	return true
}

// remove deletes the file: all that it has is reported. Nothing may count any more.
func (j *journal) remove() error {
	if j == nil || j.removed {
		return nil
	}
	j.removed = true
	err := os.Remove(j.name())
	return errors.Join(err, j.release())
}

// name is where the file is: it was renamed once it had a header.
func (j *journal) name() string {
	name := j.file.Name()
	if cut := len(name) - len(".new"); cut > 0 && name[cut:] == ".new" {
		return name[:cut]
	}
	return name
}

// release closes the file and leaves it to the next process.
func (j *journal) release() error {
	if j == nil {
		return nil
	}
	var errs []error
	for _, p := range j.pieces {
		errs = append(errs, syscall.Munmap(p))
	}
	j.pieces = nil
	return errors.Join(append(errs, j.file.Close())...)
}
