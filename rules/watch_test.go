package rules

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// change is one call of onChange.
type change struct {
	set *Set
	err error
}

func (c change) String() string {
	if c.err != nil {
		return "error"
	}
	text := ""
	for _, l := range c.set.Limits() {
		text += l.Name + "=" + l.Base.Policy.Rate.String() + " "
	}
	return text
}

// started runs a watch until the test ends, and fails when it does not return.
func started(t *testing.T, run func(ctx context.Context, onChange func(*Set, error)) error) <-chan change {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	changes, done := make(chan change, 100), make(chan error, 1)
	go func() {
		done <- run(ctx, func(s *Set, err error) { changes <- change{s, err} })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("watch returned %v", err)
		}
	})
	return changes
}

func wantChange(t *testing.T, changes <-chan change, want string) {
	t.Helper()
	select {
	case c := <-changes:
		if c.String() != want {
			t.Fatalf("got %v (%v), want %s", c, c.err, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("no change seen, want %s", want)
	}
}

func put(t *testing.T, name, src string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(src), 0o644); err != nil {
		t.Fatal(err)
	}
}

// replace saves as editors do: a new file renamed over the old one.
func replace(t *testing.T, name, src string) {
	t.Helper()
	put(t, name+"~", src)
	if err := os.Rename(name+"~", name); err != nil {
		t.Fatal(err)
	}
}

func oneLimit(rate int) string { return fmt.Sprintf("limits: [{name: a, rate: %d/s}]\n", rate) }

func TestWatchAFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "stint.yaml")
	put(t, name, oneLimit(1))
	s, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	// A change between Load and Watch is not lost.
	put(t, name, oneLimit(2))
	changes := started(t, func(ctx context.Context, onChange func(*Set, error)) error {
		return s.Watch(ctx, []string{name}, onChange)
	})
	wantChange(t, changes, "a=2/s ")
	replace(t, name, oneLimit(3))
	wantChange(t, changes, "a=3/s ")
	replace(t, name, "limits: [{name: a, rate: -1/s}]\n")
	wantChange(t, changes, "error")
	// The same content again is no change; the next one is.
	replace(t, name, "limits: [{name: a, rate: -1/s}]\n")
	replace(t, name, oneLimit(4))
	wantChange(t, changes, "a=4/s ")
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	wantChange(t, changes, "error")
	replace(t, name, oneLimit(5))
	wantChange(t, changes, "a=5/s ")
}

func TestWatchAFolder(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "a.yaml"), oneLimit(1))
	s, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	changes := started(t, func(ctx context.Context, onChange func(*Set, error)) error {
		return s.Watch(ctx, []string{dir}, onChange)
	})
	put(t, filepath.Join(dir, "notes.txt"), "no limits")
	replace(t, filepath.Join(dir, "b.yaml"), "limits: [{name: b, rate: 7/s}]\n")
	wantChange(t, changes, "a=1/s b=7/s ")
	if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	wantChange(t, changes, "b=7/s ")
}

// A config map is mounted as links to ..data/NAME; an update points ..data at
// another folder, and no limit file is touched.
func TestWatchSurvivesTheSwapOfALink(t *testing.T) {
	for _, whole := range []bool{true, false} {
		dir := t.TempDir()
		version := func(n int) {
			folder := fmt.Sprintf("..v%d", n)
			if err := os.Mkdir(filepath.Join(dir, folder), 0o755); err != nil {
				t.Fatal(err)
			}
			put(t, filepath.Join(dir, folder, "a.yaml"), oneLimit(n))
			if err := os.Symlink(folder, filepath.Join(dir, "..tmp")); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
				t.Fatal(err)
			}
			if n > 1 {
				if err := os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..v%d", n-1))); err != nil {
					t.Fatal(err)
				}
			}
		}
		version(1)
		path := filepath.Join(dir, "a.yaml")
		if err := os.Symlink("..data/a.yaml", path); err != nil {
			t.Fatal(err)
		}
		if whole {
			path = dir
		}
		s, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		changes := started(t, func(ctx context.Context, onChange func(*Set, error)) error {
			return s.Watch(ctx, []string{path}, onChange)
		})
		for n := 2; n < 5; n++ {
			version(n)
			wantChange(t, changes, fmt.Sprintf("a=%d/s ", n))
		}
	}
}

func TestWatchBeginsWithWhatItFinds(t *testing.T) {
	name := filepath.Join(t.TempDir(), "stint.yaml")
	put(t, name, oneLimit(1))
	changes := started(t, func(ctx context.Context, onChange func(*Set, error)) error {
		return Watch(ctx, []string{name}, onChange)
	})
	// The watch gives no sign of having begun: change until it notices.
	tick := time.NewTicker(200 * time.Millisecond) // twice the time for which files must be quiet
	defer tick.Stop()
	for n := 2; n < 100; n++ {
		replace(t, name, oneLimit(n))
		select {
		case c := <-changes:
			if c.err != nil || c.set.Limits()[0].Base.Policy.Rate.Count < 2 {
				t.Fatalf("got %v", c)
			}
			return
		case <-tick.C:
		}
	}
	t.Fatal("no change seen")
}
