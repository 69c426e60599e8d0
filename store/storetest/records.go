package storetest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// entry is a record of the plain map that is the oracle.
type entry struct {
	value string
	until limit.Time // 0 = for ever
}

// Records tests a [store.Records] against a plain map by drawn operations: whatever is done in whatever
// order, the records are those of the map. now is the clock of the records, which the test moves by step at
// least; upheaval runs between operations, and may write, or open the records again.
func Records(t *testing.T, r store.Records, clock func() limit.Time, advance func(time.Duration), step time.Duration, upheaval func() store.Records) {
	rnd := rand.New(rand.NewPCG(14, 1))
	model := map[string]entry{}
	get := func(key string) (string, bool) {
		e, known := model[key]
		if !known || e.until != 0 && clock() >= e.until {
			return "", false
		}
		return e.value, true
	}
	for n := range 3000 {
		advance(time.Duration(rnd.IntN(20)) * step)
		if rnd.IntN(50) == 0 && upheaval != nil {
			r = upheaval()
		}
		key := strings.Repeat("k", 1+rnd.IntN(3)) + fmt.Sprint(rnd.IntN(20))
		is, known := get(key)
		switch rnd.IntN(3) {
		case 0:
			var old, value []byte
			if known && rnd.IntN(4) > 0 || !known && rnd.IntN(4) == 0 {
				old = []byte(is)
			}
			if rnd.IntN(4) > 0 {
				value = fmt.Append(nil, rnd.IntN(5))
			}
			keep := time.Duration(rnd.IntN(3)) * 50 * step
			swapped, present, err := r.Swap(t.Context(), "values", key, old, value, keep)
			if want := known == (old != nil); err != nil || swapped != want {
				t.Fatalf("step %d: Swap of %s from %q: %v, want %v, %v", n, key, old, swapped, want, err)
			}
			if swapped {
				delete(model, key)
				if value != nil {
					e := entry{value: string(value)}
					if keep > 0 {
						e.until = clock().Add(keep)
					}
					model[key] = e
				}
				is = string(value)
			}
			if string(present) != is {
				t.Fatalf("step %d: Swap of %s: present %q, want %q", n, key, present, is)
			}
		case 1:
			if v, err := r.Get(t.Context(), "values", key); err != nil || (v != nil) != known || string(v) != is {
				t.Fatalf("step %d: Get of %s: %q, want %q, %v", n, key, v, is, err)
			}
		case 2:
			prefix, after, most := key[:rnd.IntN(len(key)+1)], key, 1+rnd.IntN(10)
			if rnd.IntN(3) == 0 {
				after = ""
			}
			var want []string
			for _, k := range slices.Sorted(maps.Keys(model)) {
				if v, live := get(k); live && strings.HasPrefix(k, prefix) && k > after && len(want) < most {
					want = append(want, k+"="+v)
				}
			}
			found, err := r.Range(t.Context(), "values", prefix, after, most)
			var got []string
			for _, f := range found {
				got = append(got, f.Key+"="+string(f.Value))
			}
			if err != nil || !slices.Equal(got, want) {
				t.Fatalf("step %d: Range of %q after %q: %q, want %q, %v", n, prefix, after, got, want, err)
			}
		}
	}
	marks(t, r)
	badRecords(t, r)
}

// marks only rise, in whatever order and however often they are raised.
func marks(t *testing.T, r store.Records) {
	for _, n := range []uint64{3, 1, 1 << 40, 1 << 40, 2} {
		if err := r.Raise(t.Context(), "marks", []store.Mark{{Key: "a", N: n}, {Key: "b", N: 1}}, 0); err != nil {
			t.Fatal(err)
		}
	}
	got, err := r.Marks(t.Context(), "marks", "", "", 10)
	if want := []store.Mark{{Key: "a", N: 1 << 40}, {Key: "b", N: 1}}; err != nil || !slices.Equal(got, want) {
		t.Fatalf("marks: %v, want %v, %v", got, want, err)
	}
	if got, err = r.Marks(t.Context(), "marks", "b", "", 10); err != nil || len(got) != 1 {
		t.Fatalf("marks from b: %v, %v", got, err)
	}
}

// badRecords are refused, and change nothing.
func badRecords(t *testing.T, r store.Records) {
	for _, bad := range [][2]string{{"", "k"}, {"T", "k"}, {"t", ""}, {"t", strings.Repeat("k", store.MaxRecordKey+1)}, {strings.Repeat("t", 40), "k"}, {"a/b", "k"}} {
		if _, err := r.Get(t.Context(), bad[0], bad[1]); err == nil {
			t.Errorf("Get took table %.40q, key %.40q", bad[0], bad[1])
		}
		if _, _, err := r.Swap(t.Context(), bad[0], bad[1], nil, []byte("v"), 0); err == nil {
			t.Errorf("Swap took table %.40q, key %.40q", bad[0], bad[1])
		}
		if err := r.Raise(t.Context(), bad[0], []store.Mark{{Key: bad[1], N: 1}}, 0); err == nil {
			t.Errorf("Raise took table %.40q, key %.40q", bad[0], bad[1])
		}
	}
	if _, _, err := r.Swap(t.Context(), "values", "long", nil, make([]byte, store.MaxRecordValue+1), 0); err == nil {
		t.Error("a value above the bound was taken")
	}
	if v, err := r.Get(t.Context(), "values", "long"); v != nil || err != nil {
		t.Errorf("%d bytes, %v", len(v), err)
	}
}
