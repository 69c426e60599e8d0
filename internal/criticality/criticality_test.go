package criticality

import (
	"context"
	"testing"
)

func TestParse(t *testing.T) {
	for c := Sheddable; c <= CriticalPlus; c++ {
		if got, ok := Parse(c.String()); !ok || got != c {
			t.Errorf("%v is read as %v, %v", c, got, ok)
		}
	}
	for field, want := range map[string]Class{
		"": Default, "default": Default, "top": Default, "CRITICAL": Critical, " sheddable ": Sheddable,
		"critical_plus;level=42": CriticalPlus, ";level=42": Default,
	} {
		if got, ok := Parse(field); got != want || ok != (want != Default) {
			t.Errorf("%q is %v, %v, want %v", field, got, ok, want)
		}
	}
}

func TestRank(t *testing.T) {
	for c, want := range map[Class]int{Default: 2, Sheddable: 3, SheddablePlus: 2, Critical: 1, CriticalPlus: 0, 77: 0} {
		if got := c.Rank(); got != want {
			t.Errorf("rank of %v is %d, want %d", c, got, want)
		}
	}
}

func TestContext(t *testing.T) {
	if c := FromContext(t.Context()); c != Default {
		t.Errorf("%v, want nothing said", c)
	}
	if c := FromContext(NewContext(t.Context(), Critical)); c != Critical {
		t.Errorf("%v, want critical", c)
	}
	if c := FromContext(context.WithValue(t.Context(), key{}, Class(9))); c != Default {
		t.Errorf("%v, want nothing said by a class that does not exist", c)
	}
}
