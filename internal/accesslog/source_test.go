package accesslog

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// read returns all lines of a log, their numbers and the numbers of those that were left out.
func read(t *testing.T, r io.Reader) (lines []string, numbers, long []int, err error) {
	t.Helper()
	b, err := NewBlocks(r)
	if err != nil {
		return nil, nil, nil, err
	}
	for {
		block, err := b.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return lines, numbers, long, err
		}
		long = append(long, block.Long...)
		n := block.First
		for line := range strings.Lines(block.Text) {
			lines, numbers = append(lines, strings.TrimSuffix(line, "\n")), append(numbers, n)
			n++
		}
	}
}

// endless is a line of n bytes and its end.
type endless struct{ n int }

func (e *endless) Read(p []byte) (int, error) {
	if e.n <= 0 {
		return 0, io.EOF
	}
	n := min(len(p), e.n)
	copy(p, bytes.Repeat([]byte("x"), n))
	if e.n -= n; e.n == 0 {
		p[n-1] = '\n'
	}
	return n, nil
}

// Whatever pieces a log comes in, its lines come out with their numbers; those of more than 1 MiB are
// left out, numbered, and cost no memory.
func TestBlocks(t *testing.T) {
	var text strings.Builder
	var want []string
	for i := range 60_000 {
		line := strings.Repeat("ab", i%40)
		want = append(want, line)
		text.WriteString(line + "\n")
	}
	text.WriteString("last")
	want = append(want, "last")
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	half := text.Len() / 2
	for _, part := range []string{text.String()[:half], text.String()[half:]} { // as cat a.gz b.gz makes it
		z.Reset(&packed)
		if _, err := z.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, r := range map[string]io.Reader{
		"plain": strings.NewReader(text.String()), "small pieces": iotest.HalfReader(strings.NewReader(text.String())),
		"gzip": bytes.NewReader(packed.Bytes()), "error with data": iotest.DataErrReader(strings.NewReader(text.String())),
	} {
		lines, numbers, long, err := read(t, r)
		if err != nil || !slices.Equal(lines, want) || len(long) != 0 || numbers[len(numbers)-1] != len(want) {
			t.Errorf("%s: %d lines, want %d; long %v, %v", name, len(lines), len(want), long, err)
		}
	}
	lines, numbers, long, err := read(t, io.MultiReader(
		strings.NewReader("a\n"), &endless{256 << 20}, strings.NewReader("b\n"), &endless{MaxLine}, &endless{MaxLine + 1}, strings.NewReader("c"), &endless{3 * MaxLine}))
	if err != nil || len(lines) != 3 || lines[0] != "a" || lines[1] != "b" || len(lines[2]) != MaxLine-1 ||
		!slices.Equal(numbers, []int{1, 3, 4}) || !slices.Equal(long, []int{2, 5, 6}) {
		t.Errorf("%d lines, numbers %v, long %v, %v", len(lines), numbers, long, err)
	}
}

// A packed log that is cut, or of another kind than it seems, is an error after what could be read.
func TestBlocksOfBrokenLogs(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	for range 100_000 {
		if _, err := z.Write([]byte("a line of a log\n")); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	lines, _, _, err := read(t, bytes.NewReader(packed.Bytes()[:packed.Len()-10]))
	if err == nil || len(lines) < 90_000 {
		t.Errorf("%d lines, %v: want those before the cut, and an error", len(lines), err)
	}
	if _, _, _, err := read(t, strings.NewReader("\x1f\x8bno gzip at all")); err == nil {
		t.Error("no error for what is not gzip")
	}
	if lines, _, _, err := read(t, strings.NewReader("")); err != nil || len(lines) != 0 {
		t.Errorf("an empty log: %d lines, %v", len(lines), err)
	}
	if _, _, _, err := read(t, io.MultiReader(strings.NewReader("a\n"), iotest.ErrReader(errors.New("disk")))); err == nil || err.Error() != "disk" {
		t.Errorf("%v, want disk", err)
	}
}
