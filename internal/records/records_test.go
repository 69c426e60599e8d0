package records_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/storetest"
)

func TestRecords(t *testing.T) {
	now := limit.Time(1)
	m := records.New(func() limit.Time { return now }, 0)
	storetest.Records(t, m, func() limit.Time { return now }, func(d time.Duration) { now = now.Add(d) }, 1, nil)
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
}
