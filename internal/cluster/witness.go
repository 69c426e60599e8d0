package cluster

import (
	"context"
	"strings"
	"sync"
)

// Witness is a Register that remembers the records of leaders as elections read and write them. So a
// member knows the epoch of another's term without a read of its own. [NewWitness] makes it.
type Witness struct {
	Register

	mu      sync.Mutex
	leaders map[string]Leader // by scope
}

// NewWitness returns a Register with the records of r.
func NewWitness(r Register) *Witness { return &Witness{Register: r, leaders: map[string]Leader{}} }

// Leader returns what the latest record of a scope says; false = none was seen. It may be of a term
// that has ended: the election says who leads.
func (w *Witness) Leader(scope string) (Leader, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l, ok := w.leaders[scope]
	return l, ok
}

// Read implements [Register].
func (w *Witness) Read(ctx context.Context, key string) (Record, error) {
	record, err := w.Register.Read(ctx, key)
	if err == nil {
		w.note(key, record.Value)
	}
	return record, err
}

// Swap implements [Register].
func (w *Witness) Swap(ctx context.Context, key string, revision uint64, value []byte) (uint64, error) {
	next, err := w.Register.Swap(ctx, key, revision, value)
	if err == nil {
		w.note(key, value)
	}
	return next, err
}

// note remembers a record of a leader. One that is gone or not understood changes nothing: the epoch
// that was seen stays the highest.
func (w *Witness) note(key string, value []byte) {
	scope, ok := strings.CutPrefix(key, leaderPrefix)
	if !ok || len(value) == 0 {
		return
	}
	c, err := decodeClaim(value)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.Epoch >= w.leaders[scope].Epoch {
		w.leaders[scope] = c.leader(scope)
	}
}
