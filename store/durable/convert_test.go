package durable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// formerFile writes what a store has as the versions before wrote it: each state in the tree of its limit, in its
// journal, or in both, where the tree has an older one.
func (w *world) formerFile(r *rand.Rand, path string, format uint64) {
	w.Helper()
	w.flush()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		w.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		meta, err1 := tx.CreateBucket(metaBucket)
		counters, err2 := tx.CreateBucket(countersBucket)
		records, err3 := tx.CreateBucket(recordsBucket)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		big := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
		errs := []error{meta.Put(formatKey, big(format)), meta.Put(writtenKey, big(uint64(time.Now().UnixNano())))}
		for id, one := range w.store.writer.file.limits {
			b, err := counters.CreateBucket([]byte(id))
			if err != nil {
				return err
			}
			tree, err1 := b.CreateBucket(statesKey)
			journal, err2 := b.CreateBucket(journalKey)
			errs = append(errs, err1, err2, b.Put(policyKey, []byte(one.policy)))
			n := uint64(0)
			errs = append(errs, one.eachState(w.store.writer.file.handle, func(key, state []byte) error {
				in := r.IntN(3)
				name := append([]byte{'k'}, key...)
				if in == 0 {
					return tree.Put(name, bytes.Clone(state))
				}
				n++
				err := journal.Put(big(2*n), appendState(nil, key, state))
				if in == 1 {
					older := bytes.Clone(state)
					older[0] ^= 1
					err = errors.Join(err, tree.Put(name, older), journal.Put(big(2*n-1), appendState(nil, key, nil)))
				}
				return err
			}))
			errs = append(errs, tree.Put([]byte("kgone"), make([]byte, 16)), journal.Put(big(2*n+2), appendState(nil, "gone", nil)))
		}
		for table, tree := range w.store.records.changed {
			b, err := records.CreateBucket([]byte(table))
			if err != nil {
				return err
			}
			tree.Ascend(func(i item) bool {
				if i.value != nil {
					errs = append(errs, b.Put([]byte(i.key), append(big(uint64(i.until)), i.value...)))
				}
				return true
			})
		}
		return errors.Join(errs...)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		w.Fatal(err)
	}
}

// A file of the former format is converted when it is opened, and converted back by Downgrade, whatever a conversion that was
// interrupted has left.
func TestConvert(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 10) {
		r := rand.New(rand.NewPCG(seed, 17))
		w := newWorld(t)
		policies := make([]limit.Policy, 1+r.IntN(4))
		counters := make([]store.Counters, len(policies))
		for i := range policies {
			policies[i] = drawPolicy(r)
			counters[i] = w.bind(fmt.Sprint(i), policies[i])
		}
		use := func() {
			for range 1 + r.IntN(200) {
				charges := []store.Charge{{Counters: counters[r.IntN(len(counters))], Key: fmt.Append(nil, "key", r.IntN(6)), Cost: 1}}
				if _, err := w.store.Take(t.Context(), charges); err != nil {
					t.Fatal(err)
				}
			}
			for range r.IntN(400) {
				table, key := string('a'+rune(r.IntN(3))), fmt.Sprint(r.IntN(400))
				old, err := w.store.Records().Get(t.Context(), table, key)
				if err != nil {
					t.Fatal(err)
				}
				value := fmt.Append(nil, r.Uint64())
				if old != nil && r.IntN(2) == 0 {
					value = nil
				}
				if _, _, err := w.store.Records().Swap(t.Context(), table, key, old, value, time.Duration(r.IntN(2))*time.Hour); err != nil {
					t.Fatal(err)
				}
			}
		}
		stands := func() string {
			text := w.standing(counters)
			for _, table := range []string{"a", "b", "c"} {
				records, err := w.store.Records().Range(t.Context(), table, "", "", 5000)
				if err != nil {
					t.Fatal(err)
				}
				text += fmt.Sprintf("%s: %s\n", table, records)
			}
			return text
		}
		use()
		before := stands()
		path := filepath.Join(t.TempDir(), "counts.db")
		w.formerFile(r, path, 1)
		former, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.store.Close(); err != nil {
			t.Fatal(err)
		}
		w.path = path
		for i := range 4 { // the second time it has the new format, and the third time the former one
			if r.IntN(2) == 0 {
				if err := os.WriteFile(newName(path), former[:r.IntN(len(former))], 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if i == 2 {
				w.downgrade()
			}
			w.open()
			for i := range counters {
				counters[i] = w.bind(fmt.Sprint(i), policies[i])
			}
			if after := stands(); after != before {
				t.Fatalf("seed %d, start %d:\n%s\nwas\n%s", seed, i, after, before)
			}
			use()
			before = stands()
			if err := w.store.Close(); err != nil {
				t.Fatal(err)
			}
		}
		w.open()
	}
}

// downgrade converts the file, which nobody has open, to the former format. Doing so again changes nothing.
func (w *world) downgrade() {
	w.Helper()
	if err := Downgrade(w.path); err != nil {
		w.Fatal(err)
	}
	once, err := os.ReadFile(w.path)
	if err != nil || !isBolt(bytes.NewReader(once)) {
		w.Fatal("the file is not a database of bbolt", err)
	}
	if err := Downgrade(w.path); err != nil {
		w.Fatal(err)
	}
	if twice, err := os.ReadFile(w.path); err != nil || !bytes.Equal(once, twice) {
		w.Fatal("the file has changed", err)
	}
}

// Downgrade leaves a file alone that is in use, damaged, or not there.
func TestDowngradeRefused(t *testing.T) {
	w := newWorld(t)
	if err := Downgrade(w.path); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("of a file in use: %v", err)
	}
	if err := Downgrade(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no file: %v", err)
	}
	damaged := filepath.Join(t.TempDir(), "counts.db")
	if err := os.WriteFile(damaged, []byte("counts"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Downgrade(damaged); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("of a damaged file: %v", err)
	}
	if text, err := os.ReadFile(damaged); string(text) != "counts" || err != nil {
		t.Errorf("the damaged file is %q now: %v", text, err)
	}
}

// A file of the former format that is in use, newer, or damaged is refused with what to do, and stays as it is.
func TestConvertRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	w := newWorld(t)
	c := w.bind("month", monthly)
	for i := range 300 {
		w.take(c, fmt.Sprint("customer", i), 3)
	}
	dir := t.TempDir()
	refused := func(path, want string) {
		t.Helper()
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Options{Path: path, Wait: time.Millisecond}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
			t.Errorf("the file has changed: %v", err)
		}
		if _, err := os.Stat(newName(path)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", newName(path), err)
		}
	}
	r := rand.New(rand.NewPCG(rand.Uint64(), 18))
	newer, good := filepath.Join(dir, "newer"), filepath.Join(dir, "good")
	w.formerFile(r, newer, 2)
	refused(newer, "newer version")
	w.formerFile(r, good, 1)
	db, err := bolt.Open(good, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	refused(good, "another process")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	outcomes := map[bool]int{}
	for n := range 200 {
		path := filepath.Join(dir, fmt.Sprint(n)) // one that faults keeps its lock until the process ends
		if err := os.WriteFile(path, damaged(r, content), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(Options{Path: path, Memory: memory.Options{Now: w.now}})
		if err == nil {
			_, err = s.Bind(store.Spec{ID: "month", Policy: monthly})
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		outcomes[err == nil]++
	}
	if outcomes[false] < 50 {
		t.Errorf("%v of the damaged files were opened", slices.Collect(maps.Values(outcomes)))
	}
}

// A database in which a page leads back to itself is refused: bbolt would follow it until all memory is used.
func TestConvertPageInTwoPlaces(t *testing.T) {
	w := newWorld(t)
	for i := range 2000 {
		if _, _, err := w.store.Records().Swap(t.Context(), "t", fmt.Sprint("key", i), nil, make([]byte, 100), 0); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "counts.db")
	w.formerFile(rand.New(rand.NewPCG(rand.Uint64(), 19)), path, 1)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pageSize, branches := os.Getpagesize(), 0
	for at := 2 * pageSize; at < len(content); at += pageSize {
		page := content[at:]
		if id := binary.LittleEndian.Uint64(page); id == uint64(at/pageSize) && binary.LittleEndian.Uint16(page[8:]) == boltBranch {
			binary.LittleEndian.PutUint64(page[boltPageHead+8:], id)
			branches++
		}
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Path: path}); branches == 0 || err == nil || !strings.Contains(err.Error(), "two places") {
		t.Errorf("with %d branches that lead back: %v", branches, err)
	}
}
