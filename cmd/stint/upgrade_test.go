//go:build upgrade

package main

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"testing"
)

// previousVersion is the commit of the version from which and to which services are upgraded and rolled back.
const previousVersion = "d81fe30"

// buildPrevious builds the previous version from the history of the repository.
func buildPrevious(t *testing.T) (path string) {
	t.Helper()
	dir := t.TempDir()
	tree, err := exec.Command("git", "-C", "../..", "archive", previousVersion).Output()
	if err != nil {
		t.Fatalf("the previous version, commit %s, is not in this clone (git fetch --unshallow gets it): %v", previousVersion, err)
	}
	unpack := exec.Command("tar", "-x", "-C", dir)
	unpack.Stdin = bytes.NewReader(tree)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	path = filepath.Join(dir, "stint-previous")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", path, "./cmd/stint")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// TestRollingUpgrade (./scripts/soak TestRollingUpgrade, which wants the history of the repository) is TestRollingRestart
// with three services of the previous version, which are upgraded to this one and rolled back, and with a site of each
// version, which is a client of their leases.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	previous := buildPrevious(t)
	for name, flags := range rollingStores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			roll(t, name == "redis", flags(t), []string{previous, built.get(t)}, previous, built.get(t), previous)
		})
	}
}

// TestRollingRestartOfParents is TestRollingRestart below which two sites lease all the time.
func TestRollingRestartOfParents(t *testing.T) {
	t.Parallel()
	for name, flags := range rollingStores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sites := []string{built.get(t), built.get(t)}
			lent, left := roll(t, name == "redis", flags(t), sites, built.get(t), built.get(t))
			if lent+left < rollingBurst*9/10 {
				t.Errorf("of %d, %d were admitted by leases while services were replaced, and only %d after it", rollingBurst, lent, left)
			}
		})
	}
}
