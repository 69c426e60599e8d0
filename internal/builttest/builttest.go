// Package builttest builds the stint command for tests that start it.
package builttest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Stint builds the stint command of this module and returns its path: in the folder that TEST_BUILDS names, which the
// packages of a run share, or else in dir. The go command does not link again what is up to date.
func Stint(dir string) (path string, err error) {
	// Not STINT_BUILDS: the command warns of variables of that form that no flag has.
	if shared := os.Getenv("TEST_BUILDS"); shared != "" {
		dir = shared
	}
	path = filepath.Join(dir, "stint")
	out, err := exec.Command("go", "build", "-o", path, "github.com/stint-io/stint/cmd/stint").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building stint: %w\n%s", err, out)
	}
	return path, nil
}
