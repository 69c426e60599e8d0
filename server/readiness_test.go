package server

import (
	"errors"
	"log/slog"
	"testing"
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

// fickle is a store that answers, or does not.
type fickle struct {
	shared
	err error
}

func (f *fickle) Ready() error { return f.err }
