package keyadmin

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

const (
	// GrantsTable has what keys may use beyond their quota until their window ends.
	GrantsTable = "grants"
	// seenEvery is how often grants of other processes are looked for.
	seenEvery = time.Second
)

// grant is what a key may use beyond its quota.
type grant struct {
	Extra int64      `json:"extra"`
	Until limit.Time `json:"until"` // the end of the window
}

type grantKey struct{ id, key string }

// Grants are what keys of fixed windows may use beyond their quota. It is safe for concurrent use; make it with
// [NewGrants], have an engine raise quotas by [Grants.Raise], and let Run follow what other processes grant.
type Grants struct {
	records store.Records
	now     func() limit.Time
	log     *slog.Logger

	live atomic.Pointer[map[grantKey]grant]
	mu   sync.Mutex // held while live is replaced
}

// NewGrants returns the grants that stand in records. now is the clock; nil = the system's. log nil = slog.Default.
func NewGrants(records store.Records, now func() limit.Time, log *slog.Logger) *Grants {
	if now == nil {
		now = func() limit.Time { return limit.At(time.Now()) }
	}
	if log == nil {
		log = slog.Default()
	}
	g := &Grants{records: records, now: now, log: log}
	g.live.Store(new(map[grantKey]grant))
	return g
}

// Run reads the grants now and every second until ctx ends.
func (g *Grants) Run(ctx context.Context) {
	tick := time.NewTicker(seenEvery)
	defer tick.Stop()
	for failing := false; ; {
		err := g.Read(ctx)
		if failing != (err != nil) && ctx.Err() == nil {
			if failing = err != nil; failing {
				g.log.Warn("grants cannot be read: those that are known hold", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Read takes over the grants that stand in the records.
func (g *Grants) Read(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, all := g.now(), make(map[grantKey]grant)
	for after := ""; ; {
		found, err := g.records.Range(ctx, GrantsTable, "", after, 1000)
		if err != nil {
			return fmt.Errorf("keyadmin: %w", err)
		}
		for _, r := range found {
			after = r.Key
			var one grant
			if key, ok := cutGrantKey(r.Key); ok && json.Unmarshal(r.Value, &one) == nil && one.Until > now && one.Extra > 0 {
				all[key] = one
			}
		}
		if len(found) < 1000 {
			break
		}
	}
	g.live.Store(&all)
	return nil
}

// text is the key of the record. Keys of limits have any bytes.
func (k grantKey) text() string {
	return base64.RawURLEncoding.EncodeToString([]byte(k.id)) + "." + base64.RawURLEncoding.EncodeToString([]byte(k.key))
}

func cutGrantKey(text string) (k grantKey, ok bool) {
	for i := range len(text) {
		if text[i] != '.' {
			continue
		}
		id, err1 := base64.RawURLEncoding.DecodeString(text[:i])
		key, err2 := base64.RawURLEncoding.DecodeString(text[i+1:])
		return grantKey{string(id), string(key)}, err1 == nil && err2 == nil
	}
	return k, false
}

// of returns what the key has been granted; 0 = nothing.
func (g *Grants) of(id string, key []byte) int64 {
	all := *g.live.Load()
	if len(all) == 0 {
		return 0
	}
	one, known := all[grantKey{id, string(key)}]
	if !known || g.now() >= one.Until {
		return 0
	}
	return one.Extra
}

// Raise gives the charges of keys with a grant their larger quota. Requests pay for it only while there are grants.
func (g *Grants) Raise(charges []store.Charge) {
	if len(*g.live.Load()) == 0 {
		return
	}
	for i := range charges {
		c := &charges[i]
		spec := c.Counters.Spec()
		extra := g.of(spec.ID, c.Key)
		if extra == c.Granted || !grantable(spec.Policy) {
			continue
		}
		if !c.HasQuota {
			c.Quota, c.HasQuota = spec.Policy.Quota(), true
		}
		c.Quota = min(c.Quota-c.Granted+extra, limit.MaxCount) // a charge may come again
		c.Granted = extra
	}
}

// grantable says whether a store honours a quota of a charge's own.
func grantable(p limit.Policy) bool {
	return p.Algorithm == limit.FixedWindow && p.Ban == 0 && !p.Unlimited
}

// errCap is wrapped by the error of a grant that is too large.
var errCap = errors.New("it is above the cap of grants")

// add grants extra until the window ends, and returns what the key has been granted in all.
func (g *Grants) add(ctx context.Context, key grantKey, extra, most int64, until limit.Time) (int64, error) {
	for {
		now := g.now()
		present, err := g.records.Get(ctx, GrantsTable, key.text())
		if err != nil {
			return 0, fmt.Errorf("keyadmin: %w", err)
		}
		var was grant
		if json.Unmarshal(present, &was) != nil || was.Until <= now {
			was = grant{}
		}
		if extra > most-was.Extra {
			return was.Extra, fmt.Errorf("keyadmin: %w: %w: %d were granted in this window, and %d is the most", ErrBadRequest, errCap, was.Extra, most)
		}
		is := grant{Extra: was.Extra + extra, Until: until}
		value, err := json.Marshal(is)
		if err != nil {
			return 0, fmt.Errorf("keyadmin: %w", err)
		}
		swapped, _, err := g.records.Swap(ctx, GrantsTable, key.text(), present, value, max(time.Duration(until-now), time.Second))
		if err != nil {
			return was.Extra, fmt.Errorf("keyadmin: %w", err)
		}
		if swapped {
			g.put(key, is)
			return is.Extra, nil
		}
	}
}

// forget drops what the key was granted.
func (g *Grants) forget(ctx context.Context, key grantKey) error {
	present, err := g.records.Get(ctx, GrantsTable, key.text())
	if err == nil && present != nil {
		_, _, err = g.records.Swap(ctx, GrantsTable, key.text(), present, nil, 0)
	}
	if err != nil {
		return fmt.Errorf("keyadmin: %w", err)
	}
	g.put(key, grant{})
	return nil
}

func (g *Grants) put(key grantKey, is grant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := maps.Clone(*g.live.Load())
	if all == nil {
		all = make(map[grantKey]grant)
	}
	if is.Extra == 0 {
		delete(all, key)
	} else {
		all[key] = is
	}
	g.live.Store(&all)
}
