package records_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Whatever is done in whatever order, the records are those of a plain map.
func TestAsAMap(t *testing.T) {
	rnd := rand.New(rand.NewPCG(14, 1))
	type entry struct {
		value string
		until limit.Time
	}
	now := limit.Time(1)
	m := records.New(func() limit.Time { return now }, 0)
	model := map[string]entry{}
	get := func(key string) (string, bool) {
		e, known := model[key]
		if !known || e.until != 0 && now >= e.until {
			return "", false
		}
		return e.value, true
	}
	for range 20_000 {
		now += limit.Time(rnd.IntN(20))
		key := strings.Repeat("k", 1+rnd.IntN(3)) + fmt.Sprint(rnd.IntN(20))
		is, known := get(key)
		switch rnd.IntN(3) {
		case 0:
			old := []byte(is)
			if !known || rnd.IntN(4) == 0 {
				old = nil
			}
			var value []byte
			if rnd.IntN(4) > 0 {
				value = fmt.Append(nil, rnd.IntN(5))
			}
			keep := time.Duration(rnd.IntN(3) * 50)
			swapped, present, err := m.Swap(t.Context(), "t", key, old, value, keep)
			if want := known == (old != nil); err != nil || swapped != want {
				t.Fatal(key, swapped, want, err)
			}
			if swapped {
				delete(model, key)
				if value != nil {
					e := entry{value: string(value)}
					if keep > 0 {
						e.until = now.Add(keep)
					}
					model[key] = e
				}
				is = string(value)
			}
			if string(present) != is {
				t.Fatalf("present %q, want %q", present, is)
			}
		case 1:
			if v, err := m.Get(t.Context(), "t", key); err != nil || (v != nil) != known || string(v) != is {
				t.Fatalf("%s: %q, want %q", key, v, is)
			}
		case 2:
			prefix, after, most := key[:rnd.IntN(len(key)+1)], key, 1+rnd.IntN(10)
			var want []string
			for _, k := range slices.Sorted(maps.Keys(model)) {
				if _, live := get(k); live && strings.HasPrefix(k, prefix) && k > after && len(want) < most {
					want = append(want, k)
				}
			}
			found, err := m.Range(t.Context(), "t", prefix, after, most)
			var got []string
			for _, r := range found {
				got = append(got, r.Key)
			}
			if err != nil || !slices.Equal(got, want) {
				t.Fatal(prefix, after, got, want, err)
			}
		}
	}
}

// Marks only rise, in whatever order and however often they are raised.
func TestRaise(t *testing.T) {
	m := records.New(nil, 0)
	for _, n := range []uint64{3, 1, 7, 7, 2} {
		if err := m.Raise(t.Context(), "marks", []store.Mark{{Key: "a", N: n}, {Key: "b", N: 1}}, 0); err != nil {
			t.Fatal(err)
		}
	}
	got, err := m.Marks(t.Context(), "marks", "", "", 10)
	if err != nil || !slices.Equal(got, []store.Mark{{Key: "a", N: 7}, {Key: "b", N: 1}}) {
		t.Fatal(got, err)
	}
}

// What is full says so, changes nothing, and takes more once something has ended.
func TestBounds(t *testing.T) {
	now := limit.Time(1)
	m := records.New(func() limit.Time { return now }, 1000)
	value := make([]byte, 200)
	for i := range 10 {
		_, _, err := m.Swap(t.Context(), "t", fmt.Sprint("key", i), nil, value, time.Second)
		if want := i >= 3; errors.Is(err, store.ErrFull) != want {
			t.Fatal(i, err)
		}
	}
	now = now.Add(2 * time.Second)
	if ok, _, err := m.Swap(t.Context(), "t", "later", nil, value, 0); !ok || err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][2]string{{"", "k"}, {"T", "k"}, {"t", ""}, {"t", strings.Repeat("k", 2000)}, {strings.Repeat("t", 40), "k"}} {
		if _, err := m.Get(t.Context(), bad[0], bad[1]); err == nil {
			t.Error("taken: ", bad)
		}
	}
	if _, _, err := m.Swap(t.Context(), "t", "k", nil, make([]byte, 1<<20), 0); err == nil {
		t.Error("a long value was taken")
	}
}
