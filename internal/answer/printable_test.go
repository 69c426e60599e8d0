package answer

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
)

// FuzzPrintable: the text means the same, and a terminal can show it.
func FuzzPrintable(f *testing.F) {
	for _, s := range []string{"", "plain", "\u202e", "\x7f\u0085\u200b", "\U000e0001 é", "\x00\x1b[31m"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		out := Printable(text)
		var got, want string
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		if err := json.Unmarshal(text, &want); err != nil || got != want {
			t.Fatalf("%q became %q: %v", want, got, err)
		}
		if strings.ContainsFunc(string(out), func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Fatalf("%q", out)
		}
	})
}
