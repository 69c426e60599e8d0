package server

import (
	"net/http"
	"testing"

	"github.com/stint-io/stint/server/internal/latency"
)

// TestUnwatched: without an Instrument nothing is in the way of a request: the engine tells nobody when it asks the
// store, the handler is the same, and a call over gRPC passes one interceptor only, that of the latency.
func TestUnwatched(t *testing.T) {
	var o Options
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	if o.Instrument.Take() != nil {
		t.Error("decisions are watched")
	}
	next := http.NewServeMux()
	if got := o.Instrument.HTTP("http", next); got != next {
		t.Errorf("the handler became %T", got)
	}
	if got := watchGRPC(latency.New(), o.Instrument); len(got) != 1 {
		t.Errorf("%d interceptors", len(got))
	}
}
