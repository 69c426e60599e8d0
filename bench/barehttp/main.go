// Barehttp is the ceiling for POST /v1/take: a net/http server with the time-outs of stint's own,
// whose handler reads the same JSON and writes the same JSON, with encoding/json and no limit.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"
)

// request is what /v1/take reads.
type request struct {
	Attributes   map[string]string `json:"attributes"`
	Cost         int64             `json:"cost"`
	CountRefused bool              `json:"count_refused"`
}

// response is what it writes. All fields are filled in, so that both servers encode as many bytes.
type response struct {
	Allowed bool    `json:"allowed"`
	Limits  []state `json:"limits"`
}

type state struct {
	Name       string  `json:"name"`
	Allowed    bool    `json:"allowed"`
	Quota      int64   `json:"quota"`
	Window     float64 `json:"window"`
	Cost       int64   `json:"cost"`
	Remaining  int64   `json:"remaining"`
	RetryAfter float64 `json:"retry_after"`
	ResetAfter float64 `json:"reset_after"`
}

func take(w http.ResponseWriter, r *http.Request) {
	in := request{Cost: 1}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&in); err != nil || in.Attributes["user"] == "" {
		http.Error(w, "a user is missing", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// A failed write means that the client has gone.
	_ = json.NewEncoder(w).Encode(response{Allowed: true, Limits: []state{{
		Name: "per-user", Allowed: true, Quota: 200, Window: 2, Cost: in.Cost, Remaining: 199, ResetAfter: 0.01,
	}}})
}

func main() {
	addr := flag.String("http", "127.0.0.1:0", "address to listen on")
	flag.Parse()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/take", take)
	s := &http.Server{
		Addr: *addr, Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 15 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
	if err := s.ListenAndServe(); err != nil {
		fmt.Fprintln(os.Stderr, "barehttp:", err)
		os.Exit(1)
	}
}
