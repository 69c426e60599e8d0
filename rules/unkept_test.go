package rules

import (
	"strings"
	"testing"
)

// A leased bucket that takes an hour or longer to fill is warned of, that of an override too, and no other.
func TestUnkept(t *testing.T) {
	for text, want := range map[string]bool{
		"{name: a, key: [user], rate: 2400/day, sharing: leased}":                                            true,
		"{name: a, key: [user], rate: 1/s, burst: 3600, sharing: leased}":                                    true,
		"{name: a, key: [user], rate: 1/s, burst: 3599, sharing: leased}":                                    false,
		"{name: a, key: [user], rate: 10/s, sharing: leased}":                                                false,
		"{name: a, key: [user], rate: 10/s, sharing: leased, overrides: [{when: {user: x}, rate: 100/day}]}": true,
		"{name: a, key: [user], rate: 2400/day}":                                                             false,
		"{name: a, key: [user], algorithm: concurrency, max_in_flight: 5, sharing: leased}":                  false,
	} {
		s, err := Parse("stint.yaml", []byte("limits: ["+text+"]\n"))
		if err != nil {
			t.Fatal(text, err)
		}
		list := s.Unkept()
		if len(list) > 0 != want || want && (list[0].Line != 1 || !strings.Contains(list[0].Message, "begins empty")) {
			t.Errorf("%s: %v, want a warning: %v", text, list, want)
		}
	}
}
