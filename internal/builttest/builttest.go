// Package builttest builds the stint command for tests that start it.
package builttest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Stint builds the stint command of this module and returns its path: in the folder that STINT_BUILDS names, which the
// packages of a run share, or else in dir. The go command does not link again what is up to date.
func Stint(dir string) (path string, err error) {
	if shared := os.Getenv("STINT_BUILDS"); shared != "" {
		dir = shared
	}
	path = filepath.Join(dir, "stint")
	out, err := exec.Command("go", "build", "-o", path, "github.com/stint-io/stint/cmd/stint").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building stint: %w\n%s", err, out)
	}
	return path, nil
}
