package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// disk is the file system as this package uses it; tests simulate one that crashes.
type disk interface {
	// open opens a file that exists, for reading and writing.
	open(name string) (handle, error)
	// create makes an empty file in place of whatever has the name.
	create(name string) (handle, error)
	rename(from, to string) error
	remove(name string) error
	// syncFolder makes names in the folder of a file permanent.
	syncFolder(name string) error
	// lock locks a file, which is made if it is missing, until the closer is closed. It returns errInUse if
	// another process has locked it.
	lock(name string) (io.Closer, error)
}

// handle is an open file.
type handle interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	// Sync returns when what was written is on the disk.
	Sync() error
	Size() (int64, error)
}

var errInUse = errors.New("another process has the file")

// systemDisk is the disk of the operating system.
type systemDisk struct{}

type systemFile struct{ *os.File }

func (f systemFile) Sync() error { return syncData(f.File) }

func (f systemFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, errNoFile
	}
	return info.Size(), nil
}

var errNoFile = errors.New("not a regular file")

func (systemDisk) open(name string) (handle, error) {
	// The type is checked first: to open a pipe would wait for its other end.
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return nil, errNoFile
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return systemFile{f}, nil
}

func (systemDisk) create(name string) (handle, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	return systemFile{f}, nil
}

func (systemDisk) rename(from, to string) error { return os.Rename(from, to) }

func (systemDisk) remove(name string) error { return os.Remove(name) }

func (systemDisk) syncFolder(name string) error {
	if runtime.GOOS == "windows" {
		return nil // folders cannot be synced there
	}
	folder, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

func (systemDisk) lock(name string) (io.Closer, error) { return lockFile(name) }

// lockPoll is how often lockWithin tries again.
const lockPoll = 20 * time.Millisecond

// lockWithin locks a file, and waits for a process that has it.
func lockWithin(d disk, name string, wait time.Duration) (io.Closer, error) {
	for end := time.Now().Add(wait); ; {
		held, err := d.lock(name)
		if !errors.Is(err, errInUse) || !time.Now().Before(end) {
			return held, err
		}
		time.Sleep(lockPoll)
	}
}

// removeIfThere removes a file that may be missing.
func removeIfThere(d disk, name string) error {
	if err := d.remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove %s: %w", name, err)
	}
	return nil
}
