// Package stint is the short way to exact rate limits in a Go program: limits
// from a file, or a single one in a line, enforced in this process.
//
//	limiter, err := stint.Open("stint.yaml")
//	...
//	http.ListenAndServe(addr, httplimit.New(limiter)(handler))
//
// The parts can be had one by one: package limit has the arithmetic and the
// in-process limiter, store/memory the keyed store, rules the files, middleware
// the ways to protect a server, server the service itself.
package stint

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// Limiter decides by the limits of a configuration and keeps its counters in
// memory. Make one with [Open], [Parse] or [Per]. It starts no goroutine and is
// safe for concurrent use.
type Limiter struct {
	store  *memory.Store
	engine *engine.Engine
	paths  []string
}

var (
	_ limit.Finisher        = (*Limiter)(nil)
	_ limit.AttributeReader = (*Limiter)(nil)
)

// Open returns a limiter for the limits in files and folders. The error lists
// every fault with its place. See [Limiter.Reload] to follow changes.
func Open(paths ...string) (*Limiter, error) {
	set, err := rules.Load(paths...)
	if err != nil {
		return nil, err
	}
	l, err := newLimiter(set)
	if err != nil {
		return nil, err
	}
	l.paths = paths
	return l, nil
}

// Parse returns a limiter for the limits in text, which is what a file would hold.
func Parse(text string) (*Limiter, error) {
	set, err := rules.Parse("limits", []byte(text))
	if err != nil {
		return nil, err
	}
	return newLimiter(set)
}

// Per returns a limiter with one limit: rate, such as "100/s", for each value of
// an attribute, such as "ip" or "header:x-api-key". Requests without the
// attribute share one bucket.
func Per(attribute, rate string) (*Limiter, error) {
	return Parse(fmt.Sprintf("limits:\n  - {name: per-client, key: [%s], rate: %s, missing: all}\n",
		strconv.Quote(attribute), strconv.Quote(rate)))
}

func newLimiter(set *rules.Set) (*Limiter, error) {
	if set.Store() != "memory" {
		return nil, fmt.Errorf("stint: the configuration asks for the store %q, this version has memory", set.Store())
	}
	st := memory.New(memory.Options{})
	e, err := engine.New(st, set, engine.Options{})
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return &Limiter{store: st, engine: e}, nil
}

// Take decides one request. A refusal is a Decision, not an error.
func (l *Limiter) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	return l.engine.Take(ctx, req)
}

// Finish gives back the places in flight that a Decision's Permit names.
func (l *Limiter) Finish(ctx context.Context, req limit.Request, permit uint64) error {
	return l.engine.Finish(ctx, req, permit)
}

// Attributes returns the names of the attributes that some limit reads, from which
// the middlewares know which header fields to look at.
func (l *Limiter) Attributes() []string { return l.engine.Attributes() }

// Reload loads the files given to [Open] again and keeps every counter. On an
// error the limits stay as they were.
func (l *Limiter) Reload() error {
	if len(l.paths) == 0 {
		return errors.New("stint: this limiter was not opened from files")
	}
	set, err := rules.Load(l.paths...)
	if err != nil {
		return err
	}
	return l.engine.Swap(set)
}

// Close drops all counters. The limiter is not used afterwards.
func (l *Limiter) Close() error { return l.store.Close() }
