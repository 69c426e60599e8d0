package lending

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/lease"
)

// An epoch is above the former one whatever the clock shows and whatever chance adds, and
// goes by the clock where that is above.
func TestEpochsGoUp(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, c := range []struct {
		former, chance uint64
		now            int64 // nanoseconds since 1970
		want           uint64
	}{
		{5, 0, 3, 6},
		{5, 7, 3, 13},
		{5, 0, 6, 6},
		{5, 0, 7, 7},
		{5, 7, 1000, 1000},
		{0, 0, 0, 1},
		{0, 0, -1, 1},
		{9, 2, math.MinInt64, 12},
		{1 << 62, 0, math.MaxInt64, math.MaxInt64},
		{math.MaxInt64, 0, 3, 1 << 63},
	} {
		if got := epochAboveAt(c.former, time.Unix(0, c.now), c.chance); got != c.want {
			t.Errorf("above %d at %d, chance %d: %d, want %d", c.former, c.now, c.chance, got, c.want)
		}
	}
	const far = 1 << 62
	seen := map[uint64]bool{}
	for range 10 {
		epoch := epochAbove(far)
		if epoch <= far || epoch > far+2<<20 {
			t.Errorf("%d above %d", epoch, far)
		}
		seen[epoch] = true
	}
	if len(seen) < 2 {
		t.Error("two that go above the same epoch have the same")
	}
}

// A coordinator learns for as long as the longest leases that may be in use, and a sixty-fourth
// of that for the clocks; where that is not known, for as long as its own last.
func TestHowLongIsLearnt(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const margin = 64
	first, second := FreshState(0), FreshState(time.Minute)
	if first.Recovery != lease.DefaultLease+lease.DefaultLease/margin || second.Recovery != time.Minute+time.Minute/margin {
		t.Errorf("learns for %v and %v", first.Recovery, second.Recovery)
	}
	if len(first.Key) != keyLength || bytes.Equal(first.Key, second.Key) || first.former != 0 || first.Why == "" || first.Epoch < uint64(time.Now().Add(-time.Hour).UnixNano()) {
		t.Errorf("%+v", first)
	}
	for _, st := range []State{first, second} {
		if err := errors.Join(st.Raise(st.Epoch+1), st.Close(true, nil), st.Close(false, nil)); err != nil {
			t.Errorf("nothing is kept, and nothing can fail: %v", err)
		}
	}
	for _, c := range []struct{ former, now, learn time.Duration }{
		{time.Minute, time.Second, time.Minute}, {time.Second, time.Minute, time.Minute}, {0, time.Second, lease.DefaultLease}, {time.Second, 0, lease.DefaultLease},
	} {
		dir := t.TempDir()
		st, err := OpenState(dir, c.former, true)
		if err != nil || st.Recovery != 0 || st.Why != "" {
			t.Fatalf("%+v, %v", st, err)
		}
		if err := st.Close(false, nil); err != nil {
			t.Fatal(err)
		}
		if st, err = OpenState(dir, c.now, true); err != nil || st.Recovery != c.learn+c.learn/margin || !strings.Contains(st.Why, "while something was lent") {
			t.Errorf("leases of %v, then %v: %+v, %v", c.former, c.now, st, err)
		}
		for range 2 { // the second time there is nothing to end
			if err := st.Close(true, nil); err != nil {
				t.Error(err)
			}
		}
		if st, err = OpenState(dir, c.now, false); err != nil || st.Recovery != 0 {
			t.Errorf("after a good end: %+v, %v", st, err)
		}
		if err := st.Close(true, nil); err != nil {
			t.Error(err)
		}
	}
	lost, err := OpenState(t.TempDir(), 0, false)
	if err != nil || !strings.Contains(lost.Why, "or its file was lost") {
		t.Errorf("%+v, %v", lost, err)
	}
	if err := lost.Close(true, nil); err != nil {
		t.Error(err)
	}
}

// A state that cannot be read or written is an error that says so, nothing is left behind, and
// the directory is free for the next one.
func TestStateThatCannotBeKept(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, stateFileName)
	below := filepath.Join(file, "below") // makes the file a directory that nothing replaces
	if err := os.MkdirAll(below, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := OpenState(dir, 0, true); err == nil || errors.Is(err, errInUse) || !strings.Contains(err.Error(), "cannot read the state") {
			t.Errorf("a directory in its place: %v", err)
		}
	}
	free := func() {
		t.Helper()
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
	}
	free()
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := OpenState(dir, 0, true); err == nil || errors.Is(err, errInUse) || !strings.Contains(err.Error(), "is not the state") {
			t.Errorf("a file of something else: %v", err)
		}
	}
	free()
	st, err := OpenState(dir, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	free()
	if err := os.MkdirAll(below, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := st.Raise(st.Epoch + 1); err == nil || !strings.Contains(err.Error(), "cannot write the state") {
		t.Errorf("it cannot be replaced: %v", err)
	}
	if err := st.Close(true, nil); err == nil {
		t.Error("that the good end cannot be written is not told")
	}
	free()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != lockFileName {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if st, err = OpenState(dir, 0, true); err != nil {
		t.Fatalf("the directory is not free: %v", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := st.Raise(st.Epoch + 1); err == nil || !strings.Contains(err.Error(), "make the directory writable") {
		t.Errorf("without the directory: %v", err)
	}
	if err := st.Close(false, nil); err != nil {
		t.Error(err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := lockFile(f); err == nil || errors.Is(err, errInUse) || !strings.Contains(err.Error(), "cannot lock") {
		t.Errorf("a file that is closed: %v", err)
	}
}
