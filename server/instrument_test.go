package server

import (
	"net/http"
	"testing"

	"github.com/stint-io/stint/server/internal/latency"
	"github.com/stint-io/stint/store/memory"
)

// TestUnwatched: without an Instrument nothing is in the way of a request: the store is the same, the handler
// is the same, and a call over gRPC passes one interceptor only, that of the latency.
func TestUnwatched(t *testing.T) {
	var o Options
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	st := memory.New(memory.Options{})
	if got := o.Instrument.Store(st); got != st {
		t.Errorf("the store became %T", got)
	}
	next := http.NewServeMux()
	if got := o.Instrument.HTTP("http", next); got != next {
		t.Errorf("the handler became %T", got)
	}
	if got := watchGRPC(latency.New(), o.Instrument); len(got) != 1 {
		t.Errorf("%d interceptors", len(got))
	}
}
