// Package tables keeps small values by table and key in the register of a cluster, so that all members see the same
// ones: what is rarely changed, and by hand. It is not for marks that rise with requests, and knows nothing of what the
// values say.
package tables

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

const (
	// MaxRecords bounds the values of one table: some 5 MB, which are read at each new value. Not fewer: a week of
	// request IDs must fit. Not more: etcd keeps 2 GB in all and its versions for a while, and answers a list at once.
	MaxRecords = 10_000
	// swept is how many values that have ended are deleted at one change, so that no change takes long.
	swept = 50
	// answerTime bounds one call of the register, which may never answer. Not shorter: a full table comes at once. Not
	// longer: somebody waits.
	answerTime = 3 * time.Second
)

// Tables is a [store.Records] over a register. New makes it; it is safe for concurrent use. Values are in the
// order of their keys, and end by the clocks of those who look.
type Tables struct {
	register cluster.Register
	now      func() limit.Time
}

var _ store.Records = (*Tables)(nil)

// New returns the tables in a register. now is the clock; nil = the system's.
func New(r cluster.Register, now func() limit.Time) *Tables {
	if now == nil {
		now = func() limit.Time { return limit.At(time.Now()) }
	}
	return &Tables{bounded{r}, now}
}

// bounded is a register whose calls end.
type bounded struct{ cluster.Register }

func (b bounded) Read(ctx context.Context, key string) (cluster.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	return b.Register.Read(ctx, key)
}

func (b bounded) Swap(ctx context.Context, key string, revision uint64, value []byte) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	return b.Register.Swap(ctx, key, revision, value)
}

func (b bounded) List(ctx context.Context, prefix string) (map[string]cluster.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	return b.Register.List(ctx, prefix)
}

// row is a value in the register.
type row struct {
	Key   []byte     `json:"key"`
	Value []byte     `json:"value"`
	Until limit.Time `json:"until,omitempty"` // 0 = for ever
}

func (r *row) ended(now limit.Time) bool { return r.Until != 0 && now >= r.Until }

// path is where a value stands: keys have any bytes, and those of a register few.
func path(table, key string) string {
	sum := sha256.Sum256([]byte(key))
	return table + "/" + hex.EncodeToString(sum[:20])
}

func unavailable(err error) error {
	return fmt.Errorf("the cluster's register does not answer: %w: %w", store.ErrUnavailable, err)
}

// read returns what stands under a key, and its revision; of what has ended, the revision alone.
func (t *Tables) read(ctx context.Context, table, key string) (r row, revision uint64, err error) {
	if err := store.CheckRecord(table, key, nil); err != nil {
		return r, 0, err
	}
	is, err := t.register.Read(ctx, path(table, key))
	if err != nil {
		return r, 0, unavailable(err)
	}
	if is.Revision != 0 && (json.Unmarshal(is.Value, &r) != nil || string(r.Key) != key) {
		return row{}, 0, fmt.Errorf("tables: the record %s of the cluster is damaged: delete it", path(table, key))
	}
	if r.ended(t.now()) {
		r = row{}
	}
	return r, is.Revision, nil
}

// Get implements [store.Records].
func (t *Tables) Get(ctx context.Context, table, key string) ([]byte, error) {
	r, _, err := t.read(ctx, table, key)
	return r.Value, err
}

// Swap implements [store.Records].
func (t *Tables) Swap(ctx context.Context, table, key string, old, value []byte, keep time.Duration) (bool, []byte, error) {
	if err := store.CheckRecord(table, key, value); err != nil {
		return false, nil, err
	}
	for {
		is, revision, err := t.read(ctx, table, key)
		if err != nil {
			return false, nil, err
		}
		if (is.Value == nil) != (old == nil) || string(is.Value) != string(old) {
			return false, is.Value, nil
		}
		var text []byte
		switch {
		case value == nil && revision == 0:
			return true, nil, nil
		case value != nil:
			if old == nil {
				if err := t.sweep(ctx, table); err != nil {
					return false, nil, err
				}
			}
			r := row{Key: []byte(key), Value: append([]byte{}, value...)}
			if keep > 0 {
				r.Until = t.now().Add(keep)
			}
			if text, err = json.Marshal(r); err != nil {
				return false, nil, fmt.Errorf("tables: %w", err)
			}
		}
		_, err = t.register.Swap(ctx, path(table, key), revision, text)
		switch {
		case err == nil:
			return true, value, nil
		case !errors.Is(err, cluster.ErrChanged):
			return false, nil, unavailable(err)
		}
	}
}

// list returns the values of a table that have not ended, by key, and where the others stand.
func (t *Tables) list(ctx context.Context, table string) (rows []row, ended map[string]uint64, err error) {
	all, err := t.register.List(ctx, table+"/")
	if err != nil {
		return nil, nil, unavailable(err)
	}
	now := t.now()
	ended = map[string]uint64{}
	for at, is := range all {
		var r row
		switch {
		case json.Unmarshal(is.Value, &r) != nil || path(table, string(r.Key)) != at: // damaged, or not ours
		case r.ended(now):
			ended[at] = is.Revision
		default:
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b row) int { return strings.Compare(string(a.Key), string(b.Key)) })
	return rows, ended, nil
}

// sweep deletes what has ended, and says whether there is room for one more.
func (t *Tables) sweep(ctx context.Context, table string) error {
	rows, ended, err := t.list(ctx, table)
	if err != nil {
		return err
	}
	if len(rows) >= MaxRecords {
		return fmt.Errorf("tables: %w: %d of %s are in the register of the cluster, the most there may be", store.ErrFull, len(rows), table)
	}
	n := 0
	for at, revision := range ended {
		if n++; n > swept {
			break
		}
		if _, err := t.register.Swap(ctx, at, revision, nil); err != nil && !errors.Is(err, cluster.ErrChanged) {
			return unavailable(err)
		}
	}
	return nil
}

// Range implements [store.Records].
func (t *Tables) Range(ctx context.Context, table, prefix, after string, most int) (found []store.Record, err error) {
	if err := store.CheckRecord(table, "any", nil); err != nil {
		return nil, err
	}
	rows, _, err := t.list(ctx, table)
	for _, r := range rows {
		if key := string(r.Key); len(found) < most && strings.HasPrefix(key, prefix) && key > after {
			found = append(found, store.Record{Key: key, Value: r.Value})
		}
	}
	return found, err
}

// Raise implements [store.Records], with a read and a write for each mark.
func (t *Tables) Raise(ctx context.Context, table string, marks []store.Mark, keep time.Duration) error {
	for i := range marks {
		if err := store.CheckRecord(table, marks[i].Key, nil); err != nil {
			return err
		}
	}
	for _, m := range marks {
		is, err := t.Get(ctx, table, m.Key)
		for raised := false; err == nil && !raised && (is == nil || number(is) < m.N); {
			raised, is, err = t.Swap(ctx, table, m.Key, is, binary.BigEndian.AppendUint64(nil, m.N), keep)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Marks implements [store.Records].
func (t *Tables) Marks(ctx context.Context, table, prefix, after string, most int) (found []store.Mark, err error) {
	values, err := t.Range(ctx, table, prefix, after, most)
	for _, v := range values {
		found = append(found, store.Mark{Key: v.Key, N: number(v.Value)})
	}
	return found, err
}

// number is the number of a mark's value; 0 for a value that is none.
func number(value []byte) uint64 {
	if len(value) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(value)
}
