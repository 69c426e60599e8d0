package resp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Bounds on what a stranger can send. A command is refused as soon as it says that it is larger, before it has come.
const (
	// MaxArguments bounds the arguments of a command: 64 attributes have a name and a value each.
	MaxArguments = 256
	// MaxCommand bounds a command in bytes, the lengths included. Not smaller: attributes may be header fields.
	// Not larger: each connection has a buffer for one.
	MaxCommand = 64 << 10
	// MaxInline bounds a command that is a line of words.
	MaxInline = 4 << 10

	firstBuffer = 4 << 10
)

// protocolError is the error of input that is no command. Nothing can be read after it.
type protocolError struct{ text string }

func (e *protocolError) Error() string { return "Protocol error: " + e.text }

func bad(format string, args ...any) error { return &protocolError{fmt.Sprintf(format, args...)} }

// errIncomplete says that the rest of a command has not come yet.
var errIncomplete = errors.New("the command is not complete")

// reader reads commands: arrays of bulk strings, or lines of words.
type reader struct {
	buf        []byte
	start, end int // of what has come and was not returned
	args       [][]byte
}

// fill reads once, and makes room for it.
func (r *reader) fill(from io.Reader) error {
	switch {
	case r.start == r.end:
		r.start, r.end = 0, 0
		if len(r.buf) != firstBuffer && cap(r.buf) > 4*firstBuffer || r.buf == nil {
			r.buf = make([]byte, firstBuffer) // a long command came once, and its memory goes
		}
	case r.end == len(r.buf) && r.start > 0:
		r.end = copy(r.buf, r.buf[r.start:r.end])
		r.start = 0
	}
	if r.end == len(r.buf) {
		// A full buffer of firstBuffer may be one of many commands, or a long one.
		next := make([]byte, min(2*len(r.buf), MaxCommand))
		r.end = copy(next, r.buf[r.start:r.end])
		r.buf, r.start = next, 0
	}
	n, err := from.Read(r.buf[r.end:])
	r.end += n
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// partial reports whether a command has begun to come.
func (r *reader) partial() bool { return r.start < r.end }

// next returns the next command that has come as a whole: its name and arguments, valid until fill is called. None
// is errIncomplete, and an empty one has no arguments.
func (r *reader) next() ([][]byte, error) {
	in := r.buf[r.start:r.end]
	if len(in) == 0 {
		return nil, errIncomplete
	}
	r.args = r.args[:0]
	n, err := 0, error(nil)
	if in[0] == '*' {
		n, err = r.array(in)
	} else {
		n, err = r.inline(in)
	}
	if err == nil {
		r.start += n
		return r.args, nil
	}
	if err == errIncomplete && len(in) >= MaxCommand {
		err = bad("a command has at most %d bytes", MaxCommand)
	}
	return nil, err
}

// array reads an array of bulk strings and returns its length in bytes.
func (r *reader) array(in []byte) (int, error) {
	count, at, err := number(in, 1)
	switch {
	case err == errIncomplete:
		return 0, err
	case err != nil:
		return 0, bad("invalid multibulk length, want a whole number of at most %d", MaxArguments)
	case count > MaxArguments:
		return 0, bad("invalid multibulk length: a command has at most %d arguments", MaxArguments)
	}
	for range max(count, 0) {
		if at == len(in) {
			return 0, errIncomplete
		}
		if in[at] != '$' {
			return 0, bad("expected '$', got %q: a command is an array of bulk strings", rune(in[at]))
		}
		length, from, err := number(in, at+1)
		switch {
		case err == errIncomplete:
			return 0, err
		case err != nil || length < 0:
			return 0, bad("invalid bulk length, want a whole number of at most %d", MaxCommand)
		case from+int(length)+2 > MaxCommand:
			return 0, bad("invalid bulk length: a command has at most %d bytes", MaxCommand)
		}
		end := from + int(length)
		if end+2 > len(in) {
			if end < len(in) && in[end] != '\r' {
				return 0, bad("a bulk string is longer than its length says")
			}
			return 0, errIncomplete
		}
		if in[end] != '\r' || in[end+1] != '\n' {
			return 0, bad("a bulk string is longer than its length says")
		}
		r.args = append(r.args, in[from:end:end])
		at = end + 2
	}
	return at, nil
}

// number reads a whole number and the end of its line.
func number(in []byte, at int) (n int64, next int, err error) {
	const most = 10 // digits
	first := at
	negative := at < len(in) && in[at] == '-'
	if negative {
		at++
	}
	for ; at < len(in) && '0' <= in[at] && in[at] <= '9'; at++ {
		if at-first > most {
			return 0, 0, errors.New("too long")
		}
		n = n*10 + int64(in[at]-'0')
	}
	digits := at - first
	if negative {
		digits, n = digits-1, -n
	}
	switch {
	case at == len(in):
		return 0, 0, errIncomplete
	case digits == 0 || in[at] != '\r':
		return 0, 0, errors.New("not a number")
	case at+1 == len(in):
		return 0, 0, errIncomplete
	case in[at+1] != '\n':
		return 0, 0, errors.New("not a number")
	}
	return n, at + 2, nil
}

// inline reads a line of words, as people type them.
func (r *reader) inline(in []byte) (int, error) {
	end := bytes.IndexByte(in[:min(len(in), MaxInline)], '\n')
	if end < 0 {
		if len(in) >= MaxInline {
			return 0, bad("too big inline request: a line has at most %d bytes", MaxInline)
		}
		return 0, errIncomplete
	}
	for i := range end {
		if c := in[i]; c < ' ' && c != '\t' && !(c == '\r' && i == end-1) || c == '"' || c == '\'' {
			return 0, bad("%q in a line of words: send an array of bulk strings, as clients do", rune(c))
		}
	}
	line := in[:end]
	for {
		line = bytes.TrimLeft(line, " \t\r")
		if len(line) == 0 {
			return end + 1, nil
		}
		word := bytes.IndexAny(line, " \t\r")
		if word < 0 {
			word = len(line)
		}
		if len(r.args) == MaxArguments {
			return 0, bad("a command has at most %d arguments", MaxArguments)
		}
		r.args = append(r.args, line[:word:word])
		line = line[word:]
	}
}
