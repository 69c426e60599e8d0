package durable

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

const (
	// DefaultBound is the counting that a crash loses at most. Not longer: a second of a month is nothing to
	// anybody. Not shorter: each write syncs the disk, and an old disk does so fifty times a second.
	DefaultBound = time.Second
	// DefaultLong is the shortest window that is kept: what is shorter is over soon after a restart.
	DefaultLong = time.Hour
)

// Options configure a [Store].
type Options struct {
	// Path is the file, in a folder that exists. Required.
	Path string
	// Bound is the counting that a crash loses at most, at least 50 ms; 0 = [DefaultBound]. Sync = none is
	// lost: each Take waits for the disk.
	Bound time.Duration
	Sync  bool
	// Long is the shortest window whose counts are kept; 0 = [DefaultLong]. The window of a bucket is the
	// time in which it fills. Bans are kept whatever their windows.
	Long time.Duration
	// Wait is how long Open waits for another process that has the file; 0 = two seconds: one that is being
	// replaced needs a moment to end.
	Wait time.Duration
	// Memory configures the store in memory.
	Memory memory.Options
	// Logger gets what operators should read; nil = nothing.
	Logger *slog.Logger

	disk disk // nil = that of the system
}

// Store is a [store.Store] whose long windows outlive the process. It is safe for concurrent use. Open makes
// it; Run must run.
type Store struct {
	*memory.Store
	opts Options

	mu       sync.RWMutex // held while counters are bound, and read while they are noted
	counters map[string]*counters

	// whole is read while a Take with an idempotency key counts, and held while states are read for the file: it has
	// such a charge if it has the key, and the other way round. Nothing waits for the disk with it.
	whole sync.RWMutex

	records *Records
	writer  writer
}

var (
	_ store.BanKeeper = (*Store)(nil)
	_ store.Records   = (*Records)(nil)
)

// counters are durable counters. They are those of the store in memory, which a charge refers to.
type counters struct {
	store.Counters
	id    string
	noted notes

	// The contents that the file is to have; changed with the writer's lock held.
	policy  limit.Policy
	text    string // policy as JSON
	rewrite bool   // the states in the file mean something else under policy: the next batch has all of them
}

// Open opens the file, makes it if there is none, and returns a store with what it says. The error says what
// is wrong with the file, and the way out.
func Open(o Options) (*Store, error) {
	if o.Bound == 0 {
		o.Bound = DefaultBound
	}
	if o.Long == 0 {
		o.Long = DefaultLong
	}
	if o.Wait == 0 {
		o.Wait = 2 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Path == "" || o.Bound < 50*time.Millisecond || o.Long < 0 {
		return nil, errors.New("durable: want a path, a bound of at least 50ms and windows that are not negative")
	}
	if o.disk == nil {
		o.disk = systemDisk{}
	}
	s := &Store{opts: o, counters: make(map[string]*counters)}
	s.records = newRecords(s, o.Memory.Now)
	f, err := openFile(&s.opts, func(table string, key []byte, e entry) {
		s.records.changed.put(table, string(key), entry{bytes.Clone(e.value), e.until})
	})
	if err != nil {
		return nil, err
	}
	s.records.rebase(f.handle, f.tables)
	if ahead := time.Until(time.Unix(0, f.written)); ahead > time.Second {
		o.Logger.Warn("the file was written in the future: the clock was set back, and windows that it has begun count until they end",
			"file", o.Path, "ahead", ahead.Round(time.Second))
	}
	s.writer.init(s, f)
	inMemory := o.Memory
	if inMemory.Now == nil {
		inMemory.Now = s.writer.now
	}
	s.Store = memory.New(inMemory)
	return s, nil
}

// Records returns the records in the file.
func (s *Store) Records() *Records { return s.records }

// durable reports whether counts, or their bans, are kept.
func (s *Store) durable(spec store.Spec) bool {
	p := spec.Policy
	return memory.Persistable(p) && (spec.Durable || p.Ban > 0 || p.Rate.Count > 0 && p.Window() >= s.opts.Long)
}

// bansOnly reports whether the states of keys that are not banned are left out, as they end soon.
func (s *Store) bansOnly(p limit.Policy) bool { return p.Ban > 0 && p.Window() < s.opts.Long }

// Bind returns the counters called spec.ID, with the states that the file has of them.
func (s *Store) Bind(spec store.Spec) (store.Counters, error) {
	if err := spec.Policy.Validate(); err != nil || !s.durable(spec) {
		c, err := s.Store.Bind(spec)
		if err == nil {
			s.mu.Lock()
			delete(s.counters, spec.ID) // it may have been durable under another policy
			c.(*memory.Counters).SetTag(nil)
			s.mu.Unlock()
		}
		return c, err
	}
	s.writer.mu.Lock() // no write until the file has the new policy
	defer s.writer.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.counters[spec.ID]
	if known != nil && known.policy == spec.Policy {
		return known.Counters, nil
	}
	text, err := json.Marshal(spec.Policy)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	c, from, n, err := s.restore(spec)
	if err != nil {
		return nil, fmt.Errorf("durable: the states of %q in %s: %w", spec.ID, s.opts.Path, err)
	}
	if n > 0 {
		s.opts.Logger.Info("counts restored", "limit", spec.ID, "keys", n, "took", time.Since(began).Round(time.Millisecond))
	}
	if known == nil {
		known = &counters{Counters: c, id: spec.ID}
		known.noted.init()
		s.counters[spec.ID] = known
	}
	// The file keeps the states under the former policy until the next batch.
	known.policy, known.text = spec.Policy, string(text)
	known.rewrite = known.rewrite || !sameStates(from, spec.Policy)
	c.(*memory.Counters).SetTag(known)
	return c, nil
}

// restore binds counters with the states that the file has of them. It returns the policy of those, which is that of
// spec if there are none, and how many it has restored.
func (s *Store) restore(spec store.Spec) (c store.Counters, from limit.Policy, n int, err error) {
	from = spec.Policy
	var each func(put func(key, state []byte) error) error
	if one := s.writer.file.limits[spec.ID]; one != nil {
		if err := json.Unmarshal([]byte(one.policy), &from); err != nil {
			return nil, from, 0, fmt.Errorf("the policy of its states cannot be read: %w", err)
		}
		each = func(put func(key, state []byte) error) error { return one.eachState(s.writer.file.handle, put) }
	}
	c, n, err = s.Store.Restore(spec, from, each)
	return c, from, n, err
}

// sameStates reports whether a state means the same under both policies, and ends at the same time: what has ended
// under the policy in the file is not restored.
func sameStates(a, b limit.Policy) bool {
	switch {
	case a.Ban != 0 || b.Ban != 0:
	case a.Algorithm == limit.TokenBucket, a.Algorithm == limit.LeakyBucket:
		a.Algorithm, a.Burst, a.CountRefused = b.Algorithm, b.Burst, b.CountRefused
	case a.Algorithm == limit.RisingWindow:
		a.CountRefused = b.CountRefused
	default:
		a.Rate.Count, a.CountRefused = b.Rate.Count, b.CountRefused
	}
	return a == b
}

// Unbind writes what has changed and forgets the counters. The file keeps their states until they end, so
// that a limit that was taken out by mistake and put back goes on where it was.
func (s *Store) Unbind(c store.Counters) error {
	id := c.Spec().ID
	err := s.writer.flush()
	s.mu.Lock()
	if bound := s.counters[id]; bound != nil && bound.Counters == c {
		delete(s.counters, id)
	}
	s.mu.Unlock()
	return errors.Join(err, s.Store.Unbind(c))
}

// Take decides as the store in memory does. It returns when what it has counted is as safe as the bound says, or as
// OnFailure says if that cannot be.
func (s *Store) Take(ctx context.Context, charges []store.Charge) (bool, error) {
	allowed, some, err := s.count(ctx, charges)
	if err != nil || !some {
		return allowed, err
	}
	if err := s.writer.wait(ctx); err != nil && allowed {
		return s.unwritten(charges, err)
	} else if err != nil {
		return false, err
	}
	return allowed, nil
}

// count takes in memory and notes what has changed; some = something that is kept has.
func (s *Store) count(ctx context.Context, charges []store.Charge) (allowed, some bool, err error) {
	if n := len(charges); n > 0 && charges[n-1].Once {
		s.whole.RLock()
		defer s.whole.RUnlock()
	}
	if allowed, err = s.Store.Take(ctx, charges); err != nil {
		return allowed, false, err
	}
	changed := admitted
	if !allowed {
		changed = refused
	}
	some = s.note(charges, changed)
	if n := len(charges); n > 0 && charges[n-1].Once && !charges[n-1].Verdict.Allowed {
		some = true // what the same Take has counted before may not be on the disk yet
	}
	return allowed, some, nil
}

// Refund gives back what each charge took.
func (s *Store) Refund(ctx context.Context, charges []store.Charge) error {
	if err := s.Store.Refund(ctx, charges); err != nil {
		return err
	}
	return s.keep(ctx, charges)
}

// Reset drops the state of each bucket.
func (s *Store) Reset(ctx context.Context, charges []store.Charge) error {
	if err := s.Store.Reset(ctx, charges); err != nil {
		return err
	}
	return s.keep(ctx, charges)
}

// Lift ends a ban.
func (s *Store) Lift(ctx context.Context, c store.Counters, b store.Ban) (bool, error) {
	if b.ID != "" {
		if b.Key = s.Store.KeyOfBan(c, b.ID); b.Key == nil {
			key, err := s.keyInFile(c, b.ID)
			if err != nil {
				return false, err
			}
			b.Key = key
		}
	}
	lifted, err := s.Store.Lift(ctx, c, b)
	if lifted && err == nil {
		err = s.keep(ctx, []store.Charge{{Counters: c, Key: b.Key}})
	}
	return lifted, err
}

// keyInFile returns the key of a ban that is too long for the list.
func (s *Store) keyInFile(c store.Counters, id string) (found []byte, err error) {
	bound := s.of(c)
	if bound == nil {
		return nil, nil
	}
	if err := s.writer.flush(); err != nil {
		return nil, unavailable(err)
	}
	s.writer.mu.Lock()
	defer s.writer.mu.Unlock()
	keys, err := s.writer.file.keys(bound.id)
	if err != nil {
		return nil, fmt.Errorf("durable: %s cannot be read: %w", s.opts.Path, err)
	}
	for _, key := range keys {
		if s.Store.BanID(c, []byte(key)) == id {
			return []byte(key), nil
		}
	}
	return nil, nil
}

// keep notes the keys of charges and waits for the disk as the bound asks for. It returns an error, which wraps
// store.ErrUnavailable, if ctx ends before or the disk fails: what was changed stays changed.
func (s *Store) keep(ctx context.Context, charges []store.Charge) error {
	if !s.note(charges, always) {
		return nil
	}
	return s.writer.wait(ctx)
}

// note notes the keys that charges have changed, and reports whether there are any that are kept.
func (s *Store) note(charges []store.Charge, changed func([]store.Charge, *store.Charge) bool) (some bool) {
	for i := range charges {
		c := &charges[i]
		if !changed(charges, c) {
			continue
		}
		bound := s.of(c.Counters)
		if bound == nil || c.Cost > 0 && c.Verdict.Allowed && (s.bansOnly(c.Counters.Spec().Policy) || s.endsSoon(c)) {
			continue
		}
		bound.noted.add(c.Key)
		some = true
	}
	return some
}

// endsSoon reports whether what a charge took is over before a window that is kept: it brought its own quota, and fits into
// a bucket of that quota, however long the bucket of the policy takes to fill.
func (s *Store) endsSoon(c *store.Charge) bool {
	p := c.Counters.Spec().Policy
	if !c.HasQuota || p.Algorithm != limit.TokenBucket && p.Algorithm != limit.LeakyBucket {
		return false
	}
	p.Burst = c.Quota
	return p.Window() < s.opts.Long
}

func always([]store.Charge, *store.Charge) bool { return true }

func admitted(charges []store.Charge, c *store.Charge) bool {
	return c.Cost > 0 && (c.Verdict.Allowed || countsRefused(charges, c))
}

func refused(charges []store.Charge, c *store.Charge) bool {
	return c.Cost > 0 && countsRefused(charges, c)
}

// countsRefused reports whether the cost of a charge counts though it was refused. The charges on one bucket are decided as
// one, which counts if any of them does.
func countsRefused(charges []store.Charge, c *store.Charge) bool {
	if c.CountRefused || changedByRefusal(c) {
		return true
	}
	for i := range charges {
		if o := &charges[i]; o.CountRefused && o.Counters == c.Counters && bytes.Equal(o.Key, c.Key) {
			return true
		}
	}
	return false
}

// changedByRefusal reports whether a refusal changes the state of a charge's key.
func changedByRefusal(c *store.Charge) bool {
	p := c.Counters.Spec().Policy
	return p.CountRefused || p.Ban > 0
}

// of returns durable counters; nil for others.
func (s *Store) of(c store.Counters) *counters {
	own, ok := c.(*memory.Counters)
	if !ok {
		return nil
	}
	bound, _ := own.Tag().(*counters)
	return bound
}

// Flush writes what has changed, and returns when it is on the disk.
func (s *Store) Flush() error { return s.writer.flush() }

// Run writes what has changed until ctx ends, then writes the rest and returns. Its error is that of the
// last write.
func (s *Store) Run(ctx context.Context) error { return s.writer.run(ctx) }

// Close writes what has changed and closes the file. Run must have returned.
func (s *Store) Close() error {
	err := s.writer.flush()
	return errors.Join(err, s.writer.close(), s.Store.Close())
}

// Snapshot writes a copy of the file to w, as of one moment, while the store goes on. The copy is a file
// that Open takes. The counts of the last moments may be missing; see [Store.Flush].
func (s *Store) Snapshot(w io.Writer) error {
	s.writer.mu.Lock()
	size := s.writer.file.size
	h, err := s.opts.disk.open(s.opts.Path) // it may be written anew meanwhile
	s.writer.mu.Unlock()
	if err == nil {
		_, err = io.Copy(w, io.NewSectionReader(h, 0, size))
		err = errors.Join(err, h.Close())
	}
	if err != nil {
		return fmt.Errorf("durable: the snapshot failed: %w", err)
	}
	return nil
}

// Stats describe the file.
type Stats struct {
	Bytes     int64         // the size of the file
	Writes    uint64        // batches
	Failures  uint64        // of these
	Behind    time.Duration // how long ago the last write began that has succeeded
	Waits     uint64        // Takes that have waited for the disk
	Bound     time.Duration // 0 = each Take waits
	LastError string        // of the last write; "" = it succeeded
}

// FileStats describes the file.
func (s *Store) FileStats() Stats { return s.writer.stats() }
