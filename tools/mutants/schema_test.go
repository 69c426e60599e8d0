package main

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"
)

// TestSchemaDoesWhatThePlainMutantDoes builds a third of the mutants by themselves, and
// holds what they print against the schema with its index on. No index is the original.
func TestSchemaDoesWhatThePlainMutantDoes(t *testing.T) {
	s := loadSubject(t)
	work := t.TempDir()
	prints := func(files map[string][]byte) func(int) string {
		t.Helper()
		file, err := overlay(work, files)
		if err != nil {
			t.Fatal(err)
		}
		binary, err := build(s.dir, file)
		if err != nil {
			t.Fatal(err)
		}
		tests := &suite{dir: s.dir, binary: binary, work: work}
		return func(index int) string {
			r := tests.run(binary, time.Second, []string{activeVariable + "=" + strconv.Itoa(index)}, "TestPrint")
			if r.timedOut {
				return "timed out"
			}
			return string(r.out)
		}
	}
	places := s.places()
	switched, alone := s.choose(places, len(places))
	if len(alone) != 1 || alone[0].what != "9 -> (2 * 9)" {
		t.Errorf("%d mutants need a build of their own, want 1, the constant: %v", len(alone), alone)
	}
	if len(switched)+len(alone) != len(places) {
		t.Errorf("%d and %d mutants compile, want all %d", len(switched), len(alone), len(places))
	}
	schema := prints(s.schema(switched))
	original := prints(nil)(0)
	if got := schema(0); got != original {
		t.Errorf("no mutant: got\n%s\nwant\n%s", got, original)
	}
	same := 0
	for _, m := range switched {
		got := schema(m.index)
		if got == original {
			same++
		}
		if rand.IntN(3) > 0 {
			continue // a build takes long
		}
		if want := prints(s.plain(m))(0); got != want {
			t.Errorf("line %d: %s: got\n%s\nwant\n%s", m.line, m.what, got, want)
		}
	}
	if same > 2 {
		t.Errorf("%d mutants print what the original does, want 2 at most", same)
	}
}

// TestSchemaOfOurPackages writes all places of a real package at once. It compiles.
func TestSchemaOfOurPackages(t *testing.T) {
	s, err := load("../..", "fanout")
	if err != nil {
		t.Fatal(err)
	}
	places := s.places()
	places = slices.DeleteFunc(places, func(m mutant) bool {
		m.index = 1
		return s.check(s.schema([]mutant{m}), nil) != nil
	})
	if len(places) < 150 {
		t.Fatalf("%d places, want 150 or more", len(places))
	}
	for i := range places {
		places[i].index = i + 1
	}
	if err := s.check(s.schema(places), nil); err != nil {
		t.Error(err)
	}
}
