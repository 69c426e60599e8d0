package cluster

import (
	"context"
	"errors"
)

// ErrChanged is the error of a Swap that wrote nothing, because the record has another revision.
var ErrChanged = errors.New("cluster: the record has another revision")

// Record is what a Register holds under a key.
type Record struct {
	// Revision changes with every write and is never used twice for a key, also when the record
	// was deleted in between. 0 = there is no record.
	Revision uint64
	Value    []byte
}

// Register is a table of small records, which a backend implements. It is safe for concurrent use.
// Keys are short ASCII paths of letters, digits and "-._/", such as leader/default.
//
// A call returns soon after its context has ended. An error other than ErrChanged says that the
// outcome is unknown: a Swap may have been done, or may yet be.
type Register interface {
	// Read returns the record at some instant between call and return.
	Read(ctx context.Context, key string) (Record, error)

	// Swap writes value if the record has this revision, 0 for no record, and returns the new
	// revision. A nil value deletes; the returned revision is 0 then. It returns ErrChanged, or an
	// error that wraps it, if the record has another revision.
	Swap(ctx context.Context, key string, revision uint64, value []byte) (uint64, error)

	// List returns the records whose keys begin with prefix, by key.
	List(ctx context.Context, prefix string) (map[string]Record, error)

	// Watch returns a channel that receives a value when a record whose key begins with prefix may
	// have changed. Several changes may be one value, and a value is only a hint: it may be missing,
	// late or without cause. The channel is closed when ctx has ended.
	Watch(ctx context.Context, prefix string) <-chan struct{}

	// Forgets reports whether the backend can lose a write that it has acknowledged.
	Forgets() bool

	// Close releases what the Register holds.
	Close() error
}
