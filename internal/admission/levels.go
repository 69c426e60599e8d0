package admission

import "math/bits"

// Classes is how many classes there are at most. Not fewer: tiers of other systems are up to 6.
// Not more: each takes 3 KB.
const Classes = 8

// Levels is how many levels a class has.
const Levels = 128

const wordSize = 64 // levels in a word of the bitmap

// levels has the waiting requests by importance: one list for each level of each class, the
// newest last. A bitmap finds the lowest that is not empty in a few instructions.
type levels struct {
	lists   [Classes * Levels]levelList
	present [Classes * Levels / wordSize]uint64 // bit set = the list is not empty
	costs   [Classes * Levels / wordSize]int64  // of all requests in the lists of a word
}

type levelList struct {
	first, last *Item
	cost        int64
}

// rank is the importance of it among all classes and levels.
func (it *Item) rank() int { return int(it.Class)*Levels + int(it.Level) }

// push puts it at the end of its level.
func (l *levels) push(it *Item, cost int64) {
	rank := it.rank()
	list := &l.lists[rank]
	it.inLevel = links{prev: list.last}
	if list.last == nil {
		list.first = it
		l.present[rank/wordSize] |= 1 << (rank % wordSize)
	} else {
		list.last.inLevel.next = it
	}
	list.last = it
	list.cost += cost
	l.costs[rank/wordSize] += cost
}

// remove takes it out.
func (l *levels) remove(it *Item, cost int64) {
	rank := it.rank()
	list := &l.lists[rank]
	prev, next := it.inLevel.prev, it.inLevel.next
	if prev == nil {
		list.first = next
	} else {
		prev.inLevel.next = next
	}
	if next == nil {
		list.last = prev
	} else {
		next.inLevel.prev = prev
	}
	if list.first == nil {
		l.present[rank/wordSize] &^= 1 << (rank % wordSize)
	}
	it.inLevel = links{}
	list.cost -= cost
	l.costs[rank/wordSize] -= cost
}

// victim returns the newest request of the lowest level, or nil.
func (l *levels) victim() *Item {
	for word, set := range l.present {
		if set != 0 {
			return l.lists[word*wordSize+bits.TrailingZeros64(set)].last
		}
	}
	return nil
}

// hasBelow says whether the requests below a rank cost at least so much together.
func (l *levels) hasBelow(rank int, cost int64) bool {
	sum := int64(0)
	for word := 0; word < rank/wordSize; word++ {
		if sum += l.costs[word]; sum >= cost {
			return true
		}
	}
	below := l.present[rank/wordSize] & (1<<(rank%wordSize) - 1)
	for ; below != 0 && sum < cost; below &= below - 1 {
		sum += l.lists[rank/wordSize*wordSize+bits.TrailingZeros64(below)].cost
	}
	return sum >= cost
}
