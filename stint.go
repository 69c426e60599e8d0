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
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/reserve"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
	"github.com/stint-io/stint/store/redis"
)

// Limiter decides by the limits of a configuration. Its counters are where the
// configuration says with store: in the memory of this process, or in a Redis or
// Valkey that other processes use as well. Make one with [Open], [Parse] or [Per]. It
// is safe for concurrent use. It starts goroutines for Redis, and one that follows the files of Open; Close ends them.
//
// With Redis, a limiter is made without waiting for an answer. Whenever there is
// none within the time-out of the URL (50 ms), each limit answers as its
// on_store_failure says, and [limit.Result] has StoreFailed set. When the connection
// is lost or found, [log/slog.Default] gets a line.
type Limiter struct {
	stores  []io.Closer // in the order in which they are closed
	store   string      // as the configuration names it
	engine  *engine.Engine
	paths   []string
	loading sync.Mutex // held while files are read and put in force

	// What follows the files of Open; nil without files.
	stop  context.CancelFunc
	ended chan struct{} // closed when it has ended

	book struct { // of reservations, from the first on
		sync.Mutex
		*reserve.Book
		stop    context.CancelFunc
		running sync.WaitGroup
		closed  bool
	}
}

var (
	_ limit.Finisher        = (*Limiter)(nil)
	_ limit.AttributeReader = (*Limiter)(nil)
)

// Open returns a limiter for the limits in files and folders, and follows them until Close: what is changed there is in
// force within a second where the system notifies of changes, within ten where it does not, and every counter stays. A
// change with a fault is logged by [log/slog.Default], once, and the limits stay as they were. The error of Open lists every
// fault with its place.
func Open(paths ...string) (*Limiter, error) {
	l, set, err := load(paths)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	l.stop, l.ended = stop, make(chan struct{})
	go func() {
		defer close(l.ended)
		l.follow(ctx, set)
	}()
	return l, nil
}

// follow puts in force what has changed in the files since set was loaded from them, until ctx ends.
func (l *Limiter) follow(ctx context.Context, set *rules.Set) {
	// The error is that of ctx.
	_ = set.Watch(ctx, l.paths, func(set *rules.Set, err error) {
		l.loading.Lock()
		defer l.loading.Unlock()
		if err == nil {
			err = l.use(set)
		}
		if err != nil {
			slog.Error("the limits stay as they were: what has changed cannot be used", "files", l.paths, "err", err)
			return
		}
		slog.Info("limits were loaded again", "files", l.paths)
		doubted(set)
	})
}

// Load returns a limiter for the limits in files and folders as they are now, and does not follow them. It starts no
// goroutine unless they name a Redis, so that it can be used in a test with package testing/synctest.
func Load(paths ...string) (*Limiter, error) {
	l, _, err := load(paths)
	return l, err
}

func load(paths []string) (*Limiter, *rules.Set, error) {
	for _, path := range paths {
		if strings.Contains(path, "\n") {
			return nil, nil, errors.New("stint: Open takes the paths of limit files, and this is the text of one: use Parse")
		}
	}
	set, err := rules.Load(paths...)
	if err != nil {
		return nil, nil, err
	}
	l, err := newLimiter(set)
	if err != nil {
		return nil, nil, err
	}
	l.paths = slices.Clone(paths)
	return l, set, nil
}

// Parse returns a limiter for the limits in text, which is what a file would hold.
func Parse(text string) (*Limiter, error) {
	if ext := filepath.Ext(text); !strings.Contains(text, "\n") && (ext == ".yaml" || ext == ".yml") {
		return nil, fmt.Errorf("stint: Parse takes the text of a limit file, and %q is a path: use Open", text)
	}
	set, err := rules.Parse("limits", []byte(text))
	if err != nil {
		return nil, err
	}
	return newLimiter(set)
}

// Per returns a limiter with one limit: rate, such as "100/s", for each value of
// an attribute, such as "ip" or "header:x-api-key". Requests without the
// attribute share one bucket. Its burst is the count of the rate; see [WithBurst].
func Per(attribute, rate string, opts ...PerOption) (*Limiter, error) {
	if _, err := limit.ParseRate(attribute); err == nil {
		return nil, fmt.Errorf("stint: Per(%q, %q): the attribute goes first: write Per(%[2]q, %[1]q)", attribute, rate)
	}
	text := fmt.Sprintf("name: per-client, key: [%s], rate: %s, missing: all", strconv.Quote(attribute), strconv.Quote(rate))
	var more string
	for _, o := range opts {
		o(&more)
	}
	l, err := Parse("limits:\n  - {" + text + more + "}\n")
	if faults := rules.Errors(nil); errors.As(err, &faults) { // their places are in a file that the caller has not written
		return nil, fmt.Errorf("stint: Per(%q, %q): %s; %s", attribute, rate+more, faults[0].Message, cmp.Or(faults[0].Hint, "leave it out, or change it"))
	}
	return l, err
}

// PerOption changes the limit of [Per].
type PerOption func(more *string)

// WithBurst sets how many requests may come at once, at least 0, after a pause. The last one given counts.
func WithBurst(n int64) PerOption {
	return func(more *string) { *more = fmt.Sprintf(", burst: %d", n) }
}

// usable returns an error for what the service follows and this library does not.
func usable(set *rules.Set) error {
	if id := set.Identity(); id.JWKS != "" || id.Country != "" || id.ASN != "" || len(id.UserIP) > 0 {
		return errors.New("stint: the file has a section identity, which the service and the proxy follow and this library does not: leave it out, and give claim:NAME, region, asn and user_ip as attributes")
	}
	if len(set.Plans().Names) > 0 {
		return errors.New("stint: the file has plans, which the service and the proxy give to customers and this library does not: write limits with match: {plan: pro} in their place, and give plan as an attribute")
	}
	return nil
}

func newLimiter(set *rules.Set) (*Limiter, error) {
	if err := usable(set); err != nil {
		return nil, err
	}
	l := &Limiter{store: set.Store()}
	st, err := l.open()
	if err == nil {
		l.engine, err = engine.New(st, set, engine.Options{})
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	doubted(set)
	return l, nil
}

// doubted logs what is doubtful in a configuration. A name that no middleware provides may be one of the caller's own,
// so it is doubted only where it is close to one that they provide.
func doubted(set *rules.Set) {
	for _, w := range set.Warnings() {
		slog.Warn("configuration", "warning", w.Error())
	}
	for _, w := range set.Unprovided() {
		if strings.HasPrefix(w.Hint, "did you mean") {
			slog.Warn("configuration", "warning", w.Error())
		}
	}
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

// Keep implements [limit.Keeper].
func (l *Limiter) Keep(ctx context.Context, req limit.Request, permit uint64) error {
	return l.engine.Keep(ctx, req, permit)
}

// Attributes returns the names of the attributes that some limit reads, from which
// the middlewares know which header fields to look at.
func (l *Limiter) Attributes() []string { return l.engine.Attributes() }

// Reload loads the files given to [Open] again, at once, and keeps every counter. On an
// error the limits stay as they were. Another store than before is an error:
// counters do not move.
func (l *Limiter) Reload() error {
	if len(l.paths) == 0 {
		return errors.New("stint: this limiter was not opened from files")
	}
	l.loading.Lock()
	defer l.loading.Unlock()
	set, err := rules.Load(l.paths...)
	if err != nil {
		return err
	}
	return l.use(set)
}

// use puts a set in force. loading is held.
func (l *Limiter) use(set *rules.Set) error {
	if err := usable(set); err != nil {
		return err
	}
	if set.Store() != l.store {
		// Not the text of either: it may hold a password.
		return errors.New("stint: store: has changed: open another limiter, or take the change back")
	}
	return l.engine.Swap(set)
}

// Close follows files no longer, drops the counters of this process and ends the connections to Redis, which
// keeps its own. The limiter is not used afterwards.
func (l *Limiter) Close() error {
	var errs []error
	if l.stop != nil {
		l.stop()
		<-l.ended
	}
	l.closeBook()
	for _, s := range l.stores {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
