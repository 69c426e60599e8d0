package lending

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/lease"
)

// State is what a coordinator knows of the one before it.
type State struct {
	// Epoch is above that of every coordinator before, and former that of the one whose
	// leases can be claimed; 0 = none can.
	Epoch, former uint64
	// Key signs leases; nil = instances cannot claim what a former coordinator
	// lent them.
	Key []byte
	// first says that the state directory is there and has no file: nobody is known to have lent before.
	first bool
	// Recovery is how long leases of a former coordinator may still be in use, and Why says
	// for people why.
	Recovery time.Duration
	Why      string
	// Last is what the former coordinator said at its end of what is left, and down how long ago that
	// is by the wall clock, at least 0. Last is nil where Recovery is not 0, and where it said nothing.
	Last []byte
	down time.Duration

	epochs map[string]uint64 // by name, where several coordinators of one process are elected each for itself
	mu     *sync.Mutex       // of RaiseOf

	path    string        // of the file; empty = nothing is kept
	raised  bool          // an epoch of this process is in the file
	longest time.Duration // of leases that may be in use
	lock    *os.File      // held while this process is the coordinator
}

// errInUse says that another process is the coordinator of a state directory.
var errInUse = errors.New("lease: the state directory is in use by another process: exactly one coordinator may lend a limit, so give each service a directory of its own with --state-dir, and limits of its own unless all have one store or cluster")

// stateFileName is the name of the file in the state directory.
const stateFileName = "leases.json"

const keyLength = 32

// The bounds of what the file says. What is beyond was not written by a coordinator, and would not add up: a wait
// that overflows is none.
const (
	maxStateFile = 1 << 20 // bytes; the longest record of a coordinator takes a fifth
	maxEpoch     = 1 << 63 // the clock says so in the year 2262
	maxLease     = 365 * 24 * time.Hour
)

// stateFile is what the file holds.
type stateFile struct {
	Epoch uint64 `json:"epoch"`
	// Epochs are those of several coordinators in one process, by name.
	Epochs map[string]uint64 `json:"epochs,omitempty"`
	Key    []byte            `json:"key"`
	// File is the identity of the file itself: a copy, such as one from a backup, has another.
	File string `json:"file,omitempty"`
	// Clean says that the coordinator of that epoch ended with nothing lent.
	Clean bool `json:"clean"`
	// Last is what is left, as the coordinator says it, and At when that was. They are there with Clean.
	Last []byte    `json:"last,omitempty"`
	At   time.Time `json:"at,omitzero"`
	// Lease is the length of the longest leases that may be in use, in nanoseconds.
	Lease time.Duration `json:"lease_ns"`
}

// FreshState is the state of a coordinator that keeps none: it cannot distinguish a first start
// from another, and so shares out nothing new while leases of a former one may last.
func FreshState(length time.Duration) State {
	key := make([]byte, keyLength)
	rand.Read(key)
	return State{Epoch: epochAbove(0), Key: key, mu: new(sync.Mutex), Recovery: recoveryTime(length), Why: "there is no state directory"}
}

// epochAbove is an epoch above a former one. It goes by the clock, so that a coordinator whose
// file was lost, or which had none, is above those before it; and where the clock was set
// back, a random part distinguishes it from others that went above the same.
func epochAbove(former uint64) uint64 { return epochAboveAt(former, time.Now(), mrand.Uint64N(1<<20)) }

func epochAboveAt(former uint64, now time.Time, chance uint64) uint64 {
	return max(former+1+chance, uint64(max(0, now.UnixNano())))
}

// OpenMemberState is OpenState for a coordinator that is elected: where its rivals agree on it, they find what the former
// coordinator has lent. former is the epoch of the latest term that began with [State.Raise] for this
// directory; 0 = none did. Nothing is written before Raise.
func OpenMemberState(dir string, length time.Duration) (State, error) {
	st, err := openState(dir, cmp.Or(length, lease.DefaultLease), true)
	st.Epoch, st.Recovery, st.Why = epochAbove(st.former), 0, ""
	return st, err
}

// OpenState reads the state that the former coordinator has kept in dir, and writes
// that another has begun, with leases of that length (0 = the default). Without a file
// nothing is known of a former one, as the file may have been lost, unless first says
// that there was none. A directory that is not there is
// made, for its owner alone. While another process uses it the error is errInUse.
func OpenState(dir string, length time.Duration, first bool) (State, error) {
	st, err := openState(dir, cmp.Or(length, lease.DefaultLease), first)
	if err == nil {
		err = st.Raise(st.Epoch)
	}
	if err != nil {
		return State{}, errors.Join(err, st.unlock())
	}
	return st, nil
}

// openState reads the state and locks its directory.
func openState(dir string, length time.Duration, first bool) (st State, err error) {
	lock, err := lockDirectory(dir)
	if err != nil {
		return State{}, err
	}
	defer func() {
		if err != nil {
			lock.Close() // nothing was written to it
		}
	}()
	path := filepath.Join(dir, stateFileName)
	var was stateFile
	text, file, err := readStateFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		was = stateFile{Key: make([]byte, keyLength), Lease: length, Clean: first}
		st.Why = "it is the first start with this state directory, or its file was lost"
		rand.Read(was.Key)
	case err != nil:
		return State{}, fmt.Errorf("lease: cannot read the state of the former coordinator: %w; make it readable, or give another directory", err)
	default:
		// The text is not shown: it has the key.
		if err := json.Unmarshal(text, &was); err != nil || was.Epoch == 0 || was.Epoch > maxEpoch || len(was.Key) != keyLength || was.Lease <= 0 || was.Lease > maxLease || slices.ContainsFunc(slices.Collect(maps.Values(was.Epochs)), func(epoch uint64) bool { return epoch > maxEpoch }) {
			return State{}, fmt.Errorf("lease: %s is not the state of a coordinator: restore it, or remove it once the leases of the former coordinator have ended", path)
		}
	}
	why := cmp.Or(st.Why, "the coordinator before ended while something was lent")
	if was.File != "" && file != "" && was.File != file {
		// Another coordinator may have lent since it was made.
		was.Clean, why = false, "its file is a copy, as from a backup"
	}
	st = State{first: was.Epoch == 0, Epoch: epochAbove(was.Epoch), former: was.Epoch, Key: was.Key, epochs: was.Epochs, mu: new(sync.Mutex), path: path, longest: length, lock: lock}
	if !was.Clean {
		// Should this process end before they do, the next one must wait as long.
		st.longest = max(was.Lease, length)
		st.Recovery, st.Why = recoveryTime(st.longest), why
	} else {
		st.Last, st.down = was.Last, max(0, time.Since(was.At))
	}
	return st, nil
}

// readStateFile reads a file of at most maxFile bytes, and its identity; of a longer one it reads a byte more, which is no
// state then.
func readStateFile(path string) (text []byte, file string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	text, err = io.ReadAll(io.LimitReader(f, maxStateFile+1))
	return text, fileIdentity(f), err
}

// recoveryTime is how long leases of that length may be in use after their coordinator has
// gone: by what the clocks of instances may be slow is added.
func recoveryTime(length time.Duration) time.Duration {
	if length == 0 {
		length = lease.DefaultLease
	}
	return length + length/64
}

// Close writes that the coordinator has ended. nothingLent is what Run returned: that no
// instance holds anything, of this coordinator or of a former one. last is what is left then, for
// the next one; nil = it is not known.
func (st *State) Close(nothingLent bool, last []byte) error {
	var err error
	if nothingLent && st.raised { // else the file says that something is, or what it said before
		err = st.write(true, last)
	}
	return errors.Join(err, st.unlock())
}

func (st *State) unlock() error {
	if st.lock == nil {
		return nil
	}
	lock := st.lock
	st.lock = nil
	return lock.Close()
}

// Raise writes that the coordinator lends in an epoch from here on.
func (st *State) Raise(epoch uint64) error {
	st.Epoch, st.raised = epoch, true
	return st.write(false, nil)
}

// of is the state of one of several coordinators in this process that are elected each for itself: of another one's
// epoch nothing follows for it.
func (st State) of(name string) State {
	st.former = st.epochs[name]
	return st
}

// RaiseOf is Raise for one of several coordinators in this process. It is safe for concurrent use.
func (st *State) RaiseOf(name string, epoch uint64) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	epochs := maps.Clone(st.epochs)
	if epochs == nil {
		epochs = map[string]uint64{}
	}
	epochs[name] = epoch
	st.epochs = epochs
	return st.Raise(max(epoch, st.Epoch))
}

// lockFileName is the name of the file that is locked in the state directory.
const lockFileName = "lock"

// lockDirectory makes the directory and keeps other processes from using it, until the
// file is closed or this process ends.
func lockDirectory(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil { // the key is in it
		return nil, fmt.Errorf("lease: cannot make the state directory: %w; make it by hand, or give another", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFileName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lease: cannot lock the state directory: %w; make it writable, or give another", err)
	}
	if err := lockFile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// write replaces the file as a whole: a crash leaves the old one or the new one.
func (st *State) write(clean bool, last []byte) (err error) {
	if st.path == "" {
		return nil
	}
	dir := filepath.Dir(st.path)
	f, err := os.CreateTemp(dir, stateFileName+".*") // 0600
	if err != nil {
		return fmt.Errorf("lease: cannot write the state: %w; make the directory writable, or give another", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("lease: cannot write the state: %w", errors.Join(err, os.Remove(f.Name())))
		}
	}()
	text, err := json.Marshal(stateFile{Epoch: st.Epoch, Epochs: st.epochs, Key: st.Key, File: fileIdentity(f), Clean: clean, Last: last, At: time.Now(), Lease: st.longest})
	if err == nil {
		_, err = f.Write(append(text, '\n'))
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), st.path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
