package leasestream

import (
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Admission bounds the streams, in all and of each identity. The zero value is open; it is safe for
// concurrent use.
type Admission struct {
	// Handlers are what reads and writes streams: each that has entered counts until it is done.
	Handlers sync.WaitGroup

	mu      sync.Mutex
	streams int
	of      map[string]int // streams by identity
	closing bool
	refused uint64 // streams, since the start
}

// Enter counts a stream in if there are fewer than most, and its handler among those to wait for.
// Leave counts it out.
func (a *Admission) Enter(st *Stream, most int) error {
	by := &st.holder
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.closing:
		return ErrGoing
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
	a.Handlers.Add(1)
	return nil
}

// Begin counts a handler of a member of the cluster among those to wait for, until it is done.
func (a *Admission) Begin() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closing {
		return ErrGoing
	}
	a.Handlers.Add(1)
	return nil
}

// Leave counts a stream out.
func (a *Admission) Leave(st *Stream) {
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

// Close refuses all streams from here on.
func (a *Admission) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closing = true
}

// Counts returns how many streams there are, and how many were refused since the start.
func (a *Admission) Counts() (streams int, refused uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.streams, a.refused
}
