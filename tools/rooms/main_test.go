package main

import (
	"slices"
	"testing"
)

// TestLargestCycle: files that use each other, directly or by way of others, are a cycle; one
// that is only used, or only uses, is not in it.
func TestLargestCycle(t *testing.T) {
	uses := map[string]map[string]bool{
		"a.go": {"b.go": true}, "b.go": {"c.go": true}, "c.go": {"a.go": true, "leaf.go": true},
		"d.go": {"e.go": true, "a.go": true}, "e.go": {"d.go": true},
		"leaf.go": {}, "top.go": {"a.go": true, "d.go": true},
	}
	if got, want := largestCycle(uses), []string{"a.go", "b.go", "c.go"}; !slices.Equal(got, want) {
		t.Errorf("the largest cycle is %v, want %v", got, want)
	}
	delete(uses["c.go"], "a.go")
	if got, want := largestCycle(uses), []string{"d.go", "e.go"}; !slices.Equal(got, want) {
		t.Errorf("the largest cycle is %v, want %v", got, want)
	}
	delete(uses["e.go"], "d.go")
	if got := largestCycle(uses); got != nil {
		t.Errorf("%v is a cycle", got)
	}
}

// TestMeasure: this module's own rooms are found, with what a reader has to hold in mind.
func TestMeasure(t *testing.T) {
	rooms, err := measure("../..")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(rooms, func(r room) bool { return r.path == "internal/lease/agent" })
	if i < 0 || rooms[i].lines < 1000 || rooms[i].files < 5 || rooms[i].fields < 10 {
		t.Errorf("%d rooms, internal/lease/agent is %+v", len(rooms), rooms[max(0, i)])
	}
}
