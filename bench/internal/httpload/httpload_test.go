package httpload

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestRun: every answer that is counted was given, on as many connections as there are; one that is not
// 200, and one that the check refuses, end the run.
func TestRun(t *testing.T) {
	var given, bad atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != "POST" || r.URL.Path != "/x" {
			t.Errorf("got %s %s, %v", r.Method, r.URL, err)
		}
		w.WriteHeader(int(200 + bad.Load()))
		fmt.Fprintf(w, "you said %s", body)
		given.Add(1)
	}))
	defer s.Close()
	addr := strings.TrimPrefix(s.URL, "http://")
	conns := make([]*Conn, 3)
	for i := range conns {
		c, err := Dial(addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns[i] = c
	}
	requests := [][]byte{Request(addr, "/x", "a"), Request(addr, "/x", "bb")}
	check := func(body []byte) bool {
		return bytes.Equal(body, []byte("you said a")) || bytes.Equal(body, []byte("you said bb"))
	}
	r, err := Run(conns, requests, 50*time.Millisecond, check)
	if err != nil {
		t.Fatal(err)
	}
	if r.Answers != given.Load() || r.Answers < 3 || r.PerSecond() <= 0 {
		t.Errorf("counted %d answers of %d", r.Answers, given.Load())
	}
	if _, err := Run(conns, requests, time.Minute, func([]byte) bool { return false }); err == nil {
		t.Error("no answer was accepted, and the run did not fail")
	}
	bad.Store(4)
	if _, err := Run(conns, requests, time.Minute, check); err == nil {
		t.Error("answers of 204 were taken")
	}
}
