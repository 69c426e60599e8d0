package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrFull is wrapped by the errors of [Records] that have no room for more.
var ErrFull = errors.New("there is no room for more records")

// The bounds of records. Longer keys and values are refused with an error that wraps nothing.
const (
	MaxRecordKey   = 1 << 10
	MaxRecordValue = 1 << 16
)

// Record is a small value under a key.
type Record struct {
	Key   string
	Value []byte
}

// Mark is a number that only rises, under a key.
type Mark struct {
	Key string
	N   uint64
}

// Records keeps small values by table and key, beside the counters: what is reserved, which request
// IDs were seen, what was used in which hour. They live as long as the counters: in a store that is
// shared all processes see the same ones. Implementations are safe for concurrent use.
//
// A table is named by a short word of a-z, and holds either values or marks. Keys are in the order
// of their bytes. An error that wraps [ErrUnavailable] says that the outcome is unknown; after any
// other error nothing was changed.
type Records interface {
	// Get returns the value of a key, nil when there is none.
	Get(ctx context.Context, table, key string) ([]byte, error)

	// Swap puts value in the place of old, and reports whether it did: present is what stands there
	// afterwards. old nil = there must be none; value nil = none shall be. keep is how long the
	// record is kept from now on; 0 = for ever.
	Swap(ctx context.Context, table, key string, old, value []byte, keep time.Duration) (swapped bool, present []byte, err error)

	// Range returns the records whose keys begin with prefix and come behind after, in order, at most
	// most of them. after "" = from the first. Fewer than most = there are no more.
	Range(ctx context.Context, table, prefix, after string, most int) ([]Record, error)

	// Raise sets each mark to N unless it is larger already. Repeating it, or doing it in another
	// order, changes nothing. keep is as in Swap.
	Raise(ctx context.Context, table string, marks []Mark, keep time.Duration) error

	// Marks is Range for a table of marks.
	Marks(ctx context.Context, table, prefix, after string, most int) ([]Mark, error)
}

// CheckRecord returns an error for a table, a key or a value that no [Records] takes.
func CheckRecord(table, key string, value []byte) error {
	if table == "" || len(table) > 32 || strings.Trim(table, "abcdefghijklmnopqrstuvwxyz") != "" {
		return fmt.Errorf("records: %.40q cannot be the name of a table: use up to 32 letters a to z", table)
	}
	if key == "" || len(key) > MaxRecordKey {
		return fmt.Errorf("records: a key has %d bytes, want 1 to %d", len(key), MaxRecordKey)
	}
	if len(value) > MaxRecordValue {
		return fmt.Errorf("records: a value has %d bytes, want at most %d", len(value), MaxRecordValue)
	}
	return nil
}
