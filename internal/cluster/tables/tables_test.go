package tables_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/cluster/alone"
	"github.com/stint-io/stint/internal/cluster/tables"
	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Whatever is done in whatever order, two members see what records in memory have.
func TestAsRecordsInMemory(t *testing.T) {
	now := limit.Time(1)
	clock := func() limit.Time { return now }
	register := alone.New()
	members := []store.Records{tables.New(register, clock), tables.New(register, clock)}
	oracle, r := records.New(clock, 0), seeding.Rand(t)
	for n := range 3000 {
		now = now.Add(time.Duration(r.IntN(20)) * time.Second)
		m, key := members[r.IntN(2)], fmt.Sprintf("k\x00/%d", r.IntN(20))
		if r.IntN(3) == 0 {
			prefix, after, most := fmt.Sprintf("k\x00/%d", r.IntN(3)), fmt.Sprintf("k\x00/%d", r.IntN(20)), r.IntN(8)
			got, err := m.Range(t.Context(), "values", prefix, after, most)
			want, _ := oracle.Range(t.Context(), "values", prefix, after, most)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("step %d: Range %q %q %d: %v, %v, want %v", n, prefix, after, most, got, err, want)
			}
			continue
		}
		old, err := m.Get(t.Context(), "values", key)
		if want, _ := oracle.Get(t.Context(), "values", key); err != nil || !bytes.Equal(old, want) {
			t.Fatalf("step %d: Get %q: %q, %v, want %q", n, key, old, err, want)
		}
		if r.IntN(4) == 0 {
			old = []byte("another")
		}
		var value []byte
		if r.IntN(4) > 0 {
			value = fmt.Append(nil, r.IntN(5))
		}
		keep := time.Duration(r.IntN(3)) * 50 * time.Second
		done, present, err := m.Swap(t.Context(), "values", key, old, value, keep)
		done2, present2, _ := oracle.Swap(t.Context(), "values", key, old, value, keep)
		if err != nil || done != done2 || !bytes.Equal(present, present2) {
			t.Fatalf("step %d: Swap %q %q %q: %v %q %v, want %v %q", n, key, old, value, done, present, err, done2, present2)
		}
	}
}

// Of many that swap at once one is first.
func TestOneIsFirst(t *testing.T) {
	register := alone.New()
	var all sync.WaitGroup
	var mu sync.Mutex
	first := 0
	for i := range 20 {
		all.Go(func() {
			done, _, err := tables.New(register, nil).Swap(t.Context(), "requests", "id", nil, fmt.Append(nil, i), time.Hour)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if done {
				first++
			}
		})
	}
	all.Wait()
	if first != 1 {
		t.Errorf("%d were first", first)
	}
}

// A full table says so, and takes more once something has ended, which is deleted.
func TestFull(t *testing.T) {
	now := limit.Time(1)
	register := alone.New()
	m := tables.New(register, func() limit.Time { return now })
	for i := range tables.MaxRecords {
		// Not by Swap, which reads all each time.
		key := fmt.Sprint(i)
		if _, err := register.Swap(t.Context(), tables.Path("full", key), 0, fmt.Appendf(nil, `{"key":%q,"value":"eA==","until":1000}`, base64.StdEncoding.EncodeToString([]byte(key)))); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := m.Swap(t.Context(), "full", "more", nil, []byte("x"), 0); !errors.Is(err, store.ErrFull) {
		t.Error(err)
	}
	now = 2000
	if done, _, err := m.Swap(t.Context(), "full", "more", nil, []byte("x"), 0); !done || err != nil {
		t.Error(done, err)
	}
	if all, err := register.List(t.Context(), "full/"); err != nil || len(all) >= tables.MaxRecords {
		t.Error(len(all), err)
	}
}

// Marks of two members only rise, in whatever order they come, and end.
func TestMarks(t *testing.T) {
	now := limit.Time(1)
	clock := func() limit.Time { return now }
	register := alone.New()
	members := []store.Records{tables.New(register, clock), tables.New(register, clock)}
	oracle, r := records.New(clock, 0), seeding.Rand(t)
	for n := range 1000 {
		now = now.Add(time.Duration(r.IntN(20)) * time.Second)
		marks := []store.Mark{{Key: fmt.Sprint("m", r.IntN(4)), N: r.Uint64N(9)}, {Key: fmt.Sprint("m", r.IntN(4)), N: uint64(n)}}
		keep := time.Duration(r.IntN(3)) * 50 * time.Second
		if err := errors.Join(members[r.IntN(2)].Raise(t.Context(), "marks", marks, keep), oracle.Raise(t.Context(), "marks", marks, keep)); err != nil {
			t.Fatal(err)
		}
		after, most := fmt.Sprint("m", r.IntN(4)), r.IntN(5)
		got, err := members[r.IntN(2)].Marks(t.Context(), "marks", "m", after, most)
		if want, _ := oracle.Marks(t.Context(), "marks", "m", after, most); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("step %d: %v, %v, want %v", n, got, err, want)
		}
	}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if err := tables.New(register, clock).Raise(t.Context(), "head", []store.Mark{{Key: "n", N: uint64(i)}}, 0); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got, err := members[0].Marks(t.Context(), "head", "", "", 2); err != nil || len(got) != 1 || got[0].N != 19 {
		t.Error(got, err)
	}
}
