package answer

import (
	"fmt"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Printable returns a JSON text with every character escaped that a terminal might act on instead of
// showing it, such as one that changes the direction of what follows. It means the same.
func Printable(text []byte) []byte {
	odd := func(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }
	clean := true
	for _, r := range string(text) {
		clean = clean && !odd(r)
	}
	if clean {
		return text
	}
	out := make([]byte, 0, len(text)+16)
	for _, r := range string(text) {
		switch {
		case !odd(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}
