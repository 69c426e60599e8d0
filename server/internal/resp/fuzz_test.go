package resp

import (
	"strings"
	"testing"
)

// FuzzInput: whatever comes, in whatever pieces, is answered without a fault and the same way, one answer for each command
// that has come, and no buffer grows above its bounds.
func FuzzInput(f *testing.F) {
	for _, c := range badInput {
		if len(c.in) < 1000 {
			f.Add(c.in, uint8(3))
		}
	}
	f.Add(array("HELLO", "3")+array("RL.TAKE", "1", "ip", "a")+"CL.THROTTLE a 1 2 3\r\n", uint8(1))
	f.Add(array("MULTI")+array("CL.THROTTLE", "a", "1", "2", "3")+array("EXEC")+"multi\r\nNO\r\nexec\r\nRESET\r\nDEL a\r\n", uint8(2))
	f.Fuzz(func(t *testing.T, in string, piece uint8) {
		if strings.Contains(strings.ToUpper(in), "RESERVE") {
			return // its answers have an ID that is drawn at random
		}
		whole := play(newServer(t), in, 1<<20)
		parts := play(newServer(t), in, 1+int(piece))
		if mask(whole) != mask(parts) {
			t.Errorf("%q:\n%q as a whole\n%q in pieces of %d", in, whole, parts, 1+int(piece))
		}
		r := &reader{}
		for from := (&pieces{strings.NewReader(in), 1 + int(piece)}); r.fill(from) == nil; {
			for {
				if _, err := r.next(); err != nil {
					if err != errIncomplete {
						return
					}
					break
				}
			}
			if len(r.buf) > MaxCommand || cap(r.args) > 2*MaxArguments {
				t.Fatalf("a buffer of %d, room for %d arguments", len(r.buf), cap(r.args))
			}
		}
	})
}

// mask hides the numbers of permits, which are drawn at random.
func mask(answers string) string {
	const before = "permit\r\n:"
	first, rest, ok := strings.Cut(answers, before)
	if !ok {
		return answers
	}
	_, rest, _ = strings.Cut(rest, "\r\n")
	return first + before + mask(rest)
}
