package replay

import (
	"cmp"
	"slices"

	"github.com/stint-io/stint/limit"
)

// sketchSize is how many keys a sketch counts. Not smaller: no count is too high by more than what was
// counted in all over this, a thousandth. Not larger: each limit has one.
const sketchSize = 1000

// sketch counts the keys that are met most, in bounded memory: Space-Saving (Metwally, Agrawal and El
// Abbadi, 2005). As long as there are at most sketchSize keys the counts are exact. Of more, a new key
// takes the place of the one with the least count and goes on from there: no count is too low, and none
// is too high by more than its over, which is at most total/sketchSize. The zero value is empty.
type sketch struct {
	byKey map[string]*counted
	heap  []*counted // the least first
	total int64
	full  bool // a key has lost its place
}

// counted is a key of a sketch.
type counted struct {
	key         string
	n, over     int64
	first, last limit.Time
	at          int // in the heap
}

func (s *sketch) add(key []byte, at limit.Time) {
	s.total++
	c := s.byKey[string(key)]
	switch {
	case c != nil:
	case len(s.heap) < sketchSize:
		if s.byKey == nil {
			s.byKey = make(map[string]*counted)
		}
		c = &counted{key: string(key), first: at, at: len(s.heap)}
		s.byKey[c.key] = c
		s.heap = append(s.heap, c)
		s.up(c.at)
	default:
		s.full = true
		c = s.heap[0]
		delete(s.byKey, c.key)
		c.key, c.over, c.first = string(key), c.n, at
		s.byKey[c.key] = c
	}
	c.n++
	c.last = at
	s.down(c.at)
}

func (s *sketch) up(i int) {
	for i > 0 && s.heap[i].n < s.heap[(i-1)/2].n {
		s.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (s *sketch) down(i int) {
	for {
		least := 2*i + 1
		if least >= len(s.heap) {
			return
		}
		if least+1 < len(s.heap) && s.heap[least+1].n < s.heap[least].n {
			least++
		}
		if s.heap[i].n <= s.heap[least].n {
			return
		}
		s.swap(i, least)
		i = least
	}
}

func (s *sketch) swap(i, j int) {
	s.heap[i], s.heap[j] = s.heap[j], s.heap[i]
	s.heap[i].at, s.heap[j].at = i, j
}

// top returns the keys that were met most, at most n of them.
func (s *sketch) top(n int) []*counted {
	list := slices.Clone(s.heap)
	slices.SortFunc(list, func(a, b *counted) int {
		return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.over, b.over), cmp.Compare(a.key, b.key))
	})
	return list[:min(n, len(list))]
}

// bound is by how much a count may be too high.
func (s *sketch) bound() int64 {
	if !s.full {
		return 0
	}
	return s.total / sketchSize
}
