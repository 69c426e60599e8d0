package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The work of a process and of all that it started, ended or not, is its own, and what
// else kept the processors busy is others'.
func TestOwnAndOthers(t *testing.T) {
	proc := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(proc, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	process := func(pid, parent, utime, stime, cutime, cstime int) {
		write(fmt.Sprintf("%d/stat", pid), fmt.Sprintf("%d (a) b (c) S %d 1 1 0 -1 0 0 0 0 0 %d %d %d %d 20 0 1", pid, parent, utime, stime, cutime, cstime))
	}
	write("stat", "cpu  1000 100 500 90000 80000 10 20 70 5 5\ncpu0 1 2 3\ncpu1 1 2 3\nintr 7\n")
	process(10, 1, 100, 50, 30, 20)
	process(11, 10, 7, 3, 0, 0)
	process(12, 11, 4, 1, 0, 0)
	process(13, 1, 1000, 1000, 0, 0)
	before, ok := read(proc, 10)
	if !ok || before.busy != 17*time.Second || before.own != 2150*time.Millisecond {
		t.Fatalf("read %+v, %v: want 17 s busy, 2.15 s own", before, ok)
	}
	// 12 ends, and 11 has waited for it; 3 of 4 s are used, of which 1 s by the tree.
	write("stat", "cpu  1200 100 550 90060 80040 10 20 120 5 5\ncpu0 1 2 3\ncpu1 1 2 3\nintr 7\n")
	process(11, 10, 57, 3, 44, 11)
	if err := os.RemoveAll(filepath.Join(proc, "12")); err != nil {
		t.Fatal(err)
	}
	after, _ := read(proc, 10)
	if own, others := after.since(before); own < 0.4999 || own > 0.5001 || others < 0.9999 || others > 1.0001 {
		t.Errorf("own %v, others %v of a processor, want 0.5 and 1", own, others)
	}
}

// On this machine it sees what this test itself uses.
func TestWatch(t *testing.T) {
	before := tree("/proc", os.Getpid())
	w := Start()
	for x := 0; tree("/proc", os.Getpid()) < before+100*time.Millisecond; {
		for range 1_000_000 {
			x++
		}
	}
	u := w.Stop()
	if u.Samples == 0 || u.Own <= 0 {
		t.Errorf("saw nothing of its own work: %+v", u)
	}
	if text := u.String(); !strings.Contains(text, "other work used") {
		t.Errorf("says %q", text)
	}
	if text := (Usage{}).String(); strings.Contains(text, "0.00") {
		t.Errorf("says %q of what it does not know", text)
	}
}
