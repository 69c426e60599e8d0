package accesslog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
)

// MaxLine bounds a line with its end: 1 MiB. Not smaller: a line with a path and header fields of the largest size
// that servers take fits. Not larger: several such blocks are in memory at a time.
const MaxLine = 1 << 20

// blockSize is how long a block is unless a line is longer: 256 KiB. Not larger: what is read should still
// be in the processor's cache when it is parsed. Not smaller: a block goes from one goroutine to another.
const blockSize = 256 << 10

// Block is a part of a log: whole lines.
type Block struct {
	Text  string // lines with their ends; the last one of a log may have none
	First int    // the number of the first line, from 1
	Lines int    // how many ends of lines Text has
	// Long are the numbers of lines in front of or among those of Text that were left out, because they
	// have more than [MaxLine] bytes.
	Long []int
}

// Blocks cuts a log into blocks of lines. Its memory does not depend on the log.
type Blocks struct {
	in   io.Reader
	buf  []byte
	have int // bytes in buf
	line int // lines that were given out
	done bool
	skip bool // within a line that is too long
}

// NewBlocks returns the blocks of a log, unpacked if it was packed by gzip.
func NewBlocks(r io.Reader) (*Blocks, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	head, err := in.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	b := &Blocks{in: in, buf: make([]byte, MaxLine)}
	if bytes.Equal(head, []byte{0x1f, 0x8b}) {
		if b.in, err = gzip.NewReader(in); err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
	}
	return b, nil
}

// Next returns the next block, or io.EOF behind the last one. What was read before an error is given
// out first.
func (b *Blocks) Next() (Block, error) {
	block := Block{First: b.line + 1}
	for {
		if !b.done && b.have < len(b.buf) {
			n, err := b.in.Read(b.buf[b.have:min(len(b.buf), b.have+blockSize)])
			b.have += n
			if err != nil {
				b.done = true
				if !errors.Is(err, io.EOF) {
					b.in = failed{err}
				} else {
					b.in = failed{io.EOF}
				}
			}
		}
		switch {
		case b.skip:
			end := bytes.IndexByte(b.buf[:b.have], '\n')
			if end >= 0 || b.done {
				b.skip = false
				b.drop(end + 1)
				if end < 0 {
					b.have = 0
				}
				b.line++
				block.Long = append(block.Long, b.line)
				block.First = b.line + 1
			} else {
				b.have = 0
			}
		case b.done:
			return b.last(block)
		case b.have >= blockSize:
			end := bytes.LastIndexByte(b.buf[:b.have], '\n')
			if end < 0 {
				if b.have == len(b.buf) {
					b.skip, b.have = true, 0
				}
				continue
			}
			block.Text = string(b.buf[:end+1])
			block.Lines = strings.Count(block.Text, "\n")
			b.line += block.Lines
			b.drop(end + 1)
			return block, nil
		}
	}
}

// last returns what is left when the log has ended.
func (b *Blocks) last(block Block) (Block, error) {
	if b.have == 0 && len(block.Long) == 0 {
		_, err := b.in.Read(nil)
		return Block{}, err
	}
	block.Text = string(b.buf[:b.have])
	block.Lines = strings.Count(block.Text, "\n")
	b.line += block.Lines
	b.have = 0
	return block, nil
}

func (b *Blocks) drop(n int) {
	b.have = copy(b.buf, b.buf[n:b.have])
}

// failed is a reader that has ended.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }
