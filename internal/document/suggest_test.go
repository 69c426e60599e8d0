package document

import (
	"strings"
	"testing"
)

func TestSuggestions(t *testing.T) {
	words := []string{"rate", "burst", "max_in_flight", "missing", "key"}
	for written, want := range map[string]string{
		"raet": "rate", "Rate": "rate", "maxInFlight": "max_in_flight", "max-in-flight": "max_in_flight",
		"mising": "missing", "keys": "key", "quota": "", "": "", "x": "", "burts": "burst",
		strings.Repeat("rate", 1000): "",
	} {
		if got, _ := Suggest(written, words); got != want {
			t.Errorf("%.20q: got %q, want %q", written, got, want)
		}
	}
}
