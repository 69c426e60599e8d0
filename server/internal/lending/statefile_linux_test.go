package lending

import (
	"os"
	"path/filepath"
	"testing"
)

// TestCopyIsLost: a copy of the file says nothing of what was lent since it was made, however it is put back. A
// directory that moves, with other rights, is the same.
func TestCopyIsLost(t *testing.T) {
	for what, change := range map[string]struct {
		do   func(file string, text []byte) error
		lost bool
	}{
		"as it was":              {func(string, []byte) error { return nil }, false},
		"other rights":           {func(file string, _ []byte) error { return os.Chmod(file, 0o640) }, false},
		"written over":           {func(file string, text []byte) error { return os.WriteFile(file, text, 0o600) }, true},
		"removed and made again": {func(file string, text []byte) error { _ = os.Remove(file); return os.WriteFile(file, text, 0o600) }, true},
		"a copy that was renamed": {func(file string, text []byte) error {
			_ = os.WriteFile(file+"~", text, 0o600)
			return os.Rename(file+"~", file)
		}, true},
	} {
		dir := t.TempDir()
		open := func() State {
			st, err := OpenState(dir, 0, true)
			if err != nil {
				t.Fatal(err)
			}
			return st
		}
		st := open()
		if err := st.Close(true, []byte("left")); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, stateFileName)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if change.lost { // another coordinator runs meanwhile, and is killed
			st = open()
			if err := st.Close(false, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := change.do(file, text); err != nil {
			t.Fatal(err)
		}
		again := open()
		if lost := again.Recovery > 0 && again.Last == nil; lost != change.lost {
			t.Errorf("%s: recovery %v, last %q", what, again.Recovery, again.Last)
		}
		if err := again.Close(false, nil); err != nil {
			t.Fatal(err)
		}
	}
}
