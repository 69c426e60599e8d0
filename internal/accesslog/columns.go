package accesslog

import (
	"errors"
	"fmt"
	"strings"
)

// columnFields splits lines of CSV.
type columnFields struct {
	sinks []*sink
	comma byte
}

// maxColumns bounds the columns of CSV.
const maxColumns = 1000

// csvFormat returns the format of CSV with that line of names.
func csvFormat(names string) (*Format, error) {
	for _, comma := range []byte{',', '\t', ';'} {
		list, err := splitColumns(names, comma)
		if err != nil || len(list) < 2 || len(list) > maxColumns {
			continue
		}
		f := &Format{name: CSV, columns: names, comma: comma}
		if _, err := bindColumns(f, &Parser{}); err == nil {
			return f, nil
		}
	}
	return nil, fmt.Errorf("accesslog: the first line has to name the columns, one of them time, %s or %s, as in time,ip,method,path", "timestamp", "start_time")
}

func bindColumns(f *Format, p *Parser) (*columnFields, error) {
	list, err := splitColumns(f.columns, f.comma)
	if err != nil {
		return nil, err
	}
	c := &columnFields{comma: f.comma}
	timed := false
	for _, name := range list {
		s := p.sinkOf(strings.TrimSpace(name))
		timed = timed || s.to == toTime
		c.sinks = append(c.sinks, s)
	}
	if !timed {
		return nil, errors.New("accesslog: no column is a time")
	}
	return c, nil
}

func splitColumns(line string, comma byte) (list []string, err error) {
	for more := true; more; {
		var value string
		if value, line, more, err = column(line, comma); err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	return list, nil
}

func (c *columnFields) split(p *Parser, line string) error {
	for i, more := 0, true; more; i++ {
		if i == len(c.sinks) {
			return ErrShape
		}
		var value string
		var err error
		if value, line, more, err = column(line, c.comma); err != nil {
			return err
		}
		if s := c.sinks[i]; s.to != none {
			p.put(s, value)
		}
	}
	return nil
}

// column cuts the first value off a line.
func column(line string, comma byte) (value, rest string, more bool, err error) {
	if line == "" || line[0] != '"' {
		if i := strings.IndexByte(line, comma); i >= 0 {
			return line[:i], line[i+1:], true, nil
		}
		return line, "", false, nil
	}
	doubled := false
	for i := 1; i < len(line); i++ {
		if line[i] != '"' {
			continue
		}
		if i+1 < len(line) && line[i+1] == '"' {
			doubled = true
			i++
			continue
		}
		if value = line[1:i]; doubled {
			value = strings.ReplaceAll(value, `""`, `"`)
		}
		switch {
		case i+1 == len(line):
			return value, "", false, nil
		case line[i+1] == comma:
			return value, line[i+2:], true, nil
		}
		return "", "", false, ErrShape
	}
	return "", "", false, ErrShape
}
