package server

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// linger is how long connections that clients keep are still served once no new
// ones are taken: each answer ends its connection, so a client never finds one
// closed under a request. Not shorter: a busy gateway sends on all its connections
// within it. Not longer: idle ones only hold up the end, and their clients see
// them close.
const linger = 250 * time.Millisecond

// farewell ends the kept connections of an HTTP server with an answer that says
// so, as [http.Server.Shutdown] alone resets those on which a request is on its
// way. The zero value is ready; it is safe for concurrent use.
type farewell struct {
	leaving atomic.Bool

	mu   sync.Mutex
	open int
	none chan struct{} // made by away, closed when no connection is open
}

// wrap makes answers end their connections once leaving is set.
func (f *farewell) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.leaving.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// track is the server's ConnState.
func (f *farewell) track(_ net.Conn, state http.ConnState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch state {
	case http.StateNew:
		f.open++
	case http.StateClosed, http.StateHijacked:
		f.open--
		f.checkLocked()
	}
}

// away returns a channel that is closed once no connection is open. Call it once,
// after the listener has closed.
func (f *farewell) away() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	none := make(chan struct{})
	f.none = none
	f.checkLocked()
	return none
}

func (f *farewell) checkLocked() {
	if f.open == 0 && f.none != nil {
		close(f.none)
		f.none = nil
	}
}
