package memory_test

import (
	"testing"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
	"github.com/stint-io/stint/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(_ testing.TB, now func() limit.Time) store.Store {
		return memory.New(memory.Options{Now: now})
	}, storetest.Options{Concurrent: testing.Short()})
}
