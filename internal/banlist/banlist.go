// Package banlist lists and lifts the bans of limits: it knows which counters of the engine ban, and
// what the keys of a store mean.
//
// It bans nobody: the engine and its store do.
package banlist

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Ban is a key that a limit has banned.
type Ban struct {
	// Limit is the limit's name, and Override the condition of the override whose counter it is;
	// "" = the limit's own.
	Limit, Override string
	// ID names the ban for [Bans.LiftID] until the process ends.
	ID string
	// Key has the attributes of the key, without those that the request lacked. nil = the store
	// has kept no more than a hash of it.
	Key []limit.Attribute
	// Exact says that Key is what [Bans.Lift] takes: no value is shown as a hash.
	Exact bool
	// Left is how long the ban lasts yet.
	Left time.Duration
}

// Tally are the bans of one limit, of all its overrides together.
type Tally struct {
	Limit string
	store.BanFigures
}

// ErrNoBans says that there is no limit of that name which bans. It wraps [engine.ErrBadRequest].
var ErrNoBans error = noBans{}

type noBans struct{}

func (noBans) Error() string { return "no limit of that name bans" }

func (noBans) Unwrap() error { return engine.ErrBadRequest }

// Bans are those of an engine's limits. It is safe for concurrent use. Make it with [New].
type Bans struct{ engine *engine.Engine }

// New returns the bans of the limits of e.
func New(e *engine.Engine) *Bans { return &Bans{e} }

// counters returns the counters of the limit of that name, or of all for "". The error names limits
// that ban.
func (b *Bans) counters(name string) ([]engine.Counted, error) {
	list := b.engine.Banners(name)
	if len(list) > 0 || name == "" {
		return list, nil
	}
	var names []string
	for _, of := range b.engine.Banners("") {
		if !slices.Contains(names, of.Limit.Name) {
			names = append(names, of.Limit.Name)
		}
	}
	hint := "no limit has on_exceed: ban"
	if strings.ContainsAny(name, ".:=") && !slices.Contains(names, name) {
		hint = "the limit goes first, then the key, as in login ip=192.0.2.7; " + hint
	}
	if near, ok := document.Suggest(name, names); ok {
		hint = fmt.Sprintf("did you mean %q?", near)
	} else if len(names) > 0 {
		hint = "limits that do: " + strings.Join(names[:min(len(names), 10)], ", ")
	}
	return nil, fmt.Errorf("banlist: limit %.100q: %w; %s", name, ErrNoBans, hint)
}

func (b *Bans) keeper() (store.BanKeeper, error) {
	k, ok := b.engine.BanKeeper()
	if !ok {
		return nil, errors.New("banlist: the store lists no bans")
	}
	return k, nil
}

// Page returns about most bans of a limit, or of all limits for "", and where the next call goes
// on; "" at the end. after is "" or what the call before returned. See [store.BanKeeper].
func (b *Bans) Page(ctx context.Context, name, after string, most int) (list []Ban, next string, err error) {
	k, err := b.keeper()
	if err != nil {
		return nil, "", err
	}
	counters, err := b.counters(name)
	if err != nil {
		return nil, "", err
	}
	id, at, err := cutPlace(after)
	if err != nil {
		return nil, "", err
	}
	if after != "" {
		i := slices.IndexFunc(counters, func(of engine.Counted) bool { return of.Variant.BanID == id })
		if i < 0 {
			return nil, "", fmt.Errorf("banlist: %w: the configuration has changed since the list began: begin anew", engine.ErrBadRequest)
		}
		counters = counters[i:]
	}
	for i, of := range counters {
		found, rest, err := k.Bans(ctx, of.Counters, at, most-len(list))
		if err != nil {
			return nil, "", err
		}
		for _, f := range found {
			ban := Ban{Limit: of.Limit.Name, Override: of.When, ID: f.ID, Left: f.Left}
			if f.Key != nil || len(of.Limit.Key) == 0 {
				if attrs, exact, ok := of.Limit.ShowKey(f.Key); ok {
					ban.Key, ban.Exact = append([]limit.Attribute{}, attrs...), exact
				}
			}
			list = append(list, ban)
		}
		switch {
		case rest != "":
			return list, place(of.Variant.BanID, rest), nil
		case len(list) >= most && i+1 < len(counters):
			return list, place(counters[i+1].Variant.BanID, ""), nil
		}
		at = ""
	}
	return list, "", nil
}

// place is where a list goes on, as text without strange characters.
func place(id, at string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(id + "\x00" + at))
}

func cutPlace(text string) (id, at string, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	id, at, ok := strings.Cut(string(raw), "\x00")
	if err != nil || !ok && text != "" {
		return "", "", fmt.Errorf("banlist: %w: %.100q does not say where a list goes on: begin anew", engine.ErrBadRequest, text)
	}
	return id, at, nil
}

// Lift ends the ban that a key has with a limit, whichever override it came by, and returns how
// many there were. The limit itself is not refilled.
func (b *Bans) Lift(ctx context.Context, name string, key []limit.Attribute) (lifted int, err error) {
	return b.lift(ctx, name, func(of engine.Counted) (store.Ban, error) {
		k, err := of.Limit.KeyFrom(key)
		if err != nil {
			err = fmt.Errorf("banlist: %w: %w", engine.ErrBadRequest, err)
		}
		return store.Ban{Key: k}, err
	})
}

// LiftID ends the ban with that [Ban.ID].
func (b *Bans) LiftID(ctx context.Context, name, id string) (lifted int, err error) {
	return b.lift(ctx, name, func(engine.Counted) (store.Ban, error) { return store.Ban{ID: id}, nil })
}

func (b *Bans) lift(ctx context.Context, name string, which func(engine.Counted) (store.Ban, error)) (lifted int, err error) {
	k, err := b.keeper()
	if err != nil {
		return 0, err
	}
	counters, err := b.counters(name)
	if err != nil {
		return 0, err
	}
	for _, of := range counters {
		ban, err := which(of)
		if err != nil {
			return lifted, err
		}
		ok, err := k.Lift(ctx, of.Counters, ban)
		if err != nil {
			return lifted, err
		}
		if ok {
			lifted++
		}
	}
	return lifted, nil
}

// LiftAll ends at most most bans of a limit, or of all for "", and returns how many; fewer than
// most when none is left. Bans that begin meanwhile may stay.
func (b *Bans) LiftAll(ctx context.Context, name string, most int) (lifted int, err error) {
	k, err := b.keeper()
	if err != nil {
		return 0, err
	}
	counters, err := b.counters(name)
	if err != nil {
		return 0, err
	}
	for _, of := range counters {
		for after := ""; lifted < most; {
			list, next, err := k.Bans(ctx, of.Counters, after, min(1000, most-lifted))
			if err != nil {
				return lifted, err
			}
			for _, ban := range list {
				ok, err := k.Lift(ctx, of.Counters, store.Ban{ID: ban.ID})
				if err != nil {
					return lifted, err
				}
				if ok {
					lifted++
				}
			}
			if after = next; after == "" {
				break
			}
		}
	}
	return lifted, nil
}

// Tallies returns the figures of every limit that bans.
func (b *Bans) Tallies() []Tally {
	k, err := b.keeper()
	if err != nil {
		return nil
	}
	var list []Tally
	for _, of := range b.engine.Banners("") {
		f := k.BanFigures(of.Counters)
		if n := len(list); n > 0 && list[n-1].Limit == of.Limit.Name {
			t := &list[n-1]
			t.Active, t.Begun, t.Unlisted = t.Active+f.Active, t.Begun+f.Begun, t.Unlisted+f.Unlisted
			continue
		}
		list = append(list, Tally{of.Limit.Name, f})
	}
	return list
}
