package engine

import (
	"slices"

	"github.com/stint-io/stint/limit"
)

// reads finds out which attributes the limits of s read, and which of them may be derived.
func (e *Engine) reads(s *snapshot) {
	s.attributes = s.set.Attributes()
	if e.deriver == nil {
		return
	}
	for _, name := range s.attributes {
		if e.deriver.Derives(name) {
			s.derived = append(s.derived, name)
		}
	}
	if len(s.derived) == 0 {
		return
	}
	s.attributes = slices.Clone(s.attributes)
	for _, name := range e.deriver.Needs(s.derived) {
		if !slices.Contains(s.attributes, name) {
			s.attributes = append(s.attributes, name)
		}
	}
	slices.Sort(s.attributes)
}

// derive returns attrs with those that the limits of s read and that are derived from them.
func (e *Engine) derive(s *snapshot, attrs []limit.Attribute) []limit.Attribute {
	if len(s.derived) == 0 {
		return attrs
	}
	return e.deriver.Derive(s.derived, attrs)
}
