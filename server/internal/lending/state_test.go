package lending

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/lease"
)

// TestOpenMember: a member finds the epoch of its own latest term, however many runs without one came in between, and
// nothing else.
func TestOpenMember(t *testing.T) {
	dir := t.TempDir()
	former, key := uint64(0), []byte(nil)
	for run := range 40 {
		st, err := OpenMemberState(dir, 0)
		if err != nil {
			t.Fatal(err)
		}
		if st.former != former || st.Recovery != 0 || st.Why != "" || st.Epoch <= former {
			t.Fatalf("run %d: epoch %d after %d, want after %d; learns for %v because %q", run, st.Epoch, st.former, former, st.Recovery, st.Why)
		}
		if former != 0 && !bytes.Equal(st.Key, key) {
			t.Fatalf("run %d: another key", run)
		}
		key = st.Key
		for range rand.IntN(3) {
			former = st.Epoch + rand.Uint64N(1000)
			if err := st.Raise(former); err != nil {
				t.Fatal(err)
			}
		}
		if err := st.Close(rand.IntN(2) == 0, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// A coordinator waits for leases of the one before, and of one that it knows nothing of.
func TestState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "when", "missing")
	former := State{}
	open := func(lease time.Duration) State {
		t.Helper()
		st, err := OpenState(dir, lease, false)
		if err != nil {
			t.Fatal(err)
		}
		if st.Epoch <= former.Epoch || st.former != former.Epoch || former.Key != nil && !bytes.Equal(st.Key, former.Key) || (st.Recovery > 0) != (st.Why != "") {
			t.Fatalf("epoch %d of %d after %d, learns for %v because %q", st.Epoch, st.former, former.Epoch, st.Recovery, st.Why)
		}
		former = st
		return st
	}
	end := func(st *State, nothingLent bool) {
		t.Helper()
		if err := st.Close(nothingLent, nil); err != nil {
			t.Fatal(err)
		}
	}
	first := open(time.Minute)
	if first.Recovery < time.Minute || len(first.Key) != keyLength || bytes.Equal(first.Key, make([]byte, keyLength)) {
		t.Fatalf("without a file: learns for %v", first.Recovery)
	}
	if _, err := OpenState(dir, 0, false); !errors.Is(err, errInUse) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("the directory is used twice: %v", err)
	}
	end(&first, false) // as after a crash
	crashed := open(time.Second)
	if crashed.Recovery < time.Minute {
		t.Fatalf("after a crash: learns for %v", crashed.Recovery)
	}
	end(&crashed, false)
	twice := open(time.Second)
	if twice.Recovery < time.Minute {
		t.Errorf("after two: learns for %v, leases of the first may be out", twice.Recovery)
	}
	if err := twice.Raise(twice.Epoch + 7); err != nil {
		t.Fatal(err)
	}
	end(&twice, false)
	former = twice
	lent := open(time.Second)
	if lent.Recovery < time.Minute {
		t.Errorf("ended with something lent: learns for %v", lent.Recovery)
	}
	end(&lent, true)
	clean := open(0)
	if clean.Recovery != 0 {
		t.Errorf("after a good end: learns for %v", clean.Recovery)
	}
	end(&clean, false)
	after := open(0)
	if after.Recovery < lease.DefaultLease || after.Recovery > 2*lease.DefaultLease {
		t.Errorf("learns for %v, leases are %v", after.Recovery, lease.DefaultLease)
	}
	end(&after, true)
	// The file is lost.
	if err := os.Remove(filepath.Join(dir, stateFileName)); err != nil {
		t.Fatal(err)
	}
	now := uint64(time.Now().UnixNano())
	former = State{}
	if lost := open(0); lost.Recovery < lease.DefaultLease || lost.Epoch < now {
		t.Errorf("after the loss of the file: epoch %d at %d, learns for %v", lost.Epoch, now, lost.Recovery)
	}
	info, err := os.Stat(filepath.Join(dir, stateFileName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info.Mode(), err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 { // and the lock
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// One that nobody was before need not wait.
func TestFirstState(t *testing.T) {
	if st, err := OpenState(t.TempDir(), 0, true); err != nil || st.Recovery != 0 {
		t.Errorf("learns for %v, %v", st.Recovery, err)
	}
}

func TestBadState(t *testing.T) {
	key, err := json.Marshal(bytes.Repeat([]byte{'K'}, keyLength))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty": "", "no JSON": "epoch: 1", "no epoch": `{"key":` + string(key) + `,"lease_ns":1}`,
		"short key": `{"epoch":1,"key":"S0tLSw==","lease_ns":1}`, "no lease": `{"epoch":1,"key":` + string(key) + `}`,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, stateFileName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := OpenState(dir, 0, false)
		if err == nil || !strings.Contains(err.Error(), "remove it once") || strings.Contains(err.Error(), "S0tL") {
			t.Errorf("%s: %v", name, err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		if _, err := OpenState(dir, 0, false); err == nil || !strings.Contains(err.Error(), "directory") {
			t.Errorf("%s: %v", dir, err)
		}
	}
	a, b := FreshState(time.Minute), FreshState(time.Minute)
	if a.Recovery < time.Minute || a.Epoch == 0 || bytes.Equal(a.Key, b.Key) || a.Close(true, nil) != nil {
		t.Errorf("without a directory: %d %v", a.Epoch, a.Recovery)
	}
}

// TestRaisedEpochIsKept: what a coordinator has gone up to counts for the next one, also
// where that is far ahead of the clock.
func TestRaisedEpochIsKept(t *testing.T) {
	dir := t.TempDir()
	st, err := OpenState(dir, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	const far = 1 << 62
	if err := st.Raise(far); err != nil {
		t.Fatal(err)
	}
	for _, nothingLent := range []bool{false, true} {
		if err := st.Close(nothingLent, nil); err != nil {
			t.Fatal(err)
		}
		former := max(st.Epoch, far)
		if st, err = OpenState(dir, 0, false); err != nil {
			t.Fatal(err)
		}
		if st.former != former || st.Epoch <= former || (st.Recovery == 0) != nothingLent {
			t.Errorf("epoch %d after %d, of which %d is known; learns for %v", st.Epoch, former, st.former, st.Recovery)
		}
	}
	if err := st.Close(true, nil); err != nil {
		t.Error(err)
	}
}
