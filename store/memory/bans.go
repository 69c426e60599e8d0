package memory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

var _ store.BanKeeper = (*Store)(nil)

// bans are the keys of the bans of one limit: tables know keys by their hash alone. A ban itself
// is in the table; an entry here has what is needed to list it. An entry is made by the request
// that begins the ban, or by the next one that it refuses, before the answer is given. The lock of
// a shard of bans is taken before that of a shard of the table.
type bans struct {
	begun    atomic.Uint64
	unlisted atomic.Uint64
	shards   [shardCount]banShard
}

type banShard struct {
	mu      sync.Mutex
	keys    map[uint64]bannedKey
	pruneAt int // entries at which those that have ended are dropped
}

type bannedKey struct {
	key   string
	named bool   // key is the key; it is too long otherwise
	ends  uint64 // since the store's beginning
}

const (
	// banOverhead is about what an entry takes beside its key: a slot of the map, which is half
	// full, and the string.
	banOverhead = 96
	// longestBanKey is the length in bytes up to which a key is kept. Not longer: clients choose
	// keys. Not shorter: the values of a key of several attributes are up to 128 bytes each.
	longestBanKey = 512
	// leastPrune is how many entries a shard has at least before it is pruned.
	leastPrune = 16
)

func (b bannedKey) bytes() int64 { return banOverhead + int64(len(b.key)) }

// noteBan makes an entry for a key that was just refused, if it is banned.
func (c *Counters) noteBan(h uint64, key []byte) {
	if b := c.bans.Load(); b != nil && c.listBan(h, key) {
		b.begun.Add(1)
	}
}

// listBan makes an entry for a key, if it is banned, and reports whether it did.
func (c *Counters) listBan(h uint64, key []byte) bool {
	b := c.bans.Load()
	if b == nil {
		return false
	}
	sh := &b.shards[shardOf(h)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if c.bans.Load() != b {
		return false // keepBans has emptied b, or is about to: an entry made now would be charged for ever
	}
	since := c.store.since()
	known, ok := sh.keys[h]
	if ok && since < known.ends {
		return false
	}
	left, banned := c.bannedFor(h)
	if !banned {
		return false
	}
	if ok {
		c.dropBan(sh, h)
	} else if len(sh.keys) >= max(sh.pruneAt, leastPrune) {
		c.prune(sh, since)
	}
	if since < since+left {
		since += left
	}
	entry := bannedKey{ends: since}
	if len(key) <= longestBanKey {
		entry.key, entry.named = string(key), true
	}
	if !c.account.reserve(entry.bytes(), 0) {
		// The ban stands; only the list lacks it.
		b.unlisted.Add(1)
		return false
	}
	if sh.keys == nil {
		sh.keys = map[uint64]bannedKey{}
	}
	sh.keys[h] = entry
	return true
}

// bannedFor says whether a key is banned, and for how long yet. A cost of 0 fits unless the key
// went over.
func (c *Counters) bannedFor(h uint64) (left uint64, banned bool) {
	v := c.peek(h, costing(0))
	return uint64(v.ResetAfter), !v.Allowed && v.Reason != limit.ReasonTableFull
}

// prune drops the entries of bans that have ended. The shard is locked.
func (c *Counters) prune(sh *banShard, since uint64) {
	for h, e := range sh.keys {
		if since >= e.ends {
			if _, banned := c.bannedFor(h); !banned { // a change of policy may have made it longer
				c.dropBan(sh, h)
			}
		}
	}
	sh.pruneAt = 2 * len(sh.keys)
}

// dropBan forgets an entry, but not the ban. The shard is locked.
func (c *Counters) dropBan(sh *banShard, h uint64) {
	c.account.charge(-sh.keys[h].bytes())
	delete(sh.keys, h)
}

// keepBans makes or drops the place for entries, as the policy bans or does not. Store.mu is held.
func (c *Counters) keepBans(p limit.Policy) {
	b := c.bans.Load()
	switch {
	case p.Ban > 0 && b == nil:
		c.bans.Store(new(bans))
		c.store.banning.Store(true)
	case p.Ban == 0 && b != nil:
		c.bans.Store(nil)
		for i := range b.shards {
			sh := &b.shards[i]
			sh.mu.Lock()
			for h := range sh.keys {
				c.dropBan(sh, h)
			}
			sh.mu.Unlock()
		}
	}
}

// noteBans makes entries for the charges of a Take that a ban refused.
func (s *Store) noteBans(charges []store.Charge) {
	for i := range charges {
		c := &charges[i]
		if v := &c.Verdict; v.Allowed || v.Reason == limit.ReasonTableFull || c.Cost == 0 {
			continue
		}
		if own := c.Counters.(*Counters); own.bans.Load() != nil {
			own.noteBan(own.hash(c.Key), c.Key)
		}
	}
}

// Bans lists bans in the order of the hashes of their keys.
func (s *Store) Bans(ctx context.Context, c store.Counters, after string, most int) (list []store.Ban, next string, err error) {
	own, err := s.own(c)
	if err != nil {
		return nil, "", err
	}
	first := uint64(0)
	if after != "" {
		if first, err = banHash(after); err != nil {
			return nil, "", err
		}
		first++
	}
	b := own.bans.Load()
	if b == nil {
		return nil, "", nil
	}
	most = max(most, 1)
	for i := shardOf(first); i < shardCount; i++ {
		if err := ctx.Err(); err != nil {
			return nil, "", fmt.Errorf("memory: the bans are not listed: %w", err)
		}
		list = own.listShard(&b.shards[i], first, list)
		if len(list) >= most {
			list = list[:most]
			return list, list[most-1].ID, nil
		}
	}
	return list, "", nil
}

// listShard appends the bans of a shard from a hash on.
func (c *Counters) listShard(sh *banShard, first uint64, list []store.Ban) []store.Ban {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, h := range slices.Sorted(maps.Keys(sh.keys)) {
		if h < first {
			continue
		}
		v := c.peek(h, costing(0))
		if v.Allowed {
			c.dropBan(sh, h)
			continue
		}
		ban := store.Ban{ID: banID(h), Left: v.ResetAfter}
		if e := sh.keys[h]; e.named {
			ban.Key = []byte(e.key)
		}
		list = append(list, ban)
	}
	return list
}

func banID(h uint64) string { return fmt.Sprintf("%016x", h) }

func banHash(id string) (uint64, error) {
	h, err := strconv.ParseUint(id, 16, 64)
	if err != nil || len(id) != 16 {
		return 0, fmt.Errorf("memory: %.100q is not the ID of a ban: %w", id, store.ErrBanID)
	}
	return h, nil
}

// KeyOfBan returns the key of a ban by its ID; nil if the list has no such ban, or its key is too long to be
// kept.
func (s *Store) KeyOfBan(c store.Counters, id string) []byte {
	own, err := s.own(c)
	if err != nil {
		return nil
	}
	h, err := banHash(id)
	b := own.bans.Load()
	if err != nil || b == nil {
		return nil
	}
	sh := &b.shards[shardOf(h)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e, ok := sh.keys[h]; ok && e.named {
		return []byte(e.key)
	}
	return nil
}

// BanID returns the ID that a ban of a key has; "" for counters of another store.
func (s *Store) BanID(c store.Counters, key []byte) string {
	own, err := s.own(c)
	if err != nil {
		return ""
	}
	return banID(own.hash(key))
}

// Lift ends a ban.
func (s *Store) Lift(ctx context.Context, c store.Counters, b store.Ban) (bool, error) {
	own, err := s.own(c)
	if err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("memory: nothing lifted: %w", err)
	}
	h := own.hash(b.Key)
	if b.ID != "" {
		if h, err = banHash(b.ID); err != nil {
			return false, err
		}
	}
	all := own.bans.Load()
	if all == nil {
		return false, nil
	}
	// The lock keeps the entry of a ban that begins anew meanwhile: it waits, and comes after.
	sh := &all.shards[shardOf(h)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if _, banned := own.bannedFor(h); !banned {
		return false, nil
	}
	own.reset(h)
	if _, ok := sh.keys[h]; ok {
		own.dropBan(sh, h)
	}
	return true, nil
}

// BanFigures counts the entries of bans that last.
func (s *Store) BanFigures(c store.Counters) (f store.BanFigures) {
	own, err := s.own(c)
	if err != nil {
		return f
	}
	b := own.bans.Load()
	if b == nil {
		return f
	}
	f.Begun, f.Unlisted = b.begun.Load(), b.unlisted.Load()
	since := s.since()
	for i := range b.shards {
		sh := &b.shards[i]
		sh.mu.Lock()
		for _, e := range sh.keys {
			if since < e.ends {
				f.Active++
			}
		}
		sh.mu.Unlock()
	}
	return f
}
