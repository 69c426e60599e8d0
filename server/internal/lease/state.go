package lease

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/stint-io/stint/internal/share"
	"github.com/stint-io/stint/rules"
)

// State is what a coordinator knows of the one before it.
type State struct {
	// Epoch is above that of every coordinator before.
	Epoch uint64
	// Key signs leases; nil = instances cannot claim what a former coordinator
	// lent them.
	Key []byte
	// Learn is how long leases of a former coordinator may still be in use.
	Learn time.Duration

	path    string        // of the file; empty = nothing is kept
	longest time.Duration // of leases that may be in use
}

// StateFile is the name of the file in the state directory.
const StateFile = "leases.json"

const keyLength = 32

// stateFile is what the file holds.
type stateFile struct {
	Epoch uint64 `json:"epoch"`
	Key   []byte `json:"key"`
	// Clean says that the coordinator of that epoch ended with nothing lent.
	Clean bool `json:"clean"`
	// Lease is the length of the longest leases that may be in use, in nanoseconds.
	Lease time.Duration `json:"lease_ns"`
}

// Fresh is the state of a coordinator that keeps none: it cannot tell a first start
// from another, and so shares out nothing new while leases of a former one may last.
func Fresh(lease time.Duration) State {
	key := make([]byte, keyLength)
	rand.Read(key)
	return State{Epoch: uint64(max(1, time.Now().UnixNano())), Key: key, Learn: learn(lease)}
}

// OpenState reads the state that the former coordinator has kept in dir, and writes
// that another has begun, with leases of that length (0 = the default). Without a file
// it is the first. A directory that is not there is made, for its owner alone. No other
// process may use it.
func OpenState(dir string, lease time.Duration) (State, error) {
	if lease == 0 {
		lease = share.DefaultLease
	}
	path := filepath.Join(dir, StateFile)
	var was stateFile
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		was = stateFile{Key: make([]byte, keyLength), Clean: true}
		rand.Read(was.Key)
	case err != nil:
		return State{}, fmt.Errorf("lease: cannot read the state of the former coordinator: %w; make it readable, or give another directory", err)
	default:
		// The text is not shown: it has the key.
		if err := json.Unmarshal(text, &was); err != nil || was.Epoch == 0 || len(was.Key) != keyLength || was.Lease <= 0 {
			return State{}, fmt.Errorf("lease: %s is not the state of a coordinator: restore it, or remove it once the leases of the former coordinator have ended", path)
		}
	}
	st := State{Epoch: was.Epoch + 1, Key: was.Key, path: path, longest: lease}
	if !was.Clean {
		// Should this process end before they do, the next one must wait as long.
		st.longest = max(was.Lease, lease)
		st.Learn = learn(st.longest)
	}
	return st, st.write(false)
}

// learn is how long leases of that length may be in use after their coordinator has
// gone: by what the clocks of instances may be slow is added.
func learn(lease time.Duration) time.Duration {
	if lease == 0 {
		lease = share.DefaultLease
	}
	return lease + lease/64
}

// Close writes that the coordinator has ended. nothingLent is what Run returned.
func (st *State) Close(nothingLent bool) error {
	if !nothingLent {
		return nil // the file says so
	}
	return st.write(true)
}

// write replaces the file as a whole: a crash leaves the old one or the new one.
func (st *State) write(clean bool) (err error) {
	if st.path == "" {
		return nil
	}
	text, err := json.Marshal(stateFile{Epoch: st.Epoch, Key: st.Key, Clean: clean, Lease: st.longest})
	if err != nil {
		return fmt.Errorf("lease: cannot write the state: %w", err)
	}
	dir := filepath.Dir(st.path)
	if err := os.MkdirAll(dir, 0o700); err != nil { // the key is in it
		return fmt.Errorf("lease: cannot make the state directory: %w; make it by hand, or give another", err)
	}
	f, err := os.CreateTemp(dir, StateFile+".*") // 0600
	if err != nil {
		return fmt.Errorf("lease: cannot write the state: %w; make the directory writable, or give another", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("lease: cannot write the state: %w", errors.Join(err, os.Remove(f.Name())))
		}
	}()
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
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

// allocation is the word for an allocation, as it stands in limit files.
func allocation(a share.Allocation) string { return rules.Allocation(a).String() }
