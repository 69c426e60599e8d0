package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ErrNameTaken is the error of AwaitName when another process is the member of that name.
var ErrNameTaken = errors.New("cluster: another process is a member of this name")

// AwaitName returns when a process may take part as Self. It is for a start, before Presence.Run, and it
// writes nothing.
//
// A record with the address of Self is of a former run: two processes do not listen at one address. A
// record with another address may be of a process that was killed: AwaitName watches it for as long as
// a member is silent before it counts as dead. If the record changes meanwhile, its process lives, and
// the error wraps ErrNameTaken. Any other error says that the register does not answer.
func AwaitName(ctx context.Context, o PresenceOptions) error {
	o.complete()
	key := presencePrefix + escape(o.Self.ID)
	first, err := o.Register.Read(ctx, key)
	if err != nil || first.Revision == 0 {
		return err
	}
	var other Member
	if json.Unmarshal(first.Value, &other) == nil && other.Address == o.Self.Address {
		return nil
	}
	o.Logger.Info("the name of this member is in the register: the start waits until it is known whether its process lives", "node", o.Self.ID, "address", other.Address, "at_most", silentTimes*o.Every)
	tick := time.NewTicker(o.Every / 2)
	defer tick.Stop()
	// From after the read on, since the record may have been written just before it.
	for begun := time.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		record, err := o.Register.Read(ctx, key)
		switch {
		case err != nil:
			return err
		case record.Revision == 0:
			return nil // its process has ended
		case record.Revision != first.Revision:
			return fmt.Errorf("%w: %q at %q", ErrNameTaken, o.Self.ID, other.Address)
		case time.Since(begun) >= silentTimes*o.Every:
			return nil
		}
	}
}
