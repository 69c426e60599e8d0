package lending

import (
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// admission bounds the streams, in all and of each identity. The zero value is open; it is safe for
// concurrent use.
type admission struct {
	// handlers are what reads and writes streams: each that has entered counts until it is done.
	handlers sync.WaitGroup

	mu      sync.Mutex
	streams int
	of      map[string]int // streams by identity
	closing bool
	refused uint64 // streams, since the start
}

// enter counts a stream in if there are fewer than most, and its handler among those to wait for.
// leave counts it out.
func (a *admission) enter(st *stream, most int) error {
	by := &st.holder
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.closing:
		return errGoing
	case a.streams >= most:
		a.refused++
		return status.Errorf(codes.ResourceExhausted, "%d instances are served, which is all: come back later", a.streams)
	}
	if by.may != nil && a.of[by.name] >= by.may.MaxStreams {
		a.refused++
		return status.Errorf(codes.ResourceExhausted, "the identity %s has %d streams, which is all that it may have: raise its max_streams in the file of --auth, or come back later", by.name, a.of[by.name])
	}
	a.streams++
	if by.session != nil {
		if a.of == nil {
			a.of = map[string]int{}
		}
		a.of[by.name]++
	}
	a.handlers.Add(1)
	return nil
}

// begin counts a handler of a member of the cluster among those to wait for, until it is done.
func (a *admission) begin() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closing {
		return errGoing
	}
	a.handlers.Add(1)
	return nil
}

// leave counts a stream out.
func (a *admission) leave(st *stream) {
	by := &st.holder
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streams--
	if by.session == nil {
		return
	}
	if a.of[by.name]--; a.of[by.name] == 0 {
		delete(a.of, by.name)
	}
}

// close refuses all streams from here on.
func (a *admission) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closing = true
}

// counts returns how many streams there are, and how many were refused since the start.
func (a *admission) counts() (streams int, refused uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.streams, a.refused
}
