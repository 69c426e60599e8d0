package accesslog

import (
	"encoding/json"
	"strings"
)

// objectFields reads one JSON object in each line. Keys are looked up by where they stand, so that lines
// of one server, which have them in one order, cost a comparison for each.
type objectFields struct {
	byKey map[objectKey]*object
	root  object
}

// objectKey is a key within an object.
type objectKey struct {
	parent *object
	name   string
}

// object is a key that was seen.
type object struct {
	name  string // with those of the objects around it
	key   string
	sink  *sink
	order []*object // keys within it, in the order of the line before
}

// The bounds of a line of JSON.
const (
	maxKeys  = 4096 // different keys of a log: further ones are ignored
	maxDepth = 32
)

func newObjects() *objectFields {
	return &objectFields{byKey: map[objectKey]*object{}}
}

func (o *objectFields) split(p *Parser, line string) error {
	s := scanner{p: p, o: o, line: line}
	s.space()
	if !s.object(&o.root, 0) {
		return ErrShape
	}
	s.space()
	if s.at != len(line) {
		return ErrShape
	}
	return nil
}

// scanner reads one line.
type scanner struct {
	p    *Parser
	o    *objectFields
	line string
	at   int
}

func (s *scanner) space() {
	for s.at < len(s.line) && (s.line[s.at] == ' ' || s.line[s.at] == '\t') {
		s.at++
	}
}

func (s *scanner) byte(c byte) bool {
	if s.at < len(s.line) && s.line[s.at] == c {
		s.at++
		return true
	}
	return false
}

// object reads an object whose keys are within parent; nil = nobody wants them.
func (s *scanner) object(parent *object, depth int) bool {
	if depth > maxDepth || !s.byte('{') {
		return false
	}
	if s.space(); s.byte('}') {
		return true
	}
	for i := 0; ; i++ {
		s.space()
		key, ok := s.text()
		if !ok {
			return false
		}
		if s.space(); !s.byte(':') {
			return false
		}
		var child *object
		if parent != nil {
			child = s.child(parent, key, i)
		}
		if !s.value(child, depth) {
			return false
		}
		s.space()
		if s.byte('}') {
			return true
		}
		if !s.byte(',') {
			return false
		}
	}
}

// child returns the object of a key, the one at that place of the line before if it is the same.
func (s *scanner) child(parent *object, key string, place int) *object {
	if place < len(parent.order) {
		if c := parent.order[place]; c.key == key {
			return c
		}
	}
	c := s.o.byKey[objectKey{parent, key}]
	if c == nil {
		if len(s.o.byKey) >= maxKeys {
			return nil
		}
		key = strings.Clone(key) // the line goes, this stays
		c = &object{key: key, name: key}
		if parent != &s.o.root {
			c.name = parent.name + "." + key
		}
		c.sink = s.p.sinkOf(c.name)
		s.o.byKey[objectKey{parent, key}] = c
	}
	switch {
	case place < len(parent.order):
		parent.order[place] = c
	case place == len(parent.order) && place < maxKeys:
		parent.order = append(parent.order, c)
	}
	return c
}

// value reads any value.
func (s *scanner) value(c *object, depth int) bool {
	s.space()
	if s.at >= len(s.line) {
		return false
	}
	switch s.line[s.at] {
	case '{':
		return s.object(c, depth+1)
	case '[':
		return s.list(c, depth+1)
	case '"':
		text, ok := s.text()
		if ok && c != nil {
			s.p.put(c.sink, text)
		}
		return ok
	}
	from := s.at
	for s.at < len(s.line) && !strings.ContainsRune(",}] \t", rune(s.line[s.at])) {
		s.at++
	}
	word := s.line[from:s.at]
	if word == "" || word[0] != '-' && (word[0] < '0' || word[0] > '9') && word != "true" && word != "false" && word != "null" {
		return false
	}
	if c != nil && word != "null" {
		s.p.put(c.sink, word)
	}
	return true
}

// list reads a list. Its first value counts, as that of a header field does.
func (s *scanner) list(c *object, depth int) bool {
	if depth > maxDepth || !s.byte('[') {
		return false
	}
	if s.space(); s.byte(']') {
		return true
	}
	for {
		if !s.value(c, depth) {
			return false
		}
		c = nil
		s.space()
		if s.byte(']') {
			return true
		}
		if !s.byte(',') {
			return false
		}
	}
}

// text reads a text in quotes.
func (s *scanner) text() (string, bool) {
	if !s.byte('"') {
		return "", false
	}
	from := s.at
	end := strings.IndexByte(s.line[from:], '"')
	if end < 0 {
		return "", false
	}
	if text := s.line[from : from+end]; strings.IndexByte(text, '\\') < 0 {
		s.at = from + end + 1
		return text, true
	}
	for s.at < len(s.line) {
		switch s.line[s.at] {
		case '\\':
			s.at++
		case '"':
			s.at++
			var text string
			err := json.Unmarshal([]byte(s.line[from-1:s.at]), &text)
			return text, err == nil
		}
		s.at++
	}
	return "", false
}
