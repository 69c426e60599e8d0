package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/stint-io/stint/internal/accesslog"
)

// stream reads one log, in a goroutine of its own.
type stream struct {
	o      *Options
	log    *Log
	names  []string
	parser *accesslog.Parser // nil before a line was read
	format *accesslog.Format

	batches chan batch

	// What the merge has of it.
	lines  []accesslog.Line
	unread []Unread
	bad    int64
	all    int64
}

// batch are some lines.
type batch struct {
	lines  []accesslog.Line
	all    int64 // lines, those included that could not be read
	bad    int64
	unread []Unread
	err    error // ends the replay
}

func newStream(o *Options, log *Log, names []string) *stream {
	// Two batches in between let the reader and the decider go on while the other is busy.
	return &stream{o: o, log: log, names: names, batches: make(chan batch, 2)}
}

// fill takes the next batch that has lines; none are left when the log has ended.
func (s *stream) fill(ctx context.Context) error {
	for len(s.lines) == 0 {
		select {
		case b, ok := <-s.batches:
			if !ok {
				return nil
			}
			s.all += b.all
			s.bad += b.bad
			s.unread = append(s.unread, b.unread...)
			s.unread = s.unread[:min(len(s.unread), maxShown)]
			if b.err != nil {
				return fmt.Errorf("replay: %s: %w", s.log.Name, b.err)
			}
			s.lines = b.lines
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// run reads the log until it ends or ctx does.
func (s *stream) run(ctx context.Context) {
	defer close(s.batches)
	if err := s.read(ctx); err != nil && ctx.Err() == nil {
		s.send(ctx, batch{err: err})
	}
}

func (s *stream) send(ctx context.Context, b batch) {
	select {
	case s.batches <- b:
	case <-ctx.Done():
	}
}

func (s *stream) read(ctx context.Context) (err error) {
	in, err := s.log.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	blocks, err := accesslog.NewBlocks(in)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		block, err := blocks.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("after line %d: %w", block.First, err)
		}
		b, err := s.parse(&block)
		if err != nil {
			return err
		}
		s.send(ctx, b)
	}
	return nil
}

// parse reads the lines of a block.
func (s *stream) parse(block *accesslog.Block) (batch, error) {
	var b batch
	bad := func(line int, why error) {
		b.bad++
		if len(b.unread) < maxShown {
			b.unread = append(b.unread, Unread{s.log.Name, line, why.Error()})
		}
	}
	for _, n := range block.Long {
		b.all++
		bad(n, accesslog.ErrLong)
	}
	count := block.Lines + 1
	b.lines = make([]accesslog.Line, 0, count)
	values := make([]string, count*len(s.names))
	n := block.First - 1
	for text := block.Text; text != ""; {
		line, rest, _ := strings.Cut(text, "\n")
		text = rest
		n++
		if line == "" || line == "\r" {
			continue
		}
		if s.parser == nil {
			if err := s.detect(line); err != nil {
				if n > maxLook {
					return b, err
				}
				b.all++
				bad(n, err)
				continue
			}
		}
		if s.format.Names(line) {
			continue
		}
		b.all++
		l := accesslog.Line{Values: values[:len(s.names):len(s.names)]}
		if err := s.parser.Parse(line, &l); err != nil {
			bad(n, err)
			clear(l.Values)
			continue
		}
		values = values[len(s.names):]
		b.lines = append(b.lines, l)
	}
	return b, nil
}

// maxLook is how many lines at the beginning of a log are looked at for its format.
const maxLook = 100

// detect finds the format by a line.
func (s *stream) detect(line string) error {
	f, err := accesslog.ParseFormat(s.o.Format, line)
	if err != nil {
		return err
	}
	p, err := f.Parser(accesslog.Want{Attributes: s.names, Fields: s.o.Fields, Cost: s.o.Cost})
	if err != nil {
		return err
	}
	s.format, s.parser = f, p
	return nil
}
