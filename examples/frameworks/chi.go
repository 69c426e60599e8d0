package frameworks

import (
	"fmt"
	"net/http"

	"github.com/go-chi/chi/v5"
)

// Chi is a server of chi.
func Chi() (http.Handler, error) {
	protect, err := middleware(func(r *http.Request) string { return chi.RouteContext(r.Context()).RoutePattern() })
	if err != nil {
		return nil, err
	}
	router := chi.NewRouter()
	limited := router.With(protect)
	limited.Get("/hello", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	limited.Get("/export/{id}", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, chi.URLParam(r, "id")) })
	return router, nil
}
