package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// DefaultPresence is how often a member writes that it is there. Not more often: it is a write of
	// the backend for each member. Not less often: three times that long a dead member counts as alive.
	DefaultPresence = time.Second

	// silentTimes is after how many intervals without a change a member is not alive. Not fewer: one
	// that misses two writes would lose what it leads.
	silentTimes = 3
	// forgetTimes is after how many the record of one that was killed is deleted.
	forgetTimes = 60
	// knownLists is for how many lists, of one in each interval, a member that has gone is known: an hour by default.
	knownLists = 3600

	// Not "member/", where a configuration in the same table has what members enforce.
	presencePrefix = "presence/"
)

// PresenceOptions are the options of a Presence. Register and Self.ID are required.
type PresenceOptions struct {
	Register Register
	Self     Member
	Every    time.Duration // 0 = DefaultPresence
	Logger   *slog.Logger  // nil = slog.Default()
}

// Presence keeps a record that says that this member is there, and reads those of the others. What it
// knows may be late or wrong: it says who should lead, and never who does. [NewPresence] makes it; its
// methods are safe for concurrent use.
type Presence struct {
	opts PresenceOptions
	key  string
	base time.Time

	mu     sync.Mutex
	roster *roster

	// Of the goroutine of Run.
	revision uint64
	written  bool // revision is of this one's own write
	failing  bool
	foreign  int // writes in a row that met another's
}

// complete sets defaults.
func (o *PresenceOptions) complete() {
	if o.Every == 0 {
		o.Every = DefaultPresence
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// NewPresence returns a Presence, which writes and reads while it Runs.
func NewPresence(o PresenceOptions) *Presence {
	o.complete()
	return &Presence{opts: o, key: presencePrefix + escape(o.Self.ID), base: time.Now(), roster: newRoster(o.Self, o.Every)}
}

// escape makes an ID a part of a key: what no key may have, and "_", is "_" with two hexadecimal digits.
// No two IDs become one.
func escape(id string) string {
	var b strings.Builder
	for i := range len(id) {
		if c := id[i]; c != '_' && c != '/' && isKey(id[i:i+1]) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	return b.String()
}

// Members returns those that are alive, by ID, with this one.
func (p *Presence) Members() []Member {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.roster.count(time.Since(p.base))
	return p.roster.alive // replaced, and never changed
}

// Known returns the others that are alive, and those that were within the last hour, each with the address that it had
// last, by ID.
func (p *Presence) Known() (list []Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(p.roster.known)) {
		list = append(list, p.roster.known[id].member)
	}
	return list
}

// Stable says whether the same members have been alive for a while, as far as is known.
func (p *Presence) Stable() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Since(p.base)
	p.roster.count(now)
	return p.roster.stable(now)
}

// Run writes and reads until ctx ends. Then it deletes the record, which takes at most one interval,
// and returns when all that it started has ended.
func (p *Presence) Run(ctx context.Context) {
	tick := time.NewTicker(p.opts.Every)
	defer tick.Stop()
	for {
		if err := p.round(ctx); ctx.Err() == nil {
			p.note(err)
		}
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.opts.Every)
		defer cancel()
		if p.written {
			// Where it fails the others find out by its silence.
			_, _ = p.opts.Register.Swap(last, p.key, p.revision, nil)
		}
		return
	}
}

// round writes the record once and reads those of all.
func (p *Presence) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.opts.Every)
	defer cancel()
	value, err := json.Marshal(p.opts.Self)
	if err != nil {
		return err
	}
	revision, err := p.opts.Register.Swap(ctx, p.key, p.revision, value)
	switch {
	case err == nil:
		p.revision, p.written, p.foreign = revision, true, 0
	case errors.Is(err, ErrChanged):
		// It is that of a former run, or of another process with this name.
		record, err := p.opts.Register.Read(ctx, p.key)
		if err != nil {
			return err
		}
		if p.foreign++; p.foreign == silentTimes {
			var other Member
			_ = json.Unmarshal(record.Value, &other) // a record without an address is shown as such
			p.opts.Logger.Error("another process takes part in the cluster under the name of this member: give each a --node of its own", "node", p.opts.Self.ID, "other", cmp.Or(other.Address, "unknown"))
		}
		p.revision, p.written = record.Revision, false
	default:
		p.written = false // it may have been done all the same
		return err
	}
	return p.list(ctx)
}

// list reads the records of all members, and deletes those of the long dead.
func (p *Presence) list(ctx context.Context) error {
	records, err := p.opts.Register.List(ctx, presencePrefix)
	if err != nil {
		return err
	}
	seen := map[string]sighting{}
	for key, record := range records {
		one := sighting{revision: record.Revision}
		if json.Unmarshal(record.Value, &one.member) == nil && presencePrefix+escape(one.member.ID) == key {
			seen[key] = one
		}
	}
	p.mu.Lock()
	dead := p.roster.list(time.Since(p.base), seen)
	p.mu.Unlock()
	for _, key := range dead {
		if _, err := p.opts.Register.Swap(ctx, key, seen[key].revision, nil); err != nil && !errors.Is(err, ErrChanged) {
			return err
		}
	}
	return nil
}

// note logs when the register stops answering, and when it answers again.
func (p *Presence) note(err error) {
	if err != nil && !p.failing {
		p.opts.Logger.Warn("the cluster's register does not take that this member is there: others take it for gone", "error", err)
	}
	p.failing = err != nil
}
