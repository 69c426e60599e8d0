package crossings

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// DefaultMaxKeys is how many keys above a threshold are remembered. Not more: each may have a record of half a
// kilobyte where the counters are. Not fewer: a fleet has thousands of customers, and a tenth of them may be above.
const DefaultMaxKeys = 20_000

// writers is how many records are written at once. A key has always the same writer, which keeps its order.
const writers = 8

// retry is how long a writer waits after records did not take an event, doubled up to retryMost.
const (
	retry     = 100 * time.Millisecond
	retryMost = 5 * time.Second
)

// table is that of the records, by key.
const table = "crossings"

// swaps is how often a change of a record is tried again because another came first.
const swaps = 100

// Options are the choices of a [Watcher]. Records are needed.
type Options struct {
	// Records have what happened to each key. Servers share them.
	Records store.Records
	// Noted is called once for each event that this watcher has noted, for those of a key in their order; nil =
	// nothing is.
	Noted func(*Event)
	// Now is the clock; nil = the system's.
	Now func() limit.Time
	// MaxKeys bounds the keys above a threshold that are remembered; 0 = [DefaultMaxKeys].
	MaxKeys int
	// Logger nil = slog.Default.
	Logger *slog.Logger
}

// Watcher finds crossings. It is safe for concurrent use. Make it with [NewWatcher].
type Watcher struct {
	opts  Options
	name  string // in the records
	seed  maphash.Seed
	lines [writers]line
	stats counts
}

// line is what one writer has to do, in order, and the keys above a threshold that are its.
type line struct {
	wake chan struct{}

	mu    sync.RWMutex
	keys  map[string]*known // by record
	todo  []*known          // those with something to note
	sweep limit.Time        // no search for keys that can be forgotten before
}

// finding is one key, one window and what was seen of it.
type finding struct {
	record string // the key of the record
	name   string // of the limit
	key    []limit.Attribute
	end    limit.Time
	period time.Duration
	seen   []sight // in the order in which they happened
}

// sight is one kind, and how the key stood.
type sight struct {
	kind                 Kind
	at                   limit.Time
	used, quota, nominal int64
	shadow               bool
}

// known is a key above a threshold in one window. Its line's lock is held for everything but had.
type known struct {
	finding
	had atomic.Uint32 // Kinds that are noted, or seen and will be
}

// Standing is how a key of a limit stands after a request.
type Standing struct {
	// Counter is the ID of its counters, and Name the limit's name.
	Counter, Name string
	// Key is the key, and Show returns its attributes. Neither is kept beyond the call.
	Key  []byte
	Show func(key []byte) []limit.Attribute
	// Watch are the kinds that are asked for.
	Watch Kinds

	// Window is the length of the limit's window, which must be above 0, and End when the one that is open ends;
	// 0 = that the limit has none: an interval of this length is as good.
	Window time.Duration
	End    limit.Time

	// Used of Quota, and what is Nominal of it. SoftPercent of Nominal is the soft threshold; 0 = none.
	Used, Quota, Nominal int64
	SoftPercent          int
	// Refused says that a request was refused for it, and Lowered how much was given back before.
	Refused bool
	Lowered int64
	Shadow  bool
}

// kinds returns what is to be noted, were it the first of the window. was says that the
// key may have been over a threshold at any time before; otherwise only what was given back just now counts.
func (s *Standing) kinds(was bool) (k Kinds) {
	over := s.SoftPercent > 0 && Above(s.Used, s.Nominal, s.SoftPercent)
	if over {
		k |= Soft
	}
	if s.Used >= s.Quota {
		k |= Hard
	}
	if s.Refused {
		k |= Saturated
	}
	if s.Lowered > 0 {
		before := s.Used + min(s.Lowered, math.MaxInt64-s.Used)
		if s.Used < s.Quota && (was || before >= s.Quota) {
			k |= Lifted
		}
		if s.SoftPercent > 0 && !over && (was || Above(before, s.Nominal, s.SoftPercent)) {
			k |= Eased
		}
	}
	return k & s.Watch
}

// Above reports whether used is more than percent of nominal.
func Above(used, nominal int64, percent int) bool {
	return !fixed.ProductAtMost(uint64(max(used, 0)), 100, uint64(nominal), uint64(percent))
}

// NewWatcher returns a watcher that notes what it finds while Run runs.
func NewWatcher(o Options) *Watcher {
	if o.Now == nil {
		o.Now = func() limit.Time { return limit.At(time.Now()) }
	}
	o.MaxKeys = cmp.Or(max(o.MaxKeys, 0), DefaultMaxKeys)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Noted == nil {
		o.Noted = func(*Event) {}
	}
	w := &Watcher{opts: o, name: rand.Text(), seed: maphash.MakeSeed()}
	for i := range w.lines {
		w.lines[i].wake, w.lines[i].keys = make(chan struct{}, 1), make(map[string]*known)
	}
	return w
}

// maxRecord bounds the key of a record. A longer one is replaced by its hash.
const maxRecord = 512

// appendRecord appends the key of the record of a key.
func appendRecord(dst []byte, counter string, key []byte) []byte {
	at := len(dst)
	dst = append(store.AppendKey(dst, counter), key...)
	if len(dst)-at > maxRecord {
		sum := sha256.Sum256(dst[at:])
		dst = append(append(dst[:at], 0), sum[:]...) // no counter has an empty ID
	}
	return dst
}

// Note looks at how a key stands. It does not wait for the records.
func (w *Watcher) Note(s *Standing) {
	if s.Window <= 0 || s.kinds(true) == 0 {
		return
	}
	var buf [maxRecord + 16]byte
	record := appendRecord(buf[:0], s.Counter, s.Key)
	l := &w.lines[maphash.Bytes(w.seed, record)%writers]
	now := w.opts.Now()
	end := s.End
	if end <= 0 {
		end = now - now%limit.Time(s.Window) + limit.Time(s.Window)
	}
	l.mu.RLock()
	k := l.keys[string(record)]
	// The most frequent case: a key above a threshold, whose crossing was noted.
	done := k != nil && sameWindow(k.end, end, s.Window) && s.kinds(true)&^Kinds(k.had.Load()) == 0
	l.mu.RUnlock()
	if !done && !l.see(s, string(record), now, end, w.opts.MaxKeys/writers) {
		w.stats.dropped[DroppedKeys].Add(1)
	}
}

// see adds what was not seen before to what has to be noted. false = there is no room for the key.
func (l *line) see(s *Standing, record string, now, end limit.Time, most int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.keys[record]
	same := k != nil && sameWindow(k.end, end, s.Window)
	found := s.kinds(same)
	if !same {
		if found == 0 {
			return true
		}
		was := k
		k = &known{finding: finding{record: record, name: s.Name, end: end, period: s.Window}}
		if s.Show != nil {
			k.key = s.Show(s.Key)
		}
		switch {
		case found&(Soft|Hard|Saturated) == 0:
			// Below all thresholds: it is looked up in the record whether another server saw it above.
		case was != nil && was.end > end:
			// A straggler of a window that is over.
		case was == nil && len(l.keys) >= most && !l.forget(now, most):
			return false
		default:
			l.keys[record] = k
		}
	}
	found &^= Kinds(k.had.Load())
	if found == 0 {
		return true
	}
	if len(k.seen) == 0 {
		l.todo = append(l.todo, k)
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	for kind := Soft; kind <= All; kind <<= 1 {
		if found&kind != 0 {
			k.seen = append(k.seen, sight{kind, now, s.Used, s.Quota, s.Nominal, s.Shadow})
		}
	}
	k.had.Store(k.had.Load() | uint32(found))
	return true
}

// forget drops keys whose window is over, and reports whether there is room. It looks at all of them, so not more
// often than every second.
func (l *line) forget(now limit.Time, most int) bool {
	if now < l.sweep {
		return false
	}
	l.sweep = now.Add(time.Second)
	for record, k := range l.keys {
		if k.end <= now {
			delete(l.keys, record)
		}
	}
	return len(l.keys) < most
}

// next returns the first key that has something to note, and a copy of that.
func (l *line) next() (*known, finding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.todo) == 0 {
		return nil, finding{}
	}
	f := l.todo[0].finding
	f.seen = slices.Clone(f.seen)
	return l.todo[0], f
}

// noted takes away what was to be noted of the first key. had is what the record has of its window now.
func (l *line) noted(k *known, f *finding, had Kinds) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k.seen = k.seen[len(f.seen):]
	l.todo = l.todo[1:]
	if len(k.seen) > 0 {
		l.todo = append(l.todo, k)
	}
	// What was not noted may be another time: under a threshold again, which the key had not been above before.
	for i := range k.seen {
		had |= k.seen[i].kind
	}
	k.had.Store(uint32(had))
}

// Run notes what is found until ctx ends, and then what was found by then: each once more.
func (w *Watcher) Run(ctx context.Context) {
	var all sync.WaitGroup
	for i := range w.lines {
		all.Go(func() { w.write(ctx, &w.lines[i]) })
	}
	all.Wait()
}

// write notes what is found in one line.
func (w *Watcher) write(ctx context.Context, l *line) {
	pause := time.Duration(0)
	tried := Kinds(0) // of the first key: what may be noted though no answer says so
	for {
		k, f := l.next()
		if k == nil {
			select {
			case <-l.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		// The end of ctx does not cut it off: the store's own time-out does.
		had, err := w.note(context.WithoutCancel(ctx), &f, &tried)
		if errors.Is(err, store.ErrUnavailable) {
			w.stats.failed.Add(1)
			if pause == 0 {
				w.opts.Logger.Error("crossing events cannot be noted; it is tried again", "err", err)
			}
			if ctx.Err() != nil {
				return
			}
			pause = min(max(2*pause, retry), retryMost)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			continue
		}
		if err != nil {
			// Trying again would not help, and the others of the line would wait for it.
			w.stats.dropped[DroppedRefused].Add(uint64(len(f.seen)))
			w.opts.Logger.Error("a crossing event is dropped", "limit", f.name, "err", err)
			had = All
		}
		l.noted(k, &f, had)
		pause, tried = 0, 0
	}
}

// note writes down what of f has not happened before, and returns had, which is all that has happened in the
// window. After an error that is [store.ErrUnavailable] call it again: tried has what may be written all the same.
func (w *Watcher) note(ctx context.Context, f *finding, tried *Kinds) (had Kinds, err error) {
	raw, err := w.opts.Records.Get(ctx, table, f.record)
	for range swaps {
		if err != nil {
			return 0, err
		}
		now := w.opts.Now()
		s, err := decode(raw)
		if err != nil {
			return 0, err
		}
		s.forget(now)
		in := s.at(f.end, f.period)
		if in == nil {
			w.stats.dropped[DroppedLate].Add(uint64(len(f.seen)))
			return All, nil
		}
		added, events := in.add(&s, f, w.name, *tried)
		had = in.Had
		swapped := added == 0
		if !swapped {
			value, err := s.encode()
			if err != nil {
				return 0, err
			}
			*tried |= added
			if swapped, raw, err = w.opts.Records.Swap(ctx, table, f.record, raw, value, s.keep(now)); err != nil {
				return 0, err
			}
		}
		if swapped {
			for i := range events {
				w.stats.noted(&events[i])
				w.opts.Noted(&events[i])
			}
			return had, nil
		}
	}
	return 0, fmt.Errorf("crossings: a record was changed by others %d times while it was read: %w", swaps, store.ErrUnavailable)
}
