package throttle_test

import (
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"

	"github.com/stint-io/stint/throttle"
)

func TestParseImportance(t *testing.T) {
	for field, want := range map[string]string{
		"critical":                     "critical",
		"critical;level=42":            "critical;level=42",
		" CRITICAL_PLUS; level=0 ":     "critical_plus;level=0",
		"sheddable_plus;x=1;level=127": "sheddable_plus;level=127",
		"NOT_CRITICAL":                 "sheddable",
		"":                             "default",
		"sheddable;level=3;level=9":    "sheddable;level=9",
	} {
		i, err := throttle.ParseImportance(field)
		if err != nil || i.String() != want {
			t.Errorf("%q is %v, %v, want %s", field, i, err, want)
		}
	}
	for field, want := range map[string]string{
		"important":          `throttle: unknown criticality "important", want critical_plus, critical, sheddable_plus or sheddable`,
		"critical;level=128": `throttle: level "128" of a criticality is no integer from 0 to 127`,
		"critical;level=-1":  `throttle: level "-1" of a criticality is no integer from 0 to 127`,
		"critical;level":     `throttle: level "" of a criticality is no integer from 0 to 127`,
		";level=1":           `throttle: a criticality is missing before the parameters, want for example critical;level=42`,
	} {
		i, err := throttle.ParseImportance(field)
		if err == nil || err.Error() != want || i != (throttle.Importance{}) {
			t.Errorf("%q is %v, %v, want %s", field, i, err, want)
		}
	}
}

// FuzzParseImportance: what is written is read as it was, is a structured field item, and no
// stranger is above the door's class or its user's own level.
func FuzzParseImportance(f *testing.F) {
	f.Add("critical;level=42")
	f.Add("sheddable; level=1;q=\"a;level=7\"")
	f.Fuzz(func(t *testing.T, field string) {
		i, err := throttle.ParseImportance(field)
		if err != nil {
			if len(err.Error()) > 300 || strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf("error %q", err)
			}
			return
		}
		if again, err := throttle.ParseImportance(i.String()); i.Criticality != throttle.Default && (err != nil || again != i) {
			t.Errorf("%v is read as %v, %v", i, again, err)
		}
		if item, err := httpsfv.UnmarshalItem([]string{i.String()}); err != nil || item.Value != httpsfv.Token(i.Criticality.String()) {
			t.Errorf("%v as a structured field is %v, %v", i, item, err)
		}
		for door := throttle.Default; door <= throttle.CriticalPlus; door++ {
			s := i.FromStranger(door)
			most := door
			if door == throttle.Default {
				most = throttle.SheddablePlus
			}
			if s.Criticality == throttle.Default || s.Criticality > most || s.HasLevel && s.Criticality == most {
				t.Errorf("a stranger with %v is %v at a door of %v", i, s, door)
			}
		}
	})
}

func TestStrangersOnlyLower(t *testing.T) {
	of := func(field string) throttle.Importance {
		i, err := throttle.ParseImportance(field)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	for _, c := range []struct{ says, door, want string }{
		{"critical_plus;level=127", "sheddable_plus", "sheddable_plus"},
		{"sheddable_plus;level=127", "sheddable_plus", "sheddable_plus"},
		{"sheddable;level=127", "sheddable_plus", "sheddable;level=127"},
		{"", "sheddable_plus", "sheddable_plus"},
		{"", "critical", "critical"},
		{"critical_plus", "", "sheddable_plus"},
	} {
		if got := of(c.says).FromStranger(of(c.door).Criticality).String(); got != c.want {
			t.Errorf("a stranger with %q at a door of %q is %s, want %s", c.says, c.door, got, c.want)
		}
	}
}

// The level of a user is the same for ever: it must not change from version to version. Levels are
// taken evenly.
func TestLevelOf(t *testing.T) {
	for user, want := range map[string]uint8{"": 0, "a": 65, "anna": 102, "user-1": 32, "user-2": 84} {
		if got := throttle.LevelOf(user); got != want {
			t.Errorf("the level of %q is %d, want %d", user, got, want)
		}
	}
	var counts [throttle.Levels]int
	name := []byte("user-00000")
	for i := range 128_000 {
		for at, n := len(name)-1, i; at > 4; at, n = at-1, n/10 {
			name[at] = byte('0' + n%10)
		}
		counts[throttle.LevelOf(string(name))]++
	}
	for level, n := range counts {
		if n < 800 || n > 1200 {
			t.Errorf("%d of 128,000 users have level %d", n, level)
		}
	}
}
