package plans

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Load reads every customer that was set.
func (d *Desk) Load(ctx context.Context) error {
	live := newTable(0)
	for after := ""; ; {
		found, err := d.records.Range(ctx, customersTable, "", after, page)
		if err != nil {
			return fmt.Errorf("plans: customers cannot be read: %w", err)
		}
		d.dir.mu.Lock()
		for _, r := range found {
			after = r.Key
			var c Customer
			if json.Unmarshal(r.Value, &c) == nil {
				d.dir.put(&live, r.Key, &c.Assignment)
			}
		}
		if len(found) < page {
			d.dir.live = live
			d.dir.mu.Unlock()
			return nil
		}
		d.dir.mu.Unlock()
	}
}

// Run sees what other servers change, until ctx ends.
func (d *Desk) Run(ctx context.Context) {
	tick := time.NewTicker(seenEvery)
	defer tick.Stop()
	f := follower{desk: d, seen: make(map[string]bool)}
	for failing := false; ; {
		err := f.look(ctx)
		if failing != (err != nil) && ctx.Err() == nil {
			if failing = err != nil; failing {
				d.log.Warn("changes of customers are not seen", "err", err)
			} else {
				d.log.Info("changes of customers are seen again")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// follower remembers which changes it has seen.
type follower struct {
	desk *Desk
	last time.Time // of the latest look that was answered
	seen map[string]bool
}

// look reads the customers that have changed since the last look. The first one, and one after a long time, reads all.
func (f *follower) look(ctx context.Context) error {
	d := f.desk
	now := d.dir.now()
	if f.last.IsZero() || now.Sub(f.last) > keepChanges/2 || now.Before(f.last) {
		if err := d.Load(ctx); err != nil {
			return err
		}
		if f.last.IsZero() {
			f.last = now
		}
	}
	seen := make(map[string]bool)
	for after := fmt.Sprintf("%016x", uint64(f.last.Add(-skew).UnixNano())); ; {
		found, err := d.records.Range(ctx, changesTable, "", after, page)
		if err != nil {
			return err
		}
		for _, r := range found {
			after = r.Key
			if seen[r.Key] = true; f.seen[r.Key] {
				continue
			}
			name := r.Key[17:]
			raw, err := d.records.Get(ctx, customersTable, name)
			if err != nil {
				return err
			}
			var c Customer
			if raw == nil {
				d.see(name, nil)
			} else if json.Unmarshal(raw, &c) == nil {
				d.see(name, &c.Assignment)
			}
		}
		if len(found) < page {
			f.last, f.seen = now, seen
			return nil
		}
	}
}
