package server

import (
	_ "embed"
	"io"
	"net/http"

	"github.com/stint-io/stint/internal/answer"
)

// documentPath is where the description of the HTTP API is served.
const documentPath = "/openapi.yaml"

// document describes the HTTP API in OpenAPI 3.1.
//
//go:embed openapi.yaml
var document string

// serveDocument answers GET /openapi.yaml.
func serveDocument(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		answer.WriteError(w, http.StatusMethodNotAllowed, "use GET")
		return
	}
	w.Header().Set("Content-Type", "application/yaml")
	w.Header().Set("Cache-Control", "no-cache")
	_, _ = io.WriteString(w, document) // a failed write means that the client has gone
}
