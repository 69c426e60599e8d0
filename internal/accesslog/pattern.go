package accesslog

import (
	"errors"
	"strings"
)

// patternFields splits lines of a log_format.
type patternFields struct {
	pieces []piece
	sinks  []*sink
	open   bool
	last   int // the piece with the last field that is wanted: an open format is not read further
}

func bindPattern(f *Format, p *Parser) (*patternFields, error) {
	b := &patternFields{pieces: f.pattern, open: f.open, last: len(f.pattern) - 1}
	timed, last := false, 0
	for i, piece := range f.pattern {
		s := &sink{to: none}
		if piece.variable != "" {
			s = p.sinkOf(piece.variable)
		}
		timed = timed || s.to == toTime
		if b.sinks = append(b.sinks, s); s.to != none {
			last = i
		}
	}
	if f.open && !p.want.whole {
		b.last = last
	}
	if !timed {
		return nil, errors.New("accesslog: the format has no time: one of $msec, $time_iso8601 and $time_local")
	}
	return b, nil
}

func (b *patternFields) split(p *Parser, line string) error {
	for i := range b.pieces {
		text := b.pieces[i].text
		if !strings.HasPrefix(line, text) {
			return ErrShape
		}
		line = line[len(text):]
		if b.pieces[i].variable == "" {
			break
		}
		value := line
		if i+1 < len(b.pieces) {
			end := find(line, b.pieces[i+1].text)
			if end < 0 {
				return ErrShape
			}
			value = line[:end]
		} else if b.open {
			if end := strings.IndexByte(line, ' '); end >= 0 {
				value = line[:end]
			}
		}
		line = line[len(value):]
		if s := b.sinks[i]; s.to != none {
			if strings.IndexByte(value, '\\') >= 0 {
				value = unescape(value)
			}
			p.put(s, value)
		}
		if i == b.last {
			break
		}
	}
	if !b.open && line != "" {
		return ErrShape
	}
	return nil
}

// find returns where text is in line, without those quotes that the server has escaped with a
// backslash; -1 = nowhere.
func find(line, text string) int {
	if text[0] != '"' {
		return strings.Index(line, text)
	}
	for from := 0; ; {
		i := strings.Index(line[from:], text)
		if i < 0 {
			return -1
		}
		at, slashes := from+i, 0
		for at-slashes > 0 && line[at-slashes-1] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return at
		}
		from = at + 1
	}
}

// unescape decodes \xHH and the escapes of C, as nginx and Apache write them.
func unescape(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch s[i] {
		case 'x':
			hi, lo := hex(s, i+1), hex(s, i+2)
			if hi < 0 || lo < 0 {
				b.WriteString(`\x`)
				continue
			}
			b.WriteByte(byte(hi<<4 | lo))
			i += 2
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case 'r':
			b.WriteByte('\r')
		case 'b', 'f', 'v':
			b.WriteByte(' ')
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// hex returns the hexadecimal digit at s[i]; -1 = there is none.
func hex(s string, i int) int {
	if i >= len(s) {
		return -1
	}
	switch c := s[i] | 0x20; {
	case s[i] >= '0' && s[i] <= '9':
		return int(s[i] - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}
