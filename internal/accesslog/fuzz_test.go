package accesslog

import (
	"strings"
	"testing"
)

// FuzzParse: no line and no format ends the process or makes a value that is not in bounds; a line that
// was read is read again the same, whatever was read between.
func FuzzParse(f *testing.F) {
	for _, line := range []string{combinedLine, envoyLine, caddyLine, "2026-10-10T20:55:36Z,1.2.3.4,GET,/a", "\x00\xff", `{"a":{"b":[[{}]]}}`} {
		for _, format := range []string{"auto", "combined", "json", "csv", "$remote_addr - $msec"} {
			f.Add(format, "time,ip,method,path", line)
		}
	}
	f.Add("auto", "time\tip\n", "1791665736.250\t::1")
	f.Fuzz(func(t *testing.T, format, first, line string) {
		if len(first) > 1<<12 || len(line) > 1<<16 || strings.Contains(line, "\n") {
			return
		}
		form, err := ParseFormat(format, first)
		if err != nil {
			return
		}
		p, err := form.Parser(Want{Attributes: wanted, Fields: map[string]string{"user": "b"}})
		if err != nil {
			return
		}
		one, two := Line{Values: make([]string, len(wanted))}, Line{Values: make([]string, len(wanted))}
		errOne := p.Parse(line, &one)
		_ = p.Parse(envoyLine, &two) // any other
		if errTwo := p.Parse(line, &two); errOne != errTwo {
			t.Fatalf("%v, then %v", errOne, errTwo)
		}
		if errOne != nil {
			return
		}
		if a, b := show(&one, wanted), show(&two, wanted); a != b {
			t.Fatalf("%s, then %s", a, b)
		}
		for i, v := range one.Values {
			if len(v) > 64<<10 {
				t.Fatalf("%s has %d bytes", wanted[i], len(v))
			}
		}
		if one.Took < -1 || one.Cost < 0 {
			t.Fatalf("%+v", one)
		}
	})
}

// FuzzBlocks: all bytes of a log that is not packed come out in lines of their own.
func FuzzBlocks(f *testing.F) {
	f.Add("a\nb\n\n\xff")
	f.Add("\x1f\x8b\x08\x00")
	f.Fuzz(func(t *testing.T, text string) {
		lines, _, long, err := read(t, strings.NewReader(text))
		if strings.HasPrefix(text, "\x1f\x8b") {
			return
		}
		joined := strings.Join(lines, "\n")
		if err != nil || len(long) > 0 || joined != strings.TrimSuffix(text, "\n") {
			t.Fatalf("%q comes out as %q, %v, %v", text, joined, long, err)
		}
	})
}
