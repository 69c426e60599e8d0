package stint_test

import (
	"os/exec"
	"testing"
)

// TestEvidence: evidence.yaml is in order, docs/evidence.md is what it makes, and each figure of README.md and
// docs is looked up from it.
func TestEvidence(t *testing.T) {
	if out, err := exec.Command("./scripts/evidence", "-check").CombinedOutput(); err != nil {
		t.Errorf("./scripts/evidence -check: %v\n%s", err, out)
	}
}
