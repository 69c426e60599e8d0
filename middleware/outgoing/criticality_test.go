package outgoing

import (
	"testing"

	"github.com/stint-io/stint/throttle"
)

// TestImportanceOf: the class that was set goes first, then that of the request being served, with
// its level; without either nothing is said.
func TestImportanceOf(t *testing.T) {
	serving, err := throttle.New(throttle.Options{Concurrency: 1})
	if err != nil {
		t.Fatal(err)
	}
	work, d, err := serving.Start(t.Context(), throttle.Request{Criticality: Critical, User: "u1"})
	if err != nil || work == nil {
		t.Fatal(d, err)
	}
	defer work.Done()
	level := work.Importance()
	if got := ImportanceOf(work.Context()); got != level || got.Criticality != Critical || !got.HasLevel {
		t.Errorf("%v, want that of the request being served, %v", got, level)
	}
	level.Criticality = Sheddable
	if got := ImportanceOf(WithCriticality(work.Context(), Sheddable)); got != level {
		t.Errorf("%v, want %v", got, level)
	}
	if got := ImportanceOf(t.Context()).String(); got != "default" {
		t.Errorf("%v, want nothing said", got)
	}
	if got := ImportanceOf(WithCriticality(t.Context(), 77)).String(); got != "default" {
		t.Errorf("%v, want nothing said for a class that does not exist", got)
	}
}

func TestClass(t *testing.T) {
	for c, want := range map[Criticality]int{throttle.Default: 2, Sheddable: 3, SheddablePlus: 2, Critical: 1, CriticalPlus: 0, 77: 0} {
		if got := class(c); got != want {
			t.Errorf("class of %v is %d, want %d", c, got, want)
		}
	}
}
