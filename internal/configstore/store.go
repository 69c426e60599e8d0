package configstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/cluster"
)

// The keys of the records.
const (
	headKey        = "config/head"
	versionsPrefix = "config/versions/"
	membersPrefix  = "member/"
)

const (
	// tries bounds the numbers that a push finds taken by pushes that did not end.
	tries = 100

	// settleTime bounds the calls after a push that are made even if its context has ended.
	settleTime = 2 * time.Second
)

// Store keeps the versions of a configuration. It has no state of its own and is safe for concurrent
// use. The zero value is invalid; use [New].
type Store struct{ register cluster.Register }

// New returns the Store of a register.
func New(r cluster.Register) *Store { return &Store{r} }

// Draft is a configuration to be pushed.
type Draft struct {
	Files           []File
	Limits          int // how many it has, for people
	Author, Message string
	// After is the version that it replaces; nil = the latest, whichever that is. 0 = there is none.
	After *uint64
	// from is the version that is repeated.
	from uint64
}

// Latest returns the latest version. The error is [ErrNone], a [Damaged], or that of the register.
func (s *Store) Latest(ctx context.Context) (Version, error) {
	v, _, err := s.Next(ctx, Meta{})
	return v, err
}

// Next returns the latest version if it is another one than known. Its Meta comes with a [Damaged] too,
// as far as it is known.
func (s *Store) Next(ctx context.Context, known Meta) (v Version, changed bool, err error) {
	h, _, err := s.head(ctx)
	if err != nil {
		return Version{}, false, err
	}
	m := h.latest()
	switch {
	case m.Version == 0:
		return Version{}, false, ErrNone
	case m.Same(known):
		return Version{Meta: m}, false, nil
	}
	v, err = s.get(ctx, m)
	return v, err == nil, err
}

// Get returns a version that is kept.
func (s *Store) Get(ctx context.Context, version uint64) (Version, error) {
	h, _, err := s.head(ctx)
	if err != nil {
		return Version{}, err
	}
	m, ok := h.find(version)
	switch {
	case len(h.Versions) == 0:
		return Version{}, ErrNone
	case !ok:
		return Version{}, &NotKept{version, h.Versions[0].Version, h.latest().Version}
	}
	return s.get(ctx, m)
}

// History returns what is kept, the latest last.
func (s *Store) History(ctx context.Context) ([]Meta, error) {
	h, _, err := s.head(ctx)
	if err == nil && len(h.Versions) == 0 {
		err = ErrNone
	}
	return h.Versions, err
}

// Push makes a new version of d. The error is a [Conflict] where another push was faster,
// [ErrUnchanged] with the latest version, a [TooLarge], or that of the register: it is not known then
// whether the version was made, and the error says so.
func (s *Store) Push(ctx context.Context, d Draft) (Meta, error) {
	if err := d.check(); err != nil {
		return Meta{}, err
	}
	var reading sync.WaitGroup
	var reports map[string]cluster.Record
	var unread error
	reading.Go(func() { reports, unread = s.register.List(ctx, membersPrefix) })
	h, revision, err := s.head(ctx)
	reading.Wait()
	if err != nil {
		return Meta{}, err
	}
	if unread != nil {
		return Meta{}, fmt.Errorf("config: %w", unread)
	}
	latest, enforced := h.latest(), highest(reports)
	switch {
	case d.After != nil && *d.After != latest.Version:
		return Meta{}, &Conflict{*d.After, latest}
	case latest.SHA256 == digest(d.Files) && latest.Version >= enforced:
		return latest, ErrUnchanged
	}
	v := Version{Files: d.Files, Meta: Meta{
		SHA256: digest(d.Files), Limits: d.Limits, Author: d.Author, Message: d.Message, From: d.from,
		Time: time.Now().UTC().Truncate(time.Millisecond),
	}}
	// A register that was set back has lost versions which members enforce: they take a higher one only.
	first := max(latest.Version, enforced) + 1
	if revision == 0 {
		// The head may have been deleted, and the versions not.
		unused, err := s.unused(ctx)
		if err != nil {
			return Meta{}, err
		}
		first = max(first, unused)
	}
	if err := s.write(ctx, &v, first); err != nil {
		return Meta{}, err
	}
	next, dropped := h.with(v.Meta)
	text, err := marshal(next)
	if err != nil {
		return Meta{}, fmt.Errorf("config: %w", err)
	}
	_, err = s.register.Swap(ctx, headKey, revision, text)
	settling, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	if err != nil && !s.made(settling, v.Meta) {
		return Meta{}, s.failed(settling, v.Meta, latest, err)
	}
	for _, m := range dropped {
		s.remove(settling, m.Version)
	}
	// Pushes that have these numbers cannot end any more: the head has changed.
	for n := first; n < v.Version; n++ {
		s.remove(settling, n)
	}
	s.forget(settling, reports)
	return v.Meta, nil
}

// Rollback makes a new version with the content of a former one. after is as in [Draft].
func (s *Store) Rollback(ctx context.Context, version uint64, author, message string, after *uint64) (Meta, error) {
	v, err := s.Get(ctx, version)
	if err != nil {
		return Meta{}, err
	}
	return s.Push(ctx, Draft{Files: v.Files, Limits: v.Limits, Author: author, Message: message, After: after, from: version})
}

// head returns the head and its revision; 0 = there is none.
func (s *Store) head(ctx context.Context) (h head, revision uint64, err error) {
	record, err := s.register.Read(ctx, headKey)
	if err != nil {
		return head{}, 0, fmt.Errorf("config: %w", err)
	}
	if record.Revision == 0 {
		return head{}, 0, nil
	}
	if err := json.Unmarshal(record.Value, &h); err != nil || !h.valid() {
		return head{}, 0, &Damaged{0, "is damaged"}
	}
	return h, record.Revision, nil
}

func (s *Store) get(ctx context.Context, m Meta) (Version, error) {
	record, err := s.register.Read(ctx, key(m.Version))
	if err != nil {
		return Version{}, fmt.Errorf("config: %w", err)
	}
	if record.Revision == 0 {
		return Version{Meta: m}, &Damaged{m.Version, "is missing"}
	}
	v, err := decode(record.Value, m)
	if err != nil {
		return Version{Meta: m}, err
	}
	return v, nil
}

// write writes v under the first number from n on that is free.
func (s *Store) write(ctx context.Context, v *Version, n uint64) error {
	for range tries {
		v.Version = n
		text, err := v.encode()
		if err != nil {
			return err
		}
		_, err = s.register.Swap(ctx, key(n), 0, text)
		if err == nil {
			return nil
		}
		if !errors.Is(err, cluster.ErrChanged) {
			return fmt.Errorf("config: nothing was pushed: %w", err)
		}
		n++
	}
	return fmt.Errorf("config: nothing was pushed: versions %d to %d are taken by pushes that did not end", n-tries, n-1)
}

// unused returns the number above those of all records.
func (s *Store) unused(ctx context.Context) (uint64, error) {
	list, err := s.register.List(ctx, versionsPrefix)
	if err != nil {
		return 0, fmt.Errorf("config: %w", err)
	}
	highest := uint64(0)
	for k := range list {
		n, err := strconv.ParseUint(strings.TrimPrefix(k, versionsPrefix), 10, 63)
		if err == nil {
			highest = max(highest, n)
		}
	}
	return highest + 1, nil
}

// made reports whether the head has m.
func (s *Store) made(ctx context.Context, m Meta) bool {
	h, _, err := s.head(ctx)
	if err != nil {
		return false
	}
	found, ok := h.find(m.Version)
	return ok && found.Same(m) && found.Time.Equal(m.Time) && found.Author == m.Author
}

// failed returns why m was not made, after an error of the swap of the head.
func (s *Store) failed(ctx context.Context, m, before Meta, err error) error {
	if !errors.Is(err, cluster.ErrChanged) {
		return fmt.Errorf("config: it is not known whether version %d was made, see the history: %w", m.Version, err)
	}
	s.remove(ctx, m.Version)
	h, _, err := s.head(ctx)
	if err != nil {
		return err
	}
	return &Conflict{before.Version, h.latest()}
}

// remove deletes the record of a version, if it can. What stays is not listed and does no harm.
func (s *Store) remove(ctx context.Context, version uint64) {
	if record, err := s.register.Read(ctx, key(version)); err == nil && record.Revision != 0 {
		_, _ = s.register.Swap(ctx, key(version), record.Revision, nil)
	}
}

func key(version uint64) string { return versionsPrefix + strconv.FormatUint(version, 10) }
