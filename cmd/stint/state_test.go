package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/durable"
)

// TestStateDowngrade: the counts are converted, and are what they were when they are opened again. A file that is in use or not
// there is named in the error, and stays as it is.
func TestStateDowngrade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stint", "counts.db")
	env := []string{"XDG_STATE_HOME=" + filepath.Dir(filepath.Dir(path))}
	if code, _, errOut := call(t, env, "state", "downgrade"); code != exitUsage || !strings.Contains(errOut, path) || !strings.Contains(errOut, "hint:") {
		t.Fatalf("without a file: %d %s", code, errOut)
	}
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	month := store.Spec{ID: "month", Policy: limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 100, Period: 30 * 24 * time.Hour}}}
	take := func(cost int64) int64 {
		t.Helper()
		s, err := durable.Open(durable.Options{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		counters, err := s.Bind(month)
		if err != nil {
			t.Fatal(err)
		}
		charges := []store.Charge{{Counters: counters, Key: []byte("acme"), Cost: cost}}
		if _, err := s.Take(t.Context(), charges); err != nil {
			t.Fatal(err)
		}
		if code, _, errOut := call(t, env, "state", "downgrade"); code != exitNo || !strings.Contains(errOut, path) || !strings.Contains(errOut, "in use") {
			t.Errorf("of a file in use: %d %s", code, errOut)
		}
		return charges[0].Verdict.Remaining
	}
	take(30)
	for range 2 {
		if code, out, errOut := call(t, env, "state", "downgrade"); code != exitOK || !strings.Contains(out, path) {
			t.Fatalf("%d %s %s", code, out, errOut)
		}
	}
	if left := take(1); left != 69 {
		t.Errorf("%d are left of 100, want 69", left)
	}
}
