package rules

import (
	"slices"
	"strings"
)

// index finds, among many clauses, the few that may hold for a request, without evaluating the
// others. Each clause is filed under one of its conditions: the one whose values the fewest
// clauses share. An index is immutable once built.
type index struct {
	names map[string]*nameIndex
	rest  []int32 // clauses that cannot be filed and are always candidates
}

// nameIndex files clauses by the value of one attribute.
type nameIndex struct {
	exact    map[string][]int32
	prefixes []affixes
	suffixes []affixes
}

// affixes files clauses by literals of one length at an end of the value.
type affixes struct {
	length int
	filed  map[string][]int32
}

// filing is one way to file a clause.
type filing struct {
	name  string
	class byte // '=' exact, '^' prefix, '$' suffix
	texts []string
}

type filingKey struct {
	name  string
	class byte
	text  string
}

func filings(c *clause) []filing {
	var out []filing
	for i := range c.conditions {
		cond := &c.conditions[i]
		exact := filing{name: cond.name, class: '='}
		prefix := filing{name: cond.name, class: '^'}
		suffix := filing{name: cond.name, class: '$'}
		isExact, hasPrefix, hasSuffix := true, true, true
		for j := range cond.patterns {
			p := &cond.patterns[j]
			first, last := p.literal()
			isExact = isExact && p.exact()
			hasPrefix, hasSuffix = hasPrefix && first != "", hasSuffix && last != ""
			exact.texts = append(exact.texts, p.text)
			prefix.texts = append(prefix.texts, first)
			suffix.texts = append(suffix.texts, last)
		}
		switch {
		case isExact:
			out = append(out, exact)
		default:
			if hasPrefix {
				out = append(out, prefix)
			}
			if hasSuffix {
				out = append(out, suffix)
			}
		}
	}
	return out
}

// newIndex files n clauses. Their numbers are 0 to n-1.
func newIndex(n int, at func(int) *clause) *index {
	x := &index{names: make(map[string]*nameIndex)}
	shared := make(map[filingKey]int)
	all := make([][]filing, n)
	for i := range n {
		all[i] = filings(at(i))
		for _, f := range all[i] {
			for _, text := range f.texts {
				shared[filingKey{f.name, f.class, text}]++
			}
		}
	}
	for i, fs := range all {
		var best *filing
		var least int
		for j := range fs {
			worst := 0
			for _, text := range fs[j].texts {
				worst = max(worst, shared[filingKey{fs[j].name, fs[j].class, text}])
			}
			if best == nil || worst < least {
				best, least = &fs[j], worst
			}
		}
		if best == nil {
			x.rest = append(x.rest, int32(i))
			continue
		}
		x.file(best, int32(i))
	}
	return x
}

func (x *index) file(f *filing, number int32) {
	byName := x.names[f.name]
	if byName == nil {
		byName = &nameIndex{exact: make(map[string][]int32)}
		x.names[f.name] = byName
	}
	for _, text := range f.texts {
		var m map[string][]int32
		switch f.class {
		case '=':
			m = byName.exact
		case '^':
			m = ofLength(&byName.prefixes, len(text))
		default:
			m = ofLength(&byName.suffixes, len(text))
		}
		if filed := m[text]; len(filed) == 0 || filed[len(filed)-1] != number {
			m[text] = append(filed, number)
		}
	}
}

func ofLength(list *[]affixes, length int) map[string][]int32 {
	at, found := slices.BinarySearchFunc(*list, length, func(a affixes, n int) int { return a.length - n })
	if !found {
		*list = slices.Insert(*list, at, affixes{length, make(map[string][]int32)})
	}
	return (*list)[at].filed
}

// candidates appends lists of the numbers of all clauses that may hold. A
// number may come twice; each list is ascending.
func (x *index) candidates(s *subject, dst [][]int32) [][]int32 {
	if x == nil {
		return dst
	}
	if len(x.rest) > 0 {
		dst = append(dst, x.rest)
	}
	if len(x.names) == 0 {
		return dst
	}
	if s.domain != "" {
		if byName := x.names[domainAttribute]; byName != nil {
			dst = byName.candidates(s.domain, dst)
		}
	}
	var lower [64]byte
	for i := range s.attrs {
		a := &s.attrs[i]
		byName := x.names[a.Name]
		if byName == nil && len(a.Name) > len(headerPrefix) && a.Name[len(headerPrefix)-1] == ':' {
			byName = x.names[string(appendLower(lower[:0], a.Name))]
		}
		if byName == nil || a.Name == domainAttribute && s.domain != "" || s.shadowed(i) {
			continue
		}
		dst = byName.candidates(a.Value, dst)
	}
	return dst
}

func (n *nameIndex) candidates(value string, dst [][]int32) [][]int32 {
	if filed := n.exact[value]; filed != nil {
		dst = append(dst, filed)
	}
	for _, p := range n.prefixes {
		if p.length > len(value) {
			break
		}
		if filed := p.filed[value[:p.length]]; filed != nil {
			dst = append(dst, filed)
		}
	}
	for _, p := range n.suffixes {
		if p.length > len(value) {
			break
		}
		if filed := p.filed[value[len(value)-p.length:]]; filed != nil {
			dst = append(dst, filed)
		}
	}
	return dst
}

// appendLower appends the name of a header in lower case, or nothing when the
// name is not one: only headers are compared without regard to case.
func appendLower(dst []byte, name string) []byte {
	if !strings.EqualFold(name[:len(headerPrefix)], headerPrefix) {
		return dst
	}
	for i := range len(name) {
		c := name[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		dst = append(dst, c)
	}
	return dst
}
