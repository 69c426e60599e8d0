package stint_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// lattice is a partial order of names: for each name, all that is below it.
type lattice map[string]map[string]bool

func (l lattice) has(name string) bool { return l[name] != nil }

// below reports whether b, or something above which b stands, was put above a.
func (l lattice) below(a, b string) bool { return l[b][a] }

func (l lattice) names() []string { return slices.Sorted(maps.Keys(l)) }

// parseLattice reads rules "A, B < C, D < E;": what stands left of a sign is below
// what stands right of it. NONE is nothing at all. A name must be put above
// something, or be a library's, before it is used below something: a misspelt name
// is an error. A # begins a comment.
func parseLattice(text string) (lattice, error) {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		code, _, _ := strings.Cut(line, "#")
		lines = append(lines, code)
	}
	text = strings.TrimSpace(strings.Join(lines, "\n"))
	if !strings.HasSuffix(text, ";") {
		return nil, fmt.Errorf("lattice: the last rule does not end in ;")
	}
	order := lattice{}
	for rule := range strings.SplitSeq(strings.TrimSuffix(text, ";"), ";") {
		if err := order.addRule(rule); err != nil {
			return nil, fmt.Errorf("lattice: rule %q: %w", strings.Join(strings.Fields(rule), " "), err)
		}
	}
	return order, nil
}

func (l lattice) addRule(rule string) error {
	levels := strings.Split(rule, "<")
	if len(levels) < 2 {
		return fmt.Errorf("no < in it")
	}
	var lower []string
	for i, level := range levels {
		var names []string
		for name := range strings.SplitSeq(level, ",") {
			name = strings.TrimSpace(name)
			if name == "" || strings.ContainsAny(name, " \t\n") {
				return fmt.Errorf("want names with commas between them, got %q", strings.TrimSpace(level))
			}
			names = append(names, name)
		}
		for _, name := range names {
			if err := l.addName(name, lower, i == 0); err != nil {
				return err
			}
		}
		lower = names
	}
	return nil
}

func (l lattice) addName(name string, lower []string, lowest bool) error {
	if name == "NONE" {
		if !lowest {
			return fmt.Errorf("nothing cannot be above something")
		}
		return nil
	}
	if l[name] == nil {
		if lowest && !external(name) {
			return fmt.Errorf("%s is unknown here: a name is put above something first", name)
		}
		l[name] = map[string]bool{}
	}
	for _, below := range lower {
		if below == "NONE" {
			continue
		}
		if below == name || l[below][name] {
			return fmt.Errorf("%s cannot be both above and below %s", name, below)
		}
		// What was above name already would not learn of this.
		for above, set := range l {
			if set[name] && !set[below] {
				return fmt.Errorf("%s gets %s below it, but %s was put above it earlier: move the rule up", name, below, above)
			}
		}
		l[name][below] = true
		maps.Copy(l[name], l[below])
	}
	return nil
}

func TestParseLattice(t *testing.T) {
	order, err := parseLattice(`
		NONE < a;   # the ground
		a < b, c < d;
		example.com/lib < e;
		d < e;
	`)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"a", "b", true},
		{"a", "d", true},
		{"a", "e", true},
		{"b", "d", true},
		{"example.com/lib", "e", true},
		{"b", "a", false},
		{"b", "c", false},
		{"c", "b", false},
		{"a", "a", false},
		{"example.com/lib", "d", false},
	} {
		if got := order.below(tt.a, tt.b); got != tt.want {
			t.Errorf("%s below %s: %t, want %t", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestParseLatticeRefuses(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", "does not end in ;"},
		{"NONE < a; a < b", "does not end in ;"},
		{"NONE < a; a, b;", "no < in it"},
		{"NONE < a; a < ;", "want names"},
		{"NONE < a; a < b c;", "want names"},
		{"NONE < a; a < a;", "both above and below"},
		{"NONE < a; a < b; b < a;", "both above and below"},
		{"NONE < a; a < b < c; c < a;", "both above and below"},
		{"NONE < a; x < a;", "x is unknown"},
		{"NONE < a; a < NONE;", "nothing cannot be above"},
		{"NONE < a, b; a < c < d; b < c;", "move the rule up"},
	} {
		if _, err := parseLattice(tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: error %v, want one with %q", tt.text, err, tt.want)
		}
	}
}

func TestResolve(t *testing.T) {
	order, err := parseLattice("example.com/lib, example.com/lib/v2 < a;")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path, want string
		ok         bool
	}{
		{"net/http", "", true},
		{"example.com/lib/sub", "example.com/lib", true},
		{"example.com/lib/v2/sub", "example.com/lib/v2", true},
		{"example.com/library", "", false},
		{"example.org/lib", "", false},
		{modulePath + "/a", "a", true},
		{modulePath + "/b", "b", false},
	} {
		if got, ok := resolve(order, tt.path); ok != tt.ok || ok && got != tt.want {
			t.Errorf("%s: %q, %t, want %q, %t", tt.path, got, ok, tt.want, tt.ok)
		}
	}
}
