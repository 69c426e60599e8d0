package lending

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestDamagedFile: a file that no coordinator has written is refused with what to do, and stays as it is; what it says
// never comes to an epoch below the former one, to no wait where leases are out, or to a time that has not come.
func TestDamagedFile(t *testing.T) {
	good := stateFile{Epoch: 7, Key: make([]byte, keyLength), Lease: time.Minute, At: time.Now()}
	for name, tt := range map[string]struct {
		damage func(*stateFile)
		ok     bool
	}{
		"as it was":                  {func(*stateFile) {}, true},
		"ended in the future":        {func(f *stateFile) { f.Clean, f.At, f.Last = true, time.Now().Add(1000*time.Hour), []byte("x") }, true},
		"ended before the year 1":    {func(f *stateFile) { f.Clean, f.At = true, time.Time{} }, true},
		"leases of 292 years":        {func(f *stateFile) { f.Lease = math.MaxInt64 }, false},
		"leases below 0":             {func(f *stateFile) { f.Lease = -1 }, false},
		"the highest epoch there is": {func(f *stateFile) { f.Epoch = math.MaxUint64 }, false},
		"no epoch":                   {func(f *stateFile) { f.Epoch = 0 }, false},
		"half a key":                 {func(f *stateFile) { f.Key = f.Key[:16] }, false},
		"2 MiB of a record":          {func(f *stateFile) { f.Clean, f.Last = true, make([]byte, 2<<20) }, false},
	} {
		dir, was := t.TempDir(), good
		tt.damage(&was)
		text, err := json.Marshal(was)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, stateFileName)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		st, err := OpenState(dir, 0, false)
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			if after, _ := os.ReadFile(path); string(after) != string(text) || !strings.Contains(err.Error(), "restore it") {
				t.Errorf("%s: the file has changed, or the error does not help: %v", name, err)
			}
			continue
		}
		if st.Epoch <= was.Epoch || !was.Clean && st.Recovery < was.Lease || st.down < 0 {
			t.Errorf("%s: epoch %d, waits %v, was down %v", name, st.Epoch, st.Recovery, st.down)
		}
		if err := st.Close(false, nil); err != nil {
			t.Error(err)
		}
	}
}
