// Package alone keeps the records of a cluster in this process: for a member without others, and
// for tests in which several members share one Register. It keeps nothing after the process.
package alone

import (
	"bytes"
	"context"
	"strings"
	"sync"

	"github.com/stint-io/stint/internal/cluster"
)

// Register is a [cluster.Register] in memory. [New] makes it.
type Register struct {
	mu       sync.Mutex
	revision uint64 // of the latest write of any key
	records  map[string]cluster.Record
	watchers map[chan struct{}]string // prefix by channel
}

var _ cluster.Register = (*Register)(nil)

// New returns an empty Register.
func New() *Register {
	return &Register{records: map[string]cluster.Record{}, watchers: map[chan struct{}]string{}}
}

// Read implements [cluster.Register].
func (r *Register) Read(ctx context.Context, key string) (cluster.Record, error) {
	if err := ctx.Err(); err != nil {
		return cluster.Record{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return copied(r.records[key]), nil
}

// Swap implements [cluster.Register].
func (r *Register) Swap(ctx context.Context, key string, revision uint64, value []byte) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.records[key].Revision != revision {
		return 0, cluster.ErrChanged
	}
	if value == nil {
		if revision != 0 {
			delete(r.records, key)
			r.notifyLocked(key)
		}
		return 0, nil
	}
	r.revision++
	r.records[key] = cluster.Record{Revision: r.revision, Value: append([]byte{}, value...)}
	r.notifyLocked(key)
	return r.revision, nil
}

// List implements [cluster.Register].
func (r *Register) List(ctx context.Context, prefix string) (map[string]cluster.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	list := map[string]cluster.Record{}
	for key, record := range r.records {
		if strings.HasPrefix(key, prefix) {
			list[key] = copied(record)
		}
	}
	return list, nil
}

// Watch implements [cluster.Register]. It misses no change.
func (r *Register) Watch(ctx context.Context, prefix string) <-chan struct{} {
	hints := make(chan struct{}, 1)
	r.mu.Lock()
	r.watchers[hints] = prefix
	r.mu.Unlock()
	context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.watchers, hints)
		close(hints)
	})
	return hints
}

// notifyLocked sends a hint to everyone who watches a prefix of key.
func (r *Register) notifyLocked(key string) {
	for hints, prefix := range r.watchers {
		if strings.HasPrefix(key, prefix) {
			select {
			case hints <- struct{}{}:
			default: // one is waiting to be received
			}
		}
	}
}

// Forgets implements [cluster.Register]: it loses nothing as long as its members live.
func (r *Register) Forgets() bool { return false }

// Close implements [cluster.Register]. Others may go on using the Register.
func (r *Register) Close() error { return nil }

func copied(r cluster.Record) cluster.Record {
	r.Value = bytes.Clone(r.Value)
	return r
}
