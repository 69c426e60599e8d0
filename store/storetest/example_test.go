package storetest_test

import (
	"testing"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
	"github.com/stint-io/stint/store/storetest"
)

// The test of a store of your own, in place of memory.New.
func Example() {
	_ = func(t *testing.T) { // func TestStore(t *testing.T)
		storetest.Run(t, func(_ testing.TB, now func() limit.Time) store.Store {
			return memory.New(memory.Options{Now: now})
		}, storetest.Options{})
	}
	// Output:
}
