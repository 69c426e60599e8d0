package pool

import "github.com/stint-io/stint/limit"

// parts is among how many maps a table is divided, one of which Sweep looks through at a time.
const parts = 64

// Filling is what a Table has of a bucket.
type Filling interface {
	// Full says whether the bucket is full at now, so that it need not be known.
	Full(now limit.Time) bool
}

// Table has what is known of the buckets that are not full. The zero value has none. It is not safe for concurrent
// use.
type Table[B any, P interface {
	*B
	Filling
}] struct {
	of    [parts]map[BucketID]B
	swept int
	size  int
}

// Len is how many there are.
func (t *Table[B, P]) Len() int { return t.size }

// Get returns a bucket.
func (t *Table[B, P]) Get(id BucketID) (b B, ok bool) {
	b, ok = t.of[id[0]%parts][id]
	return b, ok
}

// Put adds or replaces a bucket.
func (t *Table[B, P]) Put(id BucketID, b B) {
	m := &t.of[id[0]%parts]
	if *m == nil {
		*m = map[BucketID]B{}
	}
	was := len(*m)
	(*m)[id] = b
	t.size += len(*m) - was
}

// Delete forgets a bucket.
func (t *Table[B, P]) Delete(id BucketID) {
	m := t.of[id[0]%parts]
	was := len(m)
	delete(m, id)
	t.size += len(m) - was
}

// Each calls f with every bucket, which it may change. Full ones are forgotten.
func (t *Table[B, P]) Each(now limit.Time, f func(BucketID, *B)) {
	for i := range t.of {
		t.each(i, now, f)
	}
}

// Sweep forgets full buckets, of another part each time. Not of all at once: a million takes some 50 ms.
func (t *Table[B, P]) Sweep(now limit.Time) {
	t.each(t.swept, now, nil)
	t.swept = (t.swept + 1) % parts
}

func (t *Table[B, P]) each(part int, now limit.Time, f func(BucketID, *B)) {
	m := t.of[part]
	was := len(m)
	for id, b := range m {
		switch {
		case P(&b).Full(now):
			delete(m, id)
		case f != nil:
			f(id, &b)
			m[id] = b
		}
	}
	t.size += len(m) - was
}
