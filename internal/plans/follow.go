package plans

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/store"
)

// Open reads every customer that was set, so that they are known before the first request. After an error [Desk.Run]
// tries again. It is not called while Run runs.
func (d *Desk) Open(ctx context.Context) error {
	if d.View().By() == nil {
		return nil
	}
	return d.follower.look(ctx)
}

// load reads every customer that was set.
func (d *Desk) load(ctx context.Context) error {
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
	for failing := false; ; {
		var err error
		if d.View().By() != nil { // without plans there are no customers
			err = d.follower.look(ctx)
		}
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

// follower knows up to which number of the list of changes it has seen them. Changes are numbered without gaps, so that
// no clock matters: not that of the server which made one, nor that of the one which sees it.
type follower struct {
	desk   *Desk
	at     uint64
	loaded bool
}

// look reads the customers that have changed since the last look. Where the list does not go back to there, or begins
// anew because the store has lost it, it reads all.
func (f *follower) look(ctx context.Context) error {
	head, err := f.desk.head(ctx)
	if err != nil {
		return err
	}
	if !f.loaded || head < f.at {
		return f.load(ctx, head)
	}
	from := f.at
	if f.at == head { // as a rule; a list of one thousand changes is not read each time
		if next, err := f.desk.records.Get(ctx, changesTable, number(f.at+1)); err != nil || next == nil {
			return err
		}
	}
	for {
		found, err := f.desk.records.Range(ctx, changesTable, "", number(f.at), page)
		if err != nil {
			return err
		}
		for _, r := range found {
			if r.Key != number(f.at+1) {
				return f.load(ctx, head) // what was listed is gone
			}
			if err := f.desk.read(ctx, string(r.Value)); err != nil {
				return err
			}
			if _, err := fmt.Sscanf(r.Key, "%x", &f.at); err != nil {
				return fmt.Errorf("plans: the list of changes has %.40q: %w", r.Key, err)
			}
		}
		if len(found) < page {
			break
		}
	}
	if f.at < head {
		return f.load(ctx, head)
	}
	if f.at > from && f.at > head { // who made the latest change has not said so
		return f.desk.records.Raise(ctx, headTable, []store.Mark{{Key: headKey, N: f.at}}, 0)
	}
	return nil
}

// load reads every customer. head was the number of the latest change before.
func (f *follower) load(ctx context.Context, head uint64) error {
	err := f.desk.load(ctx)
	if err == nil {
		f.at, f.loaded = head, true
	}
	return err
}

// number is the key of a change.
func number(n uint64) string { return fmt.Sprintf("%016x", n) }

// head returns the number of the latest change, as far as it is known.
func (d *Desk) head(ctx context.Context) (uint64, error) {
	found, err := d.records.Marks(ctx, headTable, "", "", 1)
	if err != nil || len(found) == 0 {
		return 0, err
	}
	return found[0].N, nil
}

// tell adds the change of a customer to the list.
func (d *Desk) tell(ctx context.Context, name string) error {
	n, err := d.head(ctx)
	for err == nil {
		var added bool
		n++
		added, _, err = d.records.Swap(ctx, changesTable, number(n), nil, []byte(name), keepChanges)
		switch {
		case added:
			return d.records.Raise(ctx, headTable, []store.Mark{{Key: headKey, N: n}}, 0)
		case errors.Is(err, store.ErrFull):
			err = d.forget(ctx, err)
			n--
		}
	}
	return err
}

// forget takes the oldest changes off the list, of which there is no room for more. Who has not seen them reads all
// customers. It returns full if there are none.
func (d *Desk) forget(ctx context.Context, full error) error {
	found, err := d.records.Range(ctx, changesTable, "", "", forgotten)
	if err == nil && len(found) == 0 {
		err = full
	}
	for _, r := range found {
		if err == nil {
			_, _, err = d.records.Swap(ctx, changesTable, r.Key, r.Value, nil, 0)
		}
	}
	return err
}

// read puts in the directory what is recorded of a customer.
func (d *Desk) read(ctx context.Context, name string) error {
	raw, err := d.records.Get(ctx, customersTable, name)
	if err != nil {
		return err
	}
	var c Customer
	switch {
	case raw == nil:
		d.see(name, nil)
	case json.Unmarshal(raw, &c) == nil:
		d.see(name, &c.Assignment)
	}
	return nil
}
