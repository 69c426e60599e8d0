package rest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/usage"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/rest"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// TestUsageThatCannotBeRead: what the caller cannot change is no fault of the request.
func TestUsageThatCannotBeRead(t *testing.T) {
	set, err := rules.Parse("test.yaml", []byte("limits: []"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		err  error
		want int
	}{
		{errors.New("the time that is asked for is empty"), http.StatusBadRequest},
		{fmt.Errorf("records: %w: 1 byte is in use", store.ErrFull), http.StatusServiceUnavailable},
		{fmt.Errorf("redis: %w", store.ErrUnavailable), http.StatusServiceUnavailable},
	} {
		h := rest.New(e, rest.Options{Usage: func(context.Context, usage.Query, func(*usage.Row) error) ([]string, error) {
			return nil, tt.err
		}})
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/usage", http.NoBody))
		if rec.Code != tt.want {
			t.Errorf("%v: %d %s, want %d", tt.err, rec.Code, rec.Body, tt.want)
		}
	}
}
