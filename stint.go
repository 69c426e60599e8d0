// Package stint is the short way to exact rate limits in a Go program: limits
// from a file, or a single one in a line, enforced in this process, or by all that
// share a Redis.
//
//	limiter, err := stint.Open("stint.yaml")
//	...
//	http.ListenAndServe(addr, httplimit.New(limiter)(handler))
//
// The parts can be had one by one: package limit has the arithmetic and the
// in-process limiter, store/memory the keyed store, store/redis the shared one, rules the files, middleware
// the ways to protect a server, server the service itself.
package stint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
	"github.com/stint-io/stint/store/redis"
)

// Limiter decides by the limits of a configuration. Its counters are where the
// configuration says with store: in the memory of this process, or in a Redis or
// Valkey that other processes use as well. Make one with [Open], [Parse] or [Per]. It
// is safe for concurrent use, and starts goroutines only for Redis; Close ends them.
//
// With Redis, a limiter is made without waiting for an answer. Whenever there is
// none within the time-out of the URL (50 ms), each limit answers as its
// on_store_failure says, and [limit.Result] has StoreFailed set. When the connection
// is lost or found, [log/slog.Default] gets a line.
type Limiter struct {
	stores []io.Closer // in the order in which they are closed
	store  string      // as the configuration names it
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
	if id := set.Identity(); id.JWKS != "" || id.Country != "" || id.ASN != "" || len(id.UserIP) > 0 {
		return nil, errors.New("stint: the file has a section identity, which the service and the proxy follow and this library does not: leave it out, and give claim:NAME, region, asn and user_ip as attributes")
	}
	l := &Limiter{store: set.Store()}
	st, err := l.open()
	if err == nil {
		l.engine, err = engine.New(st, set, engine.Options{})
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// open opens the store that the configuration names.
func (l *Limiter) open() (store.Store, error) {
	local := memory.New(memory.Options{})
	l.stores = []io.Closer{local}
	if !strings.Contains(l.store, "://") {
		return local, nil
	}
	o, err := redis.ParseURL(l.store)
	if err != nil {
		return nil, fmt.Errorf("stint: the URL that store: gives is wrong: %w", err)
	}
	o.Local = local
	shared, err := redis.New(o)
	if err != nil {
		return nil, err
	}
	l.stores = []io.Closer{shared, local}
	return shared, nil
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
// error the limits stay as they were. Another store than before is an error:
// counters do not move.
func (l *Limiter) Reload() error {
	if len(l.paths) == 0 {
		return errors.New("stint: this limiter was not opened from files")
	}
	set, err := rules.Load(l.paths...)
	if err != nil {
		return err
	}
	if set.Store() != l.store {
		// Not the text of either: it may hold a password.
		return errors.New("stint: store: has changed: open another limiter, or take the change back")
	}
	return l.engine.Swap(set)
}

// Close drops the counters of this process and ends the connections to Redis, which
// keeps its own. The limiter is not used afterwards.
func (l *Limiter) Close() error {
	var errs []error
	for _, s := range l.stores {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
