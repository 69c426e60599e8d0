package server

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/seeding"
)

// A store that answered once keeps the service ready; why it does not answer is one
// line, whatever its error is.
func TestReadinessByTheStore(t *testing.T) {
	s, err := New(Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.storage.Close()
	if ready, text := s.Readiness(); ready || text != "starting or draining" {
		t.Errorf("before the start: %v %q", ready, text)
	}
	s.serving.Store(true)
	if ready, text := s.Readiness(); !ready || text != "" {
		t.Errorf("with memory: %v %q", ready, text)
	}
	remote := &fickle{}
	s.storage.shared, s.storage.name = remote, "redis://a:6379"
	gone := errors.New("gone:\nwhy")
	for _, c := range []struct {
		err   error
		ready bool
		text  string
	}{
		{gone, false, "store redis://a:6379 was not reached yet: gone:; why"},
		{nil, true, ""},
		{gone, true, "store redis://a:6379 does not answer: gone:; why"},
		{nil, true, ""},
	} {
		remote.err = c.err
		if ready, text := s.Readiness(); ready != c.ready || text != c.text {
			t.Errorf("%v: %v %q, want %v %q", c.err, ready, text, c.ready, c.text)
		}
	}
}

// Whatever is amiss at the same time, readiness says all of it, and nothing else.
func TestReadinessSaysAll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(path, []byte("limits: [{name: l, rate: 1/s, sharing: leased}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for seed := range seeding.Draw(t, 10) {
		r := rand.New(rand.NewPCG(seed, 1))
		o := Options{Logger: slog.New(slog.DiscardHandler)}
		recovers := r.IntN(2) == 0
		if recovers {
			o.ConfigPaths = []string{path} // nothing is known of a former coordinator
		}
		s, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		s.serving.Store(true)
		s.met.Store(true)
		s.leases.register = new(cluster.Witness) // a member is ready while it recovers
		remote := &remote{}
		s.storage.shared, s.config.remote, s.host = &fickle{}, remote, &Host{Ready: func() (bool, string) { return true, "" }}
		troubles := map[string]bool{"recovering: ": recovers, "store gone does not answer: no route": r.IntN(2) == 0, "an upstream is out": r.IntN(2) == 0, "version 3 is refused: bad": r.IntN(2) == 0}
		s.storage.name = "gone"
		if troubles["store gone does not answer: no route"] {
			s.storage.shared = &fickle{err: errors.New("no route")}
		}
		if troubles["an upstream is out"] {
			s.host.Ready = func() (bool, string) { return true, "an upstream is out" }
		}
		if troubles["version 3 is refused: bad"] {
			remote.mu.refused, remote.mu.problem = 3, "bad"
		}
		ready, text := s.Readiness()
		said := 0
		for trouble, is := range troubles {
			if strings.Contains(text, trouble) != is {
				t.Errorf("seed %d: %q is so: %v, and readiness says %q", seed, trouble, is, text)
			}
			if is {
				said++
			}
		}
		if !ready || len(slices.DeleteFunc(strings.Split(text, "; "), func(s string) bool { return s == "" })) != said {
			t.Errorf("seed %d: %v %q, want %d troubles", seed, ready, text, said)
		}
		s.storage.shared = nil
		if err := s.storage.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// fickle is a store that answers, or does not.
type fickle struct {
	shared
	err error
}

func (f *fickle) Ready() error { return f.err }
